"""The compiled functions over tensors: what each takes and gives. What they compute is said in the C files.

All tensors are bfloat16 on the CPU unless said otherwise. Knows no models, caches or batches.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

BLOCK = 16
"""Tokens that lie together in the cache: its room is a multiple of it."""
LANES = 16
"""Columns of a weight that lie together once packed; 4 times as many are a panel."""
_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class CodeTable:
    """256 levels that codes of 8 bits stand for, and how the nearest one to a number is found: by its upper 16 bits.

    Args:
        levels: [256] float32, ascending; halfway between each two must lie a number whose upper 16 bits, the sign among
            them, are no other's.
    """

    def __init__(self, levels: Tensor) -> None:
        self.levels = levels.float().cpu().contiguous()
        self._edges = torch.cat([(self.levels[1:] + self.levels[:-1]) / 2, torch.tensor([torch.inf])])
        bits = self._edges[:-1].abs().view(torch.int32) >> 16
        low, high = int(bits[bits > 0].min()) - 1, int(bits.max())
        bounds = (torch.arange(low, high + 2, dtype=torch.int32) << 16).view(torch.float32)
        bounds[0] = 0
        positive = torch.searchsorted(self._edges, bounds)
        negative = torch.searchsorted(self._edges, -bounds, right=True)
        if max(int(positive.diff().max()), int(-negative.diff().min())) > 1:
            raise ValueError("two halves between neighbouring levels have the same upper 16 bits")
        # What is beyond the last is read by a gather of 4 bytes and left out again.
        self._firsts = torch.cat([positive[:-1], negative[1:], torch.zeros(3)]).to(torch.uint8)
        pointers = (x.data_ptr() for x in (self.levels, self._edges, self._firsts))
        self.place = _CodeTable(*pointers, low, len(bounds) - 1)


class _CodeTable(ctypes.Structure):
    """As in adamw.c."""

    _fields_ = (
        ("levels", _POINTER),
        ("edges", _POINTER),
        ("firsts", _POINTER),
        ("low", ctypes.c_int32),
        ("size", ctypes.c_int32),
    )


class Kernels:
    """The functions of a built library."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        self._product = _declared(loaded.product, [_INT] * 3 + [_POINTER] * 4 + [_INT, _POINTER])
        self._pack = _declared(loaded.pack, [_INT, _INT, _POINTER, _INT, _INT, _POINTER])
        self._pack_turned = _declared(loaded.pack_turned, [_INT, _INT, _POINTER, _POINTER])
        self._rms_norm = _declared(loaded.rms_norm, [_INT, _INT, _POINTER, _POINTER, _FLOAT, _POINTER])
        self._rms_norm_backward = _declared(
            loaded.rms_norm_backward, [_INT, _INT, _POINTER, _POINTER, _FLOAT, _POINTER, _POINTER, _POINTER, _INT]
        )
        self._gated = _declared(loaded.gated, [_INT] + [_POINTER] * 3)
        self._gated_backward = _declared(loaded.gated_backward, [_INT] + [_POINTER] * 6)
        self._rotate = _declared(loaded.rotate, [_INT] * 4 + [_POINTER] * 3)
        strided = [_POINTER, _INT, _INT]
        self._keep = _declared(loaded.keep_tokens, [_INT] * 3 + strided * 2 + [_INT, _POINTER, _POINTER])
        self._attend = _declared(
            loaded.decode_attention,
            ([_INT] * 4 + [_POINTER] * 3 + [_INT] * 3 + [_POINTER] * 6 + [_INT] + [_POINTER] * 2 + [_INT])
            + [_FLOAT, _FLOAT, _INT, _POINTER, _INT, _INT, _POINTER],
        )
        tile = [_INT, _INT, _POINTER, _FLOAT, _POINTER, _INT]
        self._logits_sums = _declared(loaded.logits_sums, tile + [_POINTER] * 4)
        self._logits_gradient = _declared(loaded.logits_gradient, tile + [_POINTER] * 4)
        self._adamw_in_8_bits = _declared(loaded.adamw_in_8_bits, [_INT] + [_POINTER] * 8 + [_FLOAT] * 6)
        self.row_attention = _declared(loaded.row_attention, [_POINTER] * 6)
        self.row_attention_backward = _declared(loaded.row_attention_backward, [_POINTER] * 10)
        self.row_scratch_bytes: Callable[[Any], int] = _declared(loaded.row_scratch_bytes, [_POINTER], _INT)
        self._scratch_floats: Callable[[int, int], int] = _declared(loaded.scratch_floats, [_INT, _INT], _INT)

    def packed(self, weights: Sequence[Tensor], *, gated: bool = False) -> Tensor:
        """Weights [columns, size] that read the same input, as `product` wants them: [panels, size / 2, 64, 2].

        Args:
            weights: columns multiples of 16, of 32 when gated; size even.
            gated: two weights, of the gates and of the values that these are for.
        """
        out = _room_for(weights[0], sum(map(len, weights)), weights[0].shape[1])
        first = 0
        for weight in weights:
            dense = weight.contiguous()
            self._pack(len(weight), weight.shape[1], dense.data_ptr(), first, gated, out.data_ptr())
            first += 2 if gated else len(weight) // LANES
        return out

    def packed_turned(self, weight: Tensor) -> Tensor:
        """A weight [size, columns] for the product with it from the right: as `packed` of its transposed."""
        size, columns = weight.shape
        out = _room_for(weight, columns, size)
        self._pack_turned(columns, size, weight.contiguous().data_ptr(), out.data_ptr())
        return out

    def product(
        self, x: Tensor, weights: Tensor, columns: int, *, bias: Tensor | None, added: Tensor | None, gated: bool
    ) -> Tensor:
        """x @ weight.T + bias, rounded, + added: all [n, columns].

        Args:
            x: [n, size], dense; weights: as `packed` gave them; bias: [columns]; added: [n, columns], dense.
            gated: silu(gates) * values [n, columns / 2] instead; then bias and added are None.
        """
        out = x.new_empty(len(x), columns // 2 if gated else columns)
        factors = x.data_ptr(), weights.data_ptr(), _address(bias), _address(added)
        self._product(len(x), x.shape[1], columns, *factors, gated, out.data_ptr())
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[n, size] dense -> [n, size]; size a multiple of 16."""
        out = torch.empty_like(x)
        self._rms_norm(len(x), x.shape[1], x.data_ptr(), weight.data_ptr(), eps, out.data_ptr())
        return out

    def rms_norm_backward(self, x: Tensor, weight: Tensor, eps: float, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients by x [n, size] and by weight [size] (float32), from that by the result; all dense."""
        of_x, sums = torch.empty_like(x), torch.zeros(torch.get_num_threads(), x.shape[1])
        pointers = x.data_ptr(), weight.data_ptr(), eps, grad.data_ptr(), of_x.data_ptr(), sums.data_ptr()
        self._rms_norm_backward(len(x), x.shape[1], *pointers, len(sums))
        return of_x, sums.sum(0)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up: all of one shape, dense, a multiple of 16 numbers."""
        out = torch.empty_like(gate)
        self._gated(gate.numel(), gate.data_ptr(), up.data_ptr(), out.data_ptr())
        return out

    def gated_backward(self, gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `gated` gave, and the gradients by gate and by up from that by it; all as in `gated`."""
        out, of_gate, of_up = (torch.empty_like(gate) for _ in range(3))
        self._gated_backward(gate.numel(), *(x.data_ptr() for x in (gate, up, grad, out, of_gate, of_up)))
        return out, of_gate, of_up

    def rotate(self, x: Tensor, heads: int, cos: Tensor, sin: Tensor) -> None:
        """Turn the first `heads` heads of each row of x [N, all heads, D] in place; cos, sin [N, D] dense."""
        self._rotate(len(x), heads, x.shape[2], x.stride(0), x.data_ptr(), cos.data_ptr(), sin.data_ptr())

    def logits_sums(self, logits: Tensor, temperature: float, targets: Tensor, start: int, sums: Tensor) -> None:
        """Add a tile of logits [n, columns], the vocabulary from word `start` on, to the rows' sums.

        Args:
            targets: [n] int64 words of the whole vocabulary.
            sums: [4, n] float32, dense: of logits / temperature the maximum m (at first -inf), sum exp(l - m),
                sum exp(l - m) (l - m), and l at the target (at first 0).
        """
        tile = len(logits), logits.shape[1], logits.data_ptr(), 1 / temperature, targets.data_ptr(), start
        self._logits_sums(*tile, *(row.data_ptr() for row in sums))

    def logits_gradient(
        self,
        logits: Tensor,
        temperature: float,
        targets: Tensor,
        start: int,
        *,
        log_sums: Tensor,
        of_logprobs: Tensor,
        of_entropies: Tensor | None,
        entropies: Tensor | None,
    ) -> None:
        """Overwrite a tile of logits [n, columns] by the gradient by it.

        Args:
            targets, start: as in `logits_sums`.
            log_sums: [n] float32, log sum exp(logits / temperature) over the vocabulary.
            of_logprobs, of_entropies: [n] float32 gradients by log-probs and entropies, divided by the temperature.
            entropies: [n] float32 where there is a gradient by them.
        """
        tile = len(logits), logits.shape[1], logits.data_ptr(), 1 / temperature, targets.data_ptr(), start
        rest = log_sums.data_ptr(), of_logprobs.data_ptr(), _address(of_entropies), _address(entropies)
        self._logits_gradient(*tile, *rest)

    def adamw_in_8_bits(
        self,
        values: Tensor,
        gradient: Tensor,
        codes: Sequence[Tensor],
        scales: Sequence[Tensor],
        tables: Sequence[CodeTable],
        *,
        step: int,
        rate: float,
        betas: tuple[float, float],
        eps: float,
        decay: float,
    ) -> None:
        """One step of AdamW, counted from 1, on float32 numbers and their moments in 8 bits, all changed in place.

        Args:
            values, gradient: [n] float32, dense.
            codes, scales: of the mean and of the mean of squares, each [n] uint8 and [blocks of 256] float32, dense.
            tables: of the codes of each.
        """
        tensors = (x.data_ptr() for x in (values, gradient, *codes, *scales))
        corrections = rate / (1 - betas[0] ** step), math.sqrt(1 - betas[1] ** step)
        places = (ctypes.addressof(table.place) for table in tables)
        self._adamw_in_8_bits(len(values), *tensors, *places, *betas, eps, *corrections, 1 - rate * decay)

    def keep(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> None:
        """Keep the tokens of a prompt: k, v [K, T, D], dense along D -> keys, values [K, room, D], in their own order.

        Keys: [K, room / 16, D / 2, 16, 2], 16 tokens side by side; values: [K, room / 2, D, 2], two tokens together.
        """
        heads, tokens, size = k.shape
        strided = (x for y in (k, v) for x in (y.data_ptr(), y.stride(1), y.stride(0)))
        self._keep(tokens, heads, size, *strided, keys.shape[1], keys.data_ptr(), values.data_ptr())

    def scratch(self, tokens: int, size: int) -> Tensor:
        """[threads, floats] float32 that `attend` may use for rows that see up to `tokens` tokens."""
        whole = tokens + 3 * BLOCK
        return torch.empty(torch.get_num_threads(), self._scratch_floats(whole, size))

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rows: tuple[Tensor, Tensor, Tensor, Tensor],
        prompts: tuple[Tensor, Tensor],
        answers: tuple[Tensor, Tensor],
        scale: float,
        softcap: float,
        window: int,
        scratch: Tensor,
    ) -> Tensor:
        """Keep a new token of each row, and let it see its prompt and its answer so far.

        Args:
            q: [n, H, D]; k, v: [n, K, D]; the heads of a row lie together.
            rows: groups, slots, prompt lengths and answer lengths before this token, each [n] int64.
            prompts, answers: keys and values in the order of `keep`, [places, K, room, D].
            softcap, window: 0 is none.
        Returns:
            [n, H, D].
        """
        n, heads, size = q.shape
        out = q.new_empty(n, heads, size)
        groups, slots, prompt_lengths, lengths = (column.data_ptr() for column in rows)
        self._attend(
            *(n, heads, k.shape[1], size, q.data_ptr(), k.data_ptr(), v.data_ptr()),
            *(q.stride(0), k.stride(0), v.stride(0), groups, slots, prompt_lengths, lengths),
            *(prompts[0].data_ptr(), prompts[1].data_ptr(), prompts[0].shape[2]),
            *(answers[0].data_ptr(), answers[1].data_ptr(), answers[0].shape[2]),
            *(scale, softcap, window, scratch.data_ptr(), scratch.shape[1], len(scratch), out.data_ptr()),
        )
        return out


def _declared(function: Any, arguments: Sequence[type], result: type | None = None) -> Any:
    function.argtypes, function.restype = arguments, result
    return function


def _room_for(like: Tensor, columns: int, size: int) -> Tensor:
    return like.new_empty(-(-columns // (4 * LANES)), size // 2, 4 * LANES, 2)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
