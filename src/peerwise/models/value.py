"""A value network: how much reward is still to come, judged at every token of an answer.

A linear head on hidden states, those of a trunk of its own (a copy of the policy as it was) or of the policy itself.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from peerwise.models.forward import PackedGroup, hidden_states, pack, packed_forward


class ValueNetwork(nn.Module):
    """Values of the states in which each completion token is drawn. They start at 0.

    Args:
        policy: the model whose trunk is copied or shared.
        share_trunk: the head reads the policy's hidden states. Its loss does not move the policy, so such a critic is
            cheap and weak.
    """

    def __init__(self, policy: PreTrainedModel, *, share_trunk: bool) -> None:
        super().__init__()
        self.own = None if share_trunk else copy.deepcopy(policy)
        # In a list, so that a shared trunk is not among this module's parameters.
        self._trunk = [policy if self.own is None else self.own]
        self.head = nn.Linear(policy.config.hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, groups: Sequence[PackedGroup]) -> Tensor:
        """[M] float32, in the order of groups and completions."""
        trunk = self._trunk[0]
        packed = pack(groups, trunk.device)
        with packed_forward(trunk), torch.set_grad_enabled(torch.is_grad_enabled() and self.own is not None):
            hidden = hidden_states(trunk, packed.ids, packed.positions, packed.plan)[packed.source]
        values: Tensor = self.head(hidden.float())
        return values[:, 0]
