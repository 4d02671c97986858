"""Pins DPO on a file of pairs: its gradient against the loss written out over padded rows, what is left out and said,
that it learns, samples nothing, is evaluated as any stage is, and resumes exactly.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import digests, go_on, killed_at, rows, start
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.errors import DataError, RecipeError
from peerwise.metrics.console import Console
from peerwise.metrics.write import RunFiles
from peerwise.recipe.load import loads
from peerwise.recipe.plan import plan
from peerwise.rollout.native.engine import NativeEngine
from peerwise.tasks.pairs import Pair
from peerwise.train.checkpoint import checkpoints
from peerwise.train.dpo import Dpo
from peerwise.train.stages import train
from tiny_models import BOS, END, PAD, tiny_policy

BETA = 0.5
CHAT = [{"role": "system", "content": "add"}, {"role": "user", "content": "4+4"}]
PAIRS = [
    {"prompt": "1+1", "chosen": "2", "rejected": "three"},
    {"prompt": "what is 2+3", "chosen": "it is 5", "rejected": "6"},
    {"prompt": "7", "chosen": "7 7 7 7 7", "rejected": "8 8"},
    {"prompt": CHAT, "chosen": "8", "rejected": "9"},
    {"prompt": "9-1", "chosen": "eight", "rejected": "eighteen"},
    {"prompt": "3*3", "chosen": "9", "rejected": "6"},
    {"prompt": "0", "chosen": "nothing", "rejected": "one"},
]


def written(folder: Path, pairs: Sequence[dict[str, Any]] = PAIRS) -> str:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return str(path)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    return written(tmp_path)


def words(path: str, **more: Any) -> list[str]:
    settings = {"dpo.pairs": path, "dpo.beta": BETA, "dpo.batch-size": 3, **more}
    flags = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return ["--stage.grpo.method", "dpo", "--stage.grpo.rollout.max-new-tokens", "10", *flags]


class Opened(BaseException):
    """Carries a stage out of the run that made it."""


def opened(files: Path, folder: Path, *more: str) -> Dpo:
    """The stage as a run without an sft stage makes it, ready for its first step."""

    def caught(self: Dpo, step: int) -> Any:
        raise Opened(self)

    text = (files / "recipe.toml").read_text()
    recipe = loads(text[: text.index("[stage.sft]")] + text[text.index("[stage.grpo]") :], more)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Opened) as found:
        patch.setattr(Dpo, "step", caught)
        train(recipe, folder, Console(file=io.StringIO()))
    stage: Dpo = found.value.args[0]
    return stage


# The gradient


def answer_logprobs(model: PreTrainedModel, pairs: Sequence[Pair]) -> Tensor:
    """[N, 2] log-probs of whole answers, better one first, from rows padded to the longest."""
    id_of = tiny_policy().tokenizer.get_vocab()
    texts = []
    for pair in pairs:
        chat = "".join(f"{message['role'][0]}:{message['content']}\n" for message in pair.messages)
        prompt = [BOS, *(id_of[character] for character in chat + "a:")]
        texts += [(prompt, [*(id_of[character] for character in text), END]) for text in (pair.chosen, pair.rejected)]
    longest = max(len(prompt) + len(answer) for prompt, answer in texts)
    ids = torch.full((len(texts), longest), PAD)
    seen, counted = torch.zeros(len(texts), longest), torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(texts):
        whole = len(prompt) + len(answer)
        ids[row, :whole], seen[row, :whole] = torch.tensor([*prompt, *answer]), 1
        counted[row, len(prompt) : whole] = True
    logprobs = model(input_ids=ids, attention_mask=seen).logits[:, :-1].log_softmax(-1)
    of_tokens = logprobs.gather(-1, ids[:, 1:, None])[..., 0]
    return (of_tokens * counted[:, 1:]).sum(-1).view(-1, 2)


def by_hand(
    state: dict[str, Tensor], pairs: Sequence[Pair], beta: float
) -> tuple[dict[str, Tensor], float, list[float]]:
    """Gradient, loss and margins of -log sigmoid(beta * difference of log-ratios), in float64."""
    model = tiny_policy().model
    model.load_state_dict(state)
    model.double()
    with torch.no_grad():
        frozen = answer_logprobs(tiny_policy().model.double(), pairs)
    ratios = answer_logprobs(model, pairs) - frozen
    margins = beta * (ratios[:, 0] - ratios[:, 1])
    loss = (1 + (-margins).exp()).log().mean()
    loss.backward()
    gradient = {name: p.grad.float() for name, p in model.named_parameters()}
    return gradient, loss.item(), margins.tolist()


@pytest.mark.parametrize("budget", [16, 100, 4096])
def test_every_step_follows_the_loss_written_out_over_padded_rows(files, tmp_path, pairs, budget):
    stage = opened(files, tmp_path / "run", *words(pairs), "--optimizer.micro-batch-tokens", str(budget))
    weights, model = stage.optimizer.weights, stage.session.policy.model
    gradients: list[dict[str, Tensor]] = []
    moving = stage.optimizer.step

    def recording(rate: float) -> float:
        gradients.append({name: gradient.clone() for name, gradient in weights.gradients().items()})
        return moving(rate)

    stage.optimizer.step = recording
    for step in range(3):
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        metrics = stage.step(step).resolve()
        assert len(stage.read) == 3
        lengths = [{len(pair.chosen), len(pair.rejected)} for pair in stage.read]
        assert len(set(map(frozenset, lengths))) > 1
        gradient, loss, margins = by_hand(before, stage.read, BETA)
        largest = max(float(x.abs().max()) for x in gradient.values())
        assert gradient.keys() == gradients[step].keys()
        assert largest > 1e-3
        for name, expected in gradient.items():
            assert float((gradients[step][name] - expected).abs().max()) <= 1e-4 * largest, name
        assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
        assert metrics["pairs/margin"] == pytest.approx(sum(margins) / 3, abs=1e-5)
        if step:
            assert metrics["pairs/preferred"] == pytest.approx(sum(margin > 0 for margin in margins) / 3)
            assert abs(loss - math.log(2)) > 1e-4
        else:
            assert loss == pytest.approx(math.log(2), abs=1e-9)


def test_the_temperature_of_sampling_changes_nothing_for_answers_that_were_not_sampled(files, tmp_path, pairs):
    found = []
    for temperature in ("1.0", "0.5"):
        stage = opened(files, tmp_path / temperature, *words(pairs), "--rollout.temperature", temperature)
        found.append([stage.step(step).resolve()["loss"] for step in range(2)])
    assert found[0] == found[1]


# What is read


def test_every_pair_is_met_once_in_an_epoch_and_the_next_is_in_another_order(files, tmp_path, pairs):
    stage = opened(files, tmp_path / "run", *words(pairs, **{"dpo.batch-size": 7}))
    orders = []
    for step in range(3):
        metrics = stage.step(step).resolve()
        orders.append([pair.id for pair in stage.read])
        assert (stage.position, metrics["epoch"]) == (7 * (step + 1), step + 1)
    names = [f"pairs/{line}" for line in range(1, 8)]
    assert [sorted(order) for order in orders] == [names] * 3
    assert len(set(map(tuple, orders))) == 3


def test_a_batch_goes_over_the_end_of_the_file(files, tmp_path, pairs):
    stage = opened(files, tmp_path / "run", *words(pairs, **{"dpo.batch-size": 9}))
    stage.step(0)
    assert len(stage.read) == 9
    assert len({pair.id for pair in stage.read}) == 7


def said_by(files: Path, folder: Path, *more: str) -> str:
    return start(files, folder, "full", *more, "--evaluation.every", "0")


def test_pairs_that_are_too_long_are_left_out_and_said(files, tmp_path):
    fitting = [{"prompt": "1+1", "chosen": "2" * 9, "rejected": "3"}, {"prompt": "2+2", "chosen": "4", "rejected": "5"}]
    # An answer of 9 characters has 10 tokens with its end; a prompt of 58 has 64 with <bos>, "u:", a line end and "a:".
    fitting.append({"prompt": "p" * 58, "chosen": "4", "rejected": "5"})
    left_out = [
        {"prompt": "1+1", "chosen": "2" * 10, "rejected": "3"},
        {"prompt": "1+1", "chosen": "2", "rejected": "3" * 10},
        {"prompt": "p" * 59, "chosen": "4", "rejected": "5"},
        {"prompt": "1+1", "chosen": "", "rejected": "5"},
    ]
    path = written(tmp_path, [left_out[0], fitting[0], *left_out[1:], *fitting[1:]])
    stage = opened(files, tmp_path / "opened", *words(path))
    stage.step(0)
    assert sorted(pair.id for pair in stage.read) == ["pairs/2", "pairs/6", "pairs/7"]
    said = said_by(files, tmp_path / "run", *words(path)).replace("\n", " ")
    said = " ".join(said.split())
    assert "stage grpo: 3 pairs of" in said
    assert "left out: 1 empty answer, 3 over 64 tokens of prompt or 10 of answer" in said


def test_nothing_is_said_of_pairs_left_out_where_none_are(files, tmp_path, pairs):
    said = " ".join(said_by(files, tmp_path / "run", *words(pairs)).split())
    assert "stage grpo: 7 pairs of" in said
    assert not any(reason in said for reason in ("tokens of prompt", "empty answer", "alike", "duplicate pair"))


def test_a_file_whose_pairs_are_all_too_long_is_refused_with_what_to_do(files, tmp_path):
    path = written(tmp_path, [{"prompt": "1+1", "chosen": "2" * 10, "rejected": "3"}, {**PAIRS[0], "chosen": ""}])
    with pytest.raises(DataError) as caught:
        said_by(files, tmp_path / "run", *words(path))
    said = str(caught.value)
    assert said.startswith("dpo.pairs: ")
    assert "has no pair that fits (1 empty answer, 1 over 64 tokens of prompt or 10 of answer)" in said
    assert "raise the limits in [rollout]" in said


@pytest.mark.parametrize("name", ["missing.jsonl", "pairs.jsonl"], ids=["missing", "nothing fits"])
def test_a_file_that_cannot_be_used_is_refused_before_anything_is_written(files, tmp_path, name):
    # The stage before it would be trained in vain, and a folder that holds half a run refuses the next try.
    written(tmp_path, [{"prompt": "1+1", "chosen": "2" * 10, "rejected": "3"}])
    with pytest.raises(DataError, match=r"dpo\.pairs"):
        said_by(files, tmp_path / "run", *words(str(tmp_path / name)))
    assert not (tmp_path / "run").exists()


def test_pairs_that_the_models_context_cannot_hold_are_refused_as_problems_are(files, tmp_path):
    # The tiny model was made for 512 tokens.
    path = written(tmp_path, [PAIRS[0], {"prompt": "p" * 600, "chosen": "4", "rejected": "5"}])
    limits = ["--rollout.max-prompt-tokens", "700", "--optimizer.micro-batch-tokens", "800"]
    with pytest.raises(RecipeError, match="context of 512"):
        opened(files, tmp_path / "run", *words(path), *limits)


def test_a_plan_counts_no_epochs_of_problems_that_a_stage_on_pairs_never_meets():
    text = "[stage.d]\nmethod = 'dpo'\nsteps = 10\ndpo = {pairs = 'x.jsonl', batch_size = 4}"
    (stage,) = plan(loads(text), num_problems=1000).stages
    assert (stage.prompts_per_update, stage.completions_per_update) == (4, 0)
    assert (stage.epochs, stage.updates_per_epoch) == (None, None)


# A run


RUN = {"stage.grpo.steps": 4}
"""After sft of 3 steps: checkpoints after steps 2, 3, 5 and 7, evaluations before, between and after."""


@pytest.fixture(scope="module")
def whole(files: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run that nothing disturbed, and its file of pairs."""
    folder = tmp_path_factory.mktemp("dpo")
    path = written(folder)
    start(files, folder / "run", "full", *words(path, **RUN))
    return folder / "run", path


@pytest.mark.parametrize("call", [4, 6], ids=["in the first step", "after a checkpoint"])
def test_a_run_on_pairs_is_resumed_to_the_same_end(files, whole, tmp_path, monkeypatch, call):
    folder = tmp_path / "run"
    with killed_at(RunFiles, "metrics", call, after=True, monkeypatch=monkeypatch):
        start(files, folder, "full", *words(whole[1], **RUN))
    go_on(folder)
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert rows(folder, name) == rows(whole[0], name)
    assert digests(folder / "checkpoints") == digests(whole[0] / "checkpoints")


def test_a_checkpoint_knows_how_many_pairs_were_read(whole):
    positions = {state.global_step: state.position for _, state in checkpoints(whole[0])}
    assert (positions[5], positions[7]) == (6, 12)


def test_nothing_is_sampled_but_for_evaluation_and_no_answers_are_written(files, tmp_path, monkeypatch, pairs):
    calls = 0
    generate = NativeEngine.generate

    def counted(self: NativeEngine, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        return generate(self, *args)

    monkeypatch.setattr(NativeEngine, "generate", counted)
    stage = opened(files, tmp_path / "opened", *words(pairs))
    before = calls  # the evaluation before training
    for step in range(3):
        metrics = stage.step(step).resolve()
        assert not any(key.startswith(("reward/", "groups/", "length/", "time/sampling")) for key in metrics)
    assert (calls, stage.groups, stage.sampling) == (before, [], None)


def test_a_stage_on_pairs_is_evaluated_as_any_other_and_writes_no_answers(whole):
    folder, _ = whole
    assert not (folder / "rollouts.jsonl").exists()
    evaluated = [(row["global_step"], row["at"]) for row in rows(folder, "evals.jsonl")]
    assert evaluated == [(0, "before"), (2, "during"), (3, "after"), (5, "during"), (7, "after")]


def test_the_better_answers_come_to_be_preferred(files, tmp_path, pairs):
    settings = {"dpo.batch-size": 7, "stage.grpo.steps": 8, "evaluation.every": 0}
    start(files, tmp_path / "run", "full", *words(pairs, **settings))
    steps = [row for row in rows(tmp_path / "run", "metrics.jsonl") if row["stage"] == "grpo"]
    # The reference is the policy as the stage found it, after sft.
    assert steps[0]["pairs/margin"] == pytest.approx(0.0, abs=1e-6)
    assert steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    margins = [row["pairs/margin"] for row in steps]
    assert margins == sorted(margins)
    assert margins[-1] > 0.5
    assert steps[-1]["pairs/preferred"] == 1.0
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.1


def test_with_adapters_the_reference_is_the_policy_as_the_stage_found_it(files, tmp_path, pairs):
    settings = {"model.lora-rank": 2, "stage.grpo.steps": 2, "evaluation.every": 0}
    start(files, tmp_path / "run", "full", *words(pairs, **settings))
    steps = [row for row in rows(tmp_path / "run", "metrics.jsonl") if row["stage"] == "grpo"]
    assert steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert steps[1]["loss"] != pytest.approx(math.log(2), abs=1e-6)


def test_the_pairs_of_a_batch_that_is_not_finite_are_saved(files, tmp_path, pairs):
    stage = opened(files, tmp_path / "run", *words(pairs))
    stage.step(0)
    stage.save_batch("step-1")
    saved = json.loads((tmp_path / "run" / "bad" / "step-1.json").read_text())
    assert [row["id"] for row in saved] == [pair.id for pair in stage.read]
    assert {row["chosen"] for row in saved} <= {pair["chosen"] for pair in PAIRS}
