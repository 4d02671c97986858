"""The generator on vLLM's own `LLM`, colocated with the trainer: one device, asleep while the trainer works.

vLLM keeps its copy of the weights in a process of its own; what is trained, weights or adapters, is handed over before
answers are drawn, whenever it has moved. On a CPU vLLM cannot sleep: its memory is taken for the whole run.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from peerwise.errors import EngineError, ModelError, PeerwiseError
from peerwise.records import Completion
from peerwise.rollout.base import Generator, Progress, Request, SamplingParams, check_context
from peerwise.rollout.vllm import probe
from peerwise.rollout.vllm.launch import adapter_room
from peerwise.rollout.vllm.server import OLDEST
from peerwise.rollout.vllm.translate import Answer, check_params, completions_of, vllm_params
from peerwise.rollout.vllm.weights import Transfer

WHERE = "vLLM"


class VllmBeside(Generator):
    """vLLM beside the trainer behind the Generator protocol.

    Args:
        model: whose weights it is to have; it may be training.
        source: the folder or hub name the model was loaded from, which says its architecture.
        decode: ids -> text without special tokens.
        end_ids: every id that ends an answer.
        transfer: how weights reach it.
        memory: share of the device's memory that it takes.
        needed: tokens of the longest prompt and answer.
        max_branches: answers decoded side by side.
    Raises:
        ModelError: no vLLM here, or one that does not take this model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        source: str,
        decode: Callable[[Sequence[int]], str],
        end_ids: frozenset[int],
        transfer: Transfer,
        memory: float,
        needed: int,
        max_branches: int = 64,
    ) -> None:
        self.model, self.decode, self.end_ids, self.transfer = model, decode, end_ids, transfer
        self.context = needed
        self._sleeps, self._asleep = model.device.type == "cuda", False
        self._run = secrets.token_hex(4)
        self._version, self._stale = 0, True
        self._llm = _start(
            source,
            dtype=str(model.dtype).removeprefix("torch."),
            max_model_len=needed,
            gpu_memory_utilization=memory,
            max_num_seqs=max_branches,
            enable_sleep_mode=self._sleeps,
            # Compiling takes minutes on a CPU and gains nothing there; sleeping and graphs are for GPUs.
            enforce_eager=not self._sleeps,
            **_updates(transfer),
        )
        self._receiver = _Receiver(self._llm)
        try:
            with probe.telling_adapters(model), self._awake():
                request = probe.question(model.config.get_text_config().vocab_size)
                ((answer,),) = self._answers([request], probe.PARAMS, None)
                probe.check_answer(model, request, answer, WHERE)
        except BaseException:
            self.close()
            raise
        self._stale = transfer.rank > 0  # the adapters that were tried are not the policy's

    @property
    def label(self) -> str:
        """What vLLM calls the weights it should have: the run and its steps."""
        return f"{self._run}:{self._version}"

    def weights_moved(self, version: int) -> None:
        """New weights are handed over before the next answers are drawn."""
        self._version, self._stale = version, True

    def generate(
        self, requests: Sequence[Request], params: SamplingParams, progress: Progress | None = None
    ) -> list[tuple[Completion, ...]]:
        """Draw every answer.

        Raises:
            RequestError: settings that vLLM would understand otherwise, or what does not fit the context.
            EngineError: vLLM fails.
        """
        check_params(params)
        check_context(requests, params, self.context)
        if not requests:
            return []
        with self._awake():
            return self._answers(requests, params, progress)

    def close(self) -> None:
        """End vLLM's process."""
        self._llm.llm_engine.engine_core.shutdown()
        self.transfer.close()

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Within the block vLLM is awake and has the policy's weights; what it raises is an EngineError."""
        try:
            if self._asleep:
                self._llm.wake_up()
                self._asleep = False
            if self._stale:
                self._push()
            yield
            if self._sleeps:
                self._llm.sleep(level=1)
                self._asleep = True
        except PeerwiseError:
            raise
        except Exception as error:  # vLLM's errors have no root of their own
            raise EngineError(f"vLLM failed: {_first_line(error)}; its own messages above say more") from error

    def _push(self) -> None:
        with self.transfer.offer(self.model) as send:
            send(self._receiver)
        if not self._llm.reset_prefix_cache():
            raise EngineError("vLLM could not empty its prefix cache, which holds keys and values of other weights")
        self._llm.update_weight_version(self.label)
        self._stale = False

    def _answers(
        self, requests: Sequence[Request], params: SamplingParams, progress: Progress | None
    ) -> list[tuple[Completion, ...]]:
        import vllm

        asked = [vllm_params(params, self.end_ids, request.keys) for request in requests]
        total, drawn = sum(len(request.keys) for request in requests), sum(one["n"] for one in asked)
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(request.prompt_ids)} for request in requests],
            [vllm.SamplingParams(**one | {"output_kind": _final_only()}) for one in asked],
            lora_request=self._receiver.adapter,
            use_tqdm=False if progress is None else _bar(lambda done: progress(total * done // drawn, total)),
        )
        results = []
        for request, output in zip(requests, outputs, strict=True):
            found = completions_of(
                [_answer(one) for one in sorted(output.outputs, key=lambda one: one.index)],
                params,
                self.end_ids,
                self.decode,
                label=self.label,
                where=WHERE,
            )
            results.append(tuple(found * len(request.keys) if params.temperature == 0 else found))
        return results


class _Receiver:
    """vLLM's `LLM` as a receiver of weights."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.adapter: Any = None
        """What vLLM calls the adapter that it draws with; None for its weights alone."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        self.llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        self.llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.llm.finish_weight_update(weight_version)

    def world_size(self) -> int:
        return int(self.llm.get_world_size())

    def use_adapter(self, name: str, folder: Path) -> None:
        from vllm.lora.request import LoRARequest

        number = 1 if self.adapter is None else self.adapter.lora_int_id + 1
        self.adapter = LoRARequest(name, number, str(folder))
        # There is room for one, so the one before is let go of.
        self.llm.llm_engine.add_lora(self.adapter)


def _updates(transfer: Transfer) -> dict[str, Any]:
    """vLLM's settings for what is to reach it."""
    if transfer.rank:
        return {"enable_lora": True, "max_lora_rank": adapter_room(transfer.rank), "max_loras": 1}
    return {"weight_transfer_config": {"backend": transfer.backend}}


def _start(source: str, **settings: Any) -> Any:
    """vLLM's `LLM`. Raises ModelError where there is none, an old one, or one that refuses the model."""
    # A process that was forked from one with torch's threads running can hang.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    if settings.get("weight_transfer_config") == {"backend": "ipc"}:
        # Handles of GPU memory pass between this process and vLLM's, which it starts itself, in no other form.
        os.environ.setdefault("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")
    try:
        from vllm import LLM, __version__
    except ImportError as error:
        raise ModelError(
            f"rollout.engine is 'vllm', and vLLM cannot be imported here ({error}); install it beside peerwise "
            "(docs/vllm.md), or use 'native' or 'vllm-server'"
        ) from error
    if tuple(map(int, __version__.split(".")[:2])) < OLDEST:
        raise ModelError(f"vLLM {__version__} is here, expected {'.'.join(map(str, OLDEST))} or later; update it")
    try:
        return LLM(model=source, logprobs_mode="processed_logprobs", generation_config="vllm", seed=0, **settings)
    except Exception as error:  # as above
        raise ModelError(
            f"vLLM does not start with {source}: {_first_line(error)}; its own messages above say more. Where memory "
            "is short, change vllm.memory or lower rollout.max_branches"
        ) from error


def _answer(output: Any) -> Answer:
    """One of vLLM's completion outputs."""
    return Answer(
        token_ids=tuple(output.token_ids),
        logprobs=tuple(
            found[token].logprob for token, found in zip(output.token_ids, output.logprobs or (), strict=True)
        ),
        stop_text=output.finish_reason == "stop" and isinstance(output.stop_reason, str),
        versions=tuple(span.version for span in output.weight_versions or ()),
    )


def _final_only() -> Any:
    from vllm.sampling_params import RequestOutputKind

    return RequestOutputKind.FINAL_ONLY


def _bar(tell: Callable[[int], None]) -> Callable[..., Any]:
    """What vLLM takes for a progress bar: shows nothing and tells how many answers have ended."""
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings | {"file": io.StringIO()})

        def update(self, n: float | None = 1) -> bool | None:
            moved: bool | None = super().update(n)
            if self.iterable is None:  # the other bars count prompts that are read
                tell(int(self.n))
            return moved

    return Bar


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
