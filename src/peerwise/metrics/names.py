"""The one table of metric names: key, unit, formula, meaning and how values of one key are combined.

`value.py` and `write.py` refuse a key that is not here and `docs/metrics.md` is generated from here
(`python -m peerwise.metrics.names > docs/metrics.md`). It knows nothing about how a number is computed or shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peerwise.errors import nearest

Kind = Literal["mean", "sum", "max", "min", "last"]


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    Example:
        Metric("loss", "1", "...", "...", "mean")
    """

    key: str
    """The name in metrics.jsonl; a `<name>` at its end stands for any text and makes it a family."""
    unit: str
    """Unit of the number; "1" has none, "share" lies in 0 to 1."""
    formula: str
    """Plain text, in the words of docs/metrics.md."""
    meaning: str
    """What a person learns from it."""
    kind: Kind
    """How the values of one step are combined: see `value.py`."""


_TABLE = (
    Metric(
        "reward/mean",
        "1",
        "sum of reward over completions / completions",
        "What the sampled answers earned; the number GRPO pushes up.",
        "mean",
    ),
    Metric(
        "reward/std_in_group",
        "1",
        "mean over groups of sqrt(sum of (reward - mean reward of the group)^2 / G)",
        "How much answers to one problem differ; 0 leaves nothing to learn from.",
        "mean",
    ),
    Metric(
        "reward/part/<name>",
        "1",
        "sum of parts[name] over completions where it is not null / those completions",
        "One named part of the reward before weighting, over the answers it applies to.",
        "mean",
    ),
    Metric(
        "reward/failed",
        "share",
        "completions whose reward could not be computed / completions",
        "They are left out of every other figure of rewards, correctness and groups, and of the update.",
        "mean",
    ),
    Metric(
        "answers/timeouts",
        "comparisons",
        "comparisons of an answer with its gold that ran out of time, in this step",
        "Each counts as different; many of them ask for golds that are easier to compare.",
        "sum",
    ),
    Metric(
        "accuracy/sampled",
        "share",
        "completions with correct = true / completions",
        "How often a sampled answer is right, at the sampling temperature and on training problems.",
        "mean",
    ),
    Metric(
        "groups/informative",
        "share",
        "groups with at least one correct and one wrong completion / groups",
        "How much of the batch holds something to follow and something to correct.",
        "mean",
    ),
    Metric(
        "groups/equal",
        "share",
        "groups whose completions all have the same reward / groups",
        "Groups without an advantage, whether right or wrong.",
        "mean",
    ),
    Metric(
        "groups/all_right",
        "share",
        "groups whose completions are all correct / groups",
        "Problems that have become too easy.",
        "mean",
    ),
    Metric(
        "groups/all_wrong",
        "share",
        "groups with no correct completion / groups",
        "Problems that are still too hard.",
        "mean",
    ),
    Metric(
        "groups/duplicates",
        "share",
        "completions with the ids of an earlier one of their group / completions",
        "How little a group tries; 0 when no two answers are alike.",
        "mean",
    ),
    Metric(
        "replay/groups",
        "groups",
        "groups of earlier steps in this step's update",
        "How much of the update is stale; the other figures of groups and answers are of the newly sampled ones.",
        "sum",
    ),
    Metric(
        "replay/age",
        "steps",
        "sum of the ages of groups of earlier steps / these groups; age = this step - the step that sampled it",
        "Staleness; absent when no group of an earlier step was used.",
        "mean",
    ),
    Metric("replay/oldest", "steps", "largest age of a group in this step's update", "The worst staleness.", "max"),
    Metric(
        "curriculum/passed_over",
        "problems",
        "problems of the stream that the curriculum did not admit at this step",
        "They come again in the next epoch.",
        "sum",
    ),
    Metric(
        "length/mean",
        "tokens",
        "sum of tokens over completions / completions",
        "Mean answer length, end token included.",
        "mean",
    ),
    Metric(
        "length/longest",
        "tokens",
        "largest number of tokens of a completion",
        "Far above the mean, a step waits for a few answers.",
        "max",
    ),
    Metric(
        "length/right",
        "tokens",
        "sum of tokens over correct completions / correct completions",
        "Mean length of right answers; absent when there are none.",
        "mean",
    ),
    Metric(
        "length/wrong",
        "tokens",
        "sum of tokens over wrong completions / wrong completions",
        "Mean length of wrong answers; growing beside steady right ones is rambling.",
        "mean",
    ),
    Metric(
        "length/truncated",
        "share",
        "completions with finish = length / completions",
        "Answers cut off at the token limit; a high share asks for a larger limit.",
        "mean",
    ),
    Metric(
        "answers/unread",
        "share",
        "completions with extracted = null / completions",
        "Answers in which no final answer could be read.",
        "mean",
    ),
    Metric(
        "entropy/mean",
        "nats/token",
        "sum over completion tokens of -sum over v of p(v) ln p(v) / completion tokens; "
        "p = softmax(logits / temperature) of the trained policy",
        "How undecided the policy is; a fall to 0 ends exploration.",
        "mean",
    ),
    Metric(
        "ratio/clipped_low",
        "share",
        "completion tokens with ratio < 1 - clip_low and advantage < 0 / completion tokens; "
        "ratio = exp(logprob of the policy - logprob of the policy that sampled)",
        "Tokens no longer pushed down because the policy has moved far enough.",
        "mean",
    ),
    Metric(
        "ratio/clipped_high",
        "share",
        "completion tokens with ratio > 1 + clip_high and advantage > 0 / completion tokens",
        "Tokens no longer pushed up because the policy has moved far enough.",
        "mean",
    ),
    Metric(
        "ratio/min",
        "1",
        "smallest ratio over completion tokens",
        "The policy's farthest departure downwards.",
        "min",
    ),
    Metric(
        "ratio/max",
        "1",
        "largest ratio over completion tokens",
        "The policy's farthest departure from the one that sampled.",
        "max",
    ),
    Metric(
        "kl/mean",
        "nats/token",
        "sum of the estimate over completion tokens / completion tokens; with d = logprob of the policy - logprob of "
        "the reference: d for k1, d^2 / 2 for k2, exp(-d) + d - 1 for k3 (d not below -10)",
        "Distance to the frozen reference; present only when its coefficient is above 0.",
        "mean",
    ),
    Metric(
        "kl/clamped",
        "share",
        "completion tokens with d < -10 / completion tokens; for k3, 0 for the others",
        "Tokens that the reference finds so much likelier that the estimate was held.",
        "mean",
    ),
    Metric(
        "kl/coefficient",
        "1",
        "the coefficient the step was computed with",
        "What the distance costs; moves when kl_target is set.",
        "last",
    ),
    Metric(
        "advantage/abs_mean",
        "1",
        "sum of abs(advantage) over completions / completions",
        "How much there is to follow and to correct; 0 when every group is all right or all wrong.",
        "mean",
    ),
    Metric(
        "mismatch/mean",
        "nats/token",
        "sum over completion tokens of abs(logprob by the sampler - logprob by the trainer before the update) "
        "/ completion tokens",
        "Disagreement of sampler and trainer about the same weights; should be rounding error.",
        "mean",
    ),
    Metric(
        "mismatch/max",
        "nats/token",
        "largest abs(logprob by the sampler - logprob by the trainer before the update) over completion tokens",
        "The worst disagreement of sampler and trainer.",
        "max",
    ),
    Metric(
        "mismatch/outside",
        "share",
        "completion tokens whose probability by the trainer over that by the sampler lies outside [1 / bound, bound] "
        "/ completion tokens; bound = algorithm.mismatch_bound",
        "Tokens that `correction` holds or leaves out; measured whether or not it is on.",
        "mean",
    ),
    Metric(
        "value/mean", "1", "sum of V over completion tokens / completion tokens", "What the critic expects.", "mean"
    ),
    Metric(
        "value/explained",
        "1",
        "1 - var(R - V) / var(R) over completion tokens; R = advantage by GAE + V, V before the update",
        "How much of the returns the critic foresees: 1 all, 0 no more than a constant, below 0 less.",
        "mean",
    ),
    Metric(
        "value/loss",
        "1",
        "sum of the clipped value loss over the critic's updates / these updates",
        "How far the critic is from the returns.",
        "mean",
    ),
    Metric(
        "value/grad_norm",
        "1",
        "sum of the 2-norm of the critic's gradient before clipping over its updates / these updates",
        "Size of the critic's direction.",
        "mean",
    ),
    Metric(
        "pairs/mean",
        "pairs",
        "pairs of a right and a wrong answer / groups",
        "How many pairs dpo finds in a group.",
        "mean",
    ),
    Metric(
        "pairs/margin",
        "nats",
        "sum over pairs of beta * ((a - a_ref) - (b - b_ref)) / pairs; a, b = logprob of the right and of the "
        "wrong answer before the update, a_ref, b_ref = by the reference",
        "How far dpo has moved the policy towards right answers.",
        "mean",
    ),
    Metric(
        "pairs/preferred",
        "share",
        "pairs with a margin above 0 / pairs",
        "How often the policy already prefers the right answer more than the reference did.",
        "mean",
    ),
    Metric(
        "loss",
        "1",
        "sum of the loss that was differentiated over optimizer updates / optimizer updates",
        "For sft the negative log-likelihood per token; for grpo near 0 at the first update, so watch the reward.",
        "mean",
    ),
    Metric(
        "grad_norm",
        "1",
        "sum of the global 2-norm of the gradient before clipping over optimizer updates / optimizer updates",
        "Size of the update's direction; 0 means no group was informative.",
        "mean",
    ),
    Metric("learning_rate", "1", "rate of the step's last optimizer update", "Where the schedule is.", "last"),
    Metric(
        "speed/sampled_tokens_per_s",
        "tokens/s",
        "completion tokens drawn / seconds of sampling",
        "Speed of the generator, prompts not counted.",
        "mean",
    ),
    Metric(
        "speed/trained_tokens_per_s",
        "tokens/s",
        "completion tokens trained on (once per pass) / seconds of training",
        "Speed of forward, backward and update, prompts not counted.",
        "mean",
    ),
    Metric("time/step", "s", "wall-clock seconds of the whole step", "What one step costs.", "sum"),
    Metric("time/sampling", "s", "wall-clock seconds of drawing completions", "Time in the generator.", "sum"),
    Metric("time/reward", "s", "wall-clock seconds of judging completions", "Time in the reward.", "sum"),
    Metric(
        "time/training",
        "s",
        "wall-clock seconds of forward, backward and optimizer updates",
        "Time in the trainer.",
        "sum",
    ),
    Metric(
        "tokens/sampled", "tokens", "sum of tokens over completions", "Completion tokens drawn in this step.", "sum"
    ),
    Metric(
        "memory/peak",
        "bytes",
        "largest memory in use since the process started: resident set on CPU, allocated on a GPU",
        "Room that is left before the machine runs out.",
        "max",
    ),
    Metric(
        "skipped/steps",
        "updates",
        "optimizer updates left out in this step because loss or gradient was not finite",
        "Anything above 0 deserves a look at the saved batch.",
        "sum",
    ),
    Metric(
        "skipped/empty",
        "updates",
        "optimizer updates left out in this step because every completion was left out of the loss",
        "All answers cut off under truncated = mask, or no informative group under drop or refill.",
        "sum",
    ),
    Metric(
        "epoch",
        "epochs",
        "training problems drawn so far in this stage / training problems",
        "How often each problem has been seen.",
        "last",
    ),
)

METRICS: dict[str, Metric] = {metric.key: metric for metric in _TABLE}
"""Every metric by key."""

_FAMILIES = {metric.key.partition("<")[0]: metric for metric in _TABLE if metric.key.endswith("<name>")}


def lookup(key: str) -> Metric:
    """The table's entry for a key; a member of a family resolves to the family.

    Raises KeyError with the nearest name when the table has no such key.

    >>> lookup("reward/part/format").key
    'reward/part/<name>'
    """
    if key in METRICS and not key.endswith("<name>"):
        return METRICS[key]
    for prefix, family in _FAMILIES.items():
        if key.startswith(prefix) and key not in (prefix, family.key):
            return family
    raise KeyError(f"unknown metric {key!r}: not in peerwise.metrics.names; {nearest(key, METRICS)}")


_INTRO = """\
# Metrics

Generated from `src/peerwise/metrics/names.py` by `python -m peerwise.metrics.names > docs/metrics.md`.

Every line of `metrics.jsonl` is one step: `stage`, `step` (from 1 in each stage), `global_step` (from 1 over all
stages) and the metrics below. A metric that does not apply to a step is absent. A number that is not finite is written
as `null` and its key is listed under `non_finite`.

The words of the formulas `reward`, `parts`, `correct`, `extracted`, `tokens`, `finish` and `advantage` are the fields
of a completion in `rollouts.jsonl`, where each line is one sampled group (G completions of one problem): select the
lines with the step's `global_step` and the number can be recomputed. *Completion tokens* include the end token and
never the prompt.

How the values of one step are combined: `mean` adds sums and counts and divides once at the end (never a mean of
means); `sum`, `max` and `min` do what they say; `last` keeps the latest.

| key | unit | combined by | formula | meaning |
|---|---|---|---|---|
"""


def markdown() -> str:
    """The text of docs/metrics.md."""
    rows = (f"| `{m.key}` | {m.unit} | {m.kind} | {m.formula} | {m.meaning} |\n" for m in _TABLE)
    return _INTRO + "".join(rows)


if __name__ == "__main__":
    print(markdown(), end="")
