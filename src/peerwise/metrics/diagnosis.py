"""Named troubles of a run, told from its metrics while it goes on: the figure, the bound it crossed, what to do.

Knows the keys of `names` and nothing of how they came about. Each trouble is told once for a stage. The bounds are set
so that runs which learn raise none; docs/troubleshooting.md has a section for each name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

LONGEST_MEMORY = 40
"""Steps that are looked back on."""
HOPELESS_STEPS = 10
"""Steps in a row without an informative group after which the run is told that nothing is learned."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that is going wrong.

    Example:
        Trouble("unread", "no answer could be read in 62 % of the answers of the last 5 steps (bound 50 %); ...")
    """

    name: str
    text: str

    @property
    def line(self) -> str:
        """What a run says of it, with where to read more."""
        return f"{self.name}: {self.text} (docs/troubleshooting.md#{self.name})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the run's settings say about its figures."""

    max_new_tokens: int
    kl_target: float | None = None
    memory_bytes: float | None = None
    """What the machine has; None: not known."""


class Diagnosis:
    """Fed the metrics of each step of one stage, in order; tells each trouble once."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.steps: deque[Mapping[str, float]] = deque(maxlen=LONGEST_MEMORY)
        self.first: dict[str, list[float]] = {}
        """The values of the stage's first five steps, by key."""
        self.told: set[str] = set()

    def look(self, values: Mapping[str, float]) -> Iterator[Trouble]:
        """The troubles that this step brings to light."""
        self.steps.append(values)
        for key in ("length/mean", "reward/mean", "answers/unread"):
            if key in values and len(self.first.setdefault(key, [])) < 5:
                self.first[key].append(values[key])
        for name, find in FINDERS.items():
            if name not in self.told and (text := find(self)) is not None:
                self.told.add(name)
                yield Trouble(name, text)

    def recent(self, key: str, steps: int, *, before: int = 0) -> float | None:
        """Mean of a key over `steps` steps that end `before` steps ago; None unless each of them has it."""
        end = len(self.steps) - before
        window = list(self.steps)[max(0, end - steps) : end]
        found = [step[key] for step in window if key in step]
        return fmean(found) if len(found) == steps else None

    def start(self, key: str) -> float | None:
        """Mean of a key over the stage's first five steps; None before they are over."""
        found = self.first.get(key, [])
        return fmean(found) if len(found) == 5 else None


def _uninformative(seen: Diagnosis) -> str | None:
    if seen.recent("groups/informative", HOPELESS_STEPS) != 0:
        return None
    return (
        f"no group of the last {HOPELESS_STEPS} steps had both right and wrong answers, so nothing can be "
        "learned: use easier or harder problems, a larger group, or a start that is sometimes right (an sft stage)"
    )


def _truncated(seen: Diagnosis) -> str | None:
    share = seen.recent("length/truncated", 5)
    if share is None or share <= 0.6:
        return None
    return (
        f"{share:.0%} of the answers of the last 5 steps are cut off at rollout.max_new_tokens = "
        f"{seen.limits.max_new_tokens} (bound 60 %); their rewards say little: raise the limit, or charge length with "
        "algorithm.truncated = 'penalty'"
    )


def _unread(seen: Diagnosis) -> str | None:
    share = seen.recent("answers/unread", 5)
    if share is None or share <= 0.5:
        return None
    return (
        f"no answer could be read in {share:.0%} of the answers of the last 5 steps (bound 50 %): the model does not "
        "know the form that the prompt asks for; show it with an sft stage, take another template, or allow "
        "task.last_number"
    )


def _flat(seen: Diagnosis) -> str | None:
    early, late = seen.start("reward/mean"), seen.recent("reward/mean", 10)
    right, informative = seen.recent("accuracy/sampled", 10), seen.recent("groups/informative", 40)
    if early is None or late is None or right is None or informative is None:
        return None
    if abs(late - early) >= 0.02 or right >= 0.9 or informative == 0:
        return None
    return (
        f"the reward has not moved over 40 steps or more ({early:.3f} when the stage began, {late:.3f} now; bound "
        f"0.02), with {informative:.0%} of the groups informative: raise optimizer.learning_rate or "
        "rollout.group_size, or take problems that are answered right more often"
    )


def _form_only(seen: Diagnosis) -> str | None:
    form, right = seen.recent("reward/part/format", 10), seen.recent("accuracy/sampled", 20)
    if form is None and (seen.start("answers/unread") or 0.0) >= 0.3:
        # Where no part of the reward measures the form, it was learned if answers became readable.
        unread = seen.recent("answers/unread", 10)
        form = None if unread is None else 1 - unread
    if form is None or right is None or form <= 0.9 or right >= 0.05:
        return None
    return (
        f"the form is learned ({form:.0%} of the last 10 steps' answers) and the answers are not ({right:.1%} right "
        "over 20 steps; bounds 90 % and 5 %): weigh correctness more, or begin with easier problems or worked solutions"
    )


def _shorter(seen: Diagnosis) -> str | None:
    start, now = seen.start("length/mean"), seen.recent("length/mean", 5)
    before, right = seen.recent("accuracy/sampled", 5, before=15), seen.recent("accuracy/sampled", 5)
    if start is None or now is None or before is None or right is None or now >= 0.3 * start or right >= before:
        return None
    return (
        f"answers have shrunk from {start:.0f} tokens at the start to {now:.0f} (bound 30 %) while accuracy fell: "
        "something pays for brevity; look at parts of length in the reward, and at what stop texts cut"
    )


def _longer(seen: Diagnosis) -> str | None:
    start, now, cut = seen.start("length/mean"), seen.recent("length/mean", 5), seen.recent("length/truncated", 5)
    if start is None or now is None or cut is None or now <= 3 * start or cut <= 0.3:
        return None
    return (
        f"answers have grown from {start:.0f} tokens at the start to {now:.0f} (bound 3 times), and {cut:.0%} are cut "
        "off: take aggregation 'token' or preset dr_grpo, or algorithm.truncated = 'penalty'"
    )


def _entropy(seen: Diagnosis) -> str | None:
    now, informative = seen.recent("entropy/mean", 5), seen.recent("groups/informative", 5)
    right = seen.recent("accuracy/sampled", 5)
    if now is None or informative is None or right is None or now >= 0.02 or informative >= 0.25 or right >= 0.9:
        return None
    return (
        f"entropy is down to {now:.3f} nats a token (bound 0.02) with {right:.0%} right and {informative:.0%} of the "
        "groups informative: the answers of a group are all but the same; lower the learning rate, raise "
        "rollout.temperature or algorithm.clip_high, or add algorithm.entropy_coefficient"
    )


def _duplicates(seen: Diagnosis) -> str | None:
    share, right = seen.recent("groups/duplicates", 5), seen.recent("accuracy/sampled", 5)
    if share is None or right is None or share <= 0.8 or right >= 0.5:
        return None
    return (
        f"{share:.0%} of the answers of the last 5 steps repeat another of their group word for word (bound 80 %) with "
        f"{right:.0%} right: nothing new is tried; raise rollout.temperature"
    )


def _divergence(seen: Diagnosis) -> str | None:
    target, kl, long = seen.limits.kl_target, seen.recent("kl/mean", 3), seen.recent("kl/mean", 20)
    bound = 1.0 if target is None else 10 * target
    if kl is not None and kl > bound:
        return (
            f"the divergence from the reference is {kl:.2f} nats a token (bound {bound:.2f}): the policy is running "
            "away; lower the learning rate, raise algorithm.kl_coefficient or its kl_high"
        )
    if target is not None and long is not None and long > 3 * target:
        return (
            f"the divergence has been at {long:.2f} nats a token for 20 steps (bound {3 * target:.2f}, three times its "
            "target): the coefficient does not catch up; raise algorithm.kl_rate or kl_high, or lower the learning rate"
        )
    return None


def _clipped(seen: Diagnosis) -> str | None:
    low, high = seen.recent("ratio/clipped_low", 5), seen.recent("ratio/clipped_high", 5)
    if low is None or high is None or low + high <= 0.5:
        return None
    return (
        f"{low + high:.0%} of the tokens of the last 5 steps are clipped (bound 50 %): later passes over a batch are "
        "wasted; lower algorithm.updates_per_batch, mini_batches or the learning rate"
    )


def _mismatch(seen: Diagnosis) -> str | None:
    mean = seen.recent("mismatch/mean", 3)
    if mean is None or mean <= 0.1:
        return None
    return (
        f"sampler and trainer disagree by {mean:.2f} nats a token (bound 0.1), so the ratio is off from the first "
        "update: take model.dtype = 'float32', or algorithm.correction = 'truncate'"
    )


def _hacking(seen: Diagnosis) -> str | None:
    reward = seen.recent("reward/mean", 5, before=15), seen.recent("reward/mean", 5)
    right = seen.recent("accuracy/sampled", 5, before=15), seen.recent("accuracy/sampled", 5)
    if reward[0] is None or reward[1] is None or right[0] is None or right[1] is None:
        return None
    if reward[1] - reward[0] < 0.1 or right[0] - right[1] < 0.05:
        return None
    return (
        f"over 20 steps the reward rose from {reward[0]:.2f} to {reward[1]:.2f} while accuracy fell from "
        f"{right[0]:.0%} to {right[1]:.0%} (bounds 0.1 and 5 points): the model has found something else that pays; "
        "look at the best paid wrong answers in rollouts.jsonl and at the parts of the reward"
    )


def _stragglers(seen: Diagnosis) -> str | None:
    longest, mean = seen.recent("length/longest", 5), seen.recent("length/mean", 5)
    if longest is None or mean is None or longest <= 8 * mean:
        return None
    return (
        f"the longest answers take {longest:.0f} tokens and the mean {mean:.0f} (bound 8 times): most of a step waits "
        "for a few; lower rollout.max_new_tokens or take more problems a step"
    )


def _memory(seen: Diagnosis) -> str | None:
    peak, limit = seen.recent("memory/peak", 1), seen.limits.memory_bytes
    if peak is None or limit is None or peak <= 0.9 * limit:
        return None
    return (
        f"memory has reached {peak / 2**30:.1f} of {limit / 2**30:.1f} GiB (bound 90 %): lower "
        "optimizer.micro_batch_tokens or rollout.max_branches, or set model.gradient_checkpointing"
    )


FINDERS: dict[str, Callable[[Diagnosis], str | None]] = {
    "uninformative": _uninformative,
    "truncated": _truncated,
    "unread": _unread,
    "flat": _flat,
    "form-only": _form_only,
    "length-collapse": _shorter,
    "length-explosion": _longer,
    "entropy-collapse": _entropy,
    "duplicates": _duplicates,
    "divergence": _divergence,
    "clipped": _clipped,
    "mismatch": _mismatch,
    "reward-hacking": _hacking,
    "stragglers": _stragglers,
    "memory": _memory,
}
"""Name of a trouble -> its text when it is there."""
CONSTANT_PART = "constant-part"
"""A part of the reward that never varies. Told by `rewards.watch`, which sees single scores; means hide it."""
NAMES = (*FINDERS, CONSTANT_PART)
"""Every trouble that a run may name."""
