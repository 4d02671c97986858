"""What a cache of keys and values takes, and what the machine has left for it.

Counts bytes; allocates nothing and knows no requests.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import torch
from transformers import PreTrainedModel

from peerwise.rollout.native.cache import whole_blocks

MARGIN = 0.1
"""Share of the free memory that is left alone: a step's own tensors live beside the cache."""
_CGROUP = Path("/sys/fs/cgroup")


def token_bytes(model: PreTrainedModel) -> int:
    """Bytes of one token's keys and values over all layers.

    An architecture with different sizes by layer is counted by its largest; one that does not tell its key/value heads
    has as many as query heads.
    """
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * int(config.num_hidden_layers * kv_heads * head_size * model.dtype.itemsize)


def cache_bytes(per_token: int, *, branches: int, prompts: int, longest_prompt: int, max_new_tokens: int) -> int:
    """The most that a cache grows to: each prompt once, at most one for a branch, and each answer to its limit."""
    longest_prompt, max_new_tokens = whole_blocks(longest_prompt), whole_blocks(max_new_tokens)
    return per_token * (min(prompts, branches) * longest_prompt + branches * max_new_tokens)


def spare_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on the device now, the margin left out; on a CPU within the limits of a container."""
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    else:
        free = min(int(psutil.virtual_memory().available), _container_bytes())
    return int(free * (1 - MARGIN))


def total_bytes(device: torch.device) -> int:
    """Bytes that the device has in all."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)


def _container_bytes() -> int:
    """What the control group of this process may still take; without a limit, everything."""
    try:
        most, used = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return int(most) - int(used) + int(cached.get("inactive_file", 0))
    except (OSError, ValueError):  # no version 2 control groups, or no limit ("max")
        return 2**63 - 1
