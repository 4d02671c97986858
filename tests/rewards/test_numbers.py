"""Pins reading one number exactly: notations, units, Chinese numerals, and what is no number."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.rewards.numbers import parse, read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42), ("+5", 5), ("-3", -3), ("−3", -3), ("006", 6), ("5.", 5), (".25", Fraction(1, 4)),
        ("13.50", Fraction(27, 2)), ("7,500", 7500), ("7{,}500", 7500), ("1\\,234\\,567", 1234567),
        ("\\$7{,}500", 7500), ("-$5", -5), ("$-5", -5), ("€45", 45), ("USD 1,200", 1200),
        ("1.2e5", 120000), ("3\\times 10^{-3}", Fraction(3, 1000)), ("3×10^2", 300),
        ("3/4", Fraction(3, 4)), ("\\frac{3}{4}", Fraction(3, 4)), ("\\dfrac12", Fraction(1, 2)),
        ("\\frac1{72}", Fraction(1, 72)), ("-\\frac{3}{2}", Fraction(-3, 2)), ("((1)/(4))", Fraction(1, 4)),
        ("2\\frac{1}{3}", Fraction(7, 3)), ("17 11/12", Fraction(215, 12)), ("-1\\frac{1}{2}", Fraction(-3, 2)),
        ("3½", Fraction(7, 2)), ("0.\\overline{3}", Fraction(1, 3)), ("0.1\\overline{6}", Fraction(1, 6)),
        ("25%", Fraction(1, 4)), ("25 percent", Fraction(1, 4)), ("2 million", 2000000),
        ("１２．５", Fraction(25, 2)), ("１，２３４", 1234), ("－3", -3), ("50％", Fraction(1, 2)),
        ("12345678901234567891", 12345678901234567891),
        # 2.3 * 10^12; 5 * 10^4 + 17; 247 * 10^4; 26.4 * 10^4; 35/10 * 10^4
        ("两万三千亿", 2300000000000), ("五万零一十七", 50017), ("二百四十七万", 2470000), ("二十六点四万", 264000),
        ("3.5万", 35000), ("十二", 12), ("二十", 20), ("两百", 200), ("零点五", Fraction(1, 2)), ("负三", -3),
        ("三分之二", Fraction(2, 3)), ("百分之二十五", Fraction(1, 4)), ("一又三分之二", Fraction(5, 3)),
        ("$5$", 5), ("\\(5\\)", 5), ("\\text{17}", 17), ("**5**", 5),
    ],
)  # fmt: skip
def test_a_notation_has_its_exact_value(text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("5 apples", 5, "apple"),
        ("36 dollars.", 36, "$"),
        ("64\\text{ cm}^2", 64, "cm^2"),
        ("60平方厘米", 60, "cm^2"),
        ("72^\\circ", 72, "degree"),
        ("3千米", 3, "km"),
        ("2万元", 20000, "¥"),
        ("72千米每小时", 72, "km/h"),
        ("\\frac{3}{4}\\text{ cups}", Fraction(3, 4), "cup"),
    ],
)
def test_a_unit_is_read_apart_from_its_number(text, value, unit):
    quantity = read(text)
    assert (quantity.value, quantity.unit) == (value, unit)


@pytest.mark.parametrize(
    "text",
    ["", " ", "-", "$", "x", "7x", "5k", "5m", "3 i", "1:30", "1.2.3", "5!", "3 or 8", "x=5",
     "二十多", "1.2.3.4", "half a mile and more", "2^3",
     "1/0", "5 sqrt 2",
     "一样", "一共", "万一", "101_2", "\\pm 3", "\\sqrt{2}", "1e9999", "9" * 500, "3-4", "12,34", "\\frac{1}{0}"],
)  # fmt: skip
def test_anything_else_is_no_number(text):
    assert parse(text) is None


def test_a_lone_comma_makes_a_list_and_not_a_number():
    assert parse("1,2") is None
    assert parse("1, 200") is None


@given(st.fractions(max_denominator=10**6))
def test_every_fraction_survives_being_written(value):
    assert parse(f"{value.numerator}/{value.denominator}") == value
    sign = "-" if value < 0 else ""
    assert parse(f"{sign}\\frac{{{abs(value.numerator)}}}{{{value.denominator}}}") == value


@given(st.integers(-(10**15), 10**15))
def test_every_integer_survives_separators_and_full_width(value):
    assert parse(f"{value:,}") == value
    assert parse(f"{value:,}".translate(str.maketrans("0123456789,", "０１２３４５６７８９，"))) == value


@given(st.decimals(-(10**9), 10**9, places=4))
def test_every_decimal_is_exact(value):
    assert parse(str(value)) == Fraction(value)


def in_chinese(n):
    """A whole number below 10^8 in Chinese numerals, zeros between sections written once."""
    digits, marks = "零一二三四五六七八九", ["", "十", "百", "千"]

    def section(m):
        text = ""
        for power in (3, 2, 1, 0):
            digit = m // 10**power % 10
            text += digits[digit] + marks[power] if digit else "零"
        while "零零" in text:
            text = text.replace("零零", "零")
        return text.strip("零")

    if n < 10**4:
        return section(n) or "零"
    low = n % 10**4
    return section(n // 10**4) + "万" + ("零" if 0 < low < 1000 else "") + section(low)


@given(st.integers(0, 10**8 - 1))
def test_every_chinese_numeral_reads_as_its_number(n):
    assert parse(in_chinese(n)) == n
