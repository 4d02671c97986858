"""Tiny random models and a tiny character tokenizer, built in memory, so that no test needs a download.

`tiny(name)` gives a fresh float32 copy of one architecture with always the same weights; `tiny_policy(name)` gives it
with the tokenizer, as training and sampling take it. conftest.py has both as fixtures of those names.
"""

from __future__ import annotations

import copy
import functools

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from peerwise.models.load import Policy, end_ids

torch.set_num_threads(1)

PAD, BOS, END, UNKNOWN = 0, 1, 2, 3
"""Ids of the special tokens of the tiny tokenizer and models. The end token is not the pad token."""

SPECIAL = ["<pad>", "<bos>", "<end>", "<unk>"]
CHARACTERS = "\n " + "".join(chr(code) for code in range(ord("!"), ord("~") + 1) if chr(code) not in "$`^")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['role'][0] }}:{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
VOCABULARY = len(SPECIAL) + len(CHARACTERS)
"""97, odd on purpose."""

_SIZE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": END,
    # Wide enough that logits differ by whole units: with the usual 0.02 every distribution is nearly uniform and
    # a wrong mask or position would hide in the rounding.
    "initializer_range": 0.25,
}
CONFIGS: dict[str, dict[str, object]] = {
    "llama": {"model_type": "llama"},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3"},
    "gemma": {"model_type": "gemma"},
    "gemma2": {
        "model_type": "gemma2",
        "sliding_window": 5,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 6.0,
        "query_pre_attn_scalar": 8,
    },
    "mistral": {"model_type": "mistral", "sliding_window": 4, "num_hidden_layers": 3},
    "gpt_neox": {"model_type": "gpt_neox", "rotary_pct": 0.5},
    "phi": {"model_type": "phi", "partial_rotary_factor": 0.5},
    "phi3": {"model_type": "phi3"},
    "olmo2": {"model_type": "olmo2"},
    "smollm3": {"model_type": "smollm3"},
    "gemma3_text": {"model_type": "gemma3_text", "sliding_window": 5},
}
"""What each architecture has beyond the common size. gemma2 alternates windowed and full layers."""


@functools.cache
def _prototype(name: str) -> PreTrainedModel:
    settings = {**_SIZE, **CONFIGS[name]}
    if name == "gpt_neox":
        for key in ("num_key_value_heads", "head_dim"):
            settings.pop(key)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 + list(CONFIGS).index(name))
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), dtype=torch.float32)
        # Norms and biases start at exactly 1 or 0; move them so that one left out would show.
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.data += 0.1 * torch.randn_like(parameter)
    return model.eval()


def tiny(name: str = "llama") -> PreTrainedModel:
    """A fresh copy of the tiny model of that architecture, in eval mode; see CONFIGS for the names."""
    return copy.deepcopy(_prototype(name))


@functools.cache
def _wide_prototype() -> PreTrainedModel:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "initializer_range": 0.15}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(999)
        config = AutoConfig.for_model("llama", **{**_SIZE, **sizes})
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def tiny_wide() -> PreTrainedModel:
    """A fresh copy of a tiny Llama whose layers read 64 or 128 numbers, as weights in 4 bits need it on a CPU."""
    return copy.deepcopy(_wide_prototype())


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One id per character, with a small chat template. A chat starts with <bos>; <end> ends an answer."""
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *CHARACTERS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<bos>", eos_token="<end>", unk_token="<unk>"
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def tiny_policy(name: str = "llama") -> Policy:
    """A tiny model with the tiny tokenizer, ready to sample and to train."""
    model, tokenizer = tiny(name), tiny_tokenizer()
    return Policy(model, tokenizer, end_ids(model, tokenizer), f"tiny-{name}")
