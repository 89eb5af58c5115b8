# Every target works from a fresh clone; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

PY := .venv/bin/python
FDL := .venv/bin/fdl
CLUSTER ?= fdl
TEST_CLUSTER ?= fdl-test
# Every cluster that the tests may leave behind when they are interrupted.
TEST_CLUSTERS = $(TEST_CLUSTER) t-local t-other t-kill t-again t-int
VARIANT ?= cpu
PACKAGES := fdl_api fdl_operator fdl_coordinator fdl_trainer fdl_prober fdl_cli

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## the project's own virtual environment in .venv, rebuilt only when its pins change
	@tools/venv.sh

.PHONY: demo
demo: setup ## from nothing to a trained model on a real Kubernetes, with a death on the way
	@$(FDL) demo --name $(CLUSTER)

.PHONY: up
up: setup ## start the local cluster
	@$(FDL) local up --name $(CLUSTER)

.PHONY: down
down: ## stop the local cluster and clear everything that it made
	@if [ -x $(FDL) ]; then
	  $(FDL) local down --name $(CLUSTER)
	  for name in $(TEST_CLUSTERS) fdl-bench; do $(FDL) local down --name $$name; done
	else
	  echo "nothing to stop: the virtual environment was never made"
	fi

.PHONY: images
images: setup ## build the images (make images VARIANT=cuda for the trainer with PyPI's torch)
	@$(FDL) images build --variant $(VARIANT)

.PHONY: test
test: verify ## all checks and all tests, unit and end to end, on a cluster of its own
	@$(FDL) images build --variant cpu
	$(FDL) local build
	# Two workers: the longest group, the tests on the cluster, comes first, and the others run beside it.
	# The tests take their clusters down themselves; the trap is for a Ctrl-C in between, upon which workers just end.
	trap 'for name in $(TEST_CLUSTERS); do $(FDL) local down --name $$name >/dev/null 2>&1 || true; done' EXIT
	FDL_E2E_CLUSTER=$(TEST_CLUSTER) $(PY) -m pytest -q -n 2 --dist loadscope --durations=15 tests/e2e tests/apiserver tests/unit

.PHONY: unit
unit: setup ## the tests that need no cluster
	@$(PY) -m pytest -q tests/unit

.PHONY: e2e
e2e: setup ## only the end-to-end tests; KEEP=1 leaves their cluster running
	@FDL_E2E_CLUSTER=$(TEST_CLUSTER) FDL_E2E_KEEP=$(KEEP) $(PY) -m pytest -q --durations=10 tests/e2e

.PHONY: verify
verify: setup ## generated files are up to date; format, lint, types and import arrows hold
	@$(PY) -m tools.generate --check
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy $(addprefix -p ,$(PACKAGES)) -p tools.generate -p tools.loopback -p bench
	.venv/bin/lint-imports

.PHONY: generate
generate: setup ## write CRDs, chart schema and reference pages anew
	@$(PY) -m tools.generate

.PHONY: format
format: setup ## format the code and mend what ruff can
	@.venv/bin/ruff check --fix -q . ; .venv/bin/ruff format -q .

.PHONY: lock
lock: setup ## pin the requirements of development and images anew from pyproject.toml
	@.venv/bin/uv pip compile -q --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
	  --no-emit-package fdl --extra dev pyproject.toml -o requirements/dev.txt
	images/lock-requirements.sh

.PHONY: bench-smoke
bench-smoke: setup ## print the figures that the project is measured by (JSON and a table)
	@$(FDL) images build --variant cpu
	$(PY) -m bench.smoke

.PHONY: bench-training
bench-training: setup ## train beside DDP, local SGD and others; ARGS=--quick (5 minutes), default 31, --ablations, --payload, --full
	@$(PY) -m bench.training $(ARGS)

.PHONY: clean
clean: down ## make down, and remove .venv and the tools' caches of this checkout
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
