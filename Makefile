# One room for every command. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NODES ?= 2
CLUSTER ?= default
UV := $(VENV)/uv/bin/uv
LOCK := $(UV) pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --quiet

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'
