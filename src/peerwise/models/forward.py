"""From groups of token ids to log-probs, each prompt computed once for all its completions.

Groups are packed without padding into one row, `[prompt_1, y_11 .. y_1G, prompt_2, y_21 ..]`, with positions that
restart after each prompt, and a plan that lets y_ij see prompt_i and itself only. The result equals a padded
forward with one row per completion. Knows nothing about rewards, advantages or losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from peerwise.algo.logprob import selected_logprobs
from peerwise.errors import ModelError
from peerwise.models.attention import NAME, AttentionPlan, AttentionRule, masked_attention


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedGroup:
    """One prompt and some completions of it. A group may be split: each part then carries the prompt again.

    Example:
        PackedGroup(prompt=(5, 6, 7), completions=((8, 2), (9, 9, 2)))  # 3 + 2 + 3 tokens in the row
    """

    prompt: tuple[int, ...]
    completions: tuple[tuple[int, ...], ...]

    @property
    def num_tokens(self) -> int:
        """Tokens in the row: the prompt once, and every completion."""
        return len(self.prompt) + sum(map(len, self.completions))


@dataclass(slots=True)
class _Span:
    """Where a group lies in the row: the prompt's start and length, and its completions as a padded index."""

    start: int
    prompt: int
    index: Tensor  # [G, L] positions in the row; rows shorter than L repeat their last token
    valid: Tensor  # [G * L] bool, True where the index is a real token
    masks: dict[int | None, tuple[Tensor, Tensor]] = field(default_factory=dict)


class SharedPromptAttention(AttentionPlan):
    """Each completion sees its group's prompt and itself; a prompt sees itself; nothing else."""

    def __init__(self, groups: Sequence[PackedGroup], device: torch.device) -> None:
        self.spans: list[_Span] = []
        start = 0
        for group in groups:
            self.spans.append(_span(group, start, device))
            start += group.num_tokens

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
        """[1, H, N, D] queries over the packed row -> [1, H, N, D]."""
        parts: list[Tensor] = []
        for span in self.spans:
            prompt = slice(span.start, span.start + span.prompt)
            prompt_mask, own_mask = self._masks(span, rule.window, q.device)
            prompt_k, prompt_v = k[:, :, prompt], v[:, :, prompt]
            parts.append(masked_attention(q[:, :, prompt], prompt_k, prompt_v, prompt_mask, rule)[0])
            if span.index.numel() == 0:
                continue
            rows = span.index.shape[0]
            own_q, own_k, own_v = (x[0][:, span.index].transpose(0, 1) for x in (q, k, v))  # [G, heads, L, D]
            full_k = torch.cat([prompt_k.expand(rows, -1, -1, -1), own_k], dim=2)
            full_v = torch.cat([prompt_v.expand(rows, -1, -1, -1), own_v], dim=2)
            out = masked_attention(own_q, full_k, full_v, own_mask, rule)  # [G, H, L, D]
            parts.append(out.transpose(0, 1).flatten(1, 2)[:, span.valid])
        return torch.cat(parts, dim=1)[None]

    @staticmethod
    def _masks(span: _Span, window: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """[P, P] for the prompt and [L, P + L] for each completion; the same for all layers with one window."""
        if window not in span.masks:
            position = torch.arange(span.prompt + span.index.shape[1], device=device)
            distance = position[:, None] - position[None, :]
            seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
            span.masks[window] = (seen[: span.prompt, : span.prompt], seen[span.prompt :])
        return span.masks[window]


def _span(group: PackedGroup, start: int, device: torch.device) -> _Span:
    prompt, lengths = len(group.prompt), [len(y) for y in group.completions]
    longest = max(lengths, default=0)
    index: list[list[int]] = []
    valid: list[bool] = []
    at = start + prompt
    for length in lengths:
        index.append([at + min(t, length - 1) for t in range(longest)])
        valid.extend(t < length for t in range(longest))
        at += length
    return _Span(
        start,
        prompt,
        torch.tensor(index, dtype=torch.long, device=device).reshape(len(lengths), longest),
        torch.tensor(valid, dtype=torch.bool, device=device),
    )


@dataclass(frozen=True, slots=True)
class Head:
    """The output layer: layer maps [N, hidden] to [N, V]; softcap of the logits or None."""

    layer: nn.Linear
    softcap: float | None

    @property
    def weight(self) -> Tensor:
        """[V, hidden]"""
        return self.layer.weight

    @property
    def bias(self) -> Tensor | None:
        """[V] or None."""
        return self.layer.bias

    def logits(self, hidden: Tensor) -> Tensor:
        """[N, hidden] -> [N, V] float32."""
        logits: Tensor = self.layer(hidden).float()
        return logits if self.softcap is None else torch.tanh(logits / self.softcap) * self.softcap


def head_of(model: PreTrainedModel) -> Head:
    """The model's output layer.

    Raises:
        ModelError: the logits are scaled in a way we would silently get wrong.
    """
    layer = model.get_output_embeddings()
    if type(layer) is not nn.Linear:
        raise ModelError(f"{type(model).__name__}: its output layer is a {type(layer).__name__}, expected nn.Linear")
    for key in ("logit_scale", "logits_scaling", "lm_head_multiplier"):
        if getattr(model.config, key, None) not in (None, 1, 1.0):
            raise ModelError(f"{type(model).__name__}: logits scaled by config.{key} are not supported")
    return Head(layer, getattr(model.config, "final_logit_softcapping", None))


def hidden_states(model: PreTrainedModel, ids: Tensor, positions: Tensor, plan: AttentionPlan) -> Tensor:
    """Run packed tokens through the decoder: ids [N], positions [N] -> final hidden states [N, hidden].

    Call within `use_attention(model, NAME)`, the backward pass included: any other attention would take the packed
    row for one text.

    Raises:
        ModelError: the model runs another attention function.
    """
    if model.config._attn_implementation != NAME:
        raise ModelError(
            f"packed tokens need the attention function {NAME!r}, but {type(model).__name__} runs "
            f"{model.config._attn_implementation!r}; call within use_attention(model, {NAME!r})"
        )
    out = model.base_model(input_ids=ids[None], position_ids=positions[None], use_cache=False, plan=plan)
    return cast(Tensor, out.last_hidden_state[0])


@dataclass(frozen=True, slots=True)
class Pack:
    """Groups laid out in one row. M is the number of completion tokens, in the order of groups and completions.

    ids, positions: [N]; source: [M] where in the row the token before each completion token stands (its hidden
    state predicts it: the shift by one); targets: [M] the completion tokens.
    """

    ids: Tensor
    positions: Tensor
    source: Tensor
    targets: Tensor
    plan: SharedPromptAttention


def pack(groups: Sequence[PackedGroup], device: torch.device) -> Pack:
    """Lay groups out in one row, each prompt once. An empty prompt or completion has nothing to predict from."""
    ids: list[int] = []
    positions: list[int] = []
    source: list[int] = []
    targets: list[int] = []
    for group in groups:
        if not group.prompt or not all(group.completions):
            raise ValueError("a packed group needs a prompt and no empty completion")
        last_of_prompt = len(ids) + len(group.prompt) - 1
        ids += group.prompt
        positions += range(len(group.prompt))
        for completion in group.completions:
            source += [last_of_prompt, *range(len(ids), len(ids) + len(completion) - 1)]
            positions += range(len(group.prompt), len(group.prompt) + len(completion))
            ids += completion
            targets += completion
    row = [torch.tensor(column, dtype=torch.long, device=device) for column in (ids, positions, source, targets)]
    return Pack(row[0], row[1], row[2], row[3], SharedPromptAttention(groups, device))


def completion_logprobs(
    model: PreTrainedModel, groups: Sequence[PackedGroup], *, temperature: float = 1.0, chunk: int = 1024
) -> tuple[Tensor, Tensor]:
    """Log-probs of every completion token, and the entropy of the distribution it was drawn from.

    Args:
        temperature: divides the logits, as it does in the sampler; 0 (greedy) leaves them as they are.
        chunk: tokens whose logits exist at one time.
    Returns:
        logprobs [M] and entropies [M], float32, in the order of groups and completions.
    """
    packed = pack(groups, model.device)
    hidden = hidden_states(model, packed.ids, packed.positions, packed.plan)[packed.source]
    head = head_of(model)
    return selected_logprobs(
        hidden,
        head.weight,
        packed.targets,
        bias=head.bias,
        softcap=head.softcap,
        temperature=temperature or 1.0,
        chunk=chunk,
    )
