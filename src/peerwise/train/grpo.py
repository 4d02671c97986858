"""GRPO: sample a group of answers to each problem, score them, follow those above the mean, correct those below."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from peerwise.algo.advantage import group_advantages, whitened
from peerwise.algo.divergence import adapted, divergence_of
from peerwise.algo.shaping import overlong_penalty
from peerwise.metrics.value import Metrics
from peerwise.models.lora import Reference
from peerwise.recipe.method import method_of
from peerwise.recipe.schema import Stage
from peerwise.records import Group
from peerwise.train.budget import make_budget
from peerwise.train.critic import Critic
from peerwise.train.learner import Learner
from peerwise.train.likelihood import sequence_logprobs
from peerwise.train.optimizer import Optimizer
from peerwise.train.replay import Replay
from peerwise.train.replay import measure as measure_replay
from peerwise.train.sampling import Sampling
from peerwise.train.schedule import stage_rate, stage_temperature
from peerwise.train.sequences import counted_of, packed_groups
from peerwise.train.session import Session
from peerwise.train.step import policy_step
from peerwise.train.trace import Seen


class Grpo(Learner):
    """One stage of GRPO, or of any other policy-gradient method: the algorithm's settings say which."""

    sampling: Sampling

    def __init__(self, session: Session, name: str, stage: Stage, optimizer: Optimizer) -> None:
        self.session, self.stage, self.optimizer = session, stage, optimizer
        self.seed = session.stage_seed(name)
        self.method = method_of(stage.algorithm)
        refill = self.method.uninformative == "refill"
        self.sampling = Sampling(session, name, stage, refill_rounds=stage.algorithm.refill_rounds if refill else 0)
        self.coefficient = self.method.kl_coefficient
        # The policy as it stands now: the divergence starts at 0.
        self.reference = Reference(session.policy.model) if self.coefficient > 0 else None
        self.budget = make_budget(stage.optimizer.micro_batch_tokens, session.policy.model, session.console.note)
        self.critic = Critic(session.policy, stage, self.budget) if self.method.baseline == "critic" else None
        settings = stage.algorithm
        self.replay = Replay(settings.replay_groups, settings.replay_steps, seed=self.seed)
        self.groups: list[Group] = []
        self.batch: list[Group] = []
        """What the last step learned from: its groups, and those of earlier steps."""
        self.advantages = self.batch_advantages = torch.zeros(0)

    def carried(self) -> dict[str, Any]:
        """Besides what sampling carries: the adaptive coefficient, and the groups that may be used again."""
        return super().carried() | {"kl_coefficient": self.coefficient, "replay": self.replay.state()}

    def carry(self, values: Mapping[str, Any]) -> None:
        """Go on from `carried` of a checkpoint."""
        super().carry(values)
        self.coefficient = values.get("kl_coefficient", self.coefficient)
        self.replay.load(values.get("replay", []), self.session.problems.by_id())

    def step(self, step: int) -> Metrics:
        """Batch `step` of the stage: rollout -> score -> advantage -> update. Keeps the groups for whoever asks."""
        self.groups = []
        self.groups = [self._shaped(group) for group in self.sampling.draw(step)]
        again = self.replay.draw(step, len(self.groups[0].completions))
        self.batch = batch = [*self.groups, *(kept.group for kept in again)]
        self.batch_advantages = torch.zeros(len(batch), len(batch[0].completions))
        self.seen = Seen()
        started = time.perf_counter()
        charged = self._divergences(batch, stage_temperature(self.stage, step))
        advantages, by_token = self._compare(batch, charged)
        self.batch_advantages, self.advantages = advantages, advantages[: len(self.groups)]
        metrics = self._update(step, batch, by_token)
        if self.critic is not None:
            rate = stage_rate(self.stage, step, peak=self.stage.critic.learning_rate)
            self.critic.step(batch, metrics, passes=self.stage.algorithm.updates_per_batch, learning_rate=rate)
        seconds = time.perf_counter() - started
        if charged is not None:
            metrics.add("kl/mean", float(sum(kl.sum() for kl in charged)), sum(map(len, charged)))
        self._adapt(metrics)
        self.sampling.measure(metrics, self.groups)
        if self.replay.groups:
            measure_replay(metrics, again, step)
            self.replay.keep(step, self.groups)
        metrics.add("advantage/abs_mean", float(advantages.abs().sum()), advantages.numel())
        metrics.add("time/training", seconds)
        passes = self.stage.algorithm.updates_per_batch
        metrics.add("speed/trained_tokens_per_s", passes * self._tokens_used(batch, advantages), seconds)
        return metrics

    def _shaped(self, group: Group) -> Group:
        """The group with what being cut off, or nearly so, does to the reward."""
        if self.method.truncated not in ("zero", "penalty"):
            return group
        longest = self.stage.rollout.max_new_tokens
        buffer = self.stage.algorithm.overlong_buffer or max(1, longest // 5)
        scores = []
        for completion, score in zip(group.completions, group.scores, strict=True):
            if score.failed is not None:
                cost = 0.0
            elif self.method.truncated == "zero":
                cost = -score.total if completion.finish == "length" else 0.0
            else:
                cost = overlong_penalty(len(completion.token_ids), longest=longest, buffer=buffer)
            scores.append(replace(score, total=score.total + cost, parts={**score.parts, "overlong": cost}))
        return replace(group, scores=tuple(scores))

    def _divergences(self, batch: Sequence[Group], temperature: float) -> list[Tensor] | None:
        """P * G times [T], log-prob of the sampler minus that of the reference, where the reward is charged for it."""
        if self.reference is None or self.method.kl_in != "reward":
            return None
        with self.reference.policy() as frozen:
            reference = sequence_logprobs(
                frozen,
                packed_groups(batch),
                temperature=temperature,
                micro_batch_tokens=self.budget,
            )
        completions = [c for group in batch for c in group.completions]
        sampled = [torch.tensor(c.logprobs, device=r.device) for c, r in zip(completions, reference, strict=True)]
        return [divergence_of(self.method.divergence, s, r).cpu() for s, r in zip(sampled, reference, strict=True)]

    def _compare(
        self, batch: Sequence[Group], charged: list[Tensor] | None
    ) -> tuple[Tensor, Tensor | Sequence[Tensor]]:
        """The advantages of answers [P, G], and what the update takes: the same, or P * G times [T] by token.

        A group's answers are compared by their whole reward, so the divergence is summed over each answer. Compared
        with the batch, a token answers for the divergence from its own place on.
        """
        method = self.method
        rewards = torch.tensor([group.rewards for group in batch], dtype=torch.float64)
        if self.critic is None and (charged is None or method.baseline in ("group", "leave_one_out")):
            if charged is not None:
                rewards -= self.coefficient * torch.stack([kl.sum() for kl in charged]).reshape(rewards.shape)
            counted = counted_of(batch).reshape(rewards.shape)
            advantages = group_advantages(rewards, scale=method.scale, baseline=method.baseline, counted=counted)
            return advantages, advantages
        costs = None if charged is None else [self.coefficient * kl for kl in charged]
        if self.critic is not None:
            by_token = self.critic.compare(batch, rewards.flatten(), costs)
        else:
            assert costs is not None
            by_token = self._against_batch(rewards.flatten(), costs, counted_of(batch))
        return torch.stack([row.mean() for row in by_token]).reshape(rewards.shape), by_token

    def _against_batch(self, rewards: Tensor, costs: Sequence[Tensor], counted: Tensor) -> list[Tensor]:
        """B times [T]: what is left of the reward from each token on, compared with all tokens of the batch."""
        method = self.method
        returns = [reward - cost.flip(0).cumsum(0).flip(0) for reward, cost in zip(rewards, costs, strict=True)]
        lengths = [len(cost) for cost in costs]
        flat = whitened(
            torch.cat(returns),
            centre=method.baseline == "batch",
            scale=method.scale == "batch",
            counted=counted.repeat_interleave(torch.tensor(lengths)),
        )
        return list(torch.split(flat, lengths))

    def _adapt(self, metrics: Metrics) -> None:
        """Move the coefficient towards the target divergence, where there is one."""
        if self.reference is None:
            return
        metrics.add("kl/coefficient", self.coefficient)
        settings = self.stage.algorithm
        kl = metrics.resolve().get("kl/mean")
        if settings.kl_target is not None and kl is not None:
            self.coefficient = adapted(
                self.coefficient,
                kl,
                target=settings.kl_target,
                rate=settings.kl_rate,
                low=settings.kl_low,
                high=settings.kl_high,
            )

    def _tokens_used(self, batch: Sequence[Group], advantages: Tensor) -> int:
        """Completion tokens of the groups that the update computes."""
        everything = self.method.entropy_coefficient > 0 or (self.reference is not None and self.method.kl_in == "loss")
        return sum(
            len(c.token_ids)
            for group, row in zip(batch, advantages, strict=True)
            for c in group.completions
            if (everything or bool(row.any())) and (self.method.uninformative == "keep" or group.informative)
        )

    def tensors(self) -> dict[str, Tensor]:
        """The critic, where there is one."""
        return {} if self.critic is None else self.critic.state()

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Go on with the critic of a checkpoint."""
        if self.critic is not None:
            self.critic.load_state(tensors)

    def save_batch(self, name: str) -> None:
        """Keep the last batch, groups of earlier steps included, for going through it by hand."""
        rows = [
            asdict(group) | {"advantages": row.tolist()}
            for group, row in zip(self.batch, self.batch_advantages, strict=True)
        ]
        self.session.save_bad(name, rows)

    def _update(self, step: int, batch: Sequence[Group], advantages: Tensor | Sequence[Tensor]) -> Metrics:
        rate = stage_rate(self.stage, step)
        settings = self.stage.algorithm
        metrics = policy_step(
            self.session.policy,
            batch,
            advantages,
            self.optimizer,
            method=self.method,
            learning_rate=rate,
            temperature=stage_temperature(self.stage, step),
            max_new_tokens=self.stage.rollout.max_new_tokens,
            micro_batch_tokens=self.budget,
            passes=settings.updates_per_batch,
            mini_batches=settings.mini_batches,
            seed=self.seed + step,
            reference=self.reference,
            kl_coefficient=self.coefficient,
            mismatch_bound=settings.mismatch_bound,
            stale=len(batch) - len(self.groups),
            seen=self.seen,
        )
        metrics.add("learning_rate", rate)
        return metrics
