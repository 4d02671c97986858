"""Times of day and dates: 3:30 pm, 15:30, 下午3点半, March 5, 2021, 2021年3月5日.

Knows notation only: no calendar, no time zones, and no guess which of 3/5 is the month.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from peerwise.rewards.chinese import whole_number

_YEAR = "january february march april may june july august september october november december"
_MONTHS = _YEAR.split()
_MONTH = "(?:" + "|".join(f"{name[:3]}(?:{name[3:]})?" for name in _MONTHS) + r"|sept)\.?"
_CLOCK = re.compile(r"(\d{1,2})(?::([0-5]\d))?(?::([0-5]\d))? ?(a\.?m\.?|p\.?m\.?)?", re.IGNORECASE)
_FIGURE = "[0-9零〇一二两三四五六七八九十]{1,3}"
_CHINESE_CLOCK = re.compile(
    rf"(凌晨|早上|早晨|上午|中午|下午|傍晚|晚上)?(?:({_FIGURE})[点时](?:(半)|整|({_FIGURE})分?|([一三])刻)?钟?|(\d{{1,2}}):([0-5]\d))"
)
_LATE = ("下午", "傍晚", "晚上")
_ISO = re.compile(r"(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})")
_CHINESE_DATE = re.compile(
    r"(?:(\d{4}|[零〇一二三四五六七八九]{4})年)?([0-9一二三四五六七八九十]{1,3})月([0-9一二三四五六七八九十]{1,3})[日号]"
)
_MONTH_FIRST = re.compile(rf"({_MONTH}) (\d{{1,2}})(?:st|nd|rd|th)?(?:,? (\d{{4}}))?", re.IGNORECASE)
_DAY_FIRST = re.compile(rf"(?:the )?(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})(?:,? (\d{{4}}))?", re.IGNORECASE)
LONGEST = 40


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds since midnight as written; `half`: whether it was said which half of the day."""

    second: int
    half: bool


@dataclass(frozen=True, slots=True)
class Date:
    """A day; `year` is None when none was given."""

    year: int | None
    month: int
    day: int


def read(text: str) -> Clock | Date | None:
    """The time of day or the date that all of a plain text is; None when it is neither."""
    if len(text) > LONGEST or not re.search(r"[\d点时月]", text):
        return None
    return _clock(text) or _date(text)


def same(one: Clock | Date, other: Clock | Date) -> bool:
    """Whether two are the same: a clock without am or pm may mean either half of the day that fits."""
    if isinstance(one, Clock) and isinstance(other, Clock):
        if one.half != other.half:
            unmarked = other if one.half else one
            return one.second == other.second or (
                unmarked.second < 13 * 3600 and (one.second - other.second) % (12 * 3600) == 0
            )
        return one.second == other.second
    if isinstance(one, Date) and isinstance(other, Date):
        years = {one.year, other.year} - {None}
        return (one.month, one.day) == (other.month, other.day) and len(years) < 2
    return False


def _clock(text: str) -> Clock | None:
    match = _CLOCK.fullmatch(text)
    if match and (match[2] or match[4]):
        hour, minute, second = (int(part or 0) for part in match.groups()[:3])
        if match[4]:
            hour = hour % 12 + 12 * match[4].lower().startswith("p") if 1 <= hour <= 12 else 24
        return _in_a_day(hour, minute, second, bool(match[4]))
    if match := _CHINESE_CLOCK.fullmatch(text):
        part, spoken, half, minutes, quarters, hour_digits, minute_digits = match.groups()
        if spoken and not (part or half or minutes or quarters or "整" in text):
            return None
        found = whole_number(spoken or hour_digits)
        rest = (
            30
            if half
            else {"一": 15, "三": 45}[quarters]
            if quarters
            else whole_number(minutes or minute_digits or "0")
        )
        if found is None or rest is None:
            return None
        late = (part in _LATE and found < 12) or (part == "中午" and found < 3)
        return _in_a_day(found + 12 * late, rest, 0, bool(part))
    return None


def _in_a_day(hour: int, minute: int, second: int, half: bool) -> Clock | None:
    return Clock(hour * 3600 + minute * 60 + second, half) if hour < 24 and minute < 60 else None


def _date(text: str) -> Date | None:
    if match := _ISO.fullmatch(text):
        return _in_a_year(*map(int, match.groups()))
    if match := _CHINESE_DATE.fullmatch(text):
        year, month, day = (whole_number(part) if part else None for part in match.groups())
        return _in_a_year(year, month or 0, day or 0)
    if match := _MONTH_FIRST.fullmatch(text):
        return _in_a_year(int(match[3]) if match[3] else None, _month(match[1]), int(match[2]))
    if match := _DAY_FIRST.fullmatch(text):
        return _in_a_year(int(match[3]) if match[3] else None, _month(match[2]), int(match[1]))
    return None


def _month(name: str) -> int:
    return [month[:3] for month in _MONTHS].index(name[:3].lower()) + 1


def _in_a_year(year: int | None, month: int, day: int) -> Date | None:
    return Date(year, month, day) if 1 <= month <= 12 and 1 <= day <= 31 else None
