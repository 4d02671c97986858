"""Checkpoints: a plain Hugging Face folder that anyone can load, plus `trainer/` with what an exact resume needs.

    checkpoints/step-120/
        config.json model.safetensors tokenizer.json ...   the model, float32, adapters folded in
        trainer/state.json                                  stage, step, position in the problem stream
        trainer/optimizer.safetensors                       moments and step counts by parameter
        trainer/weights.safetensors                         with adapters only: the adapters themselves
        trainer/method.safetensors                          what the method trains beside the policy: a value network

A checkpoint is written beside its place and renamed, so a kill or a full disk leaves the last good one as it was.
Only safetensors are read back.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from peerwise.errors import CheckpointError
from peerwise.models.load import Policy
from peerwise.models.lora import lora_layers, merged_state
from peerwise.train.masters import MasterWeights
from peerwise.train.optimizer import Optimizer

FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a run stands, besides its weights. All randomness is a function of these and the recipe's seed."""

    stage: str
    step: int
    """Steps of the stage that are done."""
    stage_steps: int
    """Steps the stage has in all."""
    global_step: int
    """Steps done over all stages."""
    position: int
    """Problems taken from this stage's stream."""
    carried: dict[str, Any] = field(default_factory=dict)
    """What the method itself takes from one step to the next, such as an adaptive KL coefficient; plain values."""

    @property
    def ends_stage(self) -> bool:
        """Whether the stage is complete."""
        return self.step >= self.stage_steps


def save(
    run: Path,
    state: State,
    policy: Policy,
    weights: MasterWeights,
    optimizer: Optimizer,
    beside_policy: dict[str, Tensor] | None = None,
) -> Path:
    """Write `checkpoints/step-<global_step>` of a run folder, whole or not at all.

    Args:
        beside_policy: what the method trains beside the policy.

    Raises:
        CheckpointError: it could not be written; earlier checkpoints are untouched.
    """
    target = step_folder(run, state.global_step)
    beside, old = target.with_name(f".{target.name}.partial"), target.with_name(f".{target.name}.old")
    try:
        for leftover in target.parent.glob(".step-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        (beside / "trainer").mkdir(parents=True)
        _write_model(beside, policy, weights)
        # A complete stage starts no further step, and the next one starts with fresh moments.
        if not state.ends_stage:
            save_file(_plain(optimizer.state()), beside / "trainer" / "optimizer.safetensors")
            if beside_policy:
                save_file(_plain(beside_policy), beside / "trainer" / "method.safetensors")
        (beside / "trainer" / "state.json").write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
        if target.exists():
            target.rename(old)
        beside.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(beside, ignore_errors=True)
        raise CheckpointError(
            f"the checkpoint {target} could not be written: {error}. Earlier checkpoints are untouched; make room or "
            "give write access"
        ) from error
    return target


def restore(
    folder: Path, policy: Policy, weights: MasterWeights, optimizer: Optimizer | None = None
) -> dict[str, Tensor]:
    """Give policy, masters and (unless None) optimizer the values of a checkpoint, bit by bit.

    Returns:
        What the method trained beside the policy, as it was given to `save`.
    Raises:
        CheckpointError: a file is missing, cut off or of another model.
    """
    device = policy.model.device
    try:
        adapters = folder / "trainer" / "weights.safetensors"
        values = load_file(adapters if adapters.exists() else folder / "model.safetensors", device=str(device))
        weights.load(values)
        moments = folder / "trainer" / "optimizer.safetensors"
        if optimizer is not None and moments.exists():
            optimizer.load_state(load_file(moments, device=str(device)))
        beside_policy = folder / "trainer" / "method.safetensors"
        return load_file(beside_policy, device=str(device)) if beside_policy.exists() else {}
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be read: {error}") from error


def checkpoints(run: Path) -> list[tuple[Path, State]]:
    """The complete checkpoints of a run, oldest first."""
    return sorted(_found(run), key=lambda found: found[1].global_step)


def step_folder(run: Path, global_step: int) -> Path:
    """Where the checkpoint of a step is, or would be."""
    return run / FOLDER / f"step-{global_step}"


def prune(run: Path, keep: int, *, best: int = -1) -> None:
    """Delete all but the latest `keep` checkpoints within stages; those that end a stage and the best one stay."""
    within = [folder for folder, state in checkpoints(run) if not state.ends_stage and state.global_step != best]
    for folder in within[: max(0, len(within) - keep)]:
        shutil.rmtree(folder, ignore_errors=True)


def _found(run: Path) -> Iterator[tuple[Path, State]]:
    for path in (run / FOLDER).glob("step-*/trainer/state.json"):
        try:
            yield path.parents[1], State(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}; remove that checkpoint to go on") from error


def _write_model(folder: Path, policy: Policy, weights: MasterWeights) -> None:
    model = policy.model
    if lora_layers(model):
        save_file(_plain(weights.values()), folder / "trainer" / "weights.safetensors")
        state = merged_state(model)
    else:
        state = {**model.state_dict(), **weights.values()}
    # The masters are separate tensors, so a tied output layer would be written beside the embedding, and stale.
    state = {name: tensor for name, tensor in state.items() if name not in model.all_tied_weights_keys}
    model.save_pretrained(folder, state_dict=_plain(state), max_shard_size="1TB")
    policy.tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["dtype"] = "float32"
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


def _plain(tensors: dict[str, Tensor] | dict[str, torch.nn.Parameter]) -> dict[str, Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
