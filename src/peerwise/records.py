"""The records that stages hand each other: Problem, Completion, Score, Group. No tensors, no behaviour beyond
derived values; this file knows nothing about models, rewards or files.

They exist to keep four rules:

- Training uses the sampled ids. Nothing is re-tokenised, no token is added by hand.
- `Completion.logprobs` are those of the distribution the token was drawn from, in float32.
- `Completion.finish` is decided by the ids that were drawn, never by comparing with a pad id.
- A sample depends only on (seed, place in the stream, problem, index), so a Group can be drawn again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

Finish = Literal["stop", "length"]


class Message(TypedDict):
    """One chat message, as chat templates take it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question whose answer can be checked.

    Example:
        Problem(id="gsm8k/train/17", task="gsm8k", messages=({"role": "user", "content": "6 * 7 = ?"},),
                answer="42", solution="6 * 7 = 42\n\\boxed{42}")
    """

    id: str
    """Unique in a run and stable across runs: it seeds the samples drawn for this problem."""
    task: str
    """Name of the task it came from; decides which reward judges it."""
    messages: tuple[Message, ...]
    """The chat that is shown to the model, prompt template applied."""
    answer: str
    """The gold answer as text, never shown to the model."""
    solution: str | None = None
    """A worked solution in the form the prompt asks for, for SFT; None when the data has none."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What the source row also had (level, subject, line): for reports and curricula, never shown to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model wrote for one prompt.

    Example:
        Completion(token_ids=(41, 7, 2), logprobs=(-0.1, -1.3, -0.01), finish="stop", text="42.")
    """

    token_ids: tuple[int, ...]
    """[T] ids as drawn, the end token included when one was drawn."""
    logprobs: tuple[float, ...]
    """[T] natural-log probabilities under the distribution each token was drawn from."""
    finish: Finish
    """"stop": an end token or stop string was drawn; "length": cut off at the limit."""
    text: str
    """The ids decoded, special tokens removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What the reward said of one completion.

    Example:
        Score(total=0.2, parts={"correct": 0.0, "steps": 0.2, "length": None}, correct=False, extracted="41")
    """

    total: float
    """The number the advantage is computed from."""
    correct: bool
    """Whether the answer is right, whatever the total: evaluation and group filters look at this."""
    parts: Mapping[str, float | None] = field(default_factory=dict)
    """The named parts before weighting; None means the part does not apply to this sample."""
    extracted: str | None = None
    """The final answer as it was read; None when none could be read."""
    rule: str | None = None
    """How it was read and what decided, as in "box, number"; None when the reward does not say."""
    failed: str | None = None
    """Why the reward could not be computed, in a few words that can be counted ("timed out"); None when it was. The
    total of a failed score is 0 and means nothing: baseline, loss and means leave the sample out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """G completions of one problem with their scores."""

    problem: Problem
    prompt_ids: tuple[int, ...]
    completions: tuple[Completion, ...]
    """[G]"""
    scores: tuple[Score, ...]
    """[G], same order as the completions."""

    @property
    def rewards(self) -> list[float]:
        """[G] the total of each score."""
        return [score.total for score in self.scores]

    @property
    def informative(self) -> bool:
        """True when the group has right and wrong answers with a reward, so that there is something to follow."""
        return len({score.correct for score in self.scores if score.failed is None}) > 1
