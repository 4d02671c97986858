"""`peerwise data check FILE|TASK`: what is wrong with a data set, row by row and by reason, and a clean copy of it.

Puts the checks of `tasks.inspect` together with the judge and, when a model is named, its tokenizer.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerwise.cli.words import Parser, from_0_to_1, pair, positive
from peerwise.errors import DataError, ModelError, RequestError, nearest
from peerwise.metrics.text import printable

if TYPE_CHECKING:
    from peerwise.records import Problem
    from peerwise.tasks.source import Pool, ProblemSet, Request

SUMMARY = "what is wrong with a data set, and a clean copy of it"
SHOWN = 3
"""Examples of each reason that people are shown; --json has more."""
LONGEST_NOTE = 400
"""Characters of an example."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """One split after all checks, and the checks that were left out, with the reason."""

    problems: ProblemSet
    left_out: Mapping[str, str]

    def as_json(self) -> dict[str, Any]:
        """Rows and, for each reason that was looked for, how many and the first of them."""
        from peerwise.tasks.inspect import REASONS

        found = self.problems
        reasons = [reason for reason in REASONS if reason not in self.left_out]
        reasons += [reason for reason in found.dropped if reason not in REASONS]
        return {
            "rows": found.rows,
            "clean": len(found.problems),
            "reasons": {
                reason: {
                    "count": found.dropped.get(reason, 0),
                    "examples": [
                        {"line": example.line, "note": printable(" ".join(example.note[:LONGEST_NOTE].split()))}
                        for example in found.examples.get(reason, ())
                    ],
                }
                for reason in reasons
            },
            "not_checked": dict(self.left_out),
        }


def run(argv: Sequence[str]) -> int:
    """Print what was found: for people, or one JSON object with --json. Findings are no failure.

    Raises:
        RequestError: wrong words, data of which no row can be read, a --fix that cannot be written.
    """
    options = _parser().parse_args(argv)
    request, name = _request(options)
    source = _mendable(request, options.fix) if options.fix else None
    pool = _pool(request, name, options)
    train, test = _checked(pool, request, options)
    record: dict[str, Any] = {"data": printable(options.data), "split": request.split, **train.as_json()}
    record["test"] = test.as_json() if test else None
    if source is not None:
        from peerwise.tasks import mend

        if not train.problems.problems:
            raise DataError(f"--fix {options.fix}: no clean row is left, so nothing is written")
        kept = {problem.meta["line"] for problem in train.problems.problems}
        mend.write(source, options.fix, kept, request.encoding, record)
        record["fixed"] = printable(str(options.fix))
    # ASCII, since not every console can show what stands in the data, and a program must be able to read this.
    print(json.dumps(record) if options.json else _text(record))
    return 0


def _request(options: argparse.Namespace) -> tuple[Request, str]:
    """What is to be read, and by which task: a task's name means the task, anything else a file or folder."""
    from peerwise.tasks import base, prompts

    named = options.data in base.TASKS
    if not named and options.path:
        raise RequestError(f"--path goes with a task's name; {options.data!r} is taken for the file itself")
    if not named and not os.path.lexists(options.data):
        raise RequestError(
            f"there is no file or folder {options.data!r}; of tasks, {nearest(options.data, base.TASKS)}"
        )
    if options.keep_rates[0] >= options.keep_rates[1]:
        raise RequestError("--keep-rates LOW HIGH would keep nothing: LOW must be less than HIGH")
    request = base.Request(
        path=options.path if named else options.data,
        split=options.split,
        eval_split=options.eval_split,
        template=prompts.get(options.template),
        columns=dict(options.columns),
        params=_params(options.params),
        held_out=None,
        seed=0,
        encoding=options.encoding,
    )
    return request, options.data if named else "files"


def _params(text: str | None) -> dict[str, Any]:
    try:
        params = json.loads(text or "{}")
    except ValueError as error:
        raise RequestError(f"--params {text!r} is not JSON ({error})") from None
    if not isinstance(params, dict):
        raise RequestError(f"--params {text!r} is a JSON {type(params).__name__}, expected an object")
    return params


def _mendable(request: Request, out: Path) -> Path:
    """The file that --fix makes a clean copy of."""
    from peerwise.tasks import mend, rows

    if request.path is None:
        raise RequestError("--fix copies a file; give the task's data with --path")
    source = rows.locate(request.path, request.split, request.split)
    mend.check_target(source, out)
    return source


def _pool(request: Request, name: str, options: argparse.Namespace) -> Pool:
    """The splits as the task reads them; --test takes the test split from another file."""
    from peerwise.tasks.base import TASKS

    load = TASKS[name]
    pool = load(request)
    if options.test:
        columns = {**request.columns, **dict(options.test_columns)}
        other = replace(request, path=options.test, split="test", eval_split=None, columns=columns)
        pool = replace(pool, test=load(other).train)
    elif options.test_columns:
        raise RequestError("--test-columns goes with --test FILE")
    for place, part in ((options.data, pool.train), (options.test or f"{options.data}, test split", pool.test)):
        if part and not part.problems:
            found = [example.note for examples in part.examples.values() for example in examples]
            raise DataError(f"{place}: none of {part.rows} rows can be used; first: {found[0]}")
    return pool


def _checked(pool: Pool, request: Request, options: argparse.Namespace) -> tuple[_Checked, _Checked | None]:
    """(the split to train on, the test split); what is in both is a finding on the first."""
    from peerwise.tasks import inspect, splits

    num_tokens = _num_tokens(options.model) if options.model else None
    test = _one(pool.test, request, options, num_tokens) if pool.test else None
    train = _one(pool.train, request, options, num_tokens)
    if pool.test is None:
        reason = "there is no test split; name one with --test FILE or --eval-split"
        return replace(train, left_out={**train.left_out, inspect.OVERLAP: reason, inspect.NEAR: reason}), None
    problems = splits.without_questions(train.problems, pool.test.problems, inspect.OVERLAP)
    return replace(train, problems=inspect.without_near(problems, pool.test.problems)), test


def _one(
    problems: ProblemSet,
    request: Request,
    options: argparse.Namespace,
    num_tokens: Callable[[Problem], int] | None,
) -> _Checked:
    from peerwise.rewards.equal import equal
    from peerwise.rewards.math import judge
    from peerwise.rewards.rubric import verifiable
    from peerwise.tasks import inspect, splits

    left_out: dict[str, str] = {}
    # A template with a fence asks for a program, and the gold is its tests.
    if options.any_gold or "```" in request.template.answer_form:
        problems = splits.deduplicate(problems)
        left_out |= dict.fromkeys((inspect.UNEQUAL, inspect.UNVERIFIABLE, inspect.DISAGREEING), "golds are not graded")
    else:
        grading = inspect.Grading(template=request.template, judge=judge, verifiable=verifiable)
        problems = inspect.graded(splits.deduplicate(problems, equal), grading)
    if num_tokens:
        problems = splits.without_overlong(problems, num_tokens, options.max_prompt_tokens)
    else:
        left_out[splits.OVERLONG] = "tokens are a model's; name one with --model"
    if options.pass_rate:
        low, high = options.keep_rates
        problems = inspect.by_pass_rate(problems, inspect.PassRates(options.pass_rate, low, high))
    else:
        left_out |= dict.fromkeys((inspect.TOO_EASY, inspect.TOO_HARD), "name the column with --pass-rate")
    return _Checked(problems, left_out)


def _num_tokens(name: str) -> Callable[[Problem], int]:
    """Length of a problem's prompt, by the tokenizer of a model whose weights are not loaded."""
    from transformers import AutoTokenizer

    from peerwise.models import embedded

    source = embedded.resolve() if name == embedded.NAME else name
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelError(f"--model {name}: its tokenizer could not be loaded: {reason}") from error

    def length(problem: Problem) -> int:
        if tokenizer.chat_template:
            chat = list(problem.messages)
            return len(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))
        return len(tokenizer("\n\n".join(message["content"] for message in problem.messages) + "\n\n")["input_ids"])

    return length


def _text(record: Mapping[str, Any]) -> str:
    lines = [f"{record['data']}, split {record['split']}", *_split_text(record)]
    if record["test"]:
        lines += ["", "test split", *_split_text(record["test"])]
    lines += [f"not checked: {', '.join(reasons)} ({why})" for why, reasons in _by_cause(record["not_checked"]).items()]
    if "fixed" in record:
        lines.append(f"wrote {record['clean']} rows to {record['fixed']} and {record['fixed']}.report.json")
    return printable("\n".join(lines))


def _split_text(record: Mapping[str, Any]) -> list[str]:
    from peerwise.tasks.inspect import REASONS

    found = {reason: of for reason, of in record["reasons"].items() if of["count"]}
    lines = [f"{record['rows']} rows, {record['clean']} clean" + ("" if found else "; nothing found")]
    for reason, of in found.items():
        lines.append(f"{of['count']:>7} {reason}" + (f": {REASONS[reason]}" if reason in REASONS else ""))
        lines += [f"          {_example(example)}" for example in of["examples"][:SHOWN]]
    return lines


def _example(example: Mapping[str, Any]) -> str:
    line, note = example["line"], example["note"]
    return note if line is None or f"line {line}:" in note else f"line {line}: {note}"


def _by_cause(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    causes: dict[str, list[str]] = {}
    for reason, why in left_out.items():
        causes.setdefault(why, []).append(reason)
    return causes


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="peerwise data", description=SUMMARY, allow_abbrev=False)
    check = parser.add_subparsers(dest="action", metavar="check", required=True).add_parser(
        "check", help="count what is wrong, by reason", description=SUMMARY, allow_abbrev=False
    )
    add = check.add_argument
    add("data", metavar="FILE|TASK", help="a jsonl, csv or parquet file, a folder with one a split, or a task's name")
    add("--path", help="with a task: local file or folder; without it, generated or from the hub")
    add("--split", default="train", help="split that is checked (default %(default)s; a single file is taken whole)")
    add("--eval-split", help="split that must not overlap with it (default: test, where there is one)")
    add("--test", metavar="FILE", help="file that must not overlap with it")
    add("--columns", nargs="+", type=pair, default=[], metavar="ROLE=NAME", help="prompt=question answer=gold ...")
    add(
        "--test-columns",
        nargs="+",
        type=pair,
        default=[],
        metavar="ROLE=NAME",
        help="where --test names them otherwise",
    )
    add("--encoding", default="utf-8", help="of jsonl and csv: utf-8, gbk, gb18030, utf-16, ... (default %(default)s)")
    add("--template", default="boxed", help="how a run asks the problems (default %(default)s)")
    add("--params", metavar="JSON", help="parameters of a generated task, as a JSON object")
    add("--any-gold", action="store_true", help="do not grade golds: for programs, prose and rewards of your own")
    add("--model", help="count prompt tokens with this model's tokenizer: a folder, a hub name, smollm2-135m-instruct")
    add("--max-prompt-tokens", type=positive, default=1024, help="longest prompt (default %(default)s)")
    add("--pass-rate", metavar="COLUMN", help="column with the share of right answers, from 0 to 1")
    add(
        "--keep-rates",
        nargs=2,
        type=from_0_to_1,
        default=(0.0, 1.0),
        metavar=("LOW", "HIGH"),
        help="pass rates at or below LOW are too hard, at or above HIGH too easy (default 0 1)",
    )
    add("--fix", type=Path, metavar="OUT", help="write the clean rows to this new file, and OUT.report.json")
    add("--json", action="store_true", help="one JSON object on stdout")
    return parser
