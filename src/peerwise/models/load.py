"""Load a causal model and its tokenizer, and the few things the rest of the code asks of them.

Everything that could go wrong for a user (no such folder, no network, a model that is not causal) is a ModelError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jinja2.exceptions import TemplateError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from peerwise.errors import ModelError, nearest
from peerwise.models import embedded
from peerwise.models.quantized import in_4_bits, settle
from peerwise.records import Message


@dataclass(slots=True)
class Policy:
    """A model with its tokenizer: what is trained, sampled from and saved.

    `model` is always the Hugging Face causal model itself; adapters live inside its layers.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    end_ids: frozenset[int]
    """Every id that ends an answer."""
    source: str
    """Where it was loaded from."""
    offload: bool = False
    """In training, activations wait for the backward pass in main memory."""

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The chat as ids, ready for the model's answer, special tokens once.

        A tokenizer without a chat template gets the contents, one blank line apart.
        """
        if self.tokenizer.chat_template:
            try:
                ids = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
            except TemplateError as error:
                roles = ", ".join(message["role"] for message in messages)
                raise ModelError(f"the model's chat template refuses messages of {roles}: {error}") from error
            return tuple(ids)
        text = "\n\n".join(message["content"] for message in messages) + "\n\n"
        return tuple(self.tokenizer(text)["input_ids"])

    def answer_ids(self, text: str) -> tuple[int, ...]:
        """A written answer as ids, with the end token that the model should learn to draw."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        end = self.tokenizer.eos_token_id
        return (*ids, min(self.end_ids) if end is None else int(end))

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text without special tokens."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    @property
    def context(self) -> int | None:
        """Tokens the model was made for; None when its config does not say."""
        return getattr(self.model.config, "max_position_embeddings", None)


def load(
    path: str,
    *,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    quantization: str | None = None,
    gradient_checkpointing: bool = False,
    offload_activations: bool = False,
) -> Policy:
    """Load a local folder, a hub name or the embedded model, ready for the native engine and for training.

    Args:
        quantization: "nf4" holds linear layers in 4 bits, for adapters beside them; None as they are.
    Raises:
        ModelError: nothing there, not reachable, not a causal language model, or not one that can be held so.
        RequestError: the library for that is not installed.
    """
    place = _device(device)
    number = compute_dtype(dtype, place)
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    transformers_logging.disable_progress_bar()
    source = path
    try:
        source = _resolve(path)
        config = AutoConfig.from_pretrained(source, **options)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
        if quantization:
            options |= in_4_bits(config, number, place)
        model = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=number, use_safetensors=True, **options
        )
    except (OSError, ImportError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(_explain(path, source, error)) from error
    _refuse_unsupported(model)
    if quantization:
        settle(model)
    model = model.to(place).eval()
    if gradient_checkpointing:
        _checkpoint_activations(model)
    return Policy(model, tokenizer, end_ids(model, tokenizer), source, offload_activations)


def _refuse_unsupported(model: PreTrainedModel) -> None:
    """Packed rows need every layer to be attention: a layer that carries a state along the row would mix answers."""
    kinds = set(getattr(model.config.get_text_config(), "layer_types", None) or ())
    if strange := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise ModelError(
            f"{type(model).__name__} has layers of kind {', '.join(strange)}; "
            "answers can share a prompt only in layers of full or sliding attention"
        )


def _checkpoint_activations(model: PreTrainedModel) -> None:
    """Recompute decoder blocks in the backward pass.

    transformers does so only in training mode, which would also switch dropout on; the ratio of two policies makes no
    sense under dropout, so it is set to 0.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    model.train()


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every id that ends an answer: the tokenizer's and all that the generation config names."""
    named = getattr(model.generation_config, "eos_token_id", None)
    ids = {tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])} - {None}
    if not ids:
        raise ModelError(f"{type(model).__name__} and its tokenizer name no end token; answers could never end")
    return frozenset(int(i) for i in ids if i is not None)


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """'auto' is bfloat16 where the hardware multiplies it natively, else float32."""
    if name != "auto":
        return torch.float32 if name == "float32" else torch.bfloat16
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    native: bool = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # type: ignore[no-untyped-call]
    return torch.bfloat16 if native else torch.float32


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ModelError("model.device is 'cuda', but torch sees no GPU; use 'auto' or 'cpu'")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _resolve(path: str) -> str:
    """A path on disk as it is, the embedded model's name as its folder, anything else as a hub name."""
    if path == embedded.NAME:
        return embedded.resolve()
    if Path(path).exists():
        if not (Path(path) / "config.json").exists():
            raise ModelError(f"{path!r} holds no config.json, so it is not a model folder")
        return path
    if "/" not in path or path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(
            f"no model at {path!r}: expected a folder, a hub name such as 'Qwen/Qwen2.5-0.5B-Instruct', or "
            f"'{embedded.NAME}'; {nearest(path, [embedded.NAME])}"
        )
    return path


def _explain(path: str, source: str, error: Exception) -> str:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(source).exists():
        return f"the model in {path!r} could not be loaded: {first}"
    return (
        f"the model {path!r} is neither a local folder nor could it be had from the hub: {first} "
        "(check the name and the network, or give a local folder)"
    )
