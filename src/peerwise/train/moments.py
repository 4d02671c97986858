"""AdamW's two moments of each parameter, in float32 or in 8 bits, and its rule for moving float32 numbers by them.

Decoupled weight decay: https://arxiv.org/abs/1711.05101. Moments in 8 bits: https://arxiv.org/abs/2110.02861; their
levels are those of bitsandbytes, which also does the arithmetic where there is no compiled function for it. Works on
flat pieces of a parameter; what these are the masters of is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from peerwise.kernels import CodeTable, float32_kernels
from peerwise.models.quantized import bitsandbytes
from peerwise.recipe.memory import LEAST_IN_8_BITS

Kind = Literal["float32", "8-bit"]
BLOCK = 256
"""Numbers that share a scale in 8 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One step of AdamW.

    Example:
        Rule(step=1, rate=1e-5, betas=(0.9, 0.99), eps=1e-8, decay=0.0)
    """

    step: int
    """Counted from 1."""
    rate: float
    betas: tuple[float, float]
    eps: float
    decay: float
    """Of the weights, times the rate."""


class Moments:
    """The moments of all parameters by name, made when a parameter first moves.

    Args:
        kind: "8-bit" rounds those of parameters with `LEAST_IN_8_BITS` numbers or more.
    Raises:
        RequestError: bitsandbytes is needed and not installed.
    """

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._kept: dict[str, dict[str, Tensor]] = {}
        if kind == "8-bit":
            self._library = bitsandbytes("optimizer.moments = '8-bit'").functional
            self._tables = tuple(CodeTable(self._library.create_dynamic_map(signed=signed)) for signed in (True, False))

    def move(self, name: str, of: Tensor, place: slice, values: Tensor, gradient: Tensor, rule: Rule) -> None:
        """Move some numbers of a parameter, and their moments, by their gradient.

        Args:
            of: the parameter, for its size and device.
            place: where the numbers lie in the flat parameter; begins at a multiple of `BLOCK`.
            values, gradient: [n] float32; the values are changed.
        """
        kept = self._kept.get(name)
        if kept is None:
            kept = self._kept[name] = self._fresh(of)
        if "exp_avg" in kept:
            first, second = (kept[key].view(-1)[place] for key in ("exp_avg", "exp_avg_sq"))
            _move(values, gradient, first, second, rule)
        else:
            blocks = slice(place.start // BLOCK, -(-place.stop // BLOCK))
            codes = tuple(kept[f"codes{i}"].view(-1)[place] for i in (1, 2))
            scales = tuple(kept[f"scales{i}"][blocks] for i in (1, 2))
            self._move_in_8_bits(values, gradient, codes, scales, rule)

    def state(self) -> Iterator[tuple[str, str, Tensor]]:
        """Parameter, kind of moment, and the moment, of all that have moved."""
        return ((name, key, tensor) for name, kept in self._kept.items() for key, tensor in kept.items())

    def load(self, name: str, of: Tensor, saved: dict[str, Tensor]) -> None:
        """Take one parameter's moments as `state` gave them.

        Raises:
            KeyError: they are of the other kind.
            RuntimeError: they are of another size.
        """
        fresh = self._fresh(of)
        if fresh.keys() != saved.keys():
            raise KeyError(f"the moments of {name} are not {self.kind}")
        for key, tensor in fresh.items():
            tensor.copy_(saved[key].view(tensor.shape))
        self._kept[name] = fresh

    def _fresh(self, of: Tensor) -> dict[str, Tensor]:
        if self.kind == "float32" or of.numel() < LEAST_IN_8_BITS:
            return {key: torch.zeros_like(of, dtype=torch.float32) for key in ("exp_avg", "exp_avg_sq")}
        blocks = -(-of.numel() // BLOCK)
        kept = {}
        for i in (1, 2):
            # A block whose scale is 0 is 0 whatever its codes are.
            kept[f"codes{i}"] = torch.zeros_like(of, dtype=torch.uint8)
            kept[f"scales{i}"] = torch.zeros(blocks, device=of.device)
        return kept

    def _move_in_8_bits(
        self,
        values: Tensor,
        gradient: Tensor,
        codes: tuple[Tensor, ...],
        scales: tuple[Tensor, ...],
        rule: Rule,
    ) -> None:
        if kernels := float32_kernels(values):
            kernels.adamw_in_8_bits(values, gradient, codes, scales, self._tables, **asdict(rule))
            return
        levels = (table.levels.to(values.device) for table in self._tables)
        self._library.optimizer_update_8bit_blockwise(
            *("adam", gradient, values, *codes, *rule.betas, 0.0, 0.0, rule.eps, rule.step, rule.rate),
            *(*levels, *scales, rule.decay),
        )


def _move(values: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rule: Rule) -> None:
    # torch counts the step itself.
    steps = torch.tensor(rule.step - 1.0, device=values.device)
    adamw(
        *([values], [gradient], [first], [second], [], [steps]),
        fused=True,
        amsgrad=False,
        beta1=rule.betas[0],
        beta2=rule.betas[1],
        lr=rule.rate,
        weight_decay=rule.decay,
        eps=rule.eps,
        maximize=False,
    )
