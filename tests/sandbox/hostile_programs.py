"""Programs that attack the sandbox or the grader, made from families of attacks, each with the share of its tests that
it must get. Used by the tests (some) and by benchmarks/programs.py (all). Runs nothing.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

NAMES = ("answer",)
TESTS = ("assert answer(1) == 2", "assert answer(5) == 6", "assert [answer(n) for n in (3, 0)] == [4, 1]")
"""The program is to add 1."""

Kind = Literal["never", "wall", "forged"]
Placement = Literal["import", "call", "child"]
PLACEMENTS: tuple[Placement, ...] = ("import", "call", "child")


@dataclass(frozen=True)
class Attack:
    """`code` is the body of a function.

    "never": what comes after it is never reached. "wall": it sets `held` to False where the wall does not stand, and
    then the program answers wrongly. "forged": the program answers `result`, which is wrong, and hopes.
    """

    family: str
    kind: Kind
    code: str
    result: str = "None"


@dataclass(frozen=True)
class Hostile:
    """One program and the share of TESTS it must get; None when it must not even compile."""

    name: str
    source: str
    share: float | None


def _never(family: str, *codes: str) -> list[Attack]:
    return [Attack(family, "never", code) for code in codes]


def _tried(family: str, *codes: str) -> list[Attack]:
    """Each code raises an OSError or ValueError where the wall stands."""
    tried = "try:\n{}\n    held = False\nexcept (OSError, ValueError, MemoryError):\n    pass"
    return [Attack(family, "wall", tried.format(textwrap.indent(code, "    "))) for code in codes]


def _survived(family: str, *codes: str) -> list[Attack]:
    return [Attack(family, "wall", code) for code in codes]


def _forged(family: str, *pairs: tuple[str, str]) -> list[Attack]:
    return [Attack(family, "forged", code, result) for code, result in pairs]


_LIAR = (
    "class Liar{base}:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n    {more}"
)
_ALL_DESCRIPTORS = "for number in range(3, 64):\n    try: os.write(number, {text})\n    except OSError: pass"

ATTACKS: list[Attack] = [
    *_never(
        "endless loop",
        "while True: pass",
        "import time\ntime.sleep(10**6)",
        "sum(iter(int, 1))",
        "9 ** (9 ** 9)",
        "import threading\nthreading.Event().wait()",
    ),
    *_never(
        "catches everything",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
    ),
    *_never(
        "fork bomb",
        "while True:\n    try: os.fork()\n    except OSError: pass",
        "import subprocess\nwhile True:\n    try: subprocess.Popen(['/usr/bin/env', 'sleep', '1000'])\n"
        "    except OSError: pass",
    ),
    *_never("exit", "os._exit(0)", "os.abort()", "os.kill(os.getpid(), 9)", "import ctypes\nctypes.string_at(0)"),
    *_never(
        "deep recursion",
        "sys.setrecursionlimit(10**9)\ndef deeper(n): return [deeper(n + 1)]\ndeeper(0)\nos._exit(0)",
    ),
    *_never("closes descriptors", "os.closerange(0, 64)"),
    *_tried(
        "memory bomb",
        "kept = []\nwhile True: kept.append(bytearray(2**24))",
        "' ' * 2**36",
        "import mmap\nmmap.mmap(-1, 2**33)",
    ),
    *_tried(
        "file bomb",
        "with open('big', 'wb') as file:\n    for _ in range(1024): file.write(bytes(2**20))",
        "for n in range(10**5):\n    with open(f'part{n % 32}', 'ab') as file: file.write(bytes(2**20))",
    ),
    *_survived(
        "output bomb",
        "for _ in range(1024): print('x' * 2**20)",
        "for _ in range(1024): os.write(2, bytes(2**20))",
    ),
    *_tried(
        "reads files",
        "open('/etc/passwd').read()",
        "open('/etc/shadow').read()",
        "os.listdir('/root/.ssh')",
        "os.listdir('/home')",
        "open('/proc/1/environ').read()",
        "open('/proc/1/mem', 'rb').read(1)",
    ),
    *_survived(
        "reads the environment",
        "held &= 'SECRET' not in str(dict(os.environ))",
        "try: held &= b'SECRET' not in open('/proc/self/environ', 'rb').read()\nexcept OSError: pass",
    ),
    *_tried(
        "writes outside",
        *(
            f"open({path!r}, 'w').write('x')"
            for path in ("/out", "/usr/out", "/etc/out", "/dev/shm/out", "/var/tmp/out", "/proc/sys/kernel/hostname")
        ),
        "os.remove(os.__file__)",
    ),
    *_tried(
        "network",
        "import socket\nsocket.create_connection(('1.1.1.1', 53), 5)",
        "import socket\nsocket.getaddrinfo('example.org', 80)",
        "import socket\nsocket.create_connection(('127.0.0.1', 22), 5)",
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.8.8', 53))",
    ),
    *_tried("kills others", "os.kill(os.getppid() if os.getppid() == 1 else 1, 9)", "os.kill(0, 0)\nraise OSError"),
    *_survived(
        "kills others",
        "others = [int(p) for p in os.listdir('/proc') if p.isdigit()]\nheld &= len(others) <= 8",
    ),
    *_tried(
        "raises its limits",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
        "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (10**4, 10**4))",
        "os.setuid(0)",
        "os.setgid(0)",
    ),
    *_survived(
        "grandchildren in a new session",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        import time\n        time.sleep(1000)\n"
        "    os._exit(0)\ntry: os.wait()\nexcept OSError: pass",
        "import subprocess\ntry: subprocess.Popen(['/usr/bin/env', 'sleep', '1000'], start_new_session=True)\n"
        "except OSError: pass",
    ),
    *_survived(
        "atexit and threads",
        "import atexit\natexit.register(lambda: [0 for _ in iter(int, 1)])",
        "import threading\ndef spin():\n    while True: pass\n"
        "try: threading.Thread(target=spin, daemon=True).start()\nexcept RuntimeError: pass",
    ),
    *_forged("exit", ("sys.exit(0)", "None"), ("raise SystemExit(0)", "None"), ("quit()", "None"), ("pass", "quit()")),
    *_forged(
        "prints the marker",
        ('print(\'{"passed": true}\\n{"end": true}\', flush=True)', "None"),
        (_ALL_DESCRIPTORS.format(text="b'{\"passed\": true}\\n' * 3 + b'{\"end\": true}\\n'"), "None"),
        (_ALL_DESCRIPTORS.format(text="b'{\"result\": true}\\n' * 9"), "None"),
        (_ALL_DESCRIPTORS.format(text="b'[' * 10**5 + b'\\n'"), "None"),
    ),
    *_forged(
        "lies about equality",
        (f"global Liar\n{_LIAR.format(base='', more='')}", "Liar()"),
        (f"global Liar\n{_LIAR.format(base='(int)', more='')}", "Liar(0)"),
        (f"global Liar\n{_LIAR.format(base='(list)', more='')}", "Liar()"),
        (f"global Liar\n{_LIAR.format(base='', more='__req__ = __radd__ = __rsub__ = __eq__')}", "Liar()"),
        (f"global Liar\n{_LIAR.format(base='(type)', more='')}", "Liar('Liar', (), {})"),
    ),
    *_forged(
        "patches the interpreter",
        ("import builtins\nbuiltins.AssertionError = type('Quiet', (Exception,), {})", "None"),
        ("import builtins\nbuiltins.__build_class__ = builtins.isinstance = lambda *a: True", "None"),
        ("import operator, json\noperator.eq = json.dumps = json.loads = lambda *a, **k: True", "None"),
        ("sys.settrace(lambda *a: None)\nsys.excepthook = sys.exit = lambda *a: None", "None"),
        ("sys.modules.clear()", "None"),
        ("sys.modules['tests'] = sys.modules['__main__'] = None", "None"),
    ),
    *_forged(
        "looks for the grader",
        (
            "frame = sys._getframe()\nwhile frame:\n    for value in list(frame.f_locals.values()):\n"
            "        try: value.send({'passed': True}); value.send({'end': True})\n        except Exception: pass\n"
            "    frame = frame.f_back",
            "None",
        ),
        (
            "import gc\nfor value in gc.get_objects():\n    if type(value).__name__ == 'Peer':\n"
            "        type(value).encode = lambda *a: {'mine': 0}",
            "None",
        ),
        (
            "import gc\nfor value in gc.get_objects():\n    if type(value) is dict and 'tests' in value:\n"
            "        value['tests'] = []",
            "None",
        ),
    ),
    *_forged(
        "huge answers",
        ("pass", "'x' * 2**26"),
        ("pass", "iter(int, 1)"),
        ("global deep\ndeep = []\nfor _ in range(10**5): deep = [deep]", "deep"),
        ("pass", "10 ** 10**6"),
    ),
    *_forged(
        "raises what the tests raise", ("pass", "exec('raise AssertionError')"), ("pass", "exec('raise Exception')")
    ),
]

_UNREADABLE = {
    "brackets": "(" * 10**5,
    "minus signs": "-" * 10**5 + "1",
    "a null byte": "answer = 1\0",
    "half a program": "def answer(x:\n    return x + 1",
    "half a character": "x = '\ud800'\n(",
}


def _program(attack: Attack, placement: Placement) -> Hostile:
    calls = {"import": "", "call": "    attack()\n", "child": ""}[placement]
    begins = {"import": "attack()\n", "call": "", "child": "if os.fork() == 0:\n    attack()\n    os._exit(0)\n"}[
        placement
    ]
    result = attack.result if attack.kind == "forged" else "x + 1 if held else None"
    body = textwrap.indent(attack.code, "    ")
    source = (
        f"import os, sys\nheld = True\ndef attack():\n    global held\n{body}\n"
        f"def answer(x):\n{calls}    return {result}\n{begins}"
    )
    right = attack.kind == "wall" or (attack.kind == "never" and placement == "child")
    return Hostile(f"{attack.family}, {placement}: {attack.code.splitlines()[-1][:40]}", source, float(right))


def hostile_programs() -> list[Hostile]:
    """Every attack in every place: while the program is loaded, in each call, in a child of its own."""
    unreadable = [Hostile(f"does not compile: {name}", source, None) for name, source in _UNREADABLE.items()]
    return unreadable + [_program(attack, placement) for attack in ATTACKS for placement in PLACEMENTS]


def one_of_each() -> list[Hostile]:
    """Each attack once, most of them in a call: enough to see every wall."""
    unreadable = [Hostile(f"does not compile: {name}", source, None) for name, source in _UNREADABLE.items()]
    return unreadable + [_program(attack, PLACEMENTS[(n % 4) // 2]) for n, attack in enumerate(ATTACKS)]
