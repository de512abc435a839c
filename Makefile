# Every target works on a fresh machine with Python 3.11+, git and make: it makes .venv, installs, and runs.
# The first that runs and is new enough; constraints.txt was tried on 3.11. Set PYTHON=... to choose.
CANDIDATES := python3.11 python3 python3.12 python3.13
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in $(CANDIDATES); do $$python -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
DOCS := $(VENV)/.installed-docs

.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## install if needed, then train and compare three models on an embedded corpus; prints where the report lies
	@$(BIN)/recurra demo --output runs/demo

# Tests of one file share what was expensive to make; end to end first, so that nothing long is left for the end.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations 15

test: $(DEV) ## run the test suite but its slow part (RECURRA_DATA_ROOT=DIR adds the tests on real corpora)
	@$(PYTEST) -m "not slow"

test-slow: $(DEV) ## run the slow part: killed studies and nodes, several processes, a million rows
	@$(PYTEST) -m slow

test-faults: $(DEV) ## kill, starve and mislead the commands for 20 minutes; SEED=N draws the same again, JSON=FILE keeps the figures
	@PYTHONPATH=tests $(BIN)/python -m faults $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json "$(JSON)")

check: $(DEV) ## lint, format, types, import contract, generated tables
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m recurra.report --check

bench: $(DEV) ## measure speed and memory side by side with what a user would pick instead; JSON=FILE keeps the figures
	@$(BIN)/python -m benchmarks $(if $(JSON),--json "$(JSON)") $(if $(CLASSIFIER),--classifier "$(CLASSIFIER)")

load: $(DEV) ## serve EXPORT=DIR (a run or an export) and ask it with 64 clients; then overload it; SECONDS_EACH=5 DATA=FILE SERVE="--together"
	@test -n "$(EXPORT)" || { echo "error: nothing to serve; give EXPORT=DIR, a run or an export" >&2; exit 2; }
	@$(BIN)/python -m benchmarks.load "$(EXPORT)" --seconds $(or $(SECONDS_EACH),5) $(if $(DATA),--data "$(DATA)") $(if $(SERVE),--serve $(SERVE))

results: $(INSTALLED) ## write the tables in README and docs anew from the records under results/
	@$(BIN)/python -m recurra.report

docs: $(DOCS) ## build the documentation as a site, build/site/index.html; a broken link or anchor is an error
	@$(BIN)/python docs/site/build.py

clean: ## remove the environment and caches (keeps runs/)
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache src/*.egg-info

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or later found (tried $(CANDIDATES)); set PYTHON=..." >&2; exit 2; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing (once; a minute or two)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(DEV): $(INSTALLED)
	@echo "installing the development tools (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

$(DOCS): $(INSTALLED)
	@echo "installing what builds the site (once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	@touch $@

.PHONY: help demo test test-slow test-faults check bench load results docs clean
