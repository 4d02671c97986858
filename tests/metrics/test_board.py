"""Pins the picture of a run: what is on it, how it fits wide, narrow and low terminals, and that hostile text, an
interrupt or another thread does it no harm."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console as RichConsole

from peerwise.metrics.board import Board, Planned
from peerwise.metrics.console import Console
from peerwise.metrics.sample import Answer, Sample

STAGES = [Planned("sft", "sft", 8), Planned("grpo", "grpo", 70)]
HOSTILE = "[bold red]x[/bold red] :smile:\nwarning: forged\r\x1b[2J\x07\u202egnp\x9b31m"
GRPO = {
    "reward/mean": 0.5, "accuracy/sampled": 0.25, "length/mean": 33.2, "groups/informative": 0.625,
    "entropy/mean": 0.5, "kl/mean": 0.01, "loss": 0.0, "grad_norm": 1.5, "time/step": 2.0,
}  # fmt: skip


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def picture(board: Board, width: int = 100, height: int = 40, encoding: str = "utf-8") -> list[str]:
    """The board's rows on a terminal of that size."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    RichConsole(file=file, width=width, height=height, force_terminal=True, color_system=None).print(board)
    return raw.getvalue().decode(encoding).split("\n")[:-1]


def a_board(clock: Clock | None = None) -> Board:
    board = Board(clock or Clock())
    board.plan("demo", STAGES)
    return board


def a_sample(text: str = "so 42", worse: str = "so 41", problem: str = "toy/1") -> Sample:
    answers = (
        Answer(text=text, reward=1.0, correct=True, extracted="42"),
        Answer(text=worse, reward=0.0, correct=False, extracted=None),
    )
    return Sample(problem=problem, question="6 * 7 = ?", gold="42", answers=answers)


def test_stages_have_bars_and_the_one_that_runs_has_the_time_left() -> None:
    board = a_board()
    board.stage("sft")
    board.step("sft", 8, {"time/step": 1.0})
    board.step("grpo", 35, GRPO)
    sft, grpo = picture(board)[2:4]
    assert sft == "  sft                " + "━" * 40 + "  8/8  done"
    assert grpo == "  grpo               " + "━" * 20 + "─" * 20 + "  35/70  left 1 min 10 s"  # 35 steps of 2 s


def test_before_the_first_stage_all_are_to_come() -> None:
    assert [row.split()[-3:] for row in picture(a_board())[2:4]] == [["0/8", "to", "come"], ["0/70", "to", "come"]]


def test_six_figures_are_shown_in_order_of_rank() -> None:
    board = a_board()
    board.step("grpo", 1, GRPO)
    board.evaluation("toy", 0.418, 1)
    assert [row.split("  ")[1] for row in picture(board)[4:]] == [
        "held-out accuracy", "reward", "sampled accuracy", "answer length", "informative groups", "entropy"
    ]  # fmt: skip
    rows = picture(board)
    assert any("41.8 %" in row for row in rows) and any("33 tokens" in row for row in rows)


def test_a_figure_that_only_repeats_the_reward_makes_room_and_so_does_the_loss() -> None:
    board = a_board()
    board.step("grpo", 1, GRPO | {"accuracy/sampled": 0.5})
    assert [headline.key for headline in board.headlines()] == [
        "reward/mean", "length/mean", "groups/informative", "entropy/mean", "kl/mean", "grad_norm"
    ]  # fmt: skip


def test_a_new_stage_starts_its_curves_afresh_and_keeps_that_of_held_out_accuracy() -> None:
    board = a_board()
    board.evaluation("toy", 0.1, 0)
    board.step("sft", 8, {"grad_norm": 9.0, "loss": 1.0})
    board.evaluation("toy", 0.2, 8)
    board.step("grpo", 1, {"grad_norm": 1.0})
    assert board.history == {"held-out": (0.1, 0.2), "grad_norm": (1.0,)}


def test_tasks_measured_at_one_moment_are_one_point_their_mean() -> None:
    board = a_board()
    for at, easy, hard in ((0, 0.2, 0.0), (10, 0.6, 0.2)):
        board.evaluation("easy", easy, at)
        board.evaluation("hard", hard, at)
    assert board.history["held-out"] == pytest.approx((0.1, 0.4))
    assert board.accuracy == pytest.approx(0.4)


def test_a_long_piece_of_work_has_a_bar_until_it_is_done() -> None:
    board = a_board()
    board.work("evaluating", 64, 256)
    assert picture(board)[4] == "  evaluating         " + "━" * 10 + "─" * 30 + "  64/256"
    board.work("evaluating", 256, 256)
    assert not any("evaluating" in row for row in picture(board))


def test_silence_is_told_after_half_a_minute() -> None:
    clock = Clock()
    board = a_board(clock)
    board.step("grpo", 1, GRPO)
    clock.now += 29
    assert "nothing new" not in picture(board)[1]
    clock.now += 46
    assert picture(board)[1] == "demo  2.00 s/step, nothing new for 1 min 15 s"


def test_samples_and_warnings_are_shown_with_what_they_belong_to() -> None:
    board = a_board()
    board.step("grpo", 20, GRPO)
    board.show([a_sample()])
    for text in ("flat: a", "flat: a", "longer: b"):
        board.warn(text)
    rows = picture(board)
    at = rows.index("samples of grpo 20")
    assert rows[at + 1 :] == [
        "  toy/1", "  question: 6 * 7 = ?", "  gold: 42", "  answer, reward 1, right, read 42: so 42",
        "  answer, reward 0, wrong, no answer read: so 41", "warnings: 2", "  2 times: flat: a", "  longer: b",
    ]  # fmt: skip


def test_many_stages_are_shown_around_the_one_that_runs() -> None:
    board = Board(Clock())
    board.plan("demo", [Planned(f"s{number}", "grpo", 10) for number in range(9)])
    board.step("s4", 5, GRPO)
    assert [row.split()[0] for row in picture(board)[2:6]] == ["s3", "s4", "s5", "stage"]
    assert picture(board)[5] == "  stage 5 of 9"


def full() -> Board:
    board = a_board()
    for step in range(1, 31):
        board.step("grpo", step, GRPO | {"reward/mean": step / 30})
    board.evaluation("toy", 0.5, 30)
    board.work("evaluating 四十", 3, 7)
    board.show([a_sample("四" * 200 + "\n" * 9 + HOSTILE, HOSTILE, HOSTILE)] * 3)
    board.warn("w" * 300 + HOSTILE)
    return board


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@given(st.integers(12, 200), st.integers(4, 60))
def test_it_fits_any_terminal_and_shows_no_text_as_more_than_text(encoding: str, width: int, height: int) -> None:
    rows = picture(full(), width, height, encoding)
    assert len(rows) <= max(1, height - 2)
    assert all(cell_len(row) < width for row in rows)
    assert not set("\r\x07\x1b\u202e\x9b") & set("".join(rows))


def test_a_narrow_terminal_keeps_names_figures_and_arrows() -> None:
    rows = picture(full(), 38, 40)
    assert "  reward                    1.000  ↑" in rows
    assert not any("▁" in row for row in rows)


def test_without_unicode_curves_and_bars_are_plain() -> None:
    board = a_board()
    for step in (1, 2, 3):
        board.step("grpo", step, {"reward/mean": step / 2})
    rows = picture(board, encoding="ascii")
    assert any(row.endswith("^  _+#") for row in rows)
    assert any("#---" in row for row in rows)


def shown(terminal: Terminal) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "40")
    return Terminal()


def test_on_a_terminal_the_plan_brings_the_board_and_closing_leaves_it_and_the_cursor(terminal: Terminal) -> None:
    console = Console(file=terminal)
    console.plan("demo", STAGES)
    console.stage("grpo", "grpo", 70)
    console.step("grpo", 7, 70, GRPO)
    console.samples([a_sample()])
    console.note("saved")
    console.close()
    text = shown(terminal)
    assert "saved\n" in text and "7/70" in text and "so 42" in text
    assert terminal.getvalue().rstrip("\n").endswith("\x1b[?25h")
    assert not any(line.startswith("grpo 7/70") for line in text.splitlines())


def test_an_exception_in_the_midst_leaves_the_terminal_usable(terminal: Terminal) -> None:
    console = Console(file=terminal)
    with pytest.raises(KeyboardInterrupt):
        try:
            console.plan("demo", STAGES)
            raise KeyboardInterrupt
        finally:
            console.close()
    assert terminal.getvalue().rstrip("\n").endswith("\x1b[?25h")


@pytest.mark.parametrize("quiet", [True, False])
def test_no_board_where_there_is_no_terminal_or_only_warnings_are_wanted(quiet: bool, terminal: Terminal) -> None:
    out = terminal if quiet else io.StringIO()
    console = Console(file=out, quiet=quiet)
    console.plan("demo", STAGES)
    console.step("grpo", 7, 70, GRPO)
    console.close()
    assert out.getvalue() == "" if quiet else out.getvalue().startswith("grpo 7/70")


def test_the_log_has_every_step_and_sample_while_the_board_shows_only_the_latest(terminal: Terminal, tmp_path) -> None:
    console = Console(file=terminal)
    console.log_to(tmp_path / "run.log")
    console.plan("demo", STAGES)
    for step in (1, 2):
        console.step("grpo", step, 70, GRPO)
        console.samples([a_sample(f"answer of {step}")])
    console.close()
    log = (tmp_path / "run.log").read_text()
    assert "grpo 1/70" in log and "grpo 2/70" in log and "answer of 1" in log and "answer of 2" in log
