"""A whole run: stage after stage with evaluation, checkpoints and resume; the life of a run folder.

A run folder holds recipe.toml (resolved), metrics.jsonl, rollouts.jsonl, evals.jsonl, run.log and checkpoints/.
"""

from __future__ import annotations

import platform
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from peerwise.errors import CheckpointError, EngineError, RewardError, RunFolderError
from peerwise.metrics.board import Planned
from peerwise.metrics.console import Console
from peerwise.metrics.write import EVALS_FILE, RECIPE_FILE, read_rows
from peerwise.recipe.load import dumps, load
from peerwise.recipe.schema import Recipe, Stage
from peerwise.trackers.run import Trackers, open_trackers
from peerwise.train.checkpoint import State, checkpoints, prune, restore, save, step_folder
from peerwise.train.dpo import Dpo
from peerwise.train.grpo import Grpo
from peerwise.train.journal import Journal
from peerwise.train.learner import Learner
from peerwise.train.masters import MasterWeights
from peerwise.train.optimizer import Optimizer, make_optimizer
from peerwise.train.session import Session, open_session
from peerwise.train.sft import Sft
from peerwise.train.standing import best_evaluation, differences, mean_accuracy

METHODS: dict[str, Callable[[Session, str, Stage, Optimizer], Learner]] = {"sft": Sft, "grpo": Grpo, "dpo": Dpo}


def train(recipe: Recipe, folder: Path, console: Console) -> dict[str, Any]:
    """Run a recipe in a new folder. Returns what `_Run.result` says.

    Raises:
        RunFolderError: the folder holds something already.
        RequestError: model or data cannot be used as the recipe says; nothing was written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "holds a run" if (folder / RECIPE_FILE).exists() else "is not an empty folder"
        raise RunFolderError(
            f"{folder} {what} and is not overwritten; go on with it (peerwise train --resume {folder}) "
            "or write elsewhere (--run.out FOLDER)"
        )
    session = open_session(recipe, folder, console)
    (folder / RECIPE_FILE).write_text(dumps(session.recipe), encoding="utf-8")
    return _go(session)


def resume(folder: Path, console: Console) -> dict[str, Any]:
    """Go on with a run from its last complete checkpoint; rows written after it are removed first.

    Raises:
        RunFolderError: the folder is not a run.
        CheckpointError: its last checkpoint cannot be read.
    """
    if not (folder / RECIPE_FILE).is_file():
        raise RunFolderError(
            f"{folder} is not a run: it has no {RECIPE_FILE}; give the folder that a run was written to"
        )
    recipe = load(folder / RECIPE_FILE)
    session = open_session(recipe, folder, console)
    return _go(session)


def _go(session: Session) -> dict[str, Any]:
    try:
        return _Run(session).go()
    finally:
        session.close()


class _Run:
    """The life of one run in this process. Counters are of completed steps."""

    def __init__(self, session: Session) -> None:
        self.session, self.console = session, session.console
        self.recipe, self.folder = session.recipe, session.folder
        self.weights = MasterWeights(session.policy.model)
        self.journal = Journal(session)
        self.best = -1  # global step of the best evaluation of the stage, with patience
        self.stop_asked = False
        self.something_to_save = False

    def go(self) -> dict[str, Any]:
        """From the last checkpoint, if there is one, to the end of the last stage."""
        done = checkpoints(self.folder)
        self._rewind(done)
        self._introduce()
        self.console.plan(self.folder.name, [Planned(n, s.method, s.steps) for n, s in self.recipe.stage.items()])
        self.session.trackers = self._open_trackers(done[-1][1].global_step if done else 0)
        with self.session.trackers, _first_interrupt_asks(self._ask_to_stop):
            if not done and not self._evaluated_before():
                first = next(iter(self.recipe.stage))
                self.session.record(self.session.measure(stage=first, step=0, global_step=0), "before")
            before = 0
            for index, (name, stage) in enumerate(self.recipe.stage.items()):
                within = [found for found in done if found[1].stage == name]
                if within and within[-1][1].ends_stage:
                    before += within[-1][1].step
                else:
                    before += self._stage(index, name, stage, before, within[-1] if within else None)
        self._conclude()
        return self.result()

    def _open_trackers(self, from_step: int) -> Trackers:
        run = self.recipe.run
        return open_trackers(
            run.trackers,
            folder=self.folder,
            project=run.tracker_project,
            settings=self.recipe.model_dump(mode="json"),
            from_step=from_step,
            warn=self.console.warn,
        )

    def result(self) -> dict[str, Any]:
        """The run in short: its folder, its last checkpoint, the evaluations before and after stages."""
        return {
            "run": str(self.folder),
            "checkpoint": str(checkpoints(self.folder)[-1][0]),
            "evaluations": [{k: row[k] for k in row if k not in ("right", "examples")} for row in self._milestones()],
        }

    def _milestones(self) -> list[dict[str, Any]]:
        """Records of the evaluations before the first stage and after each."""
        return [row for row in read_rows(self.folder / EVALS_FILE) if row["at"] in ("before", "after")]

    def _stage(self, index: int, name: str, stage: Stage, before: int, latest: tuple[Path, State] | None) -> int:
        """One stage, from its beginning or from a checkpoint within it; returns the steps it took."""
        self._start_from_previous(index)
        optimizer = make_optimizer(self.weights, stage.optimizer)
        method = METHODS[stage.method](self.session, name, stage, optimizer)
        start = 0
        if latest is not None:
            tensors = restore(latest[0], self.session.policy, self.weights, optimizer)
            if _weights_among(tensors) != _weights_among(method.tensors()):
                raise CheckpointError(
                    f"the checkpoint {latest[0]} is of another method: what it keeps beside the policy is not what "
                    f"stage {name!r} trains; resume with the recipe that the run was started with"
                )
            method.load_tensors(tensors)
            start, method.position = latest[1].step, latest[1].position
            method.carry(latest[1].carried)
            self.session.weights_moved(latest[1].global_step)
        earlier = self._evaluations(name) if self.recipe.evaluation.patience else []
        self.best = best_evaluation(earlier)[0] if earlier else -1
        self.journal.begin(name, stage)
        if not start:
            self.session.trackers.stage(index + 1, name, before)
        state = None if latest is None else latest[1]
        for step in range(start, stage.steps):
            try:
                self.something_to_save = True
                self.journal.step(method, name, stage, step, before + step + 1)
                self.session.weights_moved(before + step + 1)
                state = State(
                    stage=name,
                    step=step + 1,
                    stage_steps=stage.steps,
                    global_step=before + step + 1,
                    position=method.position,
                    carried=method.carried(),
                )
                state = self._evaluate_if_due(state)
            except (RewardError, EngineError):
                # The reward or the server is the user's to mend; what was learned so far must not be the price. The
                # last step of a stage is not complete before its evaluation.
                if state is not None and not state.ends_stage:
                    save(self.folder, state, self.session.policy, self.weights, optimizer, method.tensors())
                raise
            self._save_if_due(state, optimizer, method)
            if state.ends_stage:
                return state.step
        return stage.steps

    def _start_from_previous(self, index: int) -> None:
        """The weights the stage before ended with; a resumed process has only the ones it loaded."""
        previous = list(self.recipe.stage)[index - 1] if index else None
        for folder, state in checkpoints(self.folder):
            if state.stage == previous and state.ends_stage:
                restore(folder, self.session.policy, self.weights)
                self.session.weights_moved(state.global_step)

    def _evaluate_if_due(self, state: State) -> State:
        """Measure where the recipe says so. With patience, the state may come back as the end of its stage."""
        every = self.recipe.evaluation.every
        if not state.ends_stage and not (every and state.step % every == 0):
            return state
        records = self.session.measure(stage=state.stage, step=state.step, global_step=state.global_step)
        at = "after" if state.ends_stage else "during"
        patience = self.recipe.evaluation.patience
        if not patience:
            self.session.record(records, at)
            return state
        earlier = self._evaluations(state.stage)
        self.best, since = best_evaluation([*earlier, *records])
        over = state.ends_stage or since >= patience
        if since == 0 or not over:
            self.session.record(records, at)
            return state
        folder = step_folder(self.folder, self.best)
        if folder.exists():
            self.session.record(records, "during")
            self._back_to_best(folder, state, [row for row in earlier if row["global_step"] == self.best])
        else:
            self.console.warn(f"{folder}, the best checkpoint of the stage, is gone; going on with the latest weights")
            self.session.record(records, "after")
        return replace(state, stage_steps=state.step)

    def _evaluations(self, stage: str) -> list[dict[str, Any]]:
        """The records of a stage so far, without those from before it."""
        return [row for row in read_rows(self.folder / EVALS_FILE) if row["stage"] == stage and row["step"]]

    def _back_to_best(self, folder: Path, state: State, records: list[dict[str, Any]]) -> None:
        """End a stage with the weights that did best in it; what was measured of them then holds now."""
        restore(folder, self.session.policy, self.weights)
        self.session.weights_moved(state.global_step)
        self.console.note(
            f"stage {state.stage} ends after step {state.step} with the weights of {folder.name}, its best on the "
            f"held-out problems ({100 * mean_accuracy(records):.1f} %)"
        )
        self.session.record([row | {"step": state.step, "global_step": state.global_step} for row in records], "after")

    def _save_if_due(self, state: State, optimizer: Optimizer, method: Learner) -> None:
        every = self.recipe.run.checkpoint_every
        due = state.ends_stage or self.stop_asked or bool(every and state.step % every == 0)
        if due or self.best == state.global_step:
            try:
                save(self.folder, state, self.session.policy, self.weights, optimizer, method.tensors())
                prune(self.folder, self.recipe.run.keep_checkpoints, best=self.best)
            except CheckpointError as error:
                if state.ends_stage or self.stop_asked:
                    raise
                self.console.warn(str(error))
        if self.stop_asked:
            self.console.note(
                f"saved at step {state.global_step}; go on with: peerwise train --resume {self.folder}", always=True
            )
            raise KeyboardInterrupt

    def _ask_to_stop(self) -> None:
        if not self.something_to_save:
            self.console.note(f"no step was done; go on with: peerwise train --resume {self.folder}", always=True)
            raise KeyboardInterrupt
        self.stop_asked = True
        self.console.note(
            "stopping after this step and its evaluation; press Ctrl-C again to stop at once without saving"
        )

    def _rewind(self, done: list[tuple[Path, State]]) -> None:
        """Rows after the last checkpoint are drawn again, so they go. An evaluation before training stays."""
        start = 0 if self._evaluated_before() else -1
        removed = self.session.files.rewind(done[-1][1].global_step if done else start)
        if any(removed.values()):
            lines = ", ".join(f"{count} of {name}" for name, count in removed.items() if count)
            self.console.note(f"removed rows written after the last checkpoint: {lines}")

    def _evaluated_before(self) -> bool:
        """Whether the evaluation before training is there, for every task."""
        path = self.folder / EVALS_FILE
        if not path.exists():
            return False
        return {row["task"] for row in read_rows(path) if row["global_step"] == 0} >= set(self.session.problems.tasks)

    def _introduce(self) -> None:
        model = self.session.policy.model
        dtype = str(model.dtype).removeprefix("torch.")
        self.console.note(
            f"{self.session.policy.source} ({model.num_parameters() / 1e6:.0f} M parameters, {dtype}) on "
            f"{model.device}, {torch.get_num_threads()} threads, {platform.processor() or platform.machine()}; "
            f"run folder {self.folder}"
        )

    def _conclude(self) -> None:
        """The before/after table, the difference with its interval, and the same problems before and after."""
        records = self._milestones()
        self.console.end_view()
        self.console.table(records)
        for line in differences(records):
            self.console.note(line)
        if len(records) > 1:
            last_task = records[-1]["task"]
            of_task = [row for row in records if row["task"] == last_task]
            self.console.comparison(of_task[0]["examples"], of_task[-1]["examples"])
        self.console.note(f"finished; the model is in {checkpoints(self.folder)[-1][0]}")


def _weights_among(tensors: Iterable[str]) -> set[str]:
    """The names of what a method trains beside the policy; a fresh optimizer has no moments yet."""
    return {name for name in tensors if not name.startswith("optimizer/")}


@contextmanager
def _first_interrupt_asks(ask: Callable[[], None]) -> Iterator[None]:
    """Within the block the first Ctrl-C (or SIGTERM) calls `ask`; the next one interrupts as usual."""

    def handle(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        ask()

    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever owns it decides about signals
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
