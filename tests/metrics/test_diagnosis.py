"""Pins which troubles of a run are named, each provoked by a trace of its own, that each is told once, that runs which
learn raise none, and that each name has its section in docs/troubleshooting.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from peerwise.metrics.diagnosis import FINDERS, NAMES, Diagnosis, Limits, Trouble
from peerwise.metrics.names import lookup

DOCUMENT = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
GIB = 2.0**30


def healthy(step: int) -> dict[str, float]:
    """A run that learns: from 5 % right to 75 %, entropy from 1.5 to 0.03, answers a little shorter, few cut off."""
    done = min(1.0, step / 60)
    return {
        "reward/mean": 0.05 + 0.7 * done,
        "reward/part/format": 0.5 + 0.5 * done,
        "accuracy/sampled": 0.05 + 0.7 * done,
        "groups/informative": 0.3 + 0.4 * done * (1 - done),
        "groups/duplicates": 0.4 * done,
        "length/mean": 38 - 8 * done,
        "length/longest": 48.0,
        "length/truncated": 0.45 * (1 - done),
        "answers/unread": 0.35 * (1 - done),
        "entropy/mean": 1.5 - 1.47 * done,
        "kl/mean": 0.2 * done,
        "ratio/clipped_low": 0.02,
        "ratio/clipped_high": 0.03,
        "mismatch/mean": 0.03,
        "memory/peak": 8 * GIB,
    }


def told(trace: Callable[[int], dict[str, float]], steps: int = 80, **limits: float) -> dict[str, tuple[int, str]]:
    """Name of each trouble -> (the step, counted from 0, that it was told at, its text)."""
    diagnosis = Diagnosis(Limits(**{"max_new_tokens": 48, "memory_bytes": 24 * GIB, **limits}))
    found: dict[str, tuple[int, str]] = {}
    for step in range(steps):
        for trouble in diagnosis.look(trace(step)):
            assert trouble.name not in found, "told twice"
            found[trouble.name] = (step, trouble.text)
    return found


def test_a_run_that_learns_has_no_trouble() -> None:
    assert told(healthy, 200) == {}
    assert told(lambda step: healthy(0) | {"reward/mean": healthy(step)["reward/mean"]}, 30) == {}


def test_a_run_that_has_learned_everything_has_no_trouble_but_that_nothing_is_left() -> None:
    done = {"accuracy/sampled": 1.0, "reward/mean": 1.0, "groups/informative": 0.0, "entropy/mean": 0.001}
    assert set(told(lambda step: healthy(200) | done | {"groups/duplicates": 0.95})) == {"uninformative"}


@pytest.mark.parametrize(
    ("name", "changed", "at"),
    [
        # The step at which enough of them have gone by: windows of 10, 5, 5, 40, 20 steps and so on.
        ("uninformative", lambda step: {"groups/informative": 0.0}, 9),
        ("truncated", lambda step: {"length/truncated": 0.61}, 4),
        ("unread", lambda step: {"answers/unread": 0.51}, 4),
        ("flat", lambda step: {"reward/mean": 0.3 + 0.019 * (step >= 30), "accuracy/sampled": 0.3}, 39),
        ("form-only", lambda step: {"reward/part/format": 0.95, "accuracy/sampled": 0.04}, 19),
        # From 40 tokens to 10 at step 20; accuracy falls with it. Five steps later the window is all short.
        (
            "length-collapse",
            lambda step: {"length/mean": 40.0 if step < 20 else 10.0, "accuracy/sampled": 0.5 - 0.004 * step},
            24,
        ),
        (
            "length-explosion",
            lambda step: {"length/mean": 40.0 if step < 20 else 130.0, "length/truncated": 0.35},
            24,
        ),
        (
            "entropy-collapse",
            lambda step: {"entropy/mean": 0.01, "groups/informative": 0.2, "accuracy/sampled": 0.3},
            4,
        ),
        ("duplicates", lambda step: {"groups/duplicates": 0.85, "accuracy/sampled": 0.4}, 4),
        ("divergence", lambda step: {"kl/mean": 1.1}, 2),
        ("clipped", lambda step: {"ratio/clipped_low": 0.3, "ratio/clipped_high": 0.25}, 4),
        ("mismatch", lambda step: {"mismatch/mean": 0.11}, 2),
        # 0.01 a step up and 0.005 down: over 15 steps 0.15 and 0.075.
        (
            "reward-hacking",
            lambda step: {"reward/mean": 0.2 + 0.01 * step, "accuracy/sampled": 0.6 - 0.005 * step},
            19,
        ),
        ("stragglers", lambda step: {"length/longest": 320.0, "length/mean": 39.0}, 4),
        ("memory", lambda step: {"memory/peak": 22 * GIB}, 0),
    ],
)
def test_each_trouble_is_named_when_its_figures_say_so_and_told_once(
    name: str, changed: Callable[[int], dict[str, float]], at: int
) -> None:
    found = told(lambda step: healthy(step) | changed(step))
    assert name in found, found
    assert found[name][0] == at
    assert found[name][1][0].islower() or found[name][1][0].isdigit()


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("uninformative", lambda step: {"groups/informative": 0.0 if step % 10 else 0.1}),
        ("truncated", lambda step: {"length/truncated": 0.59}),
        ("flat", lambda step: {"reward/mean": 0.95, "accuracy/sampled": 0.95}),
        ("length-collapse", lambda step: {"length/mean": 40.0 if step < 20 else 10.0}),  # accuracy rises
        ("length-explosion", lambda step: {"length/mean": 10.0 if step < 20 else 40.0, "length/truncated": 0.0}),
        ("entropy-collapse", lambda step: {"entropy/mean": 0.001, "accuracy/sampled": 0.95}),
        ("divergence", lambda step: {"kl/mean": 0.9}),
        ("memory", lambda step: {"memory/peak": 21 * GIB}),
    ],
)
def test_none_is_named_just_within_its_bound(name: str, changed: Callable[[int], dict[str, float]]) -> None:
    assert name not in told(lambda step: healthy(step) | changed(step))


def test_the_bound_of_the_divergence_follows_its_target() -> None:
    assert "divergence" in told(lambda step: healthy(step) | {"kl/mean": 0.55}, kl_target=0.05)
    # Three times the target is borne for less than 20 steps.
    assert "divergence" not in told(lambda step: healthy(step) | {"kl/mean": 0.45 * (step % 10 < 3)}, kl_target=0.05)
    assert told(lambda step: healthy(step) | {"kl/mean": 0.16}, kl_target=0.05)["divergence"][0] == 19
    assert "divergence" not in told(lambda step: healthy(step) | {"kl/mean": 0.14}, kl_target=0.05)


def test_the_form_is_learned_where_answers_became_readable_too() -> None:
    def trace(step: int) -> dict[str, float]:
        without = {key: value for key, value in healthy(step).items() if key != "reward/part/format"}
        return without | {"answers/unread": 0.6 if step < 10 else 0.05, "accuracy/sampled": 0.04}

    # Ten steps with readable answers after the tenth, and twenty with few right ones.
    assert told(trace)["form-only"][0] == 19
    always = {"answers/unread": 0.0}
    assert "form-only" not in told(lambda step: trace(step) | always)


def test_a_trouble_says_where_to_read_more() -> None:
    assert Trouble("flat", "it does not move").line == "flat: it does not move (docs/troubleshooting.md#flat)"


def test_figures_that_a_step_does_not_have_say_nothing() -> None:
    assert told(lambda step: {"loss": 0.0}) == {}


def test_every_name_has_its_section_and_every_figure_is_in_the_table() -> None:
    headings = [line.removeprefix("## ") for line in DOCUMENT.read_text().splitlines() if line.startswith("## ")]
    assert headings == list(NAMES)
    assert list(FINDERS) == [name for name in NAMES if name != "constant-part"]
    for key in healthy(0):
        lookup(key)
