"""What a vLLM server says of itself, and whether that serves a run. Knows no routes and asks nobody."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peerwise.errors import ModelError
from peerwise.rollout.vllm.launch import adapter_flags
from peerwise.rollout.vllm.plugin import BACKEND

GUIDE = "docs/vllm.md has the whole command"


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What a server says of itself."""

    version: str
    dtype: str
    """As torch names it, such as "float32"."""
    context: int
    """Tokens of prompt and answer together."""
    max_answers: int
    """Answers decoded side by side, and so the most that one request may ask for."""
    logprobs_mode: str
    quantization: str | None
    """How its weights are rounded; None where they are not."""
    backend: str | None
    """How it takes new weights; None where it was started without."""
    adapter_rank: int
    """The largest rank of an adapter beside its weights; 0 where it was started without adapters."""
    loads_adapters: bool
    """Whether it takes adapters while it runs."""


def check_abilities(
    url: str, found: Abilities, *, dtype: str, needed: int, backend: str | None = BACKEND, rank: int = 0
) -> None:
    """Refuse a server that cannot serve this run.

    Args:
        dtype: that of the model that is trained.
        needed: tokens of the longest prompt and answer.
        backend: how weights are to reach it; None where only adapters are.
        rank: that of the adapters that are trained; 0 where all weights are.
    Raises:
        ModelError: with everything that does not fit and how to start it.
    """
    wrong = []
    if found.dtype != dtype:
        wrong.append(f"it computes in {found.dtype} and the trainer in {dtype}: --dtype {dtype}, or set model.dtype")
    if found.context < needed:
        wrong.append(f"its context is {found.context} and the run needs {needed}: --max-model-len {needed}")
    if found.logprobs_mode != "processed_logprobs":
        wrong.append(
            f"its log-probs are {found.logprobs_mode}, not those of the distribution that is drawn from: "
            "--logprobs-mode processed_logprobs"
        )
    if found.quantization is not None:
        wrong.append(f"its weights are rounded ({found.quantization}): without --quantization, from a model in {dtype}")
    wrong += _no_way_for_adapters(found, rank) if rank else _no_way_for_weights(found, backend)
    if wrong:
        raise ModelError(f"the server at {url} does not fit; start it with\n  " + "\n  ".join(wrong) + f"\n({GUIDE})")


def _no_way_for_weights(found: Abilities, backend: str | None) -> Iterator[str]:
    if found.adapter_rank:
        yield "it is there for adapters, and this run trains all weights (model.lora_rank = 0): without --enable-lora"
    if found.backend != backend:
        given = "no way to take new weights" if found.backend is None else f"weights come by {found.backend!r}"
        yield f'{given}: --weight-transfer-config \'{{"backend": "{backend}"}}\''


def _no_way_for_adapters(found: Abilities, rank: int) -> Iterator[str]:
    flags = " ".join(adapter_flags(rank))
    if not found.adapter_rank:
        yield f"it takes no adapters, and this run trains those alone (model.lora_rank = {rank}): {flags}"
    elif found.adapter_rank < rank:
        yield f"its adapters have rank {found.adapter_rank} at most and the run's have {rank}: {flags}"
    if not found.loads_adapters:
        yield "it takes no adapters while it runs: VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment"
