"""From groups of token ids to log-probs, each prompt computed once for all its completions.

Groups are packed without padding into one row, `[prompt_1, y_11 .. y_1G, prompt_2, y_21 ..]`, with positions that
restart after each prompt, and a plan that lets y_ij see prompt_i and itself only. The result equals a padded
forward with one row per completion. Knows nothing about rewards, advantages or losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from peerwise.algo.logprob import CHUNK, selected_logprobs
from peerwise.errors import ModelError
from peerwise.models.attention import NAME, AttentionPlan, use_attention
from peerwise.models.fused import fused_blocks
from peerwise.models.offload import offloaded_activations
from peerwise.models.shared_prompt import SharedPromptAttention


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


@contextmanager
def packed_forward(model: PreTrainedModel, *, offload: bool = False) -> Iterator[None]:
    """Within the block the model takes packed rows; what is differentiated must stay inside, backward pass included.

    Args:
        offload: activations wait for the backward pass in main memory.
    """
    with use_attention(model, NAME), fused_blocks(model), offloaded_activations(model) if offload else nullcontext():
        yield


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

    Call within `packed_forward(model)`: any other attention would take the packed row for one text.

    Raises:
        ModelError: the model runs another attention function.
    """
    if model.config._attn_implementation != NAME:
        raise ModelError(
            f"packed tokens need the attention function {NAME!r}, but {type(model).__name__} runs "
            f"{model.config._attn_implementation!r}; call within packed_forward(model)"
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
    lengths = [(len(group.prompt), [len(y) for y in group.completions]) for group in groups]
    return Pack(row[0], row[1], row[2], row[3], SharedPromptAttention(lengths, device))


def completion_logprobs(
    model: PreTrainedModel,
    groups: Sequence[PackedGroup],
    *,
    temperature: float = 1.0,
    chunk: int = CHUNK,
    with_entropies: bool = True,
) -> tuple[Tensor, Tensor]:
    """Log-probs of every completion token, and the entropy of the distribution it was drawn from.

    Args:
        temperature: divides the logits, as it does in the sampler; 0 (greedy) leaves them as they are.
        chunk: tokens whose logits exist at one time.
        with_entropies: False leaves them out, and what they cost.
    Returns:
        logprobs [M] and entropies [M] (or [0]), float32, in the order of groups and completions.
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
        with_entropies=with_entropies,
    )
