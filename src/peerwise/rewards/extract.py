"""The final answer in a completion, by a fixed order of precedence, in linear time.

Reasoning that was closed with </think> is not looked at. Then, the first that applies: the last <answer> tag, the last
box, a marker (#### 7, ### 答案: [7]), a stated answer ("the answer is 7", 答案是7), a bold number, and the last number
where the task allows it. A form that was begun and cut off means no answer: nothing before it is credited. Knows
nothing of the gold answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from peerwise.rewards import numbers, statements
from peerwise.rewards.boxes import CUT_OFF, last_box

Rule = Literal["tag", "box", "marker", "statement", "bold", "number", "cut off", "empty", "none"]

EXPLICIT: frozenset[Rule] = frozenset(("tag", "box", "marker", "statement"))
"""Rules by which the text itself says that this is its answer."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """The answer and the rule it was found by; `answer` is None for "cut off", "empty" and "none".

    Example:
        extract("6 * 7 = 42\\n\\\\boxed{42}") == Extraction("42", "box")
    """

    answer: str | None
    rule: Rule


_ANSWER_OPEN, _ANSWER_CLOSE = "<answer>", "</answer>"
# A base model goes on with invented questions after its answer.
_NEXT_QUESTION = re.compile(r"\n[ \t*#]{0,8}(?:Question|Problem|Q|问题|题目)[ \t\d]{0,4}[:：]")
_MARKER = re.compile(r"(?:^|\n)[ \t]{0,8}#{2,4}[ \t]*(?:(?:最终)?答案[ \t]*[:：]?|(?=[^#\s]))([^\n]{0,400})")
_BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*")


def extract(text: str, *, last_number: bool = True) -> Extraction:
    """The final answer of `text`. `last_number`: take the last number when nothing else is found."""
    text = _after_reasoning(text)
    question = _NEXT_QUESTION.search(text)
    if question and text[: question.start()].strip():
        found = _stated(text[: question.start()])
        if found.rule in EXPLICIT:
            return found
    found = _stated(text)
    if found.rule != "none":
        return found
    return _loose(text, last_number)


def _after_reasoning(text: str) -> str:
    """What follows the last </think>, up to reasoning that was opened and never closed."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def _stated(text: str) -> Extraction:
    """The answer by the explicit rules."""
    tag = _last_tag(text)
    box = last_box(text if tag is None else tag)
    if tag is not None and box is not CUT_OFF:
        answer = statements.tidy(box or tag)
        return Extraction(answer, "tag") if answer else Extraction(None, "empty")
    if box is CUT_OFF:
        return Extraction(None, "cut off")
    if box is not None:
        # A choice on a line of its own after the box is the answer; the box held a formula on the way to it.
        choice = statements.final_choice_line(text[text.rfind("\\boxed") :])
        return Extraction(choice, "statement") if choice else Extraction(box, "box")
    if marked := _last_marker(text):
        return Extraction(marked, "marker")
    if stated := statements.last_statement(text):
        return Extraction(stated, "statement")
    return Extraction(None, "none")


def _last_tag(text: str) -> str | None:
    """Content of the last complete <answer> tag; "" when that is cut off; None when there is none."""
    closing = text.rfind(_ANSWER_CLOSE)
    opening = text.rfind(_ANSWER_OPEN, 0, closing) if closing >= 0 else -1
    if text.rfind(_ANSWER_OPEN) > closing:
        return ""
    return text[opening + len(_ANSWER_OPEN) : closing] if opening >= 0 else None


def _last_marker(text: str) -> str | None:
    for match in reversed(list(_MARKER.finditer(text))):
        explicit = "答案" in match.group()
        if not explicit and not match.group().lstrip().startswith("####"):
            continue
        content: str = statements.tidy(match[1])
        if content.startswith("[") and content.endswith("]") and explicit:
            content = content[1:-1].strip()
        if not explicit and not _reads_as_answer(content):
            content = statements.leading_number(content) or ""
        if content:
            return content
    return None


def _reads_as_answer(content: str) -> bool:
    """A heading (#### Step 2: add) is no answer; one token or a number with its unit is."""
    return " " not in content or numbers.read(content) is not None


def _loose(text: str, last_number: bool) -> Extraction:
    bold = [match[1] for match in _BOLD.finditer(text) if numbers.read(match[1]) is not None]
    if bold:
        return Extraction(statements.tidy(bold[-1]), "bold")
    found = statements.last_number(text) if last_number else None
    return Extraction(found, "number") if found else Extraction(None, "none" if text.strip() else "empty")
