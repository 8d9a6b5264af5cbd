# All commands of the project; `make` lists them. Each target installs what it needs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PYTHONPATH := operator:trainer:tests:hack
# Where the test bed keeps programs, images and clusters. tests/conftest.py says the same.
DDPJOB_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ddpjob
export TESTBED_CACHE_DIR ?= $(DDPJOB_CACHE_DIR)

NODES ?= 2
CLUSTER ?= default
# Number of processes that test files run in; the tests of one file share what they start.
WORKERS ?= $(shell nproc | awk '{print $$1 < 4 ? $$1 : 4}')
PARALLEL := --numprocesses=$(WORKERS) --dist=loadfile
# Targets of the Dockerfile.
IMAGES ?= operator trainer trainer-cpu
# Further arguments of the programs below; their --help lists them.
BENCH ?=
GPU ?=
CHAOS ?=
SOAK ?=

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

# --- Set-up -----------------------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$$($(PYTHON) --version) found; ddpjob needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "ddpjob: making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# $(1): the lock. It lacks only what requirements/dev-exclude.txt lists, so it is installed with --no-deps. Installing packages that are installed already takes seconds, so each lock has only one stamp.
define install
	@echo "ddpjob: installing $(1) (the first time torch takes minutes)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $(1)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
endef

$(VENV)/demo.stamp: requirements/demo.lock pyproject.toml | $(BIN)/python
	$(call install,$<)

$(VENV)/dev.stamp: requirements/dev.lock pyproject.toml | $(BIN)/python
	$(call install,$<)
	@touch $(VENV)/demo.stamp

.PHONY: setup
setup: $(VENV)/dev.stamp ## Install the project and its development tools into .venv

# --- The two commands of the README -----------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/demo.stamp ## Train a network with two DDP ranks on this machine, with the decisions of the operator
	@$(BIN)/ddpjob run --local manifests/examples/digits.yaml

.PHONY: demo-recovery
demo-recovery: $(VENV)/demo.stamp ## Kill a rank of such a training and print how it starts again in place
	@PYTHONPATH=hack $(BIN)/python -m recovery_demo

.PHONY: test
test: test-unit test-processes test-cluster ## Run the tests that need no root and no container runtime

.PHONY: test-unit
test-unit: $(VENV)/dev.stamp
	@$(BIN)/pytest --quiet $(PARALLEL) tests/unit

# They need a program of the test bed.
S3_TESTS := tests/processes/trainer/test_checkpoints_in_s3.py

# The longest files start first, because the last one to end determines the time.
.PHONY: test-processes
test-processes: $(VENV)/dev.stamp ## Run the simulation, real trainings and `ddpjob run --local`; no Kubernetes
	@$(BIN)/pytest $(PARALLEL) --no-loadscope-reorder -m 'not nightly' \
		--ignore=$(S3_TESTS) tests/simulation tests/processes/trainer tests/processes/local

.PHONY: test-cluster
test-cluster: cluster-programs ## Run the tests on real kube-apiservers
	@$(BIN)/pytest $(PARALLEL) --no-loadscope-reorder -m 'not nightly' tests/cluster/operator tests/cluster/client hack/bench tests/cluster/chart \
		tests/cluster/api $(S3_TESTS) $(filter-out %_nodes.py,$(wildcard tests/testbed/tests/test_*.py))

.PHONY: nightly
nightly: cluster-programs ## Run the slow tests of rare cases, which CONTRIBUTING lists
	@$(BIN)/pytest $(PARALLEL) -m nightly tests/processes tests/cluster hack/bench
	@$(BIN)/python -m simulation.soak --schedules 20000
	@$(MAKE) --no-print-directory matrix
	@$(MAKE) --no-print-directory test-pythons
	@$(MAKE) --no-print-directory test-oldest-torch

# Kubernetes releases in addition to the one that all tests run on, each with a folder in tests/testbed/tools.
KUBERNETES ?= 1.34 1.35
MATRIX_TESTS := tests/cluster/api tests/cluster/operator/test_example_on_a_cluster.py tests/cluster/operator/test_upgrade_from_0_1.py \
	tests/cluster/chart/test_chart_on_a_cluster.py

.PHONY: matrix
matrix: $(VENV)/dev.stamp ## Install, run, restart and upgrade on other Kubernetes releases (the first time builds them): make matrix KUBERNETES=1.35
	@for release in $(KUBERNETES); do \
		echo "ddpjob: Kubernetes $$release"; \
		export TESTBED_KUBERNETES=$$release; \
		$(BIN)/python -m testbed build && $(BIN)/pytest $(PARALLEL) -m 'not nightly' $(MATRIX_TESTS) || exit 1; \
	done

# What a nightly run tests of these is what is installed; the first one runs all other tests.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14

.PHONY: test-pythons
test-pythons: ## Test operator, client and command line with every Python from 3.11 to 3.14 that is on PATH
	@for python in $(PYTHONS); do \
		command -v $$python >/dev/null || { echo "ddpjob: $$python is not on PATH: not tested"; continue; }; \
		$$python -m venv $(VENV)/$$python; \
		$(VENV)/$$python/bin/pip install --quiet --disable-pip-version-check --editable '.[operator]' hypothesis pytest pytest-asyncio \
			pytest-timeout pytest-xdist; \
		$(VENV)/$$python/bin/pytest --quiet $(PARALLEL) -p no:cacheprovider tests/unit/api tests/unit/core tests/unit/kube tests/unit/client || exit 1; \
	done

# Versions of the oldest torch that pyproject.toml allows; all other packages have their newest version.
OLDEST_TORCH := torch==2.11.0 torchvision==0.26.0
$(VENV)/oldest-torch/stamp: Makefile | $(BIN)/python
	@echo "ddpjob: installing $(OLDEST_TORCH) in $(@D) (7 GB)"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check $(OLDEST_TORCH) cel-python hypothesis kubernetes matplotlib \
		numpy pillow pydantic pytest pytest-asyncio pytest-timeout pytest-xdist pyyaml scikit-learn tensorboard
	@touch $@

.PHONY: test-oldest-torch
test-oldest-torch: $(VENV)/oldest-torch/stamp ## Test the trainer and its restarts with the oldest torch that they support
	@$(<D)/bin/pytest -p no:cacheprovider tests/unit/ranks tests/unit/trainer \
		$(patsubst %,tests/processes/trainer/test_%.py,collectives_of_a_step ddp_options dropout make_gpu lost_peer number_of_ranks \
		preemption replaced_pod restart_from_copies restart_in_place resume set_up)

# --- Development ------------------------------------------------------------------------------------------------------

.PHONY: check
check: $(VENV)/dev.stamp ## Format, lint, types, layers and unit tests
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory test-unit

.PHONY: format
format: $(VENV)/dev.stamp ## Format the code and fix what the linter can fix
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

.PHONY: generate
generate: $(VENV)/dev.stamp ## Generate the CRD, the plain manifests and the generated parts of the documents
	@$(BIN)/python -m ddpjob_operator.api.crd > manifests/crd/ddpjob.yaml
	@cp manifests/crd/ddpjob.yaml charts/ddpjob-operator/files/crd/ddpjob.yaml
	@$(BIN)/python -m ddpjob_cli.reference
	@$(BIN)/python tests/unit/test_interface.py
	@HELM=$$($(BIN)/python -m testbed path helm) manifests/operator/render.sh > manifests/operator/operator.yaml
	@$(BIN)/python tests/cluster/chart/test_chart_renders.py

.PHONY: docs
docs: $(VENV)/dev.stamp ## Build the documentation as a site in build/site; a broken link is an error
	@$(BIN)/zensical build --strict

LOCK := $(VENV)/uv/bin/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-header --quiet
IMAGE := --excludes requirements/images-exclude.txt --constraint requirements/dev.lock

.PHONY: lock
lock: | $(BIN)/python ## Update requirements/*.lock from pyproject.toml; versions that still fit are kept
	@test -x $(VENV)/uv/bin/uv || { $(PYTHON) -m venv $(VENV)/uv && $(VENV)/uv/bin/pip install --quiet uv; }
	@$(LOCK) --all-extras --group dev --excludes requirements/dev-exclude.txt --output-file requirements/dev.lock
	@$(LOCK) --extra operator $(IMAGE) --output-file requirements/operator.lock
	@$(LOCK) --extra trainer --extra s3 $(IMAGE) --excludes requirements/trainer-exclude.txt --output-file requirements/trainer.lock
	@$(LOCK) --extra trainer --extra s3 $(IMAGE) --excludes requirements/trainer-exclude.txt \
		--excludes requirements/cpu-exclude.txt --output-file requirements/trainer-cpu.lock
	@$(LOCK) --extra trainer --group build --constraint requirements/dev.lock --output-file requirements/demo.lock

.PHONY: check-arm64
check-arm64: | $(BIN)/python ## Check that all packages of the images have wheels for arm64; downloads only their metadata
	@test -x $(VENV)/uv/bin/uv || { $(PYTHON) -m venv $(VENV)/uv && $(VENV)/uv/bin/pip install --quiet uv; }
	@for lock in operator trainer trainer-cpu; do \
		$(VENV)/uv/bin/uv pip install --dry-run --quiet --no-deps --require-hashes --only-binary :all: --target $(VENV)/arm64 \
			--python $(BIN)/python --python-platform aarch64-manylinux_2_28 --requirement requirements/$$lock.lock; \
		echo "requirements/$$lock.lock: wheels for arm64 exist for all packages"; \
	done

# --- A real cluster ---------------------------------------------------------------------------------------------------

.PHONY: cluster-programs
cluster-programs: $(VENV)/dev.stamp ## Build the programs of a control plane (the first time 13 minutes on two cores)
	@$(BIN)/python -m testbed build

.PHONY: node-programs
node-programs: cluster-programs ## Build also the programs of real nodes
	@$(BIN)/python -m testbed build --nodes

.PHONY: image
image: $(VENV)/dev.stamp ## Build all images with buildah (as root; no registry is needed): make image IMAGES='operator trainer-cpu'
	@$(BIN)/python -m support.images $(IMAGES)

.PHONY: cluster-up
cluster-up: $(VENV)/dev.stamp ## Bring up a real cluster on this machine: make cluster-up NODES=2 (0: control plane only)
	@$(BIN)/python -m testbed up --name $(CLUSTER) --nodes $(NODES)

.PHONY: load
load: $(VENV)/dev.stamp ## Build all images and put them on the nodes of that cluster: make load IMAGES='operator trainer-cpu'
	@$(BIN)/python -m support.images $(IMAGES) --load $(CLUSTER)

.PHONY: cluster-path
cluster-path: $(VENV)/dev.stamp
	@dirname "$$($(BIN)/python -m testbed path kubectl)" "$$($(BIN)/python -m testbed path helm)" | paste --serial --delimiters=:

.PHONY: cluster-down
cluster-down: $(VENV)/dev.stamp ## Stop that cluster and remove everything that it made
	@$(BIN)/python -m testbed down --name $(CLUSTER)

.PHONY: need-root
need-root:
	@test "$$(id -u)" = 0 || test -n "$${E2E_KUBECONFIG:-}" || { echo "this target runs containerd and the kubelet and needs root; only make e2e can use another cluster: set E2E_KUBECONFIG" >&2; exit 1; }

.PHONY: e2e
e2e: need-root $(VENV)/dev.stamp ## Run the end-to-end tests on two real nodes with the real images (as root)
	@test -n "$${E2E_KUBECONFIG:-}" || $(BIN)/pytest tests/testbed/tests/test_testbed_nodes.py
	@$(BIN)/pytest --timeout=600 tests/e2e
	@test -n "$${E2E_KUBECONFIG:-}" || $(BIN)/pytest --timeout=600 tests/chaos

.PHONY: slurm
slurm: $(VENV)/dev.stamp ## Run the trainer under a real Slurm of two nodes (as root; installs Debian's slurmd and munge)
	@test "$$(id -u)" = 0 || { echo "make slurm runs Slurm's daemons and needs root" >&2; exit 1; }
	@$(BIN)/pytest tests/slurm

.PHONY: demo-cluster
demo-cluster: need-root $(VENV)/dev.stamp ## Run the README's cluster commands on a real two-node cluster of this machine (as root)
	@$(BIN)/python hack/demo_cluster.py

.PHONY: recording
recording: $(VENV)/dev.stamp ## Record the picture of the README on the cluster of KUBECONFIG, which has the operator
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m recording docs/images/recording.svg

# --- Proof ------------------------------------------------------------------------------------------------------------

.PHONY: bench-operator
bench-operator: $(VENV)/dev.stamp ## Time the operator against a real control plane: make bench-operator BENCH='lives --name mine'
	@$(BIN)/python -m bench.operators $(BENCH)

.PHONY: bench-gangs
bench-gangs: $(VENV)/dev.stamp ## Time what two competing gangs lose by scheduling provider: make bench-gangs BENCH='--trials 20'
	@$(BIN)/python -m bench.gangs $(BENCH)

.PHONY: bench-recovery
bench-recovery: $(VENV)/dev.stamp ## Time from SIGKILL of a rank to the next step, by tier and with torchrun: make bench-recovery BENCH='--trials 20'
	@$(BIN)/python -m bench.recovery $(BENCH)

.PHONY: bench-recovery-nodes
bench-recovery-nodes: need-root $(VENV)/dev.stamp ## The same on two real nodes, with new pods and spare pods (as root)
	@$(BIN)/python hack/recovery_times.py $(BENCH)

.PHONY: bench-spot
bench-spot: $(VENV)/dev.stamp ## Goodput on preempted nodes by kind of job, in a model: make bench-spot BENCH='--seeds 4 5 6 --no-warning'
	@$(BIN)/python -m bench.spot $(BENCH)

.PHONY: bench-trainer
bench-trainer: $(VENV)/dev.stamp ## Time the trainer and the plain DDP script: make bench-trainer BENCH='--ranks 2' (more: trainer/README.md)
	@$(BIN)/python -m ddpjob_measure bench --results hack/bench/results $(BENCH)

# Both need no virtual environment: `gpu` runs where torch is installed already, such as on a rented machine.
.PHONY: gpu-wheels
gpu-wheels: ## Prepare build/gpu, which a GPU machine without network needs: make gpu-wheels GPU='--python 3.12 --torch 2.11'
	@PYTHONPATH=trainer $(PYTHON) -m ddpjob_measure.carry $(GPU)

.PHONY: gpu
gpu: ## Test and measure everything on a GPU, in nine minutes (docs/how-to/gpus.md): make gpu GPU='--results DIR'
	@PYTHONPATH=trainer $(PYTHON) -m ddpjob_measure gpu $(GPU)

.PHONY: faults
faults: $(VENV)/dev.stamp ## Test all faults of the API server, and an operator that is killed 100 times
	@$(BIN)/pytest tests/cluster/operator/faults

.PHONY: soak
soak: $(VENV)/dev.stamp ## Run 100,000 random schedules of the simulation; the seed is printed: make soak SOAK='--seed 7'
	@$(BIN)/python -m simulation.soak $(SOAK)

.PHONY: soak-recovery
soak-recovery: $(VENV)/dev.stamp ## A fault of a rank every few steps: steps in how many seconds, and what is held: make soak-recovery SOAK=200
	@FAULTS_NUMBER=$(or $(SOAK),60) $(BIN)/pytest --quiet -m nightly -k soak tests/processes/trainer/test_seeded_faults.py

.PHONY: chaos
chaos: need-root $(VENV)/dev.stamp ## Cause every fault in every phase of a job, on two real nodes (more than an hour; as root): make chaos CHAOS='--faults pod-evicted'
	@$(BIN)/python -m chaos $(CHAOS)
