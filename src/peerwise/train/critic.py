"""PPO's critic in training: values before the update, per-token advantages, and its own optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from peerwise.algo.advantage import whitened
from peerwise.algo.aggregate import token_weights
from peerwise.algo.critic import explained_variance, gae, value_loss
from peerwise.metrics.value import Metrics
from peerwise.models.load import Policy
from peerwise.models.value import ValueNetwork
from peerwise.recipe.schema import Critic as Settings
from peerwise.recipe.schema import Stage
from peerwise.records import Group
from peerwise.train.batch import micro_batches
from peerwise.train.budget import TokenBudget
from peerwise.train.masters import MasterWeights
from peerwise.train.optimizer import make_optimizer
from peerwise.train.sequences import counted_of, packed_groups, store


class Critic:
    """The value network of one stage with its optimizer. It starts from the policy as it is when the stage begins."""

    def __init__(self, policy: Policy, stage: Stage, budget: TokenBudget) -> None:
        self.settings: Settings = stage.critic
        self.budget = budget
        self.network = ValueNetwork(policy.model, share_trunk=self.settings.trunk == "shared")
        self.weights = MasterWeights(self.network)
        self.optimizer = make_optimizer(self.weights, stage.optimizer)
        self.values: list[Tensor] = []
        self.returns: list[Tensor] = []

    def compare(self, groups: Sequence[Group], rewards: Tensor, charged: Sequence[Tensor] | None) -> list[Tensor]:
        """Whitened advantages of all tokens, B times [T]; keeps values and returns for `step`.

        Args:
            rewards: [B] of whole answers, paid at the last token.
            charged: B times [T], what each token costs (coefficient times divergence); None is nothing.
        """
        self.values = self._values(groups)
        paid = [torch.zeros(len(v)) if charged is None else -charged[row] for row, v in enumerate(self.values)]
        for row, reward in enumerate(rewards.float()):
            paid[row][-1] += reward
        advantages, self.returns = gae(paid, self.values, discount=self.settings.discount, trace=self.settings.trace)
        counted = torch.cat([c.expand(len(row)) for c, row in zip(counted_of(groups), advantages, strict=True)])
        flat = whitened(torch.cat(advantages), centre=True, scale=True, counted=counted)
        return list(torch.split(flat, [len(row) for row in advantages]))

    def step(self, groups: Sequence[Group], metrics: Metrics, *, passes: int, learning_rate: float) -> None:
        """`passes` optimizer steps towards the returns, over all tokens of answers that have a reward."""
        packed = packed_groups(groups)
        lengths = torch.tensor([len(row) for row in self.returns])
        counted = counted_of(groups)
        weights = token_weights(torch.where(counted, lengths, 0), "token")
        everything = tuple(
            torch.cat([row for row, taken in zip(rows, counted, strict=True) if taken] or [torch.zeros(0)])
            for rows in (self.values, self.returns)
        )
        if not len(everything[0]):
            return
        metrics.add("value/mean", float(everything[0].sum()), len(everything[0]))
        metrics.add("value/explained", explained_variance(*everything))
        device = self.network.head.weight.device

        def collect(tokens: int) -> float:
            total = 0.0
            with self.weights.collecting():
                for parts in micro_batches(packed, tokens, skip=[False] * len(packed)):
                    rows = [row for part in parts for row in part.rows]
                    loss = value_loss(
                        self.network([part.group for part in parts]),
                        torch.cat([self.values[row] for row in rows]).to(device),
                        torch.cat([self.returns[row] for row in rows]).to(device),
                        weights[rows].repeat_interleave(lengths[rows]).to(device),
                        clip=self.settings.value_clip,
                    )
                    loss.backward()  # type: ignore[no-untyped-call]
                    total += float(loss.detach())
            return total

        for _ in range(passes):
            metrics.add("value/loss", self.budget.run(collect, forget=self.optimizer.zero_grad))
            metrics.add("value/grad_norm", self.optimizer.step(learning_rate))

    def state(self) -> dict[str, Tensor]:
        """Weights and moments, for a checkpoint."""
        weights = {f"weights/{name}": value for name, value in self.weights.values().items()}
        return weights | {f"optimizer/{name}": value for name, value in self.optimizer.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Undo `state`."""
        parts: dict[str, dict[str, Tensor]] = {"weights": {}, "optimizer": {}}
        for name, value in state.items():
            kind, _, rest = name.partition("/")
            parts[kind][rest] = value
        self.weights.load(parts["weights"])
        self.optimizer.load_state(parts["optimizer"])

    def _values(self, groups: Sequence[Group]) -> list[Tensor]:
        packed = packed_groups(groups)
        found: dict[int, Tensor] = {}

        def look(tokens: int) -> None:
            for parts in micro_batches(packed, tokens, skip=[False] * len(packed)):
                store(found, parts, self.network([part.group for part in parts]))

        with torch.no_grad():
            self.budget.run(look)
        return [found[row].cpu() for row in range(len(found))]
