"""Pins what a program's tests see of it: its values, objects, exceptions and changes, and nothing it could forge."""

from __future__ import annotations

import datetime
import os
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerwise.sandbox.inside.wire import Gone, Peer
from peerwise.sandbox.programs import Program, run, run_all


def outcome(source, *tests, names=("f",), prelude="", deadline_s=10.0):
    return run(Program(source=source, names=names, tests=tests, prelude=prelude), deadline_s=deadline_s)


def passed(source, *tests, **options):
    return list(outcome(source, *tests, **options).passed)


def test_each_test_passes_or_fails_by_itself_and_in_order():
    assert passed("def f(x): return x + 1", "assert f(1) == 2", "assert f(1) == 3", "y = f(2)", "assert y == 3") == [
        True,
        False,
        True,
        True,
    ]


def test_a_program_that_does_not_compile_runs_no_test():
    got = outcome("def f(x) return x", "assert True")
    assert (got.compiled, got.passed, got.ending) == (False, (False,), "finished")


@pytest.mark.parametrize(
    "source", ["raise ValueError", "import no_such_module", "def g(): pass", "import sys; sys.exit(0)"]
)
def test_a_program_that_compiles_and_cannot_be_used_fails_its_tests(source):
    got = outcome(source, "assert f(1) == 2")
    assert (got.compiled, got.passed, got.ending) == (True, (False,), "finished")


def test_a_program_that_ends_with_an_error_has_not_passed_though_its_function_is_right():
    assert passed("def f(x): return x + 1\nraise SystemExit(0)", "assert f(1) == 2") == [False]


def test_an_endless_program_keeps_the_tests_it_passed_before_the_deadline():
    source = "def f(x):\n    while x == 2: pass\n    return x"
    got = outcome(source, "assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 3", deadline_s=1.0)
    assert (got.passed, got.ending) == ((True, False, False), "deadline")


def test_outcomes_come_in_the_order_of_the_programs():
    programs = [Program(source=f"def f(): return {n}", names=("f",), tests=("assert f() % 2",)) for n in range(6)]
    assert [o.passed for o in run_all(programs, workers=3)] == [(n % 2 == 1,) for n in range(6)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("[1, (2, 3), {4}, {5: [6]}]", "[1, (2, 3), {4}, {5: [6]}]"),
        ("10 ** 400", "10 ** 400"),
        ("float('inf')", "float('inf')"),
        ("1 + 2j", "1 + 2j"),
        ("b'a\\xff'", "b'a\\xff'"),
        ("'\\ud800\\0中'", "'\\ud800\\0中'"),
        ("__import__('collections').Counter('aab')", "{'a': 2, 'b': 1}"),
        ("__import__('collections').namedtuple('P', 'x y')(1, 2)", "(1, 2)"),
        ("__import__('fractions').Fraction(1, 2)", "0.5"),
        ("range(3)", "range(3)"),
        ("len", "len"),
        ("list", "list"),
    ],
)
def test_values_of_standard_types_compare_as_in_one_process(value, expected):
    assert passed(f"def f(): return {value}", f"assert f() == {expected}", f"assert f() != [{expected}]") == [
        True,
        True,
    ]


def test_generators_are_looped_over_and_objects_keep_their_state():
    source = """
class Stack:
    size = property(lambda self: len(self.items))
    def __init__(self, *items): self.items = list(items)
    def push(self, item): self.items.append(item); return self
    def __len__(self): return len(self.items)
    def __getitem__(self, at): return self.items[at]
    def __str__(self): return f"<{self.items}>"
    def __eq__(self, other): return self.items == other.items
def f(n):
    yield from range(n)
"""
    tests = (
        "assert list(f(3)) == [0, 1, 2] and next(f(1)) == 0 and 2 in f(3) and 3 not in f(3)",
        "s = Stack(1).push(2); assert len(s) == 2 and s[1] == 2 and s.size == 2 and s.items == [1, 2] and s",
        "s.items = [7]; assert str(s) == '<[7]>' and isinstance(s, Stack) and not isinstance(3, Stack)",
        "assert s == Stack(7) and s != Stack(8)",
        "assert not Stack()",
    )
    assert passed(source, *tests, names=("f", "Stack")) == [True] * 5


@pytest.mark.parametrize("base", ["", "(int)", "(list)"])
def test_an_object_that_claims_to_equal_everything_equals_no_value_of_the_tests(base):
    source = f"class Liar{base}:\n    def __eq__(self, other): return True\ndef f(): return Liar()"
    assert (
        passed(source, "assert f() == 5", "assert 5 == f()", "assert 5 in [f()]", "assert [f()] == [5]") == [False] * 4
    )


def test_an_argument_that_the_program_changes_is_changed_for_the_tests():
    source = "def f(x):\n    x.clear()\n    (x.update if hasattr(x, 'update') else x.extend)({9: 9})"
    values = ("[3, 1]", "{3: 1}", "{3, 1}", "__import__('collections').deque([3])")
    assert (
        passed(source, *(f"x = y = {value}; f(x); assert x is y and list(x) == [9]" for value in values)) == [True] * 4
    )


def test_a_function_of_the_tests_can_be_called_by_the_program():
    source = "def f(g, x): return [g(g, y) if y == 1 else g(y) for y in x]"
    tests = ("assert f(lambda *y: len(y), [1, 2]) == [2, 1]", "assert f(lambda y: 1 // 0, []) == []")
    assert passed(source, *tests) == [True, True]


def test_built_in_exceptions_arrive_as_what_they_are_and_others_as_failures():
    source = "class Own(Exception): pass\ndef f(e): raise {'v': ValueError('no'), 'o': Own(), 's': SystemExit(0)}[e]"
    caught = "try: f({!r})\nexcept {}: pass\nelse: assert False"
    tests = (caught.format("v", "ValueError"), caught.format("v", "KeyError"), caught.format("o", "Exception"))
    assert passed(source, *tests, "f('s')", "f('k')") == [True, False, True, False, False]


def test_the_prelude_is_there_for_both_but_cannot_stand_in_for_the_program():
    prelude = "import math\ndef helper(x): return x * 2\ndef f(x): return 4"
    tests = ("assert f(2) == 4", "assert helper(2) == 4", "assert math.gcd(4, 6) == 2")
    assert passed("def f(x): return helper(x)", *tests, prelude=prelude) == [True] * 3
    # A program that redefines the helper does so for itself alone.
    assert passed("def helper(x): return 5\ndef f(x): return helper(x)", *tests, prelude=prelude) == [False, True, True]
    assert passed("del f", *tests, prelude=prelude) == [False, True, True]


def test_the_tests_see_no_other_name_of_the_program():
    assert passed("def f(): return 1\ndef len(x): return 3\ng = 1", "assert len([]) == 0", "g") == [True, False]


def test_a_program_prints_into_nothing_and_reads_nothing():
    assert passed("print('x' * 10**6)\ndef f(): return input()", "try: f()\nexcept EOFError: pass\nelse: 1 / 0") == [
        True
    ]


def test_modules_work_as_they_do_in_a_file():
    source = """
from __future__ import annotations
from dataclasses import dataclass
import heapq, math, re, itertools, functools, random, hashlib, typing, bisect, statistics
@dataclass
class Point:
    x: int
def f() -> int:
    return Point(math.gcd(4, 6)).x
if __name__ == "__main__":
    raise SystemExit
"""
    assert passed(source, "assert f() == 2") == [True]


_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.datetimes()
    | st.dates()
    | st.timedeltas(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.lists(inner).map(deque) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=10,
)


@given(_PLAIN)
def test_what_is_sent_is_what_arrives(value):
    sender, receiver = Peer(-1, -1), Peer(-1, -1)
    arrived = receiver.decode(sender.encode(value))
    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset("a"),
        bytearray(b"x"),
        Counter("aab"),
        OrderedDict(a=1),
        range(2, 9, 3),
        Fraction(1, 3),
        Decimal("1.10"),
        datetime.time(1, 2),
        deque([1], maxlen=1),
        -0.0,
        2**53,
        -(2**200),
        [[]],
        ((),),
        {(1, 2): {3: 4}},
    ],
)
def test_what_is_sent_is_what_arrives_for_each_type(value):
    arrived = Peer(-1, -1).decode(Peer(-1, -1).encode(value))
    assert repr(arrived) == repr(value)
    assert type(arrived) is type(value)


def test_a_defaultdict_arrives_without_its_factory():
    assert Peer(-1, -1).decode(Peer(-1, -1).encode(defaultdict(list, a=[1]))) == {"a": [1]}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"junk\n",
        b"[1]\n",
        b"[" * 60_000 + b"\n",
        b'{"result": {"set": [[1]]}}\n',
        b'{"result": {"code": "1"}}\n',
        b'{"result": {"int": "z"}}\n',
        b'{"result": {}}\n',
        b'{"result": {"yours": 7}}\n',
        b'{"result": {"tuple": 1}}\n',
    ],
)
def test_what_is_no_message_is_an_error_and_never_a_value(line):
    reading, theirs = os.pipe()
    unread, writing = os.pipe()
    os.write(theirs, line)
    os.close(theirs)
    with pytest.raises(Gone):
        Peer(reading, writing).call("f")
    for descriptor in (reading, unread, writing):
        os.close(descriptor)


RAW = """import os
def raw(line):
    for fd in range(3, 64):
        try: os.write(fd, line)
        except OSError: pass
"""


@pytest.mark.parametrize(
    "body",
    ["os._exit(0)", "os.kill(os.getpid(), 9)", "raw(b'junk\\n')", 'raw(b\'{"result": {"builtin": "exec"}}\\n\')'],
)
def test_a_program_that_ends_the_conversation_has_raised_nothing_and_reaches_no_later_test(body):
    source = f"{RAW}def f(x):\n    if x < 0: {body}\n    return x\n"
    expects = "try: f(-1)\n{}: pass\nelse: assert False"
    tests = ("assert f(1) == 1", expects.format("except Exception"), expects.format("except"), "assert True")
    assert passed(source, *tests) == [True, False, False, False]


def test_an_exit_is_no_exception_that_a_test_waits_for():
    tests = ("try: f(-1)\nexcept Exception: pass\nelse: assert False", "assert f(1) == 1")
    assert passed("import sys\ndef f(x):\n    if x < 0: sys.exit(0)\n    return x", *tests) == [False, True]


@pytest.mark.parametrize(
    "call",
    [
        '{"call": {"builtin": "exec"}, "args": [code], "kwargs": {}}',
        '{"call": "exec", "args": [code], "kwargs": {}}',
        # A function that the tests gave away is called with one that would run code.
        '{"call": {"yours": 0}, "args": [{"builtin": "exec"}, code], "kwargs": {}}',
        '{"result": {"builtin": "exec"}}',
    ],
)
def test_a_program_that_writes_its_own_messages_runs_nothing_where_the_tests_are(call):
    line = "b'{\"passed\": true}\\n' * 2"
    forge = f"import os\nfor fd in range(3, 64):\n    try: os.write(fd, {line})\n    except OSError: pass"
    source = (
        f"import json, os\ncode = {forge!r}\ndef f(x, g):\n    line = json.dumps({call}).encode() + b'\\n'\n"
        "    for fd in range(3, 64):\n        try: os.write(fd, line)\n        except OSError: pass\n    return 0\n"
    )
    tests = ("assert f(2, lambda h, x: h(x)) == 4", "assert f(3, lambda h, x: h(x)) == 9")
    outcome = run(Program(source=source, names=("f",), tests=tests))
    assert outcome.compiled
    assert outcome.passed == (False, False)
