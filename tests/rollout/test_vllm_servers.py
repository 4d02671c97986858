"""Pins the generator on vLLM servers, against a stand-in on loopback: the answers of the policy's own weights, pushed
when they moved; load shared; every misfit and failure one clear error."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from drawing import PROMPTS, as_text, asked, drawn, engine, sampled_logprobs, trainer_logprobs

from fake_vllm import GENERATE, FakeVllm, Refused, moved, served
from peerwise.errors import EngineError, ModelError, RequestError
from peerwise.rollout.base import Request, SamplingParams
from peerwise.rollout.vllm.server import Server
from peerwise.rollout.vllm.servers import UPDATING, VllmServers
from peerwise.rollout.vllm.threads import side_by_side
from peerwise.rollout.vllm.weights import Files
from tiny_models import END, tiny

GREEDY = SamplingParams(max_new_tokens=12, temperature=0.0)
SAMPLED = SamplingParams(max_new_tokens=10)


class Setting:
    """Fake servers with other weights than the policy, and the generator that asks them."""

    def __init__(self, stack: ExitStack, folder: Path, count: int = 1) -> None:
        self.stack = stack
        self.model = tiny("llama")
        moved(self.model, 1)
        self.fakes = [FakeVllm(tiny("llama"), as_text) for _ in range(count)]
        self.urls = [stack.enter_context(served(fake)) for fake in self.fakes]
        self.folder = folder
        self.generator = self.asking(self.urls)

    def asking(self, urls: list[str], **how: Any) -> VllmServers:
        generator = VllmServers(
            self.model,
            decode=as_text,
            end_ids=frozenset({END}),
            servers=[Server(url, **{"timeout": 20.0, "waits": (0.01, 0.01)} | how) for url in urls],
            transfer=Files(str(self.folder)),
        )
        self.stack.callback(generator.close)
        return generator


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Setting]:
    with ExitStack() as stack:
        yield Setting(stack, tmp_path)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Setting]:
    with ExitStack() as stack:
        yield Setting(stack, tmp_path, 2)


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(max_new_tokens=12, temperature=0.0, min_new_tokens=12, repetition_penalty=1.3),
        SamplingParams(max_new_tokens=12, temperature=0.0, logit_bias=((40, 6.0),)),
        SamplingParams(max_new_tokens=12, temperature=0.0, stop=tuple(as_text([i]) for i in range(4, 97, 5))),
    ],
)
def test_greedy_answers_are_the_native_engines(one, params):
    one.generator.connect(64)
    requests = asked(PROMPTS, 3)
    found = one.generator.generate(requests, params)
    expected = engine(one.model).generate(requests, params)
    for theirs, ours in zip(found, expected, strict=True):
        assert [(a.token_ids, a.finish, a.text) for a in theirs] == [(a.token_ids, a.finish, a.text) for a in ours]
    assert sampled_logprobs(found) == pytest.approx(sampled_logprobs(expected), abs=1e-5)


def test_sampled_answers_have_the_trainers_logprobs_and_differ_within_a_group(one):
    one.generator.connect(64)
    requests = asked(PROMPTS, 4)
    params = SamplingParams(max_new_tokens=10, temperature=1.3)
    found = one.generator.generate(requests, params)
    assert sampled_logprobs(found) == pytest.approx(trainer_logprobs(one.model, requests, found, 1.3), abs=1e-4)
    assert all(len({answer.token_ids for answer in of_request}) > 1 for of_request in found)
    assert one.generator.generate(requests, params) == found
    assert drawn(one.generator, asked(PROMPTS, 4, seed=1), params) != [[a.token_ids for a in row] for row in found]


def test_moved_weights_are_pushed_once_before_the_next_answers(one):
    one.generator.connect(64)
    (fake,) = one.fakes
    before = drawn(one.generator, asked(PROMPTS, 1), GREEDY)
    assert fake.calls["/update_weights"] == 1
    moved(one.model, 2)
    one.generator.weights_moved(7)
    assert fake.calls["/update_weights"] == 1
    after = drawn(one.generator, asked(PROMPTS, 1), GREEDY)
    drawn(one.generator, asked(PROMPTS, 1), GREEDY)
    assert after == drawn(engine(one.model), asked(PROMPTS, 1), GREEDY) != before
    assert fake.calls["/update_weights"] == fake.calls["/reset_prefix_cache"] == 2
    assert fake.label == one.generator.label and fake.label.endswith(":7")
    assert not fake.paused


def test_the_weights_file_is_gone_after_a_push_and_its_folder_after_closing(one):
    one.generator.connect(64)
    (folder,) = one.folder.iterdir()
    assert list(folder.iterdir()) == []
    one.generator.close()
    assert list(one.folder.iterdir()) == []


def test_a_group_larger_than_the_server_decodes_at_one_time_is_asked_for_in_parts(one):
    one.fakes[0].max_num_seqs = 3
    one.generator.connect(64)
    one.fakes[0].asked.clear()
    ((*answers,),) = one.generator.generate(asked(PROMPTS[:1], 8), SAMPLED)
    assert sorted(params["n"] for params in one.fakes[0].asked) == [2, 3, 3]
    assert len({params["seed"] for params in one.fakes[0].asked}) == 3
    assert len(answers) == 8


def test_progress_counts_answers_up_to_all(one):
    one.generator.connect(64)
    seen: list[tuple[int, int]] = []
    one.generator.generate(asked(PROMPTS, 2), SAMPLED, lambda done, total: seen.append((done, total)))
    assert seen == [(2, 8), (4, 8), (6, 8), (8, 8)]


def test_two_servers_work_at_the_same_time(two):
    two.generator.connect(64)
    together = threading.Barrier(2)
    for fake in two.fakes:
        fake.asked.clear()
        # Passes only where both servers are being asked; otherwise it breaks after its time and the request fails.
        fake.before[GENERATE] = lambda: together.wait(10) and None
    requests = asked(PROMPTS, 2)
    found = two.generator.generate(requests, SAMPLED)
    assert [len(fake.asked) for fake in two.fakes] == [2, 2]
    for fake in two.fakes:
        fake.before.clear()
    alone = two.asking(two.urls[:1])
    alone.connect(64)
    assert alone.generate(requests, SAMPLED) == found


def test_nothing_to_ask_is_nothing_to_answer(one):
    one.generator.connect(64)
    assert one.generator.generate([], SAMPLED) == []


def test_a_lost_connection_and_a_busy_server_are_asked_again(one):
    one.generator.connect(64)
    left = iter([ConnectionError(), Refused(503, "busy")])

    def fail() -> None:
        for error in left:
            raise error

    one.fakes[0].before[GENERATE] = fail
    assert drawn(one.generator, asked(PROMPTS[:1], 1), GREEDY) == drawn(
        engine(one.model), asked(PROMPTS[:1], 1), GREEDY
    )


def test_a_server_that_died_is_named_with_what_to_do(tmp_path):
    with ExitStack() as stack:
        inner = stack.enter_context(ExitStack())
        setting = Setting(inner, tmp_path)
        setting.generator.connect(64)
        inner.close()
        setting.generator = setting.asking(setting.urls)
        with pytest.raises(EngineError, match=f"no vLLM server answers at {setting.urls[0]} .*start it"):
            setting.generator.connect(64)


def test_a_server_that_hangs_ends_in_an_error_with_the_setting(one):
    one.generator.connect(64)
    generator = one.asking(one.urls, timeout=0.3)
    generator.connect(64)
    one.fakes[0].before[GENERATE] = lambda: time.sleep(2)
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"did not answer /inference/v1/generate within 0.3 s.*vllm\.timeout"):
        generator.generate(asked(PROMPTS, 1), GREEDY)
    assert time.monotonic() - started < 1.9


def test_weights_of_somebody_else_are_never_sampled_from(one):
    one.generator.connect(64)
    for label in ("default", UPDATING, "another-run:0"):
        one.fakes[0].label = label
        with pytest.raises(EngineError, match=f"other weights than the policy's \\({label}"):
            one.generator.generate(asked(PROMPTS[:1], 1), GREEDY)


def test_an_update_that_a_killed_trainer_left_open_is_closed(one):
    one.fakes[0].updating = one.fakes[0].paused = True
    one.generator.connect(64)
    assert not one.fakes[0].updating and not one.fakes[0].paused


def test_everything_that_does_not_fit_is_said_at_once(one):
    fake = one.fakes[0]
    fake.info |= {"dtype": "torch.bfloat16", "max_model_len": 100, "logprobs_mode": "raw_logprobs"}
    fake.info["quantization"] = "fp8"
    fake.backend = None
    with pytest.raises(ModelError) as caught:
        one.generator.connect(512)
    for part in (
        one.urls[0],
        "--dtype float32",
        "its context is 100 and the run needs 512: --max-model-len 512",
        "--logprobs-mode processed_logprobs",
        "its weights are rounded (fp8): without --quantization",
        'no way to take new weights: --weight-transfer-config \'{"backend": "peerwise_files"}\'',
        "docs/vllm.md",
    ):
        assert part in str(caught.value)
    assert not fake.calls["/pause"]


@pytest.mark.parametrize(
    ("version", "routes", "message"),
    [
        ("0.31.9", None, "runs vLLM 0.31.9, expected 0.32 or later"),
        ("unknown", None, "runs vLLM unknown"),
        (
            "1.0.0",
            ["/server_info", "/weight_info"],
            "no route /inference/v1/generate; start it with --enable",
        ),
        ("0.40.1", [GENERATE], "no route /server_info; start it with VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_versions_and_missing_routes_are_refused(one, version, routes, message):
    one.fakes[0].version = version
    one.fakes[0].routes = one.fakes[0].routes if routes is None else routes
    with pytest.raises(ModelError, match=message):
        one.generator.connect(64)


def test_a_url_with_something_else_behind_it_is_refused(one):
    one.fakes[0].get_version = lambda: ["hello"]
    with pytest.raises(EngineError, match="does not answer as a vLLM server does"):
        one.generator.connect(64)


def test_a_server_whose_weights_do_not_change_is_found_out_before_training(one):
    one.fakes[0].deaf = True
    with pytest.raises(ModelError, match="does not answer as the model that is trained"):
        one.generator.connect(64)


def test_a_server_with_another_model_is_found_out_when_weights_are_sent(one):
    one.fakes[0].model = tiny("gpt_neox")
    one.fakes[0].post_update_weights = lambda update_info: (_ for _ in ()).throw(Refused(500, "no such weight"))
    with pytest.raises(ModelError, match=r"no such weight.*Does the server hold the model that is trained"):
        one.generator.connect(64)


def test_a_prefix_cache_that_stays_filled_is_an_error(one):
    one.fakes[0].post_reset_prefix_cache = lambda: {"success": False}
    with pytest.raises(ModelError, match="could not empty its prefix cache"):
        one.generator.connect(64)


def test_a_prompt_beyond_the_servers_context_is_refused_before_it_is_sent(one):
    one.fakes[0].info["max_model_len"] = 30
    one.generator.connect(30)
    one.fakes[0].asked.clear()
    with pytest.raises(ModelError, match="context of 30"):
        one.generator.generate([Request(prompt_ids=(5,) * 25, keys=(1,))], GREEDY)
    assert one.fakes[0].asked == []


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(max_new_tokens=4, min_p=0.1, top_p=0.9), "vLLM applies min_p before top_p"),
        (SamplingParams(max_new_tokens=4, logit_bias=((5, -101.0),)), "from -100 to 100"),
    ],
)
def test_what_vllm_would_understand_otherwise_is_refused(one, params, message):
    one.generator.connect(64)
    with pytest.raises(RequestError, match=message):
        one.generator.generate(asked(PROMPTS, 1), params)


def spoiled(choice: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for name in parents:
        choice = choice[int(name) if name.isdigit() else name]
    choice[int(last) if last.isdigit() else last] = value


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("logprobs/content/0/token_id", 96, "log-probs are of other tokens"),
        ("logprobs/content/0/logprob", math.nan, "not one finite number for each token"),
        ("logprobs/content/0/logprob", "low", "form that is not known"),
        ("logprobs", None, "form that is not known"),
        ("token_ids", 5, "form that is not known"),
        ("index", 4, "form that is not known"),
        ("weight_versions", None, "other weights than the policy's \\(no label"),
    ],
)
def test_an_answer_that_is_none_is_an_error(one, path, value, message):
    one.generator.connect(64)

    def spoil(response: dict[str, Any]) -> dict[str, Any]:
        spoiled(response["choices"][0], path, value)
        return response

    one.fakes[0].spoil = spoil
    with pytest.raises(EngineError, match=message):
        one.generator.generate(asked(PROMPTS[:1], 1), GREEDY)


def test_an_answer_that_was_cut_short_is_an_error(one):
    one.generator.connect(64)
    one.fakes[0].spoil = lambda response: (
        json.loads(json.dumps(response).replace('"stop"', '"abort"'))
        | {
            "choices": [
                choice
                | {"token_ids": choice["token_ids"][:2], "logprobs": {"content": choice["logprobs"]["content"][:2]}}
                for choice in response["choices"]
            ]
        }
    )
    with pytest.raises(EngineError, match=r"ended an answer after 2 tokens.*12 were allowed"):
        one.generator.generate(asked(PROMPTS[:1], 1), GREEDY)


def test_side_by_side_gives_every_result_and_stops_at_the_first_error():
    assert sorted(side_by_side([lambda i=i: i * i for i in range(9)], 3)) == [(i, i * i) for i in range(9)]
    begun: list[int] = []

    def job(index: int) -> int:
        begun.append(index)
        if index == 1:
            raise ValueError("broken")
        return index

    with pytest.raises(ValueError, match="broken"):
        list(side_by_side([lambda i=i: job(i) for i in range(50)], 1))
    assert begun == [0, 1]
