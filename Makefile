# Everything a person or CI does here. Needs Python 3.11, git and make; `make` alone lists the targets.
# include/requirements/setup.sh says which systems are supported.

# With it, every process that imports vLLM compiles it anew: 20 CPU seconds instead of 8.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPATH := include
export GX_ANALYTICS_ENABLED := false

PYTHON ?= python3.11
BIN := .venv/bin
# A venv holds the path of its folder: a checkout that was moved or copied is set up again.
STAMP := .venv/setup-done-$(shell pwd | cksum | cut -d' ' -f1)
REQUIREMENTS := include/requirements
LOCKS := $(REQUIREMENTS)/cpu-lock-3.11.txt $(REQUIREMENTS)/macos-lock-3.11.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo up down status check test faults bench-worker bench-airflow fmt lock samples clean cluster-up cluster-down test-cluster demo-cluster

help:  ## this list
	@awk -F ':.*## *' '/^[a-z-]+:.*##/ {printf "%-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv (2.7 GB once, 1 to 4 minutes; nothing when the lock is unchanged)

$(STAMP): $(LOCKS) $(REQUIREMENTS)/setup.sh pyproject.toml
	@PYTHON="$(PYTHON)" $(REQUIREMENTS)/setup.sh
	@touch $@

demo: setup  ## a real job, a real model: 1,500 reviews in about 3 minutes (FRESH=1: again, KEEP=1: leave Airflow up, ROWS=100: fewer)
	@$(BIN)/python -m deploy.embedded.demo

up: setup  ## start Airflow here and print where to log in
	@$(BIN)/python -m deploy.embedded up

down:  ## stop it
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m deploy.embedded down; fi

status:  ## which of its processes run, and where their logs are
	@$(BIN)/python -m deploy.embedded status || true

# A file's tests stay together, since they share an Airflow or an engine; `-n 0` runs all in one process.
# Long ones wait more than they compute, and each may start engines of 2 GB.
TESTS_AT_ONCE ?= 2
LONG_TESTS_AT_ONCE ?= 3

check: setup  ## format, lint, types, contracts, quick tests
	@echo "== format and lint"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@echo "== types"
	$(BIN)/mypy
	@echo "== contracts between the rooms"
	$(BIN)/lint-imports
	@echo "== quick tests"
	$(BIN)/python -m pytest -q -n $(TESTS_AT_ONCE) -m "not slow and not cluster"

test: check  ## check, then the long tests: a real Airflow, S3 server and engine (LONG_TESTS_AT_ONCE=3)
	@echo "== long tests"
	$(BIN)/python -m pytest -q -n $(LONG_TESTS_AT_ONCE) -m "slow and not cluster"

cluster-up: setup  ## a real Kubernetes on this machine, for tests (Linux, root, Go 1.26; about 8 minutes once, then 10 seconds)
	@tests/cluster/setup.sh
	@tests/cluster/up.sh

cluster-down:  ## end it
	@tests/cluster/down.sh

test-cluster: setup  ## the tests that need a Kubernetes, on one that is started for them
	@tests/cluster/test.sh

demo-cluster: setup  ## the demo's job in pods of the test cluster, by run_on: gpu (ROWS=20: fewer, EVICT=1: one pod is evicted)
	@tests/cluster/demo.sh

N ?= 60
SEED ?= 1

faults: setup  ## shoot N=60 random faults (SEED=1) at real workers, then count what was lost or doubled: under an hour
	@$(BIN)/python -m benchmarks.faults --faults $(N) --seed $(SEED)

bench-worker: setup  ## what a request costs beside the engine, next to vLLM's run_batch() (ROWS=2000): about 8 minutes alone on the machine
	@$(BIN)/python -m benchmarks.bench_worker

bench-airflow: setup  ## what Airflow costs 20,000 shards (SHARDS=200: fewer), and 500 pods on the test cluster (PODS=40); alone on the machine
	@$(BIN)/python -m benchmarks.bench_airflow.both --shards $(or $(SHARDS),20000) --pods $(or $(PODS),500)

fmt: setup  ## format, and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

samples: setup  ## the demo's corpus and model, into var/
	@$(BIN)/python -m samples.reviews
	@$(BIN)/python -m samples.smollm2

lock: setup  ## compile the locks again
	$(REQUIREMENTS)/lock.sh

clean:  ## stop Airflow; remove .venv, caches and all that jobs have written (var/)
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m deploy.embedded remove; fi
	tests/cluster/down.sh
	rm -rf .venv var .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
