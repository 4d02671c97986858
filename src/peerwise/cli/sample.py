"""`peerwise sample MODEL --prompt TEXT`: what a model answers, streaming; or a task's problem, judged."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from peerwise.cli.model import model_of
from peerwise.cli.process import keep_freed_memory
from peerwise.cli.words import Parser, from_0_to_1, not_negative, positive, share, whole
from peerwise.errors import RequestError
from peerwise.metrics.text import printable

if TYPE_CHECKING:
    from peerwise.records import Message

SUMMARY = "show what a model answers"


def run(argv: Sequence[str]) -> int:
    """Print answers; a single one appears as it is written.

    Raises:
        RequestError: wrong words, unknown model or task.
    """
    options = _parser().parse_args(argv)
    if (options.prompt is None) == (options.task is None):
        raise RequestError("give either --prompt TEXT or --task NAME (with --index N)")
    keep_freed_memory()
    from peerwise.models.load import load
    from peerwise.rewards.math import judge
    from peerwise.rollout.base import Request, SamplingParams, sample_key
    from peerwise.rollout.native.engine import NativeEngine

    messages, gold = _question(options)
    policy = load(model_of(options.model), dtype=options.dtype)
    engine = NativeEngine(policy.model, decode=policy.decode, end_ids=policy.end_ids, max_branches=options.n)
    request = Request(
        prompt_ids=policy.prompt_ids(messages),
        keys=tuple(sample_key(options.seed, 0, "sample", index) for index in range(options.n)),
    )
    params = SamplingParams(
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        min_p=options.min_p,
        min_new_tokens=options.min_new_tokens,
        repetition_penalty=options.repetition_penalty,
        stop=tuple(options.stop),
    )
    stream = _Stream(policy.decode) if options.n == 1 and not options.json else None
    answers = engine.generate([request], params, on_token=stream)[0]
    if options.json:
        rows = [{"text": a.text, "finish": a.finish, "tokens": len(a.token_ids)} for a in answers]
        print(json.dumps({"messages": list(messages), "gold": gold, "answers": rows}, ensure_ascii=False))
        return 0
    if stream is not None:
        stream.end(answers[0].text)
    else:
        for index, answer in enumerate(answers, 1):
            print(f"--- {index} of {options.n} ({answer.finish}, {len(answer.token_ids)} tokens)")
            print(printable(answer.text))
    if gold is not None:
        right = sum(judge(answer.text, gold)[0] for answer in answers)
        print(f"--- gold: {gold}; right: {right} of {len(answers)}")
    return 0


class _Stream:
    """Prints the text of one growing answer, holding back a character that is not complete yet."""

    def __init__(self, decode: object) -> None:
        self.decode = decode
        self.shown = ""

    def __call__(self, ids: Sequence[int]) -> None:
        text = self.decode(ids)  # type: ignore[operator]
        if not text.endswith("\ufffd"):
            self._show(text)

    def end(self, text: str) -> None:
        """Whatever is left, and a newline."""
        self._show(text)
        print()

    def _show(self, text: str) -> None:
        sys.stdout.write(printable(text)[len(printable(self.shown)) :])
        sys.stdout.flush()
        self.shown = text


def _question(options: argparse.Namespace) -> tuple[tuple[Message, ...], str | None]:
    """The chat to answer, and the gold answer where a task knows it."""
    from peerwise.tasks.base import load_task

    if options.prompt is not None:
        return ({"role": "user", "content": options.prompt},), None
    data = load_task(options.task, path=options.path, template=options.template, held_out=None, seed=options.seed)
    problems = data.held_out.problems
    if options.index >= len(problems):
        raise RequestError(f"--index {options.index}: task {options.task!r} has problems 0 to {len(problems) - 1}")
    problem = problems[options.index]
    print("\n".join(message["content"] for message in problem.messages) + "\n---", file=sys.stderr)
    return problem.messages, problem.answer


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="peerwise sample", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("model", metavar="MODEL", help="a folder, a run, a hub name, or smollm2-135m-instruct")
    parser.add_argument("--prompt", help="what to ask; the model's chat template is applied")
    parser.add_argument("--task", help="ask a held-out problem of this task instead")
    parser.add_argument("--index", type=whole, default=0, help="which problem of the task (default %(default)s)")
    parser.add_argument("--path", help="local file or folder with the task's data")
    parser.add_argument("--template", default="boxed", help="how the task's problem is asked (default %(default)s)")
    parser.add_argument("--n", type=positive, default=1, help="how many answers (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=positive, default=256, help="longest answer (default %(default)s)")
    parser.add_argument("--temperature", type=not_negative, default=0.7, help="0 is greedy (default %(default)s)")
    parser.add_argument("--top-p", type=share, default=1.0, help="nucleus (default %(default)s: all)")
    parser.add_argument("--top-k", type=whole, default=0, help="likeliest tokens (default %(default)s: all)")
    parser.add_argument("--min-p", type=from_0_to_1, default=0.0, help="no token below this share of the likeliest")
    parser.add_argument("--min-new-tokens", type=whole, default=0, help="no end before (default %(default)s)")
    parser.add_argument("--repetition-penalty", type=not_negative, default=1.0, help="above 1 repeats less")
    parser.add_argument("--stop", nargs="+", default=[], metavar="TEXT", help="texts that end an answer")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other answers (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    return parser
