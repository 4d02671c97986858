"""Pins the command line's promises: exit codes, what goes to stdout and what to stderr, and instant help."""

import importlib.util
import json
import subprocess
import sys
import types

import pytest

import peerwise
from peerwise.cli import main as command_line
from peerwise.cli.main import COMMANDS, main
from peerwise.errors import PeerwiseError, RecipeError


@pytest.fixture
def command(monkeypatch):
    """Adds a command `try` that does what the given function does."""

    def add(run):
        module = types.ModuleType("tests_command_try")
        module.run = run
        monkeypatch.setitem(sys.modules, "tests_command_try", module)
        monkeypatch.setitem(COMMANDS, "try", ("tests_command_try", "summary of try"))

    return add


def raising(error):
    def run(argv):
        raise error

    return run


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text("[algorithm]\nkl_coefficient = 0.0\n[rollout]\nproblems = 2\ngroup_size = 4\n")
    return str(path)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["plan", "--help"]])
def test_help_and_version_import_no_torch(words):
    code = (
        "import sys, peerwise.cli.main as m\n"
        f"code = m.main({words!r})\n"
        "print([n for n in ('torch', 'transformers', 'datasets') if n in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_planning_the_embedded_model_imports_no_torch(recipe):
    code = f"import sys, peerwise.cli.main as m; m.main(['plan', {recipe!r}]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_python_dash_m_peerwise_is_the_command():
    done = subprocess.run([sys.executable, "-m", "peerwise", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"peerwise {peerwise.__version__}\n")


def test_help_lists_every_command_with_its_summary(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name}" in out
        assert summary in out


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_in_the_table_is_the_modules_own(name):
    module, summary = COMMANDS[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} does not exist yet")
    assert summary == importlib.import_module(module).SUMMARY


def test_no_command_prints_help_to_stderr_and_exits_2(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: peerwise COMMAND" in captured.err


def test_an_unknown_command_names_the_nearest_and_exits_2(capsys):
    assert main(["pln"]) == 2
    assert capsys.readouterr().err == "peerwise: unknown command 'pln'; did you mean 'plan'?\n"


def test_a_command_gets_its_words_and_its_exit_code_is_returned(command):
    seen = []
    command(lambda argv: seen.append(list(argv)) or 7)
    assert main(["try", "a", "--debug", "--b"]) == 7
    assert seen == [["a", "--b"]]


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (PeerwiseError("the disk is full"), 1, "peerwise: the disk is full\n"),
        (RecipeError("bad key"), 2, "peerwise: bad key\n"),
        (KeyboardInterrupt(), 130, "peerwise: interrupted\n"),
        (SystemExit(3), 3, ""),
        (SystemExit(), 0, ""),
        (ValueError("two\nlines"), 1,
         "peerwise: internal error: ValueError: two lines (run with --debug for the traceback)\n"),
    ],
)  # fmt: skip
def test_every_error_is_one_message_on_stderr_and_an_exit_code(command, capsys, error, code, text):
    command(raising(error))
    assert main(["try"]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", text)


@pytest.mark.parametrize("words", [["--debug", "try"], ["try", "--debug"]])
@pytest.mark.parametrize("error", [PeerwiseError("x"), ValueError("x"), KeyboardInterrupt()])
def test_debug_anywhere_prints_the_traceback(command, capsys, words, error):
    command(raising(error))
    assert main(words) != 0
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_reader_that_leaves_is_not_an_internal_error(command, capsys, monkeypatch):
    command(raising(BrokenPipeError()))
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # main replaces it
    assert main(["try"]) == 1
    assert "internal error" not in capsys.readouterr().err


def test_words_come_from_the_command_line_when_none_are_given(monkeypatch, capsys):
    monkeypatch.setattr(command_line.sys, "argv", ["peerwise", "--version"])
    assert main() == 0
    assert capsys.readouterr().out.startswith("peerwise ")


def test_plan_prints_its_result_to_stdout_and_its_warnings_to_stderr(recipe, capsys):
    assert main(["plan", recipe, "--problems", "1000", "--optimizer.learning-rate", "1e-4"]) == 0
    captured = capsys.readouterr()
    assert "2 prompts/update" in captured.out
    assert "500 updates/epoch" in captured.out
    assert captured.err.startswith("warning: optimizer.learning_rate: 0.0001 is high")


def test_plan_json_is_one_object_on_stdout(recipe, capsys):
    assert main(["plan", recipe, "--rollout.stop", "x", "--json", "--rollout.problems", "3"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["stages"][0]["completions_per_update"] == 12
    assert out["warnings"] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "give the recipe first"),
        (["--json"], "give the recipe first"),
        (["no-such.toml"], "no-such.toml: no such recipe"),
        (["RECIPE", "--problems", "0"], "expected a whole number above 0"),
        (["RECIPE", "--problems"], "expected one argument"),
        (["RECIPE", "--rollout.group-size", "1"], "a group of 1 has nothing to compare with"),
        (["RECIPE", "--rollout.gruop-size", "1"], "did you mean '--rollout.group-size'?"),
        (["RECIPE", "--timed", "no-such-run"], "no-such-run is not a run"),
    ],
)
def test_a_wrong_plan_request_exits_2_with_one_message(recipe, capsys, words, expected):
    assert main(["plan", *(recipe if word == "RECIPE" else word for word in words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected in captured.err


def test_plan_takes_the_median_step_of_each_stage_from_a_run(recipe, tmp_path, capsys):
    rows = [("grpo", 1.0), ("grpo", 100.0), ("grpo", 3.0), ("sft", 9.0), ("grpo", None)]
    lines = [json.dumps({"stage": stage, "step": 1, "time/step": seconds}) for stage, seconds in rows]
    # The last line was cut off by a kill.
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"stage": "gr']))
    assert main(["plan", recipe, "--timed", str(tmp_path), "--json"]) == 0
    # Median of 1, 3, 100 is 3; 100 steps.
    assert json.loads(capsys.readouterr().out)["stages"][0]["seconds"] == 300.0


def test_a_run_that_timed_other_stages_is_refused(recipe, tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text('{"stage": "sft", "time/step": 1.0}\n')
    assert main(["plan", recipe, "--timed", str(tmp_path)]) == 2
    assert "stages timed: sft" in capsys.readouterr().err


def test_a_model_that_cannot_be_looked_up_leaves_only_memory_out(recipe, tmp_path, capsys, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["plan", recipe, "--model.path", str(tmp_path), "--problems", "1000"]) == 0
    captured = capsys.readouterr()
    assert "500 updates/epoch" in captured.out
    (line,) = captured.err.splitlines()
    assert "memory is left out" in line


def test_the_shape_of_a_local_model_is_read_from_its_config(recipe, tmp_path, capsys):
    pytest.importorskip("transformers")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2,
              "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 10,
              "max_position_embeddings": 4096, "tie_word_embeddings": True}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["plan", recipe, "--model.path", str(tmp_path), "--json"]) == 0
    shape = json.loads(capsys.readouterr().out)["shape"]
    # Embedding 80; per block q, o 64 + 64, k, v 32 + 32, MLP 3 * 128, norms 16: 592; last norm 8. 80 + 1184 + 8.
    assert shape == {"parameters": 1272, "hidden": 8, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 4,
                     "vocab": 10, "intermediate": 16, "context": 4096, "tied": True}  # fmt: skip
