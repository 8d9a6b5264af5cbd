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
check: lint test-unit ## Format, lint, types, layers and unit tests

.PHONY: test-unit
test-unit: setup ## Run the unit tests
	@$(BIN)/pytest --quiet $(PARALLEL) -m 'not nightly' tests/unit hack/tests

.PHONY: test
test: test-unit test-processes test-cluster ## Run the tests that need no root and no container runtime

.PHONY: e2e
e2e: need-root setup ## Run the end-to-end tests on two real nodes with the real images (as root)
	@test -n "$${E2E_KUBECONFIG:-}" || $(BIN)/pytest tests/testbed/tests/test_testbed_nodes.py
	@$(BIN)/pytest --timeout=600 tests/e2e
	@test -n "$${E2E_KUBECONFIG:-}" || $(BIN)/pytest --timeout=600 tests/chaos

.PHONY: format
format: setup ## Format the code and fix what the linter can fix
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format --quiet .

.PHONY: generate
generate: setup ## Generate the CRD, the plain manifests and the generated parts of the documents
	@$(BIN)/python -m ddpjob_operator.api.crd > manifests/crd/ddpjob.yaml
	@cp manifests/crd/ddpjob.yaml charts/ddpjob-operator/files/crd/ddpjob.yaml
	@$(BIN)/python -m ddpjob_cli.reference
	@$(BIN)/python tests/unit/test_interface.py
	@HELM=$$($(BIN)/python -m testbed path helm) manifests/operator/render.sh > manifests/operator/operator.yaml
	@$(BIN)/python tests/cluster/chart/test_chart_renders.py

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
