# Parts of `make test`, and tests that take too long for each change.

# Number of processes that test files run in; the tests of one file share what they start.
WORKERS ?= $(shell nproc | awk '{print $$1 < 4 ? $$1 : 4}')
# The files that took longest the last time start first, because the last one to end determines the time.
PARALLEL := --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder

.PHONY: lint
lint: setup ## Check format, lint, types, layers and generated files
	@$(BIN)/ruff format --check --quiet . || { echo "run: make format" >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --cache-dir $(DDPJOB_CACHE_DIR)/import-linter
	@$(MAKE) --no-print-directory check-generate-code

# They need a program of the test bed.
S3_TESTS := tests/processes/trainer/test_checkpoints_in_s3.py

.PHONY: test-processes
test-processes: setup ## Run the simulation, real trainings and `ddpjob run --local`; no Kubernetes
	@$(BIN)/pytest $(PARALLEL) -m 'not nightly' \
		--ignore=$(S3_TESTS) tests/simulation tests/processes/trainer tests/processes/local

.PHONY: test-cluster
test-cluster: cluster-programs ## Run the tests on real kube-apiservers
	@$(MAKE) --no-print-directory check-generate-manifests
	@$(BIN)/pytest $(PARALLEL) -m 'not nightly' \
		tests/cluster/gangs tests/cluster/operator tests/cluster/client tests/cluster/chart tests/cluster/api $(S3_TESTS) \
		tests/testbed/tests

.PHONY: slurm
slurm: setup ## Run the trainer under a real Slurm of two nodes (as root; installs Debian's slurmd and munge)
	@test "$$(id -u)" = 0 || { echo "make slurm runs Slurm's daemons and needs root" >&2; exit 1; }
	@$(BIN)/pytest tests/slurm

.PHONY: nightly
nightly: cluster-programs ## Run the slow tests of rare cases, which tests/README.md lists
	@$(BIN)/pytest $(PARALLEL) -m nightly tests/processes tests/cluster hack/tests
	@$(BIN)/python -m simulation.soak --schedules 20000
	@$(MAKE) --no-print-directory mutants MUTANTS='hack/mutants/*.jsonl --share 0.05'
	@$(MAKE) --no-print-directory matrix
	@$(MAKE) --no-print-directory test-pythons
	@$(MAKE) --no-print-directory test-oldest-torch

# Kubernetes releases in addition to the one that all tests run on, each with a folder in tests/testbed/tools.
KUBERNETES ?= 1.34 1.35 1.36
MATRIX_TESTS := tests/cluster/api tests/cluster/operator/test_example_on_a_cluster.py \
	tests/cluster/operator/test_upgrade_from_0_1.py tests/cluster/chart/test_chart_on_a_cluster.py

.PHONY: matrix
matrix: setup ## Install, run, restart, upgrade on other releases of Kubernetes: make matrix KUBERNETES=1.35
	@for release in $(KUBERNETES); do \
		echo "ddpjob: Kubernetes $$release (the first time its programs are built)"; \
		export TESTBED_KUBERNETES=$$release; \
		$(BIN)/python -m testbed build && $(BIN)/pytest $(PARALLEL) -m 'not nightly' $(MATRIX_TESTS) \
			$$(test $$release = 1.36 && echo tests/cluster/gangs/test_native_gangs.py) || exit 1; \
	done

# What a nightly run tests of these is what is installed; the first one runs all other tests.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
PYTHONS_TESTS := tests/unit/api tests/unit/core tests/unit/kube tests/unit/client

.PHONY: test-pythons
test-pythons: ## Test operator, client and command line with every Python from 3.11 to 3.14 that is on PATH
	@for python in $(PYTHONS); do \
		command -v $$python >/dev/null || { echo "ddpjob: $$python is not on PATH: not tested"; continue; }; \
		$$python -m venv build/$$python; \
		build/$$python/bin/pip install --quiet --disable-pip-version-check --editable '.[operator]' \
			hypothesis pytest pytest-asyncio pytest-timeout pytest-xdist; \
		build/$$python/bin/pytest --quiet $(PARALLEL) -p no:cacheprovider $(PYTHONS_TESTS) || exit 1; \
	done

# Versions of the oldest torch that pyproject.toml allows; all other packages have their newest version.
OLDEST_TORCH := torch==2.11.0 torchvision==0.26.0
$(DDPJOB_CACHE_DIR)/oldest-torch/stamp: hack/tests.mk
	@echo "ddpjob: installing $(OLDEST_TORCH) in $(@D) (7 GB)"
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --disable-pip-version-check $(OLDEST_TORCH) cel-python hypothesis kubernetes \
		matplotlib numpy pillow pydantic pytest pytest-asyncio pytest-timeout pytest-xdist pyyaml scikit-learn tensorboard
	@touch $@

.PHONY: test-oldest-torch
test-oldest-torch: $(DDPJOB_CACHE_DIR)/oldest-torch/stamp ## Test the trainer with the oldest torch that it supports
	@$(<D)/bin/pytest -p no:cacheprovider tests/unit/ranks tests/unit/trainer \
		$(patsubst %,tests/processes/trainer/test_%.py,collectives_of_a_step ddp_options dropout make_gpu lost_peer \
		number_of_ranks preemption replaced_pod restart_in_place resume)

.PHONY: mutants
mutants: setup ## Change one expression at a time; a test must fail: make mutants MUTANTS='LIST --share 0.05'
	@$(BIN)/python -m mutants run $(or $(MUTANTS),hack/mutants/*.jsonl)

.PHONY: faults
faults: setup ## Test all faults of the API server, and an operator that is killed 100 times
	@$(BIN)/pytest tests/cluster/operator/faults

.PHONY: soak
soak: setup ## Run 100,000 random schedules of the simulation; the seed is printed: make soak SOAK='--seed 7'
	@$(BIN)/python -m simulation.soak $(SOAK)

.PHONY: soak-recovery
soak-recovery: setup ## A fault of a rank every few steps, and what is left behind: make soak-recovery SOAK=200
	@FAULTS_NUMBER=$(or $(SOAK),60) $(BIN)/pytest --quiet -m nightly -k soak \
		tests/processes/trainer/test_seeded_faults.py

.PHONY: chaos
chaos: need-root setup ## Every fault in every phase of a job (root, an hour): make chaos CHAOS='--faults pod-evicted'
	@$(BIN)/python -m chaos $(CHAOS)
