"""Whether two numbers with units, or two ratios, are the same under a policy.

Exact arithmetic only. What an expression is worth is not known here; its unit is.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from peerwise.rewards import chinese, numbers, units
from peerwise.rewards.numbers import Quantity
from peerwise.rewards.policy import Policy

FEWEST_FIGURES = 3
"""Figures a decimal must have to count as a rounded value."""
ARITHMETIC = 1e-15
"""How far two values may be apart by the arithmetic alone, which has 30 digits."""
_DECIMAL_POINT = re.compile(r"\.\d")
_TERM = r"(?:0|[1-9]\d*)(?:\.\d+)?"  # the 05 of 10:05 is minutes
_RATIO = re.compile(rf"({_TERM})(?: ?(?::|比) ?| to )({_TERM})((?: ?(?::|比) ?{_TERM})*)")
_DISCOUNT = re.compile(r"([\d.]{1,8}|[一二三四五六七八九]{1,2})折")


def same(one: Quantity, other: Quantity, policy: Policy) -> bool:
    """Whether two numbers are the same, units and percent signs considered."""
    if not units.compatible(one.unit, other.unit):
        scale = units.ratio(one.unit, other.unit) if policy.convert_units else None
        return scale is not None and one.value * scale == other.value
    if one.percent != other.percent:
        percent, figure = (one, other) if one.percent else (other, one)
        return figure.value == percent.value or (policy.percent_as_figure and figure.value == percent.value * 100)
    if one.value == other.value:
        return True
    return policy.rounded_decimals and (_rounds_to(one.value, other.value) or _rounds_to(other.value, one.value))


def same_ratio(one: str, other: str, policy: Policy) -> bool | None:
    """Whether two plain texts are the same ratio or, where the policy says so, discount; None when they are none."""
    if policy.discount_as_factor and (_DISCOUNT.fullmatch(one) or _DISCOUNT.fullmatch(other)):
        return _discount(one) == _discount(other)
    left, right = _ratio(one), _ratio(other)
    if left and right:
        return left == right or (policy.scaled_ratios and _scaled(left) == _scaled(right))
    if left or right:
        terms, text = (left, other) if left else (right, one)
        value = numbers.parse(text) if policy.ratio_as_fraction else None
        if value is None or terms is None or len(terms) != 2 or not terms[1]:
            return False
        return terms[0] / terms[1] == value
    return None


def expressions(one: str, other: str, policy: Policy) -> tuple[str, str] | None:
    """Two plain texts without their units, numbers spelled out; None when the units do not agree."""
    (left, unit), (right, other_unit) = _bare(one), _bare(other)
    if policy.degrees_as_radians and (unit == "degree") != (other_unit == "degree"):
        left, right = (
            f"({text})\\cdot \\pi /180" if own == "degree" else text
            for text, own in ((left, unit), (right, other_unit))
        )
        return left, right
    return (left, right) if units.compatible(unit, other_unit) else None


def tolerance(one: str, other: str, policy: Policy) -> float:
    """The relative tolerance for two expressions; wider where one is a decimal and the policy lets it be rounded.

    Where neither has a decimal both are exact, and only the arithmetic is not.
    """
    if not _DECIMAL_POINT.search(one) and not _DECIMAL_POINT.search(other):
        return min(policy.relative_tolerance, ARITHMETIC)
    found = policy.relative_tolerance
    if policy.rounded_decimals:
        for value in (numbers.parse(one), numbers.parse(other)):
            places = _places(value) if value else None
            if value and places:
                found = max(found, float(Fraction(1, 2 * 10**places) / abs(value)))
    return found


def _bare(text: str) -> tuple[str, str]:
    quantity = numbers.read(text)
    if quantity is None:
        return units.split_tail(text)
    value = quantity.value
    return (
        str(value.numerator) if value.denominator == 1 else f"\\frac{{{value.numerator}}}{{{value.denominator}}}"
    ), (quantity.unit)


def _rounds_to(rounded: Fraction, exact: Fraction) -> bool:
    places = _places(rounded)
    return places is not None and abs(rounded - exact) <= Fraction(1, 2 * 10**places)


def _places(value: Fraction) -> int | None:
    """Decimal places of a terminating decimal of enough figures; None for any other number."""
    rest, places = value.denominator, 0
    while rest % 10 == 0 or rest % 5 == 0 or rest % 2 == 0:
        rest, places = rest // (10 if rest % 10 == 0 else 5 if rest % 5 == 0 else 2), places + 1
    if rest != 1 or not places or places > 30:
        return None
    return places if len(str(abs(value.numerator) * 10**places // value.denominator)) >= FEWEST_FIGURES else None


def _ratio(text: str) -> tuple[Fraction, ...] | None:
    match = _RATIO.fullmatch(text)
    return tuple(Fraction(term) for term in re.findall(r"\d+(?:\.\d+)?", text)) if match else None


def _scaled(terms: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """The terms in lowest whole numbers."""
    factor = Fraction(math.lcm(*(term.denominator for term in terms)))
    common = math.gcd(*(int(term * factor) for term in terms)) or 1
    return tuple(term * factor / common for term in terms)


def _discount(text: str) -> Fraction | None:
    match = _DISCOUNT.fullmatch(text)
    if match is None:
        return numbers.parse(text)
    if match[1][0].isascii():
        return Fraction(match[1]) / 10 if re.fullmatch(r"\d+(?:\.\d+)?", match[1]) else None
    figure = chinese.whole_number(match[1])
    return None if figure is None else Fraction(figure, 10 ** len(match[1]))
