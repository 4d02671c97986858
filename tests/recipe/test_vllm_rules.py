"""Pins which settings of vLLM are refused or warned of."""

from __future__ import annotations

import pytest

from peerwise.errors import RecipeError
from peerwise.recipe.check import check
from peerwise.recipe.dump import dumps
from peerwise.recipe.load import loads
from peerwise.recipe.plan import SHAPES, plan

SOUND = """
[algorithm]
preset = 'dr_grpo'
[rollout]
engine = 'vllm-server'
[vllm]
urls = ['http://127.0.0.1:8000', 'https://vllm.example:443/']
"""


def test_servers_and_an_engine_beside_the_trainer_are_sound():
    recipe = loads(SOUND, [])
    assert check(recipe) == []
    assert loads(dumps(recipe), []) == recipe
    assert check(loads("[algorithm]\npreset = 'dr_grpo'\n[rollout]\nengine = 'vllm'\n[vllm]\nmemory = 0.2", [])) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--vllm.urls", "vllm.urls: 'vllm-server' needs the URL of at least one server"),
        ("--vllm.urls localhost:8000", "vllm.urls: got 'localhost:8000', expected http://HOST:PORT"),
        ("--vllm.urls http://a:1/v1", "vllm.urls: got 'http://a:1/v1', expected http://HOST:PORT"),
        ("--vllm.urls http://a:1 http://a:1/", "vllm.urls: a server is named twice"),
        ("--vllm.transfer ipc", "vllm.transfer: 'ipc' is for rollout.engine = 'vllm'; take 'files'"),
        (
            "--vllm.transfer nccl --model.lora-rank 8",
            "vllm.transfer: 'nccl' moves all weights, and model.lora_rank trains adapters; take 'files'",
        ),
        (
            "--model.quantization nf4 --model.lora-rank 8",
            "model.quantization: vLLM would sample from weights that were not rounded to 4 bits",
        ),
        (
            "--evaluation.min-p 0.1 --evaluation.top-p 0.9 --evaluation.temperature 1",
            "evaluation.min_p: vLLM applies it before top_p",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(words, expected):
    with pytest.raises(RecipeError) as caught:
        check(loads(SOUND, words.split()))
    assert expected in str(caught.value)


def test_both_kinds_in_one_run_are_refused():
    stages = "[stage.a]\nmethod = 'grpo'\n[stage.b]\nmethod = 'grpo'\nrollout.engine = 'vllm'\n"
    with pytest.raises(RecipeError, match="stages name both 'vllm-server' and 'vllm'"):
        check(loads(SOUND + stages, []))


def test_settings_that_no_stage_reads_are_warned_of():
    (warning,) = check(loads(SOUND, ["--rollout.engine", "native"]))
    assert warning.startswith("vllm: no stage samples with it")


def test_the_cache_of_vllm_is_not_in_the_trainers_plan():
    def names(*words):
        return {term.name for term in plan(loads(SOUND, words), shape=SHAPES["smollm2-135m-instruct"]).stages[0].memory}

    assert names("--rollout.engine", "native") - names() == {
        "keys and values while sampling",
        "keys and values while evaluating",
    }
