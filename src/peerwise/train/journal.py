"""What a run writes and says of each step: figures, recorded groups, samples, troubles, steps that went wrong.

Tells files, console and trackers; it decides nothing about the run except to end one that cannot go on.
"""

from __future__ import annotations

import math
import resource
import sys
import time

import torch

from peerwise.errors import TrainingError
from peerwise.metrics.diagnosis import Diagnosis, Limits
from peerwise.metrics.sample import of_group
from peerwise.recipe.schema import Stage
from peerwise.rollout.native.memory import total_bytes
from peerwise.train.learner import Learner
from peerwise.train.session import Session
from peerwise.train.trace import Tracer


class Journal:
    """The journal of one run in this process."""

    def __init__(self, session: Session) -> None:
        self.session, self.console = session, session.console
        self.tracer = Tracer(session.policy.decode)
        self.diagnosis = Diagnosis(Limits(max_new_tokens=1))
        self.bad_steps = 0

    def begin(self, name: str, stage: Stage) -> None:
        """A stage begins or goes on; what went before says nothing about its troubles."""
        self.diagnosis = Diagnosis(
            Limits(
                max_new_tokens=stage.rollout.max_new_tokens,
                kl_target=stage.algorithm.kl_target,
                memory_bytes=total_bytes(self.session.policy.model.device),
            )
        )
        self.console.stage(name, stage.method, stage.steps)

    def step(self, method: Learner, name: str, stage: Stage, step: int, global_step: int) -> None:
        """Have one step done, and write it down.

        Raises:
            TrainingError: too many steps in a row were not finite, or there is nothing to learn.
        """
        started = time.perf_counter()
        metrics = method.step(step)
        metrics.add("time/step", time.perf_counter() - started)
        metrics.add("memory/peak", _peak_memory())
        values = metrics.resolve()
        finite = not values.get("skipped/steps") and math.isfinite(values["loss"])
        self.session.files.metrics(name, step + 1, values, global_step=global_step)
        self.session.trackers.metrics(global_step, values)
        self.console.step(name, step + 1, stage.steps, values)
        if method.groups:
            self._record_groups(method, name, step + 1, global_step)
            self._warn(values, method)
        self._count_bad(finite, method, global_step)

    def _record_groups(self, method: Learner, name: str, step: int, global_step: int) -> None:
        traces = self.tracer.traces(method.groups, method.seen)
        for group, row, tokens in zip(method.groups, method.advantages.tolist(), traces, strict=True):
            self.session.files.group(
                name,
                step,
                group,
                row,
                global_step=global_step,
                traces=tokens,
                policy_version=self.session.version,
            )
        every = self.session.recipe.run.samples_every
        if every and step % every == 0:
            samples = [of_group(group) for group in method.groups[:2]]
            self.console.samples(samples)
            self.session.trackers.samples(global_step, samples)

    def _warn(self, values: dict[str, float], method: Learner) -> None:
        """What wastes a run quietly is said aloud."""
        for trouble in self.diagnosis.look(values):
            if trouble.name == "uninformative" and method.stage.method == "dpo":
                raise TrainingError(trouble.text)
            self.console.warn(trouble.line)

    def _count_bad(self, finite: bool, method: Learner, global_step: int) -> None:
        """An update that is not finite has moved nothing; steps with one, several in a row, end the run."""
        self.bad_steps = 0 if finite else self.bad_steps + 1
        if finite:
            return
        method.save_batch(f"step-{global_step}")
        self.console.warn("a loss or gradient was not finite; that update was left out and its batch saved in bad/")
        if self.bad_steps >= self.session.recipe.run.max_bad_steps:
            raise TrainingError(
                f"{self.bad_steps} steps in a row gave a loss or gradient that is not finite. Their batches are in "
                f"{self.session.folder / 'bad'}; the last good checkpoint is untouched. Lower the learning rate or use "
                "model.dtype = 'float32'"
            )


def _peak_memory() -> float:
    """Bytes: the largest resident set of this process, or the largest allocation on the GPU."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
