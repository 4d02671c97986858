"""The card of an exported model: results, data, recipe, licences. Says what a run's files say; computes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peerwise import __version__
from peerwise.models.embedded import HUB, NAME
from peerwise.recipe.dump import diff
from peerwise.recipe.schema import Recipe

LICENCES = {
    HUB: "Apache 2.0",
    "gsm8k": "MIT",
    "math": "MIT",
    "mbpp": "CC BY 4.0",
    "humaneval": "MIT",
    "reasoning-gym": "Apache 2.0",
    "arithmetic": "none needed: the problems are generated",
}
"""What the publishers of a model or task say, as far as we know it."""

Record = Mapping[str, Any]


def card(
    name: str,
    recipe: Recipe,
    step: int,
    before: Sequence[Record],
    now: Sequence[Record],
    *,
    base: str,
    adapters_apart: bool,
) -> str:
    """The README.md of an exported model.

    Args:
        step: the step of the run that the model is of.
        before: evaluation records from before training.
        now: those of this step.
        base: what the model was made from, as transformers finds it.
        adapters_apart: whether the folder holds only adapters, for the base model.
    """
    parts = [
        _head(recipe, adapters_apart),
        f"# {name}\n\n{_summary(recipe, step, adapters_apart)}",
        f"## Use\n\n{_use(recipe, base, adapters_apart)}",
        f"## Results\n\n{_results(before, now)}",
        "## Data\n\n" + "\n".join(f"- {_source(task.name, task.path)}" for task in recipe.tasks),
        f"## Recipe\n\nWhat departs from the defaults:\n\n{_indented(_settings(recipe))}",
        f"## Licence\n\n{_licences(recipe)}",
    ]
    return "\n\n".join(parts) + "\n"


def _hub_name(recipe: Recipe) -> str | None:
    """The base model's name on the hub; None for a folder."""
    path = recipe.model.path
    if path == NAME:
        return HUB
    return None if Path(path).exists() or path.count("/") != 1 else path


def _head(recipe: Recipe, adapters_apart: bool) -> str:
    lines = [
        f"library_name: {'peft' if adapters_apart else 'transformers'}",
        "pipeline_tag: text-generation",
        "tags: [grpo, peerwise]",
    ]
    if hub_name := _hub_name(recipe):
        lines.append(f"base_model: {json.dumps(hub_name)}")
    return "\n".join(["---", *lines, "---"])


def _summary(recipe: Recipe, step: int, adapters_apart: bool) -> str:
    kind = (
        "adapters only" if adapters_apart else "adapters folded in" if recipe.model.lora_rank else "all weights trained"
    )
    return (
        f"`{recipe.model.path}`, trained with peerwise {__version__} ({', '.join(recipe.stage)}); step {step} of the "
        f"run, float32, {kind}."
    )


def _use(recipe: Recipe, base: str, adapters_apart: bool) -> str:
    if not adapters_apart:
        return "The folder loads in transformers (`AutoModelForCausalLM.from_pretrained`) and in vLLM (`vllm serve`)."
    rounded = (
        f" They learned beside its weights in 4 bits (`{recipe.model.quantization}`); the merged folder has those."
        if recipe.model.quantization
        else ""
    )
    return (
        "The folder holds LoRA adapters. With `peft` installed, `AutoModelForCausalLM.from_pretrained` of transformers "
        f"loads the base model and the adapters; in vLLM they are one of `--lora-modules`. The base model is `{base}`; "
        f"it must be found there. `peerwise export --merge-lora` writes a folder that needs no other.{rounded}"
    )


def _results(before: Sequence[Record], now: Sequence[Record]) -> str:
    if not now:
        return "Not measured at this step."
    earlier = {record["task"]: record for record in before}
    rows = [f"| {row['task']} | {_share(earlier.get(row['task']))} | {_share(row)} | {row['n']} |" for row in now]
    head = ["| task | before | this model | problems |", "|---|---|---|---|"]
    return "Held-out problems, 95 % intervals.\n\n" + "\n".join([*head, *rows])


def _share(row: Record | None) -> str:
    if row is None:
        return ""
    low, high = row["interval"]
    return f"{row['accuracy']:.1%} [{low:.1%}, {high:.1%}]"


def _source(name: str, path: str | None) -> str:
    return f"{name}, from `{path}`" if path else name


def _settings(recipe: Recipe) -> str:
    changed = diff(recipe).items()
    return "\n".join(f"{key} = {value!r}" for key, (_, value) in changed if not key.startswith("run.out"))


def _indented(text: str) -> str:
    # An indented block ends with its indentation, so nothing in a setting can close it.
    return "\n".join("    " + line for line in text.split("\n"))


def _licences(recipe: Recipe) -> str:
    base = _hub_name(recipe) or recipe.model.path
    unknown = "not known to peerwise"
    lines = [f"- base model `{base}`: {LICENCES.get(base, unknown)}"]
    for task in recipe.tasks:
        # A file of that name may be anything.
        known = LICENCES.get(task.name) if task.name != "files" else None
        lines.append(f"- data {_source(task.name, task.path)}: {known or unknown}")
    return "Both licences hold for the model. Check them before you publish it.\n\n" + "\n".join(lines)
