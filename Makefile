# The ways in: `make demo`, `make test`. Each installs what it needs first, and only once.
#
# System packages and the interpreter are .ci/system's business; the rest lives in .venv. Stamps
# in .venv say what is done; the core is built anew whenever native/ or its build script changes.

SHELL := /bin/bash
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip -qq --disable-pip-version-check --no-input
TORCH := torch==2.13.0
WORKERS ?= $(shell nproc)
TESTS ?= $(addprefix tests/,buffer common disk inference loader pipeline pyg sampling store)
CORE := gnndrive/_core.abi3.so
NATIVE := $(wildcard native/*.c native/*.h) build_ext.py setup.py

.PHONY: help demo test soak sanitize build lint format docs gpu-bundle clean distclean
.DELETE_ON_ERROR:

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(CORE)  ## generate a graph of 2 M nodes, train on it with 256 MB for features
	@$(VENV)/bin/gnndrive demo

# Each worker reads hundreds of modules: 7 s less where an earlier run has compiled them.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(CORE)  ## all tests
	@$(PY) -m pytest -n $(WORKERS) --dist loadgroup

soak: $(CORE)  ## tests with fresh seeds for MINUTES=10, from SEED=a random one
	@$(PY) -m tests.soak $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED)) $(if $(DROP),--drop $(DROP))

sanitize: export PY := $(abspath $(PY))
sanitize: $(CORE)  ## TESTS that call C, with gcc watching memory, undefined behaviour, data races
	@.ci/sanitize $(TESTS)

build: $(CORE)  ## install what is needed and build the C core in place

lint: $(CORE)  ## ruff, mypy and clang-format
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy --strict
	@$(VENV)/bin/clang-format --dry-run -Werror native/*.c native/*.h

format: $(CORE)  ## let ruff format the Python code
	@$(PY) -m ruff format .

docs: $(CORE)  ## build/docs: the pages and an API reference; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

gpu-bundle: $(CORE)  ## build/gpu-bundle: tests and measures on a GPU's machine without network
	@$(PY) .ci/gpu_bundle.py

clean:  ## remove what was built; .venv stays
	@rm -rf build dist *.egg-info gnndrive/*.so gnndrive/_core.c gnndrive/_core.o native/*.o
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## clean, and remove .venv and the demo's graph too
	@rm -rf $(VENV) .demo

$(VENV)/.made: .ci/system
	@echo "[1/5] system packages and an interpreter"
	@python=$$(.ci/system) && echo "[2/5] a virtual environment of $$python" && \
		"$$python" -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.made
	@echo "[3/5] $(TORCH) (the largest download)"
	@$(PIP) install $(TORCH)
	@touch $@

$(VENV)/.installed: $(VENV)/.torch pyproject.toml
	@echo "[4/5] the other packages, and gnndrive in place"
	@$(PIP) install 'setuptools>=77' wheel 'cffi>=1.16'
	@$(PIP) install --no-build-isolation --editable '.[test,gpu-test,dev,import,lightning]'
	@touch $@

$(CORE): $(VENV)/.installed $(NATIVE)
	@echo "[5/5] the C core"
	@$(PY) build_ext.py
	@touch $@
