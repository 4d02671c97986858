"""Whether two expressions or equations mean the same; runs in a worker that may be killed, never in the caller.

math-verify parses (its LaTeX grammar only: nothing is evaluated as Python), sympy compares: equal numbers to a relative
1e-9, equal functions at several points. Knows nothing of lists, units or words.
"""

from __future__ import annotations

import re
from typing import Any

import sympy
from math_verify import LatexExtractionConfig
from math_verify import parse as parse_latex

RELATIVE_TOLERANCE = 1e-9
_DIGITS = 30
# Irrational-looking points: two different functions that agree at all three do not occur among answers.
_POINTS = ("0.7310585786300049", "1.618033988749895", "2.414213562373095")
_FUNCTIONS = re.compile(r"(?<![\\A-Za-z])(sin|cos|tan|cot|sec|csc|ln|log|exp|arcsin|arccos|arctan|pi|sqrt)(?![A-Za-z])")
_SLOPPY_ROOT = re.compile(r"\\sqrt ?\(([^()]*)\)|\\sqrt ?(\w)(?!\w)")


def same(one: str, other: str) -> bool:
    """Whether two plain texts are the same expression or equation; False when either cannot be read."""
    left, right = _parse(one), _parse(other)
    if left is None or right is None:
        return False
    if isinstance(left, sympy.Eq) and isinstance(right, sympy.Eq):
        return _same_equation(left, right)
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
        return _same_value(left, right)
    return bool(left == right)


def _parse(text: str) -> Any:
    text = _FUNCTIONS.sub(r"\\\1", text).replace("**", "^").replace("*", "\\cdot ")
    text = _SLOPPY_ROOT.sub(lambda match: f"\\sqrt{{{match[1] or match[2]}}}", text)
    parsed = parse_latex(
        f"${text}$",
        extraction_config=[LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )
    return parsed[0] if parsed else None


def _same_equation(one: Any, other: Any) -> bool:
    """Both sides on one side, the ratio of the two is a number other than 0."""
    left, right = one.lhs - one.rhs, other.lhs - other.rhs
    if left.free_symbols != right.free_symbols:
        return False
    ratio = sympy.simplify(left / right)
    return bool(ratio.is_number and ratio.is_finite and not ratio.is_zero)


def _same_value(one: Any, other: Any) -> bool:
    difference = one - other
    if difference.is_Rational:  # exact however large both are: 8^8^8^8 + 1 is not 8^8^8^8
        return bool(difference.is_zero)
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    if not symbols:
        return _close(one, other)
    for point in _POINTS:
        values = {s: sympy.Float(point, _DIGITS) + i * sympy.Rational(17, 13) for i, s in enumerate(symbols)}
        if not _close(one.subs(values), other.subs(values)):
            return False
    return True


def _close(one: Any, other: Any) -> bool:
    left, right = sympy.N(one, _DIGITS), sympy.N(other, _DIGITS)
    if not (left.is_number and right.is_number and left.is_finite and right.is_finite):
        return False
    return bool(sympy.Abs(left - right) <= RELATIVE_TOLERANCE * sympy.Max(sympy.Abs(left), sympy.Abs(right)))
