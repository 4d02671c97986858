"""The weight transfer engine of `plugin`, in terms of vLLM's base class: imported by vLLM's workers only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from safetensors import safe_open
from torch import Tensor
from vllm.distributed.weight_transfer import WeightTransferEngine
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from peerwise.rollout.vllm.plugin import FilesInit, FilesUpdate


class FilesEngine(WeightTransferEngine[FilesInit, FilesUpdate]):  # type: ignore[misc]
    """Loads weights in the names and shapes of the model's own checkpoint from safetensors files."""

    init_info_cls = FilesInit
    update_info_cls = FilesUpdate
    folder: FilesInit | None = None
    missing: frozenset[str] = frozenset()
    """Weights of the model that the update has not brought yet, as vLLM names them."""

    def init_transfer_engine(self, init_info: FilesInit) -> None:
        """Remember the folder. A trainer that comes later names its own."""
        self.folder = init_info

    def start_weight_update(self) -> None:
        """Take the loaded weights apart again into what a checkpoint holds."""
        self.missing = frozenset(name for name, _ in self.model.named_parameters())
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class does, without the wait for an accelerator: files are read at once."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: FilesUpdate) -> None:
        """Load one file; where that fails the model can still be run, with whatever was loaded before.

        Raises:
            ValueError: no folder was agreed on, or the name leads out of it.
            OSError: the file cannot be read.
        """
        try:
            if self.folder is None:
                raise ValueError("no folder was agreed on; call /init_weight_transfer_engine first")
            with safe_open(self.folder.path(update_info.name), framework="pt", device="cpu") as file:
                self.missing -= frozenset(self.model.load_weights(_tensors(file)) or ())
        except BaseException:
            finalize_layerwise_reload(self.model, self.model_config)
            raise

    def finish_weight_update(self) -> None:
        """Put the weights together as the kernels want them. Raises ValueError where some were not brought."""
        finalize_layerwise_reload(self.model, self.model_config)
        # On a CPU an output layer computes with a packed copy of its own. Where it shares the embedding's weights none
        # of them are loaded under its name, so vLLM leaves that copy as it was.
        for module in self.model.modules():
            if isinstance(method := getattr(module, "quant_method", None), UnquantizedEmbeddingMethod):
                method.process_weights_after_loading(module)
        missing, self.missing = sorted(self.missing), frozenset()
        if missing:
            some = ", ".join(missing[:3])
            raise ValueError(f"{len(missing)} weights of this model were not among those sent, such as {some}")

    def shutdown(self) -> None:
        """Nothing is held between updates."""


def _tensors(file: Any) -> Iterator[tuple[str, Tensor]]:
    for name in file.keys():  # noqa: SIM118  not a mapping
        yield name, file.get_tensor(name)
