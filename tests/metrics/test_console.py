"""Pins what a run says: one line a step with the time left, not too many lines, and no obedience to hostile text."""

from __future__ import annotations

import io

import pytest

from peerwise.metrics.console import Console
from peerwise.metrics.sample import Sample, of_group
from peerwise.metrics.text import clip, duration, printable
from peerwise.records import Completion, Group, Problem, Score


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def a_group(*texts: str, question: str = "6 * 7 = ?", id: str = "toy/1") -> Sample:
    group = Group(
        problem=Problem(id=id, task="toy", messages=({"role": "user", "content": question},), answer="42"),
        prompt_ids=(1,),
        completions=tuple(Completion(token_ids=(), logprobs=(), finish="stop", text=text) for text in texts),
        scores=tuple(
            Score(total=float("42" in text), correct="42" in text, extracted=text.strip() or None) for text in texts
        ),
    )
    return of_group(group)


def an_example(text: str, id: str = "toy/1") -> dict[str, object]:
    """As evaluation records carry them."""
    return {
        "problem": id,
        "question": "6 * 7 = ?",
        "gold": "42",
        "text": text,
        "correct": "42" in text,
        "reward": float("42" in text),
        "extracted": text.strip() or None,
    }


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_everything_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    Console().note("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_a_grpo_step_is_one_line_with_reward_and_without_the_loss(out: io.StringIO) -> None:
    console = Console(file=out)
    console.evaluation({"stage": "grpo", "step": 0, "accuracy": 0.418})
    values = {
        "reward/mean": 0.4123,
        "loss": 0.0,
        "groups/informative": 0.625,
        "speed/sampled_tokens_per_s": 512.4,
        "speed/trained_tokens_per_s": 890.0,
        "length/mean": 33.2,
        "time/step": 3.0,
    }
    console.step("grpo", 12, 300, values)
    # 288 steps left at 3 s are 864 s = 14 min 24 s.
    assert out.getvalue().splitlines()[1] == (
        "grpo 12/300  reward 0.412  informative 62%  sampling 512 tok/s  training 890 tok/s  length 33  3.00 s/step  "
        "left 14 min 24 s  accuracy 41.8 %"
    )


def test_an_sft_step_shows_its_loss_and_needs_no_other_key(out: io.StringIO) -> None:
    Console(file=out).step("warm", 1, 2, {"loss": 1.25})
    assert out.getvalue() == "warm 1/2  loss 1.2500\n"


def test_time_left_follows_recent_steps_and_starts_afresh_with_a_stage(out: io.StringIO) -> None:
    clock = Clock()
    console = Console(file=out, clock=clock)
    for step, seconds in ((1, 10.0), (2, 1.0)):
        clock.now += 15
        console.step("a", step, 12, {"time/step": seconds})
    console.stage("b", "grpo", 11)
    clock.now += 15
    console.step("b", 1, 11, {"time/step": 2.0})
    first, second, _, third = out.getvalue().splitlines()
    assert first.endswith("left 1 min 50 s")  # 11 * 10 s
    # Weights 0.9 and 1 over 1.9: (0.9 * 10 + 1) / 1.9 = 5.263 s; ten steps are 52.6 s.
    assert second.endswith("left 53 s")
    assert third.endswith("left 20 s")  # 10 * 2 s, nothing of stage a


def test_lines_are_at_most_one_in_ten_seconds_but_the_last_step_always_shows(out: io.StringIO) -> None:
    clock = Clock()
    console = Console(file=out, clock=clock)
    for step in range(1, 8):
        console.step("s", step, 7, {})
        clock.now += 3.5
    # Steps fall at 0, 3.5, 7, 10.5, 14, 17.5, 21 s: the first, the first after 10 s (the 4th), the last.
    assert out.getvalue().splitlines() == ["s 1/7", "s 4/7", "s 7/7"]


def test_progress_of_an_evaluation_ends_with_its_total(out: io.StringIO) -> None:
    console = Console(file=out, clock=Clock())
    for done in (0, 64, 128):
        console.progress("evaluating gsm8k", done, 128)
    assert out.getvalue().splitlines() == ["evaluating gsm8k 0/128", "evaluating gsm8k 128/128"]


def test_on_a_terminal_a_step_replaces_the_one_before_and_the_last_one_stays(terminal: Terminal) -> None:
    console = Console(file=terminal)
    for step in (1, 2, 3):
        console.step("s", step, 3, {})
    assert terminal.getvalue() == "s 1/3\r\x1b[2Ks 2/3\r\x1b[2Ks 3/3\n"


def test_on_a_terminal_a_note_does_not_stick_to_the_live_line(terminal: Terminal) -> None:
    console = Console(file=terminal)
    console.step("s", 1, 3, {})
    console.note("saved")
    assert terminal.getvalue() == "s 1/3\r\x1b[2Ksaved\n"


def test_on_a_terminal_a_live_line_never_fills_the_width(terminal: Terminal) -> None:
    Console(file=terminal).progress("四" * 60, 1, 2)
    # 80 columns, one kept free, one for the ellipsis: 39 characters of two columns each.
    assert terminal.getvalue() == "四" * 39 + "…"


def test_an_evaluation_is_one_line_with_its_interval(out: io.StringIO) -> None:
    record = {
        "stage": "grpo",
        "step": 50,
        "task": "gsm8k",
        "split": "test",
        "n": 256,
        "accuracy": 0.418,
        "interval": [0.3594, 0.4791],
        "mean_tokens": 33.14,
    }
    Console(file=out).evaluation(record)
    assert out.getvalue() == ("evaluation grpo 50  gsm8k/test  accuracy 41.8 % [35.9, 47.9]  n 256  length 33.1\n")


def test_samples_show_question_gold_best_and_worst_answer(out: io.StringIO) -> None:
    Console(file=out).samples([a_group("so 41", "so 42")])
    assert out.getvalue().splitlines() == [
        "problem toy/1",
        "  question: 6 * 7 = ?",
        "  gold: 42",
        "  answer, reward 1, right, read so 42: so 42",
        "  answer, reward 0, wrong, read so 41: so 41",
    ]


def test_an_answer_that_could_not_be_read_is_said_to_be_so(out: io.StringIO) -> None:
    Console(file=out).samples([a_group("", "")])
    assert out.getvalue().splitlines()[-1] == "  answer, reward 0, wrong, no answer read: "


def test_answers_of_equal_reward_are_shown_once_and_only_a_few_groups_are(out: io.StringIO) -> None:
    Console(file=out).samples([a_group("42", "42", id=f"toy/{index}") for index in range(9)])
    assert [line for line in out.getvalue().splitlines() if line.startswith("problem")] == [
        "problem toy/0",
        "problem toy/1",
        "problem toy/2",
    ]
    assert out.getvalue().count("answer, ") == 3


HOSTILE = "[bold red]x[/bold red] :smile:\nwarning: forged\r\x1b[2J\x07\u202egnp\x9b31m"


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_hostile_text_neither_drives_the_terminal_nor_poses_as_our_line(
    kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out = kind()
    console = Console(file=out)
    console.samples([a_group(HOSTILE, question=HOSTILE, id=HOSTILE)])
    console.comparison([an_example(HOSTILE)], [an_example(HOSTILE)])
    console.warn(HOSTILE)
    console.note(HOSTILE)
    console.table([{"at": HOSTILE, "task": HOSTILE}])
    console.evaluation({"task": HOSTILE})
    console.stage(HOSTILE, "grpo", 1)
    console.step(HOSTILE, 1, 2, {})
    shown = out.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert not set("\r\x07\x1b\u202e\x9b") & set(shown)
    assert "[bold red]x[/bold red] :smile:" in shown
    assert not [line for line in shown.splitlines() if line.startswith("warning: forged")]


def test_printable_spells_out_what_a_terminal_would_obey_or_hide() -> None:
    assert printable("a\x1b[0m\u200b\u2028\ud800\x7f\n四十 [b]") == "a\\x1b[0m\\u200b\\u2028\\ud800\\x7f\n四十 [b]"


def test_a_long_answer_keeps_its_end_where_the_final_answer_is() -> None:
    lines = [f"line {number}" for number in range(1, 11)]
    assert clip("\n".join(lines)).split("\n") == [*lines[:4], "… (4 more lines)", "line 9", "line 10"]
    assert clip("\n".join(lines[:6])) == "\n".join(lines[:6])
    assert clip("a" * 500 + "b" * 60) == "a" * 160 + " … " + "b" * 60
    assert clip("a" * 220) == "a" * 220


def test_the_table_has_a_row_for_each_record_and_a_dash_for_what_is_missing(out: io.StringIO) -> None:
    before = {"at": "before", "task": "arithmetic", "n": 256, "accuracy": 0.1, "interval": (0.07, 0.14), "reward": 0.1}
    after = {"at": "after", "stage": "grpo", "task": "arithmetic", "accuracy": 0.5, "mean_tokens": 31.25}
    after["truncated"] = 0.25
    Console(file=out).table([before, after])
    rows = [line.split() for line in out.getvalue().splitlines() if line.strip()]
    assert rows[-2] == ["before", "arithmetic", "256", "10.0", "%", "[7.0,", "14.0]", "-", "-", "0.100"]
    assert rows[-1] == ["after", "grpo", "arithmetic", "-", "50.0", "%", "31.2", "25.0", "%", "-"]


def test_a_comparison_sets_the_same_problem_side_by_side_in_the_order_given(out: io.StringIO) -> None:
    before = [an_example("41", id="b"), an_example("40", id="a")]
    after = [an_example("43", id="a"), an_example("42", id="b")]
    Console(file=out).comparison(before, after)
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line.startswith("problem")] == ["problem b", "problem a"]
    assert [line.strip() for line in lines if "before" in line or "after" in line] == [
        "before, wrong, read 41: 41",
        "after, right, read 42: 42",
        "before, wrong, read 40: 40",
        "after, wrong, read 43: 43",
    ]


def test_a_problem_that_was_not_answered_again_is_an_error(out: io.StringIO) -> None:
    with pytest.raises(KeyError, match="toy/1"):
        Console(file=out).comparison([an_example("41")], [an_example("41", id="other")])


def test_a_warning_shows_once_and_its_count_at_the_end(out: io.StringIO) -> None:
    console = Console(file=out)
    for text in ("slow", "slow", "odd", "slow"):
        console.warn(text)
    console.close()
    console.close()
    assert out.getvalue().splitlines() == ["warning: slow", "warning: odd", "warning, 3 times: slow"]


def test_quiet_leaves_only_warnings(out: io.StringIO) -> None:
    console = Console(file=out, quiet=True)
    console.stage("s", "grpo", 1)
    console.step("s", 1, 1, {})
    console.progress("p", 1, 1)
    console.evaluation({"accuracy": 0.5})
    console.samples([a_group("42")])
    console.table([{"accuracy": 0.5}])
    console.note("n")
    console.warn("w")
    assert out.getvalue() == "warning: w\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.7, "1 min 00 s"), (864, "14 min 24 s"), (7384, "2 h 03 min")]
)
def test_durations_are_read_in_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
