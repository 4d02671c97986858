"""Where reasonable graders differ: one switch for each such question, with our default.

Data only. What is never in question (2.0 is 2, 12 m is not 12 cm) has no switch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The switches of equality, then those of extraction.

    Example:
        equal("120 cm", "1.2 m", policy=Policy(convert_units=True))  # True
    """

    percent_as_figure: bool = True
    """25% equals 25, as golds often leave the sign to the question ("what percent"). It equals 0.25 in any case."""
    rounded_decimals: bool = False
    """0.333 equals 1/3: a decimal of three or more figures equals what rounds to it."""
    relative_tolerance: float = 1e-9
    """How far irrational values may differ: a root of 11 equals its 15 digits, and pi does not equal 3.14159."""
    degrees_as_radians: bool = False
    """60 degrees equal pi/3."""
    convert_units: bool = False
    """120 cm equal 1.2 m, and 90 minutes 1.5 hours."""
    ratio_as_fraction: bool = False
    """3:4 equals 3/4."""
    scaled_ratios: bool = False
    """6:8 equals 3:4."""
    bare_base: bool = False
    """52_8 equals 52."""
    any_form: bool = True
    """(x+1)^2 equals x^2+2x+1; off, terms and factors may only change places."""
    discount_as_factor: bool = False
    """八折 equals 0.8."""
    either_vector: bool = False
    """A row equals the column of the same numbers."""
    log_is_natural: bool = False
    """log x equals ln x; off, log without a base is that of base 10."""
    renamed_constants: bool = False
    """x^2+C equals x^2+K: one capital letter may stand for another."""
    open_reasoning: bool = False
    """An answer inside reasoning that was opened and never closed counts."""
    cut_off_answers: bool = True
    """An answer that is complete in a text that was cut off at the length limit counts."""
    empty_box_withdraws: bool = False
    """An empty box behind a full one takes the answer back; off, it is an echo of the instruction."""
    first_question: bool = True
    """The answer before the next "Question:" counts; off, the last answer of the whole text."""


DEFAULT = Policy()
