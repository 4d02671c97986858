"""Whether two expressions or equations mean the same; runs in a worker that may be killed, never in the caller.

math-verify's LaTeX grammar parses (nothing is evaluated as Python, and a text that it cannot read whole is not read),
sympy compares: equal numbers to a relative tolerance, equal functions at several points. Knows nothing of lists, units
or words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import (  # type: ignore[import-untyped]
    ConversionConfig,
    NormalizationConfig,
    latex2sympy,
)

_DIGITS = 30
# Irrational-looking points: two different functions that agree at all three do not occur among answers.
_POINTS = ("0.7310585786300049", "1.618033988749895", "2.414213562373095")
_FUNCTIONS = re.compile(
    r"(?<![\\A-Za-z])(a?sinh?|a?cosh?|a?tanh?|cot|sec|csc|ln|log|exp|arcsin|arccos|arctan|pi|sqrt)(?![A-Za-z])"
)
_INVERSE = re.compile(r"\\a(sin|cos|tan)(?![A-Za-z])")
_SLOPPY_ROOT = re.compile(r"\\sqrt ?\(([^()]*)\)|\\sqrt ?(\w)(?!\w)")
_ROOT_WORD = re.compile(r"根号 ?(\d+|[A-Za-z])")
_DECADIC = re.compile(r"\\?(?<![A-Za-z])lg(?![A-Za-z])")
# 4/3 \\pi r^3 is four thirds of it, and not one part in 3 \\pi r^3.
_SLASHED_FACTOR = re.compile(r"(?<![\w/^}).])(\d+)/(\d+)(?= ?(?:\\[a-z]|[A-Za-z(]))")
_ANGLE = re.compile(r"(\\(?:sin|cos|tan|cot|sec|csc) ?[({]? ?)(\d+(?:\.\d+)?) ?\^\\circ ?")
_PLAIN_POWER = re.compile(r"\^ ?(-?\d{2,}|\(([^()]*)\))")
# Readable for the grammar, but not as what was meant: 2 3 as a sum, 101_2 as 101, x' as x.
_MISREAD = re.compile(r"(?<![_\d])\d+ \d|\d_|'|\\text|\\\\|&")
_NORMALIZED = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
_CONVERTED = ConversionConfig(lowercase_symbols=False)


@dataclass(frozen=True, slots=True)
class _Rules:
    """What `Policy` says about expressions."""

    tolerance: float
    any_form: bool
    log_is_natural: bool
    renamed: bool


def same(one: str, other: str, tolerance: float, any_form: bool, log_is_natural: bool, renamed: bool) -> bool:
    """Whether two plain texts are the same expression or equation; False when either cannot be read.

    `tolerance` is relative; the switches are those of `Policy` (any_form, log_is_natural, renamed_constants).
    """
    rules = _Rules(tolerance, any_form, log_is_natural, renamed)
    left, right = _parse(one, log_is_natural), _parse(other, log_is_natural)
    if left is None or right is None:
        return False
    if renamed:
        right = _renamed(left, right)
    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        return _same_equation(left, right)
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return _same_value(left, right, rules)
    return bool(left == right)


@lru_cache(maxsize=256)
def _parse(text: str, log_is_natural: bool) -> Any:
    text = _DECADIC.sub(r"\\log_{10} ", _ROOT_WORD.sub(r"\\sqrt{\1}", text))
    if _MISREAD.search(text):
        return None
    text = _INVERSE.sub(r"\\arc\1", _FUNCTIONS.sub(r"\\\1", text)).replace("**", "^").replace("*", "\\cdot ")
    text = _ANGLE.sub(r"\1\\frac{\2\\pi}{180}", _SLASHED_FACTOR.sub(r"\\frac{\1}{\2}", text))
    text = _PLAIN_POWER.sub(lambda match: f"^{{{match[2] or match[1]}}}", text)
    text = _SLOPPY_ROOT.sub(lambda match: f"\\sqrt{{{match[1] or match[2]}}}", text)
    if log_is_natural:
        text = re.sub(r"\\log(?![A-Za-z_])", r"\\ln", text)
    try:
        parsed = latex2sympy(text, normalization_config=_NORMALIZED, conversion_config=_CONVERTED)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # the grammar raises bare Exception for whatever it cannot read
        return None
    # Nobody means a variable by e or i in an answer.
    return parsed.subs({sympy.Symbol("e"): sympy.E, sympy.Symbol("i"): sympy.I}) if _has_constant(parsed) else parsed


def _has_constant(parsed: Any) -> bool:
    return any(str(symbol) in ("e", "i") for symbol in getattr(parsed, "free_symbols", ()))


def _renamed(one: Any, other: Any) -> Any:
    """`other` with its one capital letter that `one` lacks called as the one that `other` lacks."""
    left, right = one.free_symbols - other.free_symbols, other.free_symbols - one.free_symbols
    if len(left) == len(right) == 1 and str(*left).isupper() and str(*right).isupper():
        return other.subs(right.pop(), left.pop())
    return other


def _same_equation(one: Any, other: Any) -> bool:
    """Both sides on one side, the ratio of the two is a number other than 0."""
    left, right = one.lhs - one.rhs, other.lhs - other.rhs
    if left.free_symbols != right.free_symbols or not left.free_symbols:
        return False
    ratio = sympy.simplify(left / right)
    return bool(ratio.is_number and ratio.is_finite and not ratio.is_zero)


def _same_value(one: Any, other: Any, rules: _Rules) -> bool:
    if not rules.any_form:
        return bool(one == other)
    difference = one - other
    if difference.is_Rational:  # exact however large both are: 8^8^8^8 + 1 is not 8^8^8^8
        return bool(difference.is_zero)
    if one == other:
        return one not in (sympy.nan, sympy.zoo)
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    return _close_everywhere(one, other, symbols, rules) and not _exactly_different(difference, symbols)


def _close_everywhere(one: Any, other: Any, symbols: list[Any], rules: _Rules) -> bool:
    if not symbols:
        return _close(one, other, rules.tolerance)
    for point in _POINTS:
        values = {s: sympy.Float(point, _DIGITS) + i * sympy.Rational(17, 13) for i, s in enumerate(symbols)}
        if not _close(one.subs(values), other.subs(values), rules.tolerance):
            return False
    return not any(_differ_below_zero(one, other, symbols, index, rules) for index in range(len(symbols)))


def _exactly_different(difference: Any, symbols: list[Any]) -> bool:
    """Whether a difference that is close to nothing is a fraction other than 0: 2^100 + 1 is not 2^100."""
    values = {s: sympy.Rational(17 + 4 * i, 13) for i, s in enumerate(symbols)}
    rest = difference.subs(values).doit()
    return bool(rest.is_Rational and not rest.is_zero)


def _differ_below_zero(one: Any, other: Any, symbols: list[Any], index: int, rules: _Rules) -> bool:
    """Whether two real values differ where one symbol is negative: the root of x^2 is not x.

    Values that are not real there say nothing, since ln x^2 and 2 ln x are given for the same.
    """
    values = {s: sympy.Float(_POINTS[1], _DIGITS) + i * sympy.Rational(17, 13) for i, s in enumerate(symbols)}
    values[symbols[index]] = -sympy.Float(_POINTS[2], _DIGITS)
    left, right = (sympy.N(side.subs(values), _DIGITS) for side in (one, other))
    return bool(left.is_real and right.is_real and not _close(left, right, rules.tolerance))


def _close(one: Any, other: Any, tolerance: float) -> bool:
    left, right = sympy.N(one, _DIGITS), sympy.N(other, _DIGITS)
    if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
        return False
    return bool(sympy.Abs(left - right) <= tolerance * sympy.Max(sympy.Abs(left), sympy.Abs(right)))
