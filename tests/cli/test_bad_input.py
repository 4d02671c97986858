"""Pins what a wrong request gets, through the command line: one clear message on stderr, exit code 2, no traceback and
nothing written; and that data is looked at before the model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_recipe import GOOD, RECIPE, lines

from peerwise.cli.main import main
from peerwise.train import session


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(capsys: pytest.CaptureFixture[str], here: Path, *words: str) -> str:
    """The one message a wrong request gets. Warnings and notes may stand before it."""
    before = listing(here)
    code = main(list(words))
    captured = capsys.readouterr()
    assert code == 2, captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert "internal error" not in captured.err
    assert listing(here) == before
    assert not (here / "run").exists()
    assert not (here / "runs").exists()
    assert captured.err.count("peerwise: ") == 1
    return captured.err[captured.err.index("peerwise: ") :]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train"], ["give the recipe first"]),
        (["train", "--quiet"], ["give the recipe first"]),
        (["train", "--run.out", "x", "recipe.toml"], ["give the recipe first"]),
        (["train", "recip.toml"], ["recip.toml: no such recipe", "did you mean 'recipe.toml'?"]),
        (["train", "model"], ["model is a folder, expected a recipe file"]),
        (["train", "recipe.toml", "--rollout.gruop-size", "4"], ["did you mean '--rollout.group-size'?"]),
        (["train", "recipe.toml", "--rollout.group-size", "1"], ["a group of 1 has nothing to compare with"]),
        (["train", "recipe.toml", "--rollout.group-size", "many"], ["rollout.group_size", "'many'"]),
        (["train", "recipe.toml", "--algorithm.preset", "grp0"], ["'grp0'", "did you mean 'grpo'?"]),
        (["train", "recipe.toml", "--task.name", "filse"], ["'filse'", "did you mean 'files'?"]),
        (["train", "recipe.toml", "--task.template", "plian"], ["'plian'", "did you mean 'plain'?"]),
        (["train", "recipe.toml", "--task.reward", "gradde"], ["'gradde'", "did you mean 'graded'?"]),
        (["train", "recipe.toml", "--task.reward", "mine.py:reward"], ["'mine.py:reward'", "no file"]),
        (["train", "recipe.toml", "--model.path", "smollm2-135m-instrct"], ["did you mean 'smollm2-135m-instruct'?"]),
        (["train", "recipe.toml", "--model.path", "./no/such/folder"], ["no model at './no/such/folder'"]),
        (["train", "recipe.toml", "--model.path", "."], ["holds no config.json"]),
        (["train", "recipe.toml", "--model.path", "nobody/nothing"], ["neither a local folder nor", "hub"]),
        (["train", "recipe.toml", "--task.path", "date.jsonl"], ["no file or folder 'date.jsonl'"]),
        (["train", "recipe.toml", "--task.path", "recipe.toml"], ["cannot read .toml", ".jsonl, .csv, .parquet"]),
        (["train", "recipe.toml", "--task.eval-split", "valid"], ["no file for split 'valid'"]),
        (["train", "recipe.toml", "--rollout.max-new-tokens", "500"], ["exceed the model's context of 512"]),
        (["train", "recipe.toml", "--rollout.max-prompt-tokens", "3"], ["every prompt is longer than 3 tokens"]),
        (["train", "--resume"], ["--resume takes the run folder and nothing else"]),
        (["train", "--resume", "run", "--rollout.group-size", "4"], ["--resume takes the run folder and nothing else"]),
        (["train", "--resume", "model"], ["is not a run: it has no recipe.toml"]),
        (["train", "--resume", "run"], ["is not a run: it has no recipe.toml"]),
        (["trian", "recipe.toml"], ["unknown command 'trian'", "did you mean 'train'?"]),
        (["eval"], ["MODEL", "--help"]),
        (["eval", "model", "--task", "gsm8"], ["'gsm8'", "did you mean 'gsm8k'?"]),
        (["eval", "model", "--template", "boxes"], ["'boxes'", "did you mean 'boxed'?"]),
        (["eval", "model", "--samples", "0"], ["expected a whole number above 0"]),
        (["eval", "model", "--samples", "4", "--temperature", "0"], ["4 greedy answers are all the same"]),
        (["eval", "model", "--temperature", "-1"], ["temperature", "-1"]),
        (["eval", "model", "--temperature", "nan"], ["temperature", "nan"]),
        (["eval", "model", "--params", "{size"], ["--params"]),
        (["eval", "model", "--params", "[1]"], ["--params"]),
        (["eval", "model", "--params", '{"sizes": 3}'], ["'sizes'"]),
        (["eval", "model", "--task", "files"], ["path", "files"]),
        (["eval", "model", "--task", "files", "--path", "date.jsonl"], ["no file or folder 'date.jsonl'"]),
        (["eval", "no-model"], ["no model at 'no-model'"]),
        (["eval", "model", "--problems", "2", "--max-new-tokens", "512"], ["context", "512"]),
        (
            ["eval", "model", "--problems", "2", "--max-new-tokens", "512", "--engine", "transformers"],
            ["context", "512"],
        ),
        (["sample", "model"], ["give either --prompt TEXT or --task NAME"]),
        (["sample", "model", "--prompt", "x", "--task", "arithmetic"], ["give either --prompt TEXT or --task NAME"]),
        (["sample", "no-model", "--prompt", "x"], ["no model at 'no-model'"]),
        (["sample", "model", "--task", "arithmetc"], ["'arithmetc'", "did you mean 'arithmetic'?"]),
        (["sample", "model", "--task", "arithmetic", "--index", "100000"], ["--index 100000", "problems 0 to"]),
        (["sample", "model", "--prompt", "x", "--n", "-1"], ["expected a whole number above 0"]),
        (["sample", "model", "--prompt", "x", "--max-new-tokens", "512"], ["context", "512"]),
        (["sample", "model", "--prompt", "x", "--temperature", "-1"], ["temperature", "-1"]),
        (["sample", "model", "--prompt", "x", "--top-p", "0"], ["top-p", "0"]),
        (["sample", "model", "--prompt", "x", "--top-p", "1.5"], ["top-p", "1.5"]),
        (["sample", "model", "--prompt", "x", "--top-k", "-3"], ["top-k", "-3"]),
        (["sample", "model", "--promt", "x"], ["--promt"]),
    ],
    ids=" ".join,
)
def test_a_wrong_request_gets_one_message_and_writes_nothing(here, capsys, words, expected):
    message = refused(capsys, here, *words)
    for part in expected:
        assert part in message


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", ["the file has no rows"], id="empty file"),
        pytest.param(b"\n\n", ["the file has no rows"], id="blank lines"),
        pytest.param(GOOD.encode() + b'{"prompt": "x", "answ', ["line 13", "not JSON"], id="a row that is not JSON"),
        pytest.param(GOOD.encode() + b"[1, 2]\n", ["line 13", "a JSON list, expected an object"], id="not an object"),
        pytest.param(
            GOOD.encode() + '{"prompt": "两个", "answer": "2"}\n'.encode("gb18030"),
            ["line 13", "no UTF-8", "iconv"],
            id="wrong encoding",
        ),
        pytest.param(GOOD.encode("utf-16"), ["line 1", "no UTF-8"], id="utf-16"),
        pytest.param(
            lines({"question": "1 + 1", "gold": "2"}).encode(),
            ["'answer'", "found: question, gold", "--task.columns"],
            id="column missing",
        ),
        pytest.param(
            lines({"question": "1 + 1", "answer": "2"}).encode(),
            ["'prompt'", "found: question, answer", "--task.columns"],
            id="prompt column missing",
        ),
        pytest.param(GOOD.encode() + lines({"prompt": "x", "answer": ""}).encode(), ["line 13"], id="empty gold"),
        pytest.param(GOOD.encode() + lines({"prompt": "", "answer": "1"}).encode(), ["line 13"], id="empty prompt"),
        pytest.param(
            GOOD.encode() + lines({"prompt": [{"role": "user"}], "answer": "1"}).encode(), ["line 13"], id="not a chat"
        ),
        pytest.param(
            lines(
                *(
                    {"prompt": f"why {i}", "answer": f"because on the one hand there are {i} of them and on the other "
                     "hand nobody ever counted them with any care at all, as far as we know"}
                    for i in range(12)
                )
            ).encode(),
            ["8 of 12 rows cannot be used", "because on the one hand"],
            id="golds that are prose",
        ),
        pytest.param(
            lines(*({"prompt": "1 + 1 = ?", "answer": i} for i in range(12))).encode(),
            ["no training problem is left", "contradictory"],
            id="every answer contradicts another",
        ),
        pytest.param(lines({"prompt": "1 + 1 = ?", "answer": 2}).encode(), ["held"], id="nothing left to hold out"),
    ],
)  # fmt: skip
def test_wrong_data_is_told_before_the_model_is_loaded(here, capsys, monkeypatch, data, expected):
    def loading(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the model was loaded before the data was looked at")

    monkeypatch.setattr(session, "load", loading)
    (here / "data.jsonl").write_bytes(data)
    message = refused(capsys, here, "train", "recipe.toml")
    for part in expected:
        assert part in message


def test_a_recipe_that_is_no_toml_or_has_an_unknown_key_names_the_place(here, capsys):
    path = here / "recipe.toml"
    path.write_text(RECIPE + "[rollout\n")
    assert "not valid TOML" in refused(capsys, here, "train", "recipe.toml")
    path.write_text(RECIPE.replace("group_size", "group_sizes"))
    message = refused(capsys, here, "train", "recipe.toml")
    assert "rollout.group_sizes" in message
    assert "'group_size'" in message
    path.write_bytes(RECIPE.encode() + b"# \xff\n")
    assert "not UTF-8" in refused(capsys, here, "train", "recipe.toml")


def test_all_violations_of_a_recipe_are_told_at_once(here, capsys):
    message = refused(
        capsys, here, "train", "recipe.toml", "--rollout.group-size", "1", "--algorithm.preset", "x", "--task.name", "y"
    )
    for part in ("a group of 1", "unknown name 'x'", "unknown name 'y'"):
        assert part in message


def test_a_model_folder_that_is_broken_is_refused_with_its_reason(here, capsys):
    broken = here / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"model_type": "llama"')
    assert "'broken'" in refused(capsys, here, "train", "recipe.toml", "--model.path", "broken")
    (broken / "config.json").write_text('{"model_type": "no-such-architecture"}')
    assert "'broken'" in refused(capsys, here, "train", "recipe.toml", "--model.path", "broken")
    (broken / "config.json").write_text((here / "model" / "config.json").read_text())
    assert "'broken'" in refused(capsys, here, "train", "recipe.toml", "--model.path", "broken")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (broken / name).write_text((here / "model" / name).read_text())
    (broken / "model.safetensors").write_bytes((here / "model" / "model.safetensors").read_bytes()[:2000])
    assert "'broken'" in refused(capsys, here, "train", "recipe.toml", "--model.path", "broken")


def test_a_folder_that_holds_a_run_is_not_overwritten(here, capsys):
    (here / "run").mkdir()
    (here / "run" / "recipe.toml").write_text(RECIPE)
    before = listing(here)
    assert main(["train", "recipe.toml"]) == 2
    message = capsys.readouterr().err
    assert "run holds a run" in message
    assert "--resume run" in message
    assert "--run.out" in message
    assert listing(here) == before


def test_debug_adds_the_traceback_to_the_message(here, capsys):
    assert main(["train", "recip.toml", "--debug"]) == 2
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert said.splitlines()[-1].startswith("peerwise: ")
