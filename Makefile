# make demo   run the default model, real Gemma 3 270M weights, once
# make test   all tests but the slow ones
# make slow   the slow ones
# make check  lint, format, types, contract tests
# make bench  time the default model, results to benchmarks/results/
#
# Each target makes .venv, builds and installs what it needs, in any order; nothing is reinstalled while pyproject.toml,
# constraints.txt, this file and csrc/ stay as they are. PYTHON, VENV and WORKERS may be set on the command line.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

BIN := $(VENV)/bin
# Variables and no -c, so that the pins hold for what builds the package too; newer pips read the second for that.
PIP := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(BIN)/python -m pip --disable-pip-version-check
INPUTS := pyproject.toml constraints.txt Makefile
KERNELS := CMakeLists.txt csrc/CMakeLists.txt $(wildcard csrc/*.cpp csrc/*.hpp)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test slow check bench clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than Python 3.11; name a newer one: make PYTHON=python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# Both stamps install into the same environment; the order-only edge keeps `make -j` from running two pips at once.
$(VENV)/.installed-demo: $(INPUTS) $(KERNELS) | $(BIN)/python
	@echo "building Gemwright (a minute the first time) and installing it with the default model into $(VENV) ..."
	$(PIP) install --quiet -e '.[demo]'
	@if $(BIN)/python -c 'import gemwright.ops._kernels'; then touch $@; else \
		echo "The kernels were not built, which takes a C++ compiler, such as g++ (apt-get install g++)." >&2; \
		echo "Without them torch computes: $(BIN)/pip install -c constraints.txt torch" >&2; \
		$(BIN)/python -c 'import torch' 2>/dev/null; fi

# What is installed above meets `gemwright`, so that this adds the packages and builds nothing.
$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python $(VENV)/.installed-demo
	@echo "installing the development tools, torch and the oracle into $(VENV) (500 MB, more if torch brings CUDA) ..."
	$(PIP) install --quiet 'gemwright[dev]'
	@touch $@

demo: $(VENV)/.installed-demo
	$(BIN)/gemwright run "The capital of France is" --max-tokens 48 --temperature 0

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" --durations 15

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow --timeout 1200 --durations 15

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/contracts

bench: $(VENV)/.installed-demo
	$(BIN)/python benchmarks/decode.py --output benchmarks/results/decode.json

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find gemwright tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
