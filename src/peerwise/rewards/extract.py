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
from peerwise.rewards.plain import plain
from peerwise.rewards.policy import DEFAULT, Policy

Rule = Literal["given", "tag", "box", "marker", "statement", "bold", "number", "cut off", "hollow", "empty", "none"]
Outcome = Literal["read", "unreadable", "absent"]

EXPLICIT: frozenset[Rule] = frozenset(("tag", "box", "marker", "statement"))
"""Rules by which the text itself says that this is its answer."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """The answer and the rule it was found by; `answer` is None for "cut off", "hollow", "empty" and "none".

    Example:
        extract("6 * 7 = 42\\n\\\\boxed{42}") == Extraction("42", "box")
    """

    answer: str | None
    rule: Rule

    @property
    def outcome(self) -> Outcome:
        """ "read"; "unreadable" when a form was begun and is cut off or hollow; "absent" when nothing was answered."""
        if self.answer is not None:
            return "read"
        return "unreadable" if self.rule in ("cut off", "hollow") else "absent"


_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_REASONING = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_END = re.compile(r"<\|(?:im_end|endoftext|eot_id|end_of_text|end|eom_id)\|>|</s>|<end_of_turn>|<eos>")
# A base model goes on with invented questions after its answer.
_NEXT_QUESTION = re.compile(
    r"\n[ \t*#]{0,8}(?:Question|Problem|Q|Human|User|Instruction|问题|题目|用户)[ \t\d]{0,4}[*]{0,2}[:：]"
)
_MARKER = re.compile(
    r"(?:^|\n)[ \t]{0,8}#{2,4}[ \t]*(?:(?:最终|正确)?(答案)[ \t]*[:：]?[ \t]*\n?|(?=[^#\s]))([^\n]{0,400})"
)
_OPEN_MARKER = re.compile(r"(?:^|\n)[ \t]{0,8}####[ \t\n]{0,8}$")
_MARKER_ROOM = 24
_BOLD = re.compile(r"\*\*([^*\n]{1,80})\*\*")
_SAYS_ANSWER = re.compile(r"answer|答案|选", re.IGNORECASE)


def extract(text: str, *, last_number: bool = True, policy: Policy = DEFAULT) -> Extraction:
    """The final answer of `text`. `last_number`: take the last number when nothing else is found."""
    text = _after_reasoning(_ended(text), policy)
    if policy.first_question:
        question = _NEXT_QUESTION.search(text)
        if question and text[: question.start()].strip():
            found = _stated(text[: question.start()], policy)
            if found.rule in EXPLICIT:
                return found
    found = _stated(text, policy)
    if found.rule != "none":
        return found
    return _loose(text, last_number)


def _ended(text: str) -> str:
    """`text` up to the first end token that was decoded into it."""
    end = _END.search(text) if "<" in text else None
    return text[: end.start()] if end and end.start() else text


def _after_reasoning(text: str, policy: Policy) -> str:
    """What follows the last closed reasoning, up to reasoning that was opened and never closed."""
    tags = list(_REASONING.finditer(text)) if "<" in text else []
    closing = next((tag for tag in reversed(tags) if tag[1]), None)
    start = closing.end() if closing else 0
    opening = next((tag for tag in tags if tag.start() >= start), None)
    if opening and not policy.open_reasoning:
        return text[start : opening.start()]
    return text[start:]


def _stated(text: str, policy: Policy) -> Extraction:
    """The answer by the explicit rules."""
    tag = _last_tag(text)
    box = last_box(text if tag is None else tag, empty_withdraws=policy.empty_box_withdraws)
    if tag is not None and box is not CUT_OFF:
        answer = _inside(box or tag)
        return Extraction(answer, "tag") if answer else Extraction(None, "hollow")
    if box is CUT_OFF:
        return Extraction(None, "cut off")
    if box == "":
        return Extraction(None, "hollow")
    if box is not None:
        # A choice on a line of its own after the box is the answer; the box held a formula on the way to it.
        choice = statements.final_choice_line(text[text.rfind("\\boxed") :])
        return Extraction(choice, "statement") if choice else Extraction(_inside(box) or box, "box")
    if _OPEN_MARKER.search(text[-_MARKER_ROOM:]):
        return Extraction(None, "cut off")
    if marked := _last_marker(text):
        return Extraction(marked, "marker")
    if stated := statements.last_statement(text):
        return Extraction(stated, "statement")
    return Extraction(None, "none")


def _last_tag(text: str) -> str | None:
    """Content of the last complete <answer> tag; "" when that is cut off; None when there is none."""
    tags = list(_TAG.finditer(text)) if "<" in text else []
    if not tags or all(tag[1] for tag in tags):
        return None
    if not tags[-1][1]:
        return ""
    opening = next((tag for tag in reversed(tags[:-1]) if not tag[1]), None)
    return text[opening.end() : tags[-1].start()] if opening else None


def _inside(content: str) -> str:
    """The answer in a box or tag: what a sentence in it states, the last line of several, or all of it."""
    if _SAYS_ANSWER.search(content) and (stated := statements.last_statement(plain(content))):
        return stated
    lines = [line for line in content.strip().split("\n") if line.strip()]
    if len(lines) > 1 and "\\begin" not in content and "{" not in content:
        return statements.last_statement(content) or statements.tidy(lines[-1])
    return statements.tidy(content)


def _last_marker(text: str) -> str | None:
    if "##" not in text:
        return None
    for match in reversed(list(_MARKER.finditer(text))):
        if answer := _marked(match, explicit=bool(match[1])):
            return answer
    return None


def _marked(match: re.Match[str], *, explicit: bool) -> str | None:
    """The answer behind one marker; `explicit`: it is a heading that says 答案."""
    if not explicit and not match.group().lstrip().startswith("####"):
        return None
    content: str = statements.tidy(match[2])
    if explicit:
        return statements.unbracketed(content) or None
    return content if _reads_as_answer(content) else statements.leading_number(content)


def _reads_as_answer(content: str) -> bool:
    """A heading (#### Step 2: add) is no answer; one token or a number with its unit is."""
    return " " not in content or numbers.read(content) is not None


def _loose(text: str, last_number: bool) -> Extraction:
    bold = [match[1] for match in _BOLD.finditer(text) if numbers.read(match[1]) is not None] if "**" in text else []
    if bold:
        return Extraction(statements.tidy(bold[-1]), "bold")
    if choice := statements.bare_choice(text):
        return Extraction(choice, "statement")
    found = statements.bare_formula(text) or statements.last_number(text) if last_number else None
    return Extraction(found, "number") if found else Extraction(None, "none" if text.strip() else "empty")
