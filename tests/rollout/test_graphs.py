"""Pins decode steps of fixed size against `generate` and against steps of their own size: the same answers, whatever
the size, with nothing that a recorder could not record; and what happens where there is none.

Without a GPU a stand-in records (recording.py). The last test captures where there is a GPU.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drawing import NEVER, PROMPTS, asked, drawn, engine, generated, sampled_logprobs
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Compute, Rerun, Traced, with_recorder
from torch import Tensor

from peerwise.errors import TrainingError
from peerwise.rollout.base import SamplingParams
from peerwise.rollout.native import graphs
from peerwise.rollout.native.graphs import bucket, cuda_recorder
from tiny_models import CONFIGS, END, tiny


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    """Sizes that tiny runs go through several of, recorded at their second step."""
    monkeypatch.setattr(graphs, "WARM_UP", 1)
    monkeypatch.setattr(graphs, "LEAST_BRANCHES", 2)
    monkeypatch.setattr(graphs, "LEAST_TOKENS", 16)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_ids_of_recorded_operations_are_those_of_generate(name):
    model, recorder = tiny(name), Traced()
    ends = [END, 11, 40]
    params = SamplingParams(max_new_tokens=12, temperature=0.0)
    # 3 answers each in 5 slots: sizes 2, 4 and 5, places that move, and rows that nobody has.
    found = drawn(with_recorder(model, recorder, ends, max_branches=5), asked(PROMPTS, 3), params)
    assert found == [[tuple(generated(model, prompt, 12, ends))] * 3 for prompt in PROMPTS]
    assert recorder.replays > recorder.records > 0


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_answers_that_outgrow_the_first_size_are_those_of_generate(name):
    model, recorder = tiny(name), Traced()
    params = SamplingParams(max_new_tokens=75, temperature=0.0)
    found = drawn(with_recorder(model, recorder, [5, NEVER], max_branches=3), asked(PROMPTS, 2), params)
    assert found == [[tuple(generated(model, prompt, 75, [5, NEVER]))] * 2 for prompt in PROMPTS]
    # 16, 32, 64 and 80 tokens at least.
    assert recorder.records >= 4


MODELS = {name: tiny(name) for name in ("llama", "mistral", "gemma2")}
ENDS = range(0, 97, 8)


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(MODELS)),
    st.lists(st.tuples(st.sampled_from(PROMPTS), st.integers(0, 5)), max_size=6),
    st.integers(1, 9),
    st.integers(1, 24),
)
def test_sampled_answers_are_those_of_steps_of_their_own_size(name, schedule, max_branches, max_new_tokens):
    requests = [request for seed, (prompt, n) in enumerate(schedule) for request in asked([prompt], n, seed)]
    params = SamplingParams(max_new_tokens=max_new_tokens)
    expected = engine(MODELS[name], ENDS, max_branches=max_branches).generate(requests, params)
    recorder = Rerun()
    found = with_recorder(MODELS[name], recorder, ENDS, max_branches=max_branches).generate(requests, params)
    assert [[answer.token_ids for answer in of_request] for of_request in found] == [
        [answer.token_ids for answer in of_request] for of_request in expected
    ]
    assert sampled_logprobs(found) == pytest.approx(sampled_logprobs(expected), abs=1e-4)
    longest = max((len(answer.token_ids) for of_request in expected for answer in of_request), default=0)
    assert (recorder.rehearsals > 0) == (longest > 1)


def test_a_bfloat16_model_draws_the_same_with_kernels_of_its_own():
    model, recorder = tiny("llama").to(torch.bfloat16), Rerun()
    params = SamplingParams(max_new_tokens=12)
    expected = engine(model, ENDS, max_branches=5).generate(asked(PROMPTS, 4), params)
    assert with_recorder(model, recorder, ENDS, max_branches=5).generate(asked(PROMPTS, 4), params) == expected
    assert recorder.replays > 0


def test_the_cache_has_all_of_its_room_and_its_addresses_from_the_first_step(monkeypatch):
    model = tiny("llama")
    made = with_recorder(model, Rerun(), [NEVER], max_branches=5)
    _, planned = made.side_by_side(prompts=len(PROMPTS), longest_prompt=9, max_new_tokens=40)
    held, addresses = [], set()
    original = graphs.Graphs.decode

    def looking(self, *step):
        hidden = original(self, *step)
        stores = [kv for store in (self.cache.prompts, self.cache.answers) for kv in (store.k, store.v)]
        tensors = [tensor for kv in stores for _, tensor in sorted(kv.items())]
        held.append(sum(tensor.nbytes for tensor in tensors))
        addresses.add(tuple(tensor.data_ptr() for tensor in tensors))
        return hidden

    monkeypatch.setattr(graphs.Graphs, "decode", looking)
    drawn(made, asked(PROMPTS, 3), SamplingParams(max_new_tokens=40))
    assert set(held) == {planned}
    assert len(addresses) == 1
    assert len(held) > 39


def test_a_size_is_recorded_after_its_warm_up_and_once(monkeypatch):
    monkeypatch.setattr(graphs, "WARM_UP", 3)
    recorder = Rerun()
    # One answer of 10 tokens: 9 decode steps of one size.
    params = SamplingParams(max_new_tokens=10)
    drawn(with_recorder(tiny("llama"), recorder, [NEVER]), asked(PROMPTS[:1], 1), params)
    assert (recorder.rehearsals, recorder.records, recorder.replays) == (3, 1, 6)


def test_the_next_call_records_its_own_steps_and_follows_weights_that_moved():
    model, recorder = tiny("llama"), Traced()
    made = with_recorder(model, recorder, [NEVER])
    params = SamplingParams(max_new_tokens=10, temperature=0.0)
    before = drawn(made, asked(PROMPTS, 1), params)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    after = drawn(made, asked(PROMPTS, 1), params)
    assert after == [[tuple(generated(model, prompt, 10, [NEVER]))] for prompt in PROMPTS]
    assert after != before


class Refusing(Rerun):
    def recorded(self, step: Compute) -> Compute:
        raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    ("kind", "reason"), [(Refusing, "when stream is capturing"), (Traced, "get value out of a tracing tensor")]
)
def test_a_model_that_cannot_be_recorded_goes_on_without_and_it_is_said_once(kind, reason, caplog):
    model, recorder = tiny("gemma"), kind()  # one that runs through its own modules
    if kind is Traced:  # it looks at its own numbers
        model.model.layers[1].register_forward_hook(lambda _, inputs, out: out * float(out.abs().max() >= 0))
    made = with_recorder(model, recorder, ENDS, max_branches=5)
    params = SamplingParams(max_new_tokens=12)
    expected = engine(model, ENDS, max_branches=5).generate(asked(PROMPTS, 4), params)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = made.generate(asked(PROMPTS, 4), params)
            assert drawn_ids(found) == drawn_ids(expected)
    (said,) = [record.message for record in caplog.records if record.name == graphs.__name__]
    assert said.startswith("decode steps of this model cannot be recorded; sampling goes on without")
    assert reason in said
    assert (recorder.records, recorder.replays) == (1, 0)


def drawn_ids(answers):
    return [[answer.token_ids for answer in of_request] for of_request in answers]


def test_weights_that_are_not_finite_are_refused_with_and_without_a_recorder():
    model = tiny("llama")
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    for made in (engine(model), with_recorder(model, Rerun())):
        for params in (SamplingParams(max_new_tokens=4), SamplingParams(max_new_tokens=4, top_p=0.5)):
            with pytest.raises(TrainingError, match="hidden states are not finite"):
                made.generate(asked(PROMPTS, 2), params)


@pytest.mark.parametrize(
    ("count", "least", "most", "expected"),
    [(1, 8, 64, 8), (8, 8, 64, 8), (9, 8, 64, 16), (64, 8, 64, 64), (33, 8, 40, 40), (3, 8, 5, 5), (5, 1, 9, 8)],
)
def test_a_size_is_the_least_doubled_until_it_holds_all_but_not_above_the_most(count, least, most, expected):
    assert bucket(count, least, most) == expected


def test_a_cpu_has_no_recorder():
    assert cuda_recorder(torch.device("cpu")) is None


class FakeCuda:
    """Writes down what is asked of torch.cuda; whatever blocks it is asked for, it says when they begin and end."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.mode: Any = 0
        self.here, self.side = (self.stream_named(name) for name in ("main", "side"))

    def stream_named(self, name: str) -> SimpleNamespace:
        wait = lambda other: self.said.append(f"{name} waits for {other.name}")  # noqa: E731
        return SimpleNamespace(name=name, wait_stream=wait)

    def set_mode(self, mode: Any) -> None:
        self.mode = mode
        self.said.append(f"mode {mode}")

    def block(self, name: str) -> Any:
        fake = self

        class Block:
            def __enter__(self) -> None:
                fake.said.append(f"{name}:")

            def __exit__(self, *error: object) -> None:
                fake.said.append(f"end of {name}")

        return Block()


@pytest.fixture
def fake(monkeypatch):
    made = FakeCuda()
    names = {
        "Stream": lambda device: made.side,
        "graph_pool_handle": lambda: "pool",
        "current_stream": lambda device: made.here,
        "stream": lambda stream: made.block(stream.name),
        "graph": lambda graph, *, pool, stream: made.block(f"capture in {pool} on {stream.name}"),
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: made.said.append("replay")),
        "get_sync_debug_mode": lambda: made.mode,
        "set_sync_debug_mode": made.set_mode,
    }
    for name, value in names.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return made


def test_a_rehearsal_runs_on_the_side_stream_where_waiting_is_an_error(fake):
    recorder = cuda_recorder(torch.device("cuda"))
    out = torch.ones(2)
    assert recorder.rehearse(lambda: fake.said.append("step") or out) is out
    expected = ["side waits for main", "side:", "mode error", "step", "mode 0", "end of side", "main waits for side"]
    assert fake.said == expected


def test_a_rehearsal_that_fails_leaves_waiting_allowed(fake):
    def failing() -> Tensor:
        raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(RuntimeError, match="synchronizing"):
        cuda_recorder(torch.device("cuda")).rehearse(failing)
    assert fake.mode == 0


def test_a_capture_is_not_a_run_and_each_replay_is_one(fake):
    out = torch.ones(2)
    replay = cuda_recorder(torch.device("cuda")).record(lambda: fake.said.append("step") or out)
    capture = "capture in pool on side"
    assert fake.said == ["main:", f"{capture}:", "step", f"end of {capture}", "end of main"]
    fake.said.clear()
    assert replay() is replay() is out
    assert fake.said == ["replay", "replay"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CONFIGS)
def test_on_a_gpu_greedy_ids_of_graphs_are_those_of_generate(name, caplog, monkeypatch):
    model, captures = tiny(name), []
    original = graphs.CudaRecorder.record
    monkeypatch.setattr(graphs.CudaRecorder, "record", lambda *given: captures.append(1) or original(*given))
    expected = [[tuple(generated(model, prompt, 75, [END, 11]))] * 3 for prompt in PROMPTS]
    made = engine(model.to("cuda"), [END, 11], max_branches=5)
    params = SamplingParams(max_new_tokens=75, temperature=0.0)
    with caplog.at_level(logging.WARNING):
        assert drawn(made, asked(PROMPTS, 3), params) == expected
    assert captures
    assert not [record for record in caplog.records if record.name == graphs.__name__]
