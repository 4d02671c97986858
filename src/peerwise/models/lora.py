"""LoRA adapters through peft, and the frozen reference that the KL term compares with.

The reference is the policy as it was when the stage began. With all weights in training that is a frozen copy;
with adapters it is the same model with the adapters as they were then, so no second model is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from peerwise.models.quantized import full_weight


def add_lora(model: PreTrainedModel, *, rank: int, alpha: float | None, seed: int) -> None:
    """Put LoRA layers beside every linear layer of the decoder (not the output layer) and freeze all else.

    A fresh adapter changes nothing: its B matrices are zero. A is drawn from `seed`.
    """
    head = model.get_output_embeddings()
    targets = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and layer is not head]
    config = LoraConfig(r=rank, lora_alpha=alpha or 2 * rank, target_modules=targets, lora_dropout=0.0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.float()


def lora_layers(model: nn.Module) -> list[LoraLayer]:
    """Every layer that carries an adapter."""
    return [layer for layer in model.modules() if isinstance(layer, LoraLayer)]


def merged_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The model's weights with adapters folded in, float32, under the names it has without them."""
    state: dict[str, Tensor] = {}
    owner = {
        f"{name}.base_layer.weight": layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)
    }
    for name, tensor in model.state_dict().items():
        # What follows the name of a weight says how it was rounded to 4 bits.
        if "lora_" in name or ".base_layer.weight." in name:
            continue
        weight = tensor.float() if tensor.is_floating_point() else tensor
        if name in owner:
            weight = full_weight(owner[name].base_layer)
            weight = weight + owner[name].get_delta_weight("default").float().to(weight.device)
        state[name.replace(".base_layer.", ".")] = weight
    return state


class Reference:
    """The policy at the start of a stage, frozen. `with reference.policy() as model:` gives the model to ask."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._layers = lora_layers(model)
        self._live = model
        self._frozen: PreTrainedModel | None = None
        self._adapter: dict[str, Tensor] | None = None
        if not self._layers:
            self._frozen = copy.deepcopy(model).eval().requires_grad_(False)
            return
        adapter = {name: p for name, p in model.named_parameters() if "lora_" in name}
        # A fresh adapter adds zero, so switching it off is the reference; one that has learned must be kept.
        if any(bool(p.any()) for name, p in adapter.items() if "lora_B" in name):
            self._adapter = {name: p.detach().clone() for name, p in adapter.items()}

    @contextmanager
    def policy(self) -> Iterator[PreTrainedModel]:
        """The reference model, without gradients. The live policy is whole again after the block."""
        with torch.no_grad():
            if self._frozen is not None:
                yield self._frozen
            elif self._adapter is None:
                for layer in self._layers:
                    layer.enable_adapters(False)
                try:
                    yield self._live
                finally:
                    for layer in self._layers:
                        layer.enable_adapters(True)
            else:
                yield from self._with_adapter(self._adapter)

    def _with_adapter(self, adapter: dict[str, Tensor]) -> Iterator[PreTrainedModel]:
        """The live model with other adapter weights for the time of the block."""
        live = {name: p for name, p in self._live.named_parameters() if name in adapter}
        learned = {name: p.data for name, p in live.items()}
        for name, p in live.items():
            p.data = adapter[name]
        try:
            yield self._live
        finally:
            for name, p in live.items():
                p.data = learned[name]
