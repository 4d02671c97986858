"""Adapters in the form of peft: a folder that peft, transformers and vLLM load. Knows nothing of who reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from peft import LoraConfig
from safetensors.torch import save_file
from torch import Tensor

ADAPTERS_FILE = "adapter_model.safetensors"


def write_adapters(
    folder: Path,
    weights: Mapping[str, Tensor],
    *,
    rank: int,
    alpha: float,
    base: str | None = None,
    revision: str | None = None,
) -> None:
    """Write adapters and their settings to a folder, which is made where it is missing.

    Names become those that peft gives the whole: model.layers.0.mlp.up_proj.lora_A.default.weight is saved as
    base_model.model.model.layers.0.mlp.up_proj.lora_A.weight
    (https://huggingface.co/docs/peft/developer_guides/checkpoint).

    Args:
        weights: by the names that the model with adapters has for them.
        base: the folder or hub name of the model they are for.
    Raises:
        OSError, SafetensorError: it cannot be written.
    """
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules=sorted({name.split(".lora_")[0].rpartition(".")[2] for name in weights}),
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
        revision=revision,
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    named = {
        "base_model.model." + name.replace(".default.", "."): tensor.detach().cpu().contiguous()
        for name, tensor in weights.items()
    }
    save_file(named, folder / ADAPTERS_FILE, metadata={"format": "pt"})
