# Every target works on a fresh machine with Python 3.11+, git and make: it makes .venv, installs, and runs.
# The first that runs and is new enough; set PYTHON=... to choose.
CANDIDATES := python3.11 python3 python3.12 python3.13
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in $(CANDIDATES); do $$python -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
BENCH := .venv-bench

.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## install if needed, then train and compare three models on sentences of the package; prints where the report lies
	@$(BIN)/recurra demo --output runs/demo

# Tests of one file share what was expensive to make; end to end first, so that nothing long is left for the end.
PYTEST := $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --durations 15

test: $(DEV) ## run the test suite but its slow part (RECURRA_DATA_ROOT=DIR adds the tests on real corpora)
	@$(PYTEST) -m "not slow"

test-slow: $(DEV) ## run the slow part: killed studies and nodes, several processes, browsers, wheels, a million rows
	@$(PYTEST) -m slow

test-faults: $(DEV) ## kill, starve and mislead the commands for 20 minutes; SEED=N draws the same again, JSON=FILE keeps the figures
	@PYTHONPATH=tests $(BIN)/python -m faults $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json "$(JSON)")

soak: $(DEV) ## ask a server with 64 clients for SECONDS (1800) while its exports are replaced; JSON=FILE keeps the figures
	@PYTHONPATH=tests $(BIN)/python -m faults --only soak --soak-seconds $(or $(SECONDS),1800) $(if $(JSON),--json "$(JSON)")

mutants: $(DEV) ## test the tests with mutmut: change the source and see whether a test fails; ROOM=evaluation.metrics
	@$(BIN)/mutmut run "recurra.$(ROOM)*"
	@$(BIN)/mutmut results

check: $(DEV) ## lint, format, types, import contract, generated tables
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m docs.site.results --check

bench: $(BENCH)/.installed ## measure speed and memory side by side with what a user would pick instead (RECURRA_DATA_ROOT=DIR adds long texts and accuracy); JSON=FILE keeps the figures
	@$(BENCH)/bin/python -m benchmarks $(if $(JSON),--json "$(JSON)") $(if $(CLASSIFIER),--classifier "$(CLASSIFIER)")

load: $(DEV) ## serve EXPORT=DIR (a run or an export) and ask it with 64 clients; then overload it; SECONDS_EACH=5 DATA=FILE SERVE="--alone"
	@test -n "$(EXPORT)" || { echo "error: nothing to serve; give EXPORT=DIR, a run or an export" >&2; exit 2; }
	@$(BIN)/python -m benchmarks.load "$(EXPORT)" --seconds $(or $(SECONDS_EACH),5) $(if $(DATA),--data "$(DATA)") $(if $(SERVE),--serve $(SERVE))

accelerator: $(DEV) ## on a machine with one: GPU tests, speed, studies at full size, in slices of SLICE=540 seconds; again until nothing is missing
	@$(BIN)/python -m benchmarks.accelerator --output $(or $(OUTPUT),runs/accelerator) --slice-s $(or $(SLICE),540) $(if $(ONLY),--only "$(ONLY)")

results: $(INSTALLED) ## write the tables in README and docs anew from the records under results/
	@$(BIN)/python -m docs.site.results

docs: $(DEV) ## build the documentation as a site, build/site/index.html; a broken link or anchor is an error
	@$(BIN)/python docs/site/build.py

clean: ## remove the environment and caches (keeps runs/)
	@rm -rf $(VENV) $(BENCH) $(LOWEST) build dist .pytest_cache .mypy_cache .ruff_cache src/*.egg-info

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or later found (tried $(CANDIDATES)); set PYTHON=..." >&2; exit 2; }
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# Nothing is resolved here: each list has all that is needed, in one version and with hashes ('make lock').
PIP := python -m pip --quiet --disable-pip-version-check
LOCKED := install --require-hashes --no-deps --no-build-isolation --requirement requirements/locked
ASKS_FOR_CUDA := import sys; from importlib.metadata import requires; \
	sys.exit(not any(line.startswith("nvidia-") for line in requires("torch")))

$(INSTALLED): pyproject.toml $(wildcard requirements/locked/*.txt) | $(BIN)/python
	@echo "installing (once; a minute or two)"
	@$(BIN)/$(PIP) $(LOCKED)/build.txt
	@$(BIN)/$(PIP) $(LOCKED)/torch-cpu.txt 2>/dev/null || $(BIN)/$(PIP) $(LOCKED)/torch.txt
	@! $(BIN)/python -c '$(ASKS_FOR_CUDA)' || $(BIN)/$(PIP) $(LOCKED)/cuda.txt
	@$(BIN)/$(PIP) $(LOCKED)/run.txt
	@$(BIN)/$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): $(INSTALLED)
	@echo "installing the development tools (once)"
	@$(BIN)/$(PIP) $(LOCKED)/dev.txt
	@$(BIN)/$(PIP) check
	@touch $@

# What ours is timed against asks for versions of its own, the newest ones.
$(BENCH)/.installed: pyproject.toml requirements/locked/torch.txt
	@test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	@echo "installing the engines to measure against into $(BENCH) (once; some minutes)"
	@$(BENCH)/bin/$(PIP) $(LOCKED)/build.txt
	@$(BENCH)/bin/$(PIP) $(LOCKED)/torch-cpu.txt 2>/dev/null || $(BENCH)/bin/$(PIP) $(LOCKED)/torch.txt
	@$(BENCH)/bin/$(PIP) install --no-build-isolation --editable '.[dev,peers-bench]'
	@touch $@

# A release: docs/how-to/release.md.
DIST := dist
IMAGE := build/image
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/recurra/core/version.py)
WHEEL = $(DIST)/recurra-$(VERSION)-py3-none-any.whl

lock: $(DEV) ## resolve anew what is installed: pyproject.toml and constraints.txt -> requirements/locked, with hashes
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python requirements/lock.py

# From what is committed, with its time, and modes that no umask changes: the same bytes wherever it is built.
wheel: $(INSTALLED) ## build the wheel of the commit into dist/; the same bytes anywhere
	@rm -rf build/source && mkdir -p build/source $(DIST)
	@git archive HEAD | (umask 022 && tar -x --no-same-permissions -C build/source)
	@umask 022 && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/$(PIP) wheel --no-deps --no-build-isolation --no-index \
		--wheel-dir $(DIST) build/source
	@$(BIN)/python -m pip hash $(WHEEL)

installed-image: $(INSTALLED) wheel
	@rm -rf $(IMAGE) && $(BIN)/python -m venv --without-pip $(IMAGE)
	@$(BIN)/$(PIP) --python $(IMAGE)/bin/python $(LOCKED)/serve.txt
	@$(BIN)/$(PIP) --python $(IMAGE)/bin/python install --no-deps $(WHEEL)

# Lists with hashes have no graph of who asks for what, which the tool would warn of; an environment has one.
SBOM = $(BIN)/cyclonedx-py
SBOM_AS = --pyproject build/sbom.toml --output-reproducible --mc-type

sbom: $(DEV) installed-image ## write bills of materials (CycloneDX) of the wheel and of what the image installs, into dist/
	@sed 's/^dynamic = .*/version = "$(VERSION)"/' pyproject.toml > build/sbom.toml
	@cat requirements/locked/torch.txt requirements/locked/run.txt | PYTHONWARNINGS=ignore $(SBOM) requirements $(SBOM_AS) library \
		--output-file $(WHEEL:.whl=.cdx.json) -
	@$(SBOM) environment $(SBOM_AS) application --output-file $(DIST)/recurra-$(VERSION)-image.cdx.json $(IMAGE)/bin/python

audit: $(DEV) ## look for known weaknesses in what is installed (asks a service on the network)
	@for name in build torch cuda run dev; do \
		$(BIN)/pip-audit --strict --disable-pip --require-hashes --progress-spinner off -r requirements/locked/$$name.txt || exit; done

LOWEST := .venv-lowest

lowest: $(DEV) ## resolve anew the lowest versions that pyproject.toml allows: requirements/lowest.txt
	@$(BIN)/uv pip compile --quiet --resolution lowest-direct --python-version 3.11 --no-annotate --custom-compile-command "make lowest" \
		--output-file requirements/lowest.txt pyproject.toml --extra study --extra batch --extra onnx --extra serve --extra pretrained

test-lowest: ## run the unit tests with the lowest versions (gigabytes; Python 3.11)
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/$(PIP) install --requirement requirements/lowest.txt
	@$(LOWEST)/bin/$(PIP) install --constraint constraints.txt pytest pytest-xdist pytest-timeout hypothesis
	@$(LOWEST)/bin/$(PIP) install --no-deps --no-build-isolation --editable .
	@$(LOWEST)/bin/python -m pytest -n auto --dist loadfile -m "not slow" tests/unit

.PHONY: help demo test test-slow test-faults test-lowest soak mutants check bench load accelerator results docs clean lock lowest wheel installed-image sbom audit
