"""Answers that are stated in a sentence: "the answer is 7", "Final answer: **7**", 答案是7, 故选B.

Reads a sentence, never the gold answer. Every pattern is bounded, so that time is linear in the text.
"""

from __future__ import annotations

import re

from peerwise.rewards import numbers, units, words
from peerwise.rewards.plain import plain

_STATEMENT = re.compile(
    r"\b(?:answers?|choice|(?:correct|right|final|best)[ ]option|final[ ]result)\b[ *_]{0,4}"
    r"(?:to [^\n.:]{1,40} )?(?:is(n't)?|are|should be|must be|would be|:|：|=)(?![A-Za-z])[ *_]{0,4}:?"
    r"|【(?:最终|正确|参考)?答案】[:：]?"
    r"|答案(?!不是)[ *]{0,4}(?:应该是|应该为|应当是|应为|应是|就是|是|为|选|[:：])[:：]?|(?:^|\n)[ ]{0,4}答[:：]"
    r"|答案不是[^\n]{1,40}?而是"
    r"|[故应所以因此](?:本题|此题|答案)?应?选(?:择|项|答案)?[:：]?"
    r"|(?<![不未没若果可能别挑])选择?[:：]?(?=\s?[（($]{0,3}(?:\\text\{|\\rm )?[A-J]{1,5}(?![A-Za-z]))"
    r"|正确的?选项(?:应该)?[是为:：]|选项?(?=[A-J](?:是|正确|对|符合))"
    r"|\b(?:but|so|thus|hence|therefore|only),?[ ]"
    r"(?=\(?(?-i:[A-J])\)? is (?:correct|right|the (?:correct|right|best) ))"
    r"|正确的(?:说法|结论|命题|一项|有)?是[:：]?(?=\s?[（(]?[A-J](?![A-Za-z]))"
    r"|\b(?:option|choice)[ ](?=\(?[A-J]\)? is (?:correct|right|the ))"
    r"|\bI[ ](?:would |will )?(?:choose|pick|select|go with)[ ](?=(?:option )?\(?[A-J]\b)",
    re.IGNORECASE,
)
# Said of steps on the way as well: counts only where no answer is stated.
_RESULT = re.compile(r"\bresult(?: is|:| =)|(?:最终|最后)?结果(?:是|为|等于|[:：])|的值(?:是|为|等于)", re.IGNORECASE)
_WORTH_LOOKING = re.compile(r"answer|choice|option|correct|right|result|\bI |答|选|正确的|结果|的值", re.IGNORECASE)
_ROOM_BEFORE, _ROOM_BEHIND = 40, 12
"""Characters around a number in which the rest of its quantity may stand."""
_WINDOW = 400
_TRIES = 5
_SENTENCE_END = re.compile(r"[。？！；]|．(?!\d)|</?p>|<br|[?!;](?:\s|$)|\.(?:\s|$)|\n")
_CHOICE = re.compile(
    r"(?:option |choice |选项)?[*(（]{0,3}([A-HJ])[*)）]{0,3}"
    r"(?=$|[.,:;)。，：；]|\([^()]{0,20}[\u4e00-\u9fff]|选?项|是|正确|对|符合| (?:since|because|as|for|which|is|I)\b)"
)
_CHOICE_ROW = re.compile(
    r"\(?[A-J]\)?(?:(?:[、,，和或 ]{1,2}|,? (?:and|or) )(?:\([A-J]\)|[A-J](?![A-Za-z)]| [a-z]|选?项?(?:错|不))))+"
)
_INSTEAD = re.compile(r"(?:must be|should be|it is|it's|but|而是)[ :：]{1,2}")
_REJECTED = re.compile(r"[,，;]?\s?(?:\b(?:and |but )?(?:not|rather than|instead of)\b|而?不是)")
_WITHDRAWN = re.compile(
    r"\b(?:wait|actually|correction|oops|sorry|on second thought)\b|[.!?\n] ?no[,.!]"
    r"|\bI (?:was wrong|made a mistake|made an error|miscounted|miscalculated)\b|不对|等等|更正|算错",
    re.IGNORECASE,
)
_NEW_VALUE = re.compile(
    r"\b(?:it(?:'s| is| should be| must be)|should be|must be)[ :]{1,2}|(?:应该是|应为|应是|而是|其实是)[:： ]?",
    re.IGNORECASE,
)
_FINAL_CHOICE_LINE = re.compile(
    r"\n[ *#]{0,6}(?:Final )?Answer[ *]{0,4}[:：][ *]{0,4}\(?([A-J])\)?[ .*]{0,4}(?=\n|$)", re.IGNORECASE
)
_BARE_CHOICE = re.compile(r"[(（*]{0,3}([A-J])[)）.。*]{0,4}")
_NUMBER = re.compile(
    r"(?:(?<![A-Za-z\d_)\]}])[-−－])?(?<![A-Za-z]\^)(?<![A-Za-z]\^\{)[$€£¥]?"
    r"(?:\\[dt]?frac\{\d+\}\{\d+\}|(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?|(?<!\d)\.\d+)(?:\s?\\?[%％])?"
)
_CLOCK_OR_NUMBER = re.compile(
    rf"(?<![\d:.])\d{{1,3}}(?:[:：]\d{{1,3}})+(?![\d:])(?: ?[aApP]\.?[mM]\b)?"
    r"|(?<![\d.])\d{1,6} \d{1,6}/\d{1,6}(?!\d)|(?<![\d.])\d{1,6}\\[dt]?frac\{\d{1,9}\}\{\d{1,9}\}"
    r"|(?<![\w.])\d{1,9}(?:\.\d{1,9})?(?: ?(?:[x×*]|\\times|\\cdot) ?10)?\^(?:-?\d{1,4}|\{-?\d{1,4}\})"
    rf"|{_NUMBER.pattern}"
)
_FORMULA = re.compile(r"(?<!\\)\$(?=[^\s$])([^$\n]{0,200}?[^\s$\\])\$(?!\d)|\\\(([^\n]{1,200}?)\\\)")
_BEHIND = re.compile(
    r"[\u4e00-\u9fff]{1,6}(?:/[\u4e00-\u9fff]{1,2})?"
    r"| (?!in\b)(?:(?:square|cubic) )?[A-Za-z]{2,10}(?:\^[23]|[²³])?(?:/[a-z]{1,4})?\b"
)
_NUMBER_WITH_NOUN = re.compile(rf"{_NUMBER.pattern} (?!and |or |to )[A-Za-z]")
_COMMAND = re.compile(r"\\[A-Za-z]+|\b(?:or|and|pi|sqrt|sin|cos|tan|ln|log|lg)\b")
_PROSE = re.compile(r"[A-Za-z]{2,}|[\u4e00-\u9fff#<>*]{2,}|[。？！?]")
_LONGEST_BARE = 60
_CLAUSE_END = re.compile(r"[,，]\s")
_YES_OR_NO = re.compile(r"(?:yes|no)(?=[,;])", re.IGNORECASE)
_ADVERB = re.compile(r"(?:therefore|thus|then|hence|simply|just|clearly|indeed|exactly),? ", re.IGNORECASE)
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


def bare_choice(text: str) -> str | None:
    """The letter of a choice when the text is nothing else."""
    match = _BARE_CHOICE.fullmatch(text.strip())
    return match[1] if match else None


def last_number(text: str) -> str | None:
    """The last number of the text as it was written, with separators, percent sign and unit of measure.

    Where it is part of more, all of that: 10:45, $2\\sqrt{3}$.
    """
    marks = {match.end(1) for match in _LIST_MARK.finditer(text)}
    found = [match for match in _CLOCK_OR_NUMBER.finditer(text) if match.end() not in marks]
    if not found:
        return None
    for formula in reversed(list(_FORMULA.finditer(text))[-_TRIES:]):
        if formula.start() <= found[-1].start() < formula.end() and (value := _value_of(formula[1] or formula[2])):
            return value
    return _with_unit(text, found[-1])


def _value_of(formula: str) -> str | None:
    """What a formula ends on, where that is more than a number; all of it where it gives several values."""
    value = formula if formula.count("=") > 1 and "," in formula else formula.rpartition("=")[2]
    return tidy(value) if re.search(r"[\\A-Za-z,]", value) else None


def bare_formula(text: str) -> str | None:
    """A text that is one formula without any words; None for prose, numbers and calculations in several steps."""
    text = tidy(text)
    if len(text) > _LONGEST_BARE or "\n" in text or text.count("=") > 1 or numbers.read(text) is not None:
        return None
    return None if _PROSE.search(_COMMAND.sub("", text)) or not re.search(r"\d", text) else text


def _compound(text: str, number: re.Match[str]) -> str | None:
    """The quantity in several units, 3小时20分钟, that a number is part of; None when it is part of none."""
    start = max(0, number.start() - _ROOM_BEFORE)
    for match in numbers.COMPOUND.finditer(text, start, number.end() + _ROOM_BEHIND):
        if match.start() <= number.start() < match.end() and numbers.read(match.group()) is not None:
            return match.group()
    return None


def _with_unit(text: str, number: re.Match[str]) -> str:
    """A number as it was written, with the Chinese numeral or the unit of measure that stands behind it."""
    if compound := _compound(text, number):
        return compound
    written = number.group()
    behind = _BEHIND.match(text, number.end())
    longest = len(behind.group()) if behind else 0
    for length in (longest,) if text[number.end() : number.end() + 1] == " " else range(longest, 0, -1):
        quantity = numbers.read(written + text[number.end() : number.end() + length])
        if quantity and (not quantity.unit or units.measured(quantity.unit)):
            return written + text[number.end() : number.end() + length]
    return written


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
    rest = rest.lstrip(" *_:：\t").lstrip("\n")
    if adverb := _ADVERB.match(rest):
        rest = rest[adverb.end() :]
    if said := _YES_OR_NO.match(rest):
        return said.group()
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
        return re.sub(r"[()]", "", row.group())
    if choice := _CHOICE.match(letters):
        return letters if _gives_value(letters) else choice[1]
    return _result(sentence) or _from_prose(sentence)


def _gives_value(choice: str) -> bool:
    """Whether a number stands behind the letter of a choice: (C) 24."""
    value = words.value_of_choice(choice)
    return value is not None and numbers.read(value) is not None


def _result(sentence: str) -> str | None:
    """The value at the end of a calculation that is written out."""
    if "=" in sentence and numbers.read(sentence) is None:
        value = tidy(_CLAUSE_END.split(sentence.rpartition("=")[2])[0])
        if numbers.read(value) is not None and len(sentence.split("=")[0].strip()) > 1:
            return value
    return None


def _says_again(clauses: list[str]) -> bool:
    """Whether the second of two clauses is the first in other figures: 1/4, or 25%."""
    value = numbers.parse(clauses[0].strip("$ "))
    return len(clauses) == 2 and clauses[1].startswith("or ") and numbers.parse(clauses[1][3:]) == value


def _from_prose(sentence: str) -> str | None:
    if not sentence or numbers.read(sentence) is not None:
        return sentence or None
    if (remark := _REMARK.fullmatch(sentence)) and numbers.read(remark[1]) is not None:
        return str(remark[1])
    found = list(_NUMBER.finditer(sentence))
    said = re.findall(r"[A-Za-z]{2,}", re.sub(r"\\[A-Za-z]+", " ", plain(sentence)))
    said = [word for word in said if word.lower() not in ("and", "or")]
    clauses = _CLAUSE_END.split(sentence)
    if len(clauses) > 1 and numbers.read(clauses[0]) is not None and (said or _says_again(clauses)):
        return clauses[0]
    if len(found) == 1 and (len(said) >= 2 or re.search(r"[\u4e00-\u9fff]", sentence)):
        return _with_unit(sentence, found[0])
    if found and (compound := _compound(sentence, found[-1])) and len(found) == len(_NUMBER.findall(compound)):
        return compound
    if len(said) <= MOST_WORDS:
        return sentence
    return leading_number(sentence) if _NUMBER_WITH_NOUN.match(sentence) else None
