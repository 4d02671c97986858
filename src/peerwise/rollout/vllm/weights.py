"""What is pushed to vLLM when the policy's weights moved, and how: what trains, and nothing else.

A policy that trains all its weights pushes all of them, under the names of a checkpoint: as files in memory that both
sides see, which needs peerwise in vLLM's environment (`plugin`), or by vLLM's own NCCL and CUDA IPC, which need GPUs
and vLLM in the trainer's environment. A policy that trains adapters pushes those alone, as files in the form of peft,
to be loaded beside weights that vLLM keeps.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from peerwise.errors import EngineError, ModelError
from peerwise.models.adapters import write_adapters
from peerwise.models.lora import lora_layers
from peerwise.rollout.vllm.launch import adapter_room
from peerwise.rollout.vllm.plugin import BACKEND, PREFIX

SHARED_MEMORY = Path("/dev/shm")


class Receiver(Protocol):
    """Whoever takes weights: a server, or an engine in this process. The calls are those of vLLM's own protocol for
    weights, and one for adapters."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Agree on how weights travel."""

    def start_weight_update(self) -> None:
        """Begin."""

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Take over some weights."""

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End."""

    def world_size(self) -> int:
        """How many workers take part."""
        ...

    def use_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter, draw with it from now on, and let go of the one before."""


Send = Callable[[Receiver], None]
"""Gives the weights on offer to one receiver."""


class Transfer(Protocol):
    """A way for weights to travel."""

    backend: str | None
    """Its name in vLLM's settings; None where vLLM keeps its weights and an adapter is all that travels."""
    rank: int
    """Rank of that adapter; 0 where all weights travel."""
    side_by_side: bool
    """Whether several receivers can be served at one time."""

    def offer(self, model: PreTrainedModel) -> AbstractContextManager[Send]:
        """Within the block the weights the model has now can be sent, to any number of receivers."""
        ...

    def close(self) -> None:
        """Leave nothing behind."""


def policy_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """All weights by their names in a checkpoint, in the model's dtype; tied ones once."""
    return {
        name: tensor.detach().to(model.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
        if name not in model.all_tied_weights_keys
    }


class _Written(Transfer):
    """What goes through a folder of this process's own.

    Args:
        folder: where to make that folder; None takes shared memory, or the system's folder for temporary files. vLLM
            must see it under the same path.
    """

    side_by_side = True

    def __init__(self, folder: str | None = None) -> None:
        parent = Path(folder) if folder is not None else SHARED_MEMORY
        if folder is None and not os.access(parent, os.W_OK):
            parent = Path(tempfile.gettempdir())
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        except OSError as error:
            raise EngineError(
                f"no folder for weights can be made in {parent}: {error.strerror}; set vllm.folder"
            ) from error
        self._remove = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder; it also goes when the process ends."""
        self._remove()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raises EngineError where something cannot be written."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise EngineError(
                f"the weights could not be written to {self.folder}: {error}; make room there, or set vllm.folder to a "
                "folder with room that the servers see too"
            ) from error


class Files(_Written):
    """All weights: one safetensors file an update, gone when everybody has read it."""

    backend = BACKEND
    rank = 0

    @contextmanager
    def offer(self, model: PreTrainedModel) -> Iterator[Send]:
        """Write the file, hand out its name, remove it. Raises EngineError where it cannot be written."""
        path = self.folder / "weights.safetensors"
        try:
            with self._writing():
                save_file({name: tensor.cpu().contiguous() for name, tensor in policy_weights(model).items()}, path)
            yield self._send
        finally:
            path.unlink(missing_ok=True)

    def _send(self, receiver: Receiver) -> None:
        # The folder is named each time, so that a server that was restarted in between learns it.
        receiver.init_weight_transfer_engine({"folder": str(self.folder)})
        receiver.start_weight_update()
        receiver.update_weights({"name": "weights.safetensors"})
        receiver.finish_weight_update()


class Adapters(_Written):
    """The adapters of a policy that trains nothing else: a folder in the form of peft an update.

    Every update has a name and a folder of its own. vLLM's prefix cache goes by both, so it cannot give keys and values
    of another update. The folder of the latest stays, since vLLM reads it again if it had to let go of the adapter.

    Raises:
        ModelError: vLLM takes no adapters of that rank.
    """

    backend = None

    def __init__(self, model: PreTrainedModel, folder: str | None = None) -> None:
        layer = lora_layers(model)[0]
        self.rank, self.alpha = layer.r["default"], layer.lora_alpha["default"]
        adapter_room(self.rank)
        super().__init__(folder)
        self._numbers = itertools.count()

    @contextmanager
    def offer(self, model: PreTrainedModel) -> Iterator[Send]:
        """Write the adapters, hand out their name, remove those before. Raises EngineError as `Files` does."""
        name = f"{self.folder.name}-{next(self._numbers)}"
        weights = {n: weight.to(model.dtype) for n, weight in model.named_parameters() if "lora_" in n}
        with self._writing():
            write_adapters(self.folder / name, weights, rank=self.rank, alpha=self.alpha)
        yield lambda receiver: receiver.use_adapter(name, self.folder / name)
        for before in self.folder.iterdir():
            if before.name != name:
                shutil.rmtree(before, ignore_errors=True)


class VllmTransfer(Transfer):
    """vLLM's own transfer from GPU to GPU: "nccl" to servers, "ipc" to an engine on the trainer's own GPU.

    Raises:
        ModelError: no GPU, or no vLLM in the trainer's environment.
    """

    rank = 0
    side_by_side = False

    def __init__(self, backend: str) -> None:
        self.backend = backend
        if not torch.cuda.is_available():
            raise ModelError(f"vllm.transfer is {backend!r}, which moves weights between GPUs; here set it to 'files'")
        _trainer_side(backend)
        self._senders: dict[int, Any] = {}

    @contextmanager
    def offer(self, model: PreTrainedModel) -> Iterator[Send]:
        """The first time a receiver is met, the connection is made; it stays."""

        def send(receiver: Receiver) -> None:
            if id(receiver) not in self._senders:
                self._senders[id(receiver)] = _connect(self.backend, model, receiver)
            self._senders[id(receiver)].send_weights()

        yield send

    def close(self) -> None:
        """Take the connections down."""
        for sender in self._senders.values():
            sender.shutdown()
        self._senders.clear()


def make_transfer(model: PreTrainedModel, name: str, folder: str | None) -> Transfer:
    """The transfer of what this model trains, by the way that the settings name."""
    if name != "files":
        return VllmTransfer(name)
    return Adapters(model, folder) if lora_layers(model) else Files(folder)


def _trainer_side(backend: str) -> Any:
    """vLLM's module with the trainer's side of a transfer. Raises ModelError where vLLM is not installed."""
    try:
        if backend == "nccl":
            from vllm.distributed.weight_transfer import nccl_engine as module
        else:
            from vllm.distributed.weight_transfer import ipc_engine as module
    except ImportError as error:
        raise ModelError(
            f"vllm.transfer is {backend!r}, which needs vLLM in the trainer's environment ({error}); install it there "
            "or set vllm.transfer = 'files'"
        ) from error
    return module


def _connect(backend: str, model: PreTrainedModel, receiver: Receiver) -> Any:
    from vllm.distributed.weight_transfer import ParamMeta, WeightSource, WeightTransferTrainerFactory

    class Source(WeightSource):  # type: ignore[misc]
        """The policy's weights as they are whenever it is gone through."""

        def metadata(self) -> list[Any]:
            return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            yield from policy_weights(model).items()

    module = _trainer_side(backend)
    if backend == "nccl":
        info = module.NCCLTrainerInitInfo(
            master_address=socket.gethostbyname(socket.gethostname()),
            master_port=_free_port(),
            world_size=1 + receiver.world_size(),
            rank=0,
        )
    else:
        info = module.IPCTrainerInitInfo(rank=0)
    return WeightTransferTrainerFactory.trainer_init(info, client=receiver, source=Source())


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])
