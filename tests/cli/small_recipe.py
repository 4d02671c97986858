"""A recipe that trains for one step, and data for it."""

from __future__ import annotations

import json
from typing import Any

RECIPE = """
[run]
out = "run"
[model]
path = "model"
dtype = "float32"
[task]
name = "files"
path = "data.jsonl"
template = "plain"
[rollout]
problems = 2
group_size = 2
max_new_tokens = 8
max_prompt_tokens = 64
[algorithm]
kl_coefficient = 0.0
[evaluation]
problems = 4
[stage.grpo]
method = "grpo"
steps = 1
"""


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


GOOD = lines(*({"prompt": f"{i} + 1 = ?", "answer": i + 1} for i in range(12)))
