"""Answers that are stated in a sentence: "the answer is 7", "Final answer: **7**", 答案是7, 故选B.

Reads a sentence, never the gold answer. Every pattern is bounded, so that time is linear in the text.
"""

from __future__ import annotations

import re

from peerwise.rewards import numbers
from peerwise.rewards.plain import plain

_STATEMENT = re.compile(
    r"\b(?:answer|choice|(?:correct|right|final)[ ]option|final[ ]result)\b[ *_]{0,4}"
    r"(?:to [^\n.:]{1,40} )?(?:is|are|should be|must be|would be|:|：|=)[ *_]{0,4}:?"
    r"|【(?:最终)?答案】[:：]?|答案(?!不是)[ *]{0,4}(?:应该是|应为|就是|是|为|[:：])[:：]?|(?:^|\n)[ ]{0,4}答[:：]"
    r"|答案不是[^\n]{1,40}?而是"
    r"|[故应所以因此]选(?:择|项|答案)?[:：]?|选项(?=[A-J](?:是|正确|对))",
    re.IGNORECASE,
)
_WINDOW = 400
_TRIES = 5
_SENTENCE_END = re.compile(r"[。？！；]|[?!;](?:\s|$)|\.(?:\s|$)|\n")
_CHOICE = re.compile(
    r"(?:option |choice |选项)?[*(（]{0,3}([A-HJ])[*)）]{0,3}"
    r"(?=$|[.,:;)。，：；]|项|是| (?:since|because|as|for|which)\b)"
)
_CHOICE_ROW = re.compile(r"[A-J](?:[、,，和 ]{1,2}[A-J])+(?![A-Za-z])")
_INSTEAD = re.compile(r"(?:must be|should be|it is|it's|but|而是)[ :：]{1,2}")
_FINAL_CHOICE_LINE = re.compile(
    r"\n[ *#]{0,6}(?:Final )?Answer[ *]{0,4}[:：][ *]{0,4}\(?([A-J])\)?[ .*]{0,4}(?=\n|$)", re.IGNORECASE
)
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])[-−－])?[$€£¥]?"
    r"(?:\\[dt]?frac\{\d+\}\{\d+\}|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?|(?<!\d)\.\d+)(?:\s?\\?[%％])?"
)
_LIST_MARK = re.compile(r"(?:^|\n)[ \t]{0,8}(\d{1,3})[.)][ \t]+[^\s\d]")
MOST_WORDS = 4
"""A statement of more words than this without exactly one number in it is prose, not an answer."""


def last_statement(text: str) -> str | None:
    """The answer that is stated last; None when none is."""
    matches = list(_STATEMENT.finditer(text))
    for match in reversed(matches[-_TRIES:]):
        if answer := _read(text[match.end() : match.end() + _WINDOW]):
            return answer
    return None


def final_choice_line(text: str) -> str | None:
    """The letter of the last line that reads "Answer: D" and nothing else."""
    letters = [match[1] for match in _FINAL_CHOICE_LINE.finditer(text)]
    return letters[-1] if letters else None


def last_number(text: str) -> str | None:
    """The last number of the text as it was written, separators and percent sign included."""
    marks = {match.end(1) for match in _LIST_MARK.finditer(text)}
    found = [match.group() for match in _NUMBER.finditer(text) if match.end() not in marks]
    return found[-1] if found else None


def leading_number(text: str) -> str | None:
    """The number that the text starts with, as it was written."""
    match = _NUMBER.match(text)
    return match.group() if match else None


def tidy(text: str) -> str:
    """Without surrounding blanks, emphasis, math delimiters and a final full stop; commands inside stay as they are."""
    text = text.strip().strip("*_ ").rstrip(".。").strip()
    for opening, closing in (("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("`", "`")):
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening + closing):
            inner = text[len(opening) : -len(closing)]
            text = inner if opening not in inner else text
    return text.strip()


def _read(rest: str) -> str | None:
    """The answer that a statement goes on with."""
    rest = rest.lstrip(" *_:\t").lstrip("\n")
    sentence = tidy(rest[: end.start()] if (end := _sentence_end(rest)) else rest)
    if sentence.lower().startswith("not ") and (instead := list(_INSTEAD.finditer(sentence))):
        sentence = tidy(sentence[instead[-1].end() :])
    if sentence.startswith("[") and sentence.endswith("]") and "," not in sentence:
        sentence = tidy(sentence[1:-1])
    if row := _CHOICE_ROW.match(sentence):
        return row.group()
    if choice := _CHOICE.match(sentence):
        return choice[1]
    if "=" in sentence and numbers.read(sentence) is None:
        value = tidy(sentence.rpartition("=")[2])
        if numbers.read(value) is not None and len(sentence.split("=")[0].strip()) > 1:
            return value
    return _from_prose(sentence)


def _sentence_end(text: str) -> re.Match[str] | None:
    return _SENTENCE_END.search(text)


def _from_prose(sentence: str) -> str | None:
    if not sentence or numbers.read(sentence) is not None:
        return sentence or None
    found = _NUMBER.findall(sentence)
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]+", " ", plain(sentence)))
    clauses = re.split(r"[,，]\s", sentence)
    if len(clauses) > 1 and numbers.read(clauses[0]) is not None and words:
        return clauses[0]
    if len(found) == 1 and (len(words) >= 2 or re.search(r"[\u4e00-\u9fff]", sentence)):
        return str(found[0])
    return sentence if len(words) <= MOST_WORDS else None
