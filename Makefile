# The commands of the project. `make` lists those that most people need, `make help-all` also those of hack/*.mk.
# Each target installs what it needs.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
export PYTHONPATH := operator:trainer:tests:hack
# Installed packages, programs of clusters, images and clusters. tests/conftest.py says the same.
export DDPJOB_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ddpjob
export TESTBED_CACHE_DIR ?= $(DDPJOB_CACHE_DIR)
# Outside of the checkout, so that a fresh one has them.
export MYPY_CACHE_DIR ?= $(DDPJOB_CACHE_DIR)/mypy
export RUFF_CACHE_DIR ?= $(DDPJOB_CACHE_DIR)/ruff

.PHONY: help
help:
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: demo
demo: ## Train a network with two DDP ranks on this machine, with the decisions of the operator
	@$(PYTHON) hack/environment.py requirements/demo.lock
	@$(BIN)/ddpjob run --local manifests/examples/digits.yaml

.PHONY: setup
setup: ## Install the project and its development tools into .venv
	@$(PYTHON) hack/environment.py requirements/demo.lock requirements/dev.lock

.PHONY: check
check: lint test-unit ## Format, lint, types, layers, generated files and unit tests

.PHONY: test-unit
test-unit: setup ## Run the unit tests
	@$(BIN)/pytest --quiet $(PARALLEL) -m 'not nightly' tests/unit hack/tests

.PHONY: test
test: test-unit test-processes test-cluster ## Run the tests that need no root and no container runtime

.PHONY: e2e
e2e: need-root setup ## Run the end-to-end tests on two real nodes with the real images (as root)
	@$(BIN)/pytest --timeout=600 tests/e2e

.PHONY: format
format: setup ## Format the code and fix what the linter can fix
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

.PHONY: generate
generate: generate-code generate-manifests ## Generate the CRD, the plain manifests and the parts of the documents

# Each file is replaced at once, because tests that run at the same time read it.
.PHONY: generate-code
generate-code: setup
	@for file in charts/ddpjob-operator/files/crd/ddpjob.yaml manifests/crd/ddpjob.yaml; do \
		$(BIN)/python -m ddpjob_operator.api.crd > $$file.new && mv $$file.new $$file; \
	done
	@$(BIN)/python -m ddpjob_cli.reference
	@$(BIN)/python hack/public_interface.py

# With Helm of the test bed.
.PHONY: generate-manifests
generate-manifests: setup
	@HELM=$$($(BIN)/python -m testbed path helm) manifests/operator/render.sh > manifests/operator/operator.yaml.new
	@mv manifests/operator/operator.yaml.new manifests/operator/operator.yaml

# `make check-generate-code` and `make check-generate-manifests` fail if a file is not what its generator writes. The
# generator has then written the file, so that it only has to be committed.
GENERATED := charts docs manifests
check-generate-%:
	@before=$$(git diff -- $(GENERATED) | sha256sum); \
	$(MAKE) --no-print-directory generate-$*; \
	test "$$before" = "$$(git diff -- $(GENERATED) | sha256sum)" || { \
		git diff --stat -- $(GENERATED); \
		echo "generated files were outdated and are now written: commit them" >&2; \
		exit 1; }

.PHONY: docs
docs: setup ## Build the documentation as a site in build/site; a broken link is an error
	@$(BIN)/zensical build --strict

.PHONY: help-all
help-all: ## List all targets: further tests, clusters, locks, benchmarks and proofs
	@for file in $(MAKEFILE_LIST); do \
		echo "$$file: $$(sed -n '1s/^# //p' $$file)"; \
		grep -E '^[a-z0-9-]+:.*## ' $$file | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'; \
	done

include hack/tests.mk hack/cluster.mk hack/locks.mk hack/proof.mk
