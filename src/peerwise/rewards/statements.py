"""Answers that are stated in a sentence: "the answer is 7", "Final answer: **7**", 答案是7, 故选B.

Reads a sentence, never the gold answer. Every pattern is bounded, so that time is linear in the text.
"""

from __future__ import annotations

import re

from peerwise.rewards import numbers
from peerwise.rewards.plain import plain

_STATEMENT = re.compile(
    r"\b(?:answers?|choice|(?:correct|right|final|best)[ ]option|final[ ]result)\b[ *_]{0,4}"
    r"(?:to [^\n.:]{1,40} )?(?:is(n't)?|are|should be|must be|would be|:|：|=)(?![A-Za-z])[ *_]{0,4}:?"
    r"|【(?:最终|正确|参考)?答案】[:：]?"
    r"|答案(?!不是)[ *]{0,4}(?:应该是|应该为|应当是|应为|应是|就是|是|为|选|[:：])[:：]?|(?:^|\n)[ ]{0,4}答[:：]"
    r"|答案不是[^\n]{1,40}?而是"
    r"|[故应所以因此](?:本题|此题|答案)?应?选(?:择|项|答案)?[:：]?"
    r"|(?<![不未没若果可能别挑])选择?[:：]?(?=\s?[（($]{0,3}(?:\\text\{|\\rm )?[A-J](?![A-Za-z]))"
    r"|正确的?选项(?:应该)?[是为:：]|选项?(?=[A-J](?:是|正确|对|符合))"
    r"|\boption[ ](?=\(?[A-J]\)? is (?:correct|right|the ))|\bI[ ](?:choose|pick|select)[ ](?=(?:option )?\(?[A-J]\b)",
    re.IGNORECASE,
)
# Said of steps on the way as well: counts only where no answer is stated.
_RESULT = re.compile(r"\bresult(?: is|:| =)|(?:最终|最后)?结果(?:是|为|等于|[:：])|的值(?:是|为|等于)", re.IGNORECASE)
_WORTH_LOOKING = re.compile(r"answer|choice|option|result|I choose|I pick|I select|答|选|结果|的值", re.IGNORECASE)
_WINDOW = 400
_TRIES = 5
_SENTENCE_END = re.compile(r"[。？！；]|．(?!\d)|</?p>|<br|[?!;](?:\s|$)|\.(?:\s|$)|\n")
_CHOICE = re.compile(
    r"(?:option |choice |选项)?[*(（]{0,3}([A-HJ])[*)）]{0,3}"
    r"(?=$|[.,:;)。，：；]|选?项|是|正确|对|符合| (?:since|because|as|for|which|is)\b)"
)
_CHOICE_ROW = re.compile(r"[A-J](?:(?:[、,，和 ]{1,2}|,? and )[A-J])+(?![A-Za-z])")
_INSTEAD = re.compile(r"(?:must be|should be|it is|it's|but|而是)[ :：]{1,2}")
_REJECTED = re.compile(r"[,，;]?\s?(?:\b(?:and |but )?(?:not|rather than|instead of)\b|而?不是)")
_WITHDRAWN = re.compile(
    r"\b(?:wait|actually|correction|oops|sorry|on second thought)\b|不对|等等|更正|算错", re.IGNORECASE
)
_NEW_VALUE = re.compile(
    r"\b(?:it(?:'s| is| should be| must be)|should be|must be)[ :]{1,2}|(?:应该是|应为|应是|而是|其实是)[:： ]?",
    re.IGNORECASE,
)
_FINAL_CHOICE_LINE = re.compile(
    r"\n[ *#]{0,6}(?:Final )?Answer[ *]{0,4}[:：][ *]{0,4}\(?([A-J])\)?[ .*]{0,4}(?=\n|$)", re.IGNORECASE
)
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])[-−－])?[$€£¥]?"
    r"(?:\\[dt]?frac\{\d+\}\{\d+\}|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?|(?<!\d)\.\d+)(?:\s?\\?[%％])?"
)
_NUMBER_WITH_NOUN = re.compile(rf"{_NUMBER.pattern} (?!and |or |to )[A-Za-z]")
_REMARK = re.compile(r"(\S[^()]{0,60}?) ?\([^()]{1,80}\)")
_LIST_MARK = re.compile(r"(?:^|\n)[ \t]{0,8}(\d{1,3})[.)][ \t]+[^\s\d]")
MOST_WORDS = 4
"""A statement of more words than this without exactly one number in it is prose, not an answer."""


def last_statement(text: str) -> str | None:
    """The answer that is stated last; None when none is."""
    if not _WORTH_LOOKING.search(text):
        return None
    for pattern in (_STATEMENT, _RESULT):
        for match in reversed(list(pattern.finditer(text))[-_TRIES:]):
            negated = pattern is _STATEMENT and bool(match[1])
            if answer := _read(text[match.end() : match.end() + _WINDOW], negated=negated):
                return _corrected(text[match.end() : match.end() + 2 * _WINDOW]) or answer
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


def unbracketed(text: str) -> str:
    """`text` without the brackets of the form [7]; those of an interval or a list stay."""
    inner = text[1:-1].strip()
    if text.startswith("[") and text.endswith("]") and ("," not in inner or numbers.read(inner) is not None):
        return tidy(inner)
    return text


def _corrected(rest: str) -> str | None:
    """The number or letter that takes the place of a stated answer ("No wait, it is 25"); None when none does."""
    withdrawn = _WITHDRAWN.search(rest)
    value = _NEW_VALUE.search(rest, withdrawn.end()) if withdrawn else None
    if value is None:
        return None
    after = rest[value.end() :].lstrip(" *$")
    choice = _CHOICE.match(after)
    return choice[1] if choice else leading_number(after)


def _read(rest: str, *, negated: bool) -> str | None:
    """The answer that a statement goes on with; `negated`: the statement was "the answer isn't"."""
    rest = rest.lstrip(" *_:\t").lstrip("\n")
    end = _SENTENCE_END.search(rest)
    sentence = tidy(rest[: end.start()] if end else rest)
    if negated or sentence.lower().startswith("not "):
        instead = list(_INSTEAD.finditer(sentence))
        if negated and not instead:
            return None
        sentence = tidy(sentence[instead[-1].end() :]) if instead else sentence
    elif (rejected := _REJECTED.search(sentence)) and rejected.start():
        sentence = tidy(sentence[: rejected.start()])
    sentence = unbracketed(sentence)
    letters = plain(sentence).replace("$", "")
    if row := _CHOICE_ROW.match(letters):
        return row.group()
    if choice := _CHOICE.match(letters):
        return choice[1]
    return _result(sentence) or _from_prose(sentence)


def _result(sentence: str) -> str | None:
    """The value at the end of a calculation that is written out."""
    if "=" in sentence and numbers.read(sentence) is None:
        value = tidy(sentence.rpartition("=")[2])
        if numbers.read(value) is not None and len(sentence.split("=")[0].strip()) > 1:
            return value
    return None


def _from_prose(sentence: str) -> str | None:
    if not sentence or numbers.read(sentence) is not None:
        return sentence or None
    if (remark := _REMARK.fullmatch(sentence)) and numbers.read(remark[1]) is not None:
        return str(remark[1])
    found = _NUMBER.findall(sentence)
    words = re.findall(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]+", " ", plain(sentence)))
    clauses = re.split(r"[,，]\s", sentence)
    if len(clauses) > 1 and numbers.read(clauses[0]) is not None and words:
        return clauses[0]
    if len(found) == 1 and (len(words) >= 2 or re.search(r"[\u4e00-\u9fff]", sentence)):
        return str(found[0])
    if len(words) <= MOST_WORDS:
        return sentence
    return leading_number(sentence) if _NUMBER_WITH_NOUN.match(sentence) else None
