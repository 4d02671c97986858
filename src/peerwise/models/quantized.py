"""Frozen weights in 4 bits by bitsandbytes (QLoRA): loading a model with them, and one of them as plain numbers.

Each block of 64 weights is rounded to the 16 levels of NF4 and a scale, whose own blocks are rounded to 8 bits
(https://arxiv.org/abs/2305.14314). Whatever is multiplied with is dequantised first. What trains beside them is not
known here.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BitsAndBytesConfig, PreTrainedConfig, PreTrainedModel

from peerwise.errors import ModelError, RequestError

BLOCK = 64
"""Weights, one after the other along the rows, that share a scale."""


def bitsandbytes(setting: str) -> Any:
    """The library, for the setting that needs it.

    Raises:
        RequestError: it is not installed.
    """
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise RequestError(
            f"{setting} needs bitsandbytes, which is not installed; pip install 'peerwise[bitsandbytes]' installs it, "
            "or leave the setting out"
        ) from error


def in_4_bits(config: PreTrainedConfig, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """What `from_pretrained` must be told to round every linear layer but the output layer while it reads the file.

    Args:
        dtype: what products are computed in.
    Raises:
        RequestError: bitsandbytes is not installed.
        ModelError: the file is quantised already.
    """
    bitsandbytes("model.quantization = 'nf4'")
    if getattr(config, "quantization_config", None):
        raise ModelError(
            "the model's file holds quantised weights already; give the model it was made from, or leave "
            "model.quantization out"
        )
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
    return {"quantization_config": settings, "device_map": {"": str(device)}}


def settle(model: PreTrainedModel) -> None:
    """Make a model that was loaded so fit for training and saving.

    Raises:
        ModelError: what was rounded is not all `nn.Linear`, or its rows are of a length that this device cannot do.
    """
    rounded = [module for module in model.modules() if _state(module) is not None]
    if not rounded or any(layer.source_cls is not nn.Linear for layer in rounded):
        raise ModelError(f"{type(model).__name__}: only models whose layers are nn.Linear can be held in 4 bits")
    if model.device.type == "cpu" and (odd := {layer.in_features for layer in rounded if layer.in_features % BLOCK}):
        # bitsandbytes 0.50 gives such rows the scales of others, without a word.
        raise ModelError(
            f"{type(model).__name__} has layers with {min(odd)} inputs; on a CPU only multiples of {BLOCK} can be held "
            "in 4 bits, so leave model.quantization out"
        )
    for layer in rounded:
        # On some processors bitsandbytes would re-order a weight for good on its first use without a gradient, round
        # its scales again, and from then on pass no gradient through it.
        layer.support_avx512bf16_for_cpu = False
    # What is written of the model are plain weights; transformers would put its own view of them in their place.
    del model.hf_quantizer, model.config.quantization_config


def require_trainable(model: PreTrainedModel) -> None:
    """Refuse to train a model whose file holds quantised weights.

    Raises:
        ModelError: with what to do.
    """
    if getattr(model, "hf_quantizer", None) is not None:
        raise ModelError(
            f"the model's file holds weights quantised by {model.quantization_method.value}, which cannot be trained; "
            "give the model it was made from, with model.quantization = 'nf4' where memory is short"
        )


def full_weight(layer: nn.Linear) -> Tensor:
    """[outputs, inputs] float32, what the layer multiplies with.

    One that was held in 4 bits is in main memory: its device may have no room for all of them.
    """
    weight, state = layer.weight.detach(), _state(layer)
    if state is None:
        return weight.float()
    plain: Tensor = bitsandbytes("a model in 4 bits").functional.dequantize_4bit(weight, state)
    return plain.float().cpu()


def _state(module: nn.Module) -> Any:
    """How the module's weight was rounded; None for plain weights."""
    return getattr(getattr(module, "weight", None), "quant_state", None)
