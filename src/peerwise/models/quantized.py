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
    """Make a model with weights in 4 bits fit for training and saving; any other stays as it is.

    Raises:
        ModelError: what was rounded is not all `nn.Linear`.
    """
    if not getattr(model, "is_loaded_in_4bit", False):
        return
    rounded = [module for module in model.modules() if _state(module) is not None]
    if not rounded or any(getattr(layer, "source_cls", nn.Linear) is not nn.Linear for layer in rounded):
        raise ModelError(f"{type(model).__name__}: only models whose layers are nn.Linear can be held in 4 bits")
    for layer in rounded:
        # On some processors bitsandbytes would re-order a weight for good on its first use without a gradient, round
        # its scales again, and from then on pass no gradient through it.
        layer.support_avx512bf16_for_cpu = False
    # What is written of the model are plain weights; transformers would put its own view of them in their place.
    del model.hf_quantizer, model.config.quantization_config


def require_trainable(model: PreTrainedModel, *, adapters: bool) -> None:
    """Refuse to train what a file holds quantised, except for adapters beside 4 bits by bitsandbytes.

    Raises:
        ModelError: with what to do.
    """
    if getattr(model, "is_loaded_in_4bit", False):
        if not adapters:
            raise ModelError("weights of 4 bits cannot be trained; set model.lora_rank to train adapters beside them")
    elif getattr(model, "hf_quantizer", None) is not None:
        raise ModelError(
            f"the model's file holds weights quantised by {model.quantization_method}, which cannot be trained; give the model "
            "it was made from, with model.quantization = 'nf4' and model.lora_rank where memory is short"
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
