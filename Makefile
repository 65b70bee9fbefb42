# Every target sets itself up: .venv is made from requirements.lock and reused while the lock is unchanged.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv reproduce test test-slow lint lab data report bench lock clean

FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do $$p -c '$(FITS)' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
CLEAN_ENV := env -u JUPYTER_PATH -u JUPYTER_CONFIG_DIR -u JUPYTER_DATA_DIR -u PYTHONPATH

help: ## list these targets (the default)
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

venv: ## make .venv from the lock, or reuse it
	@if [ -z "$(PYTHON)" ] || ! $(PYTHON) -c '$(FITS)'; then \
	  echo "This project needs Python 3.11 or 3.12; $(or $(PYTHON),python3) is $$($(or $(PYTHON),python3) --version 2>&1)." \
	       "Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; fi
	@wanted="$$(sha256sum requirements.lock | cut -d' ' -f1) $$(pwd)"; \
	if [ "$$(cat .venv/.lock 2>/dev/null)" != "$$wanted" ]; then \
	  echo "Setting up .venv from requirements.lock (a few minutes the first time) …"; \
	  rm -rf .venv; $(PYTHON) -m venv .venv; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock 2> >(grep -v '^WARNING: Location' >&2); \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	  echo "$$wanted" > .venv/.lock; fi
	@cp deploy/quiet.pth .venv/lib/python3.*/site-packages/  # Flower and Ray report nothing, whoever starts them

reproduce: venv ## run the notebooks at the quick preset and build the report
	$(BIN)/python -m cflib data fetch all || echo "Going on with the data that is here."
	$(CLEAN_ENV) $(BIN)/python -m cflib run --preset quick --force
	$(BIN)/python -m cflib report

test: lint ## lint, then the offline tests
	$(BIN)/python -m pytest

test-slow: venv ## the browser, Flower, kill and real-data tests
	$(BIN)/python -m pytest -m slow

lint: venv ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lab: venv ## JupyterLab on the notebooks
	$(CLEAN_ENV) $(BIN)/jupyter lab notebooks/00_start_here.ipynb

data: venv ## fetch mnist, fashion_mnist and cifar10 into data/cache
	$(BIN)/python -m cflib data fetch all

report: venv ## build the readable site under site/
	$(BIN)/python -m cflib report

bench: venv ## measure the speeds and write benchmarks/README.md
	$(BIN)/python -m benchmarks

lock: venv ## write requirements.lock anew from pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --extra dev --no-annotate \
	  --no-emit-index-url --custom-compile-command "make lock" --output-file requirements.lock pyproject.toml

clean: ## remove .venv, site/ and caches (data/cache stays)
	rm -rf .venv site .mypy_cache .ruff_cache .pytest_cache .hypothesis
