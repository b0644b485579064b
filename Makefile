# Developer commands. Each one works in a fresh clone: the environment is created first if a command needs it.
# `make up ARGS="--port 9000 --nodes 2"` passes options to `hearth up`.

PYTHON ?= python3
SYSTEM_TORCH ?=
STARTER ?= 1
TORCH_INDEX_URL ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# One stamp file per kind of environment: only a change of SYSTEM_TORCH creates the environment again.
STAMP := $(VENV)/.setup$(if $(filter 1,$(SYSTEM_TORCH)),-system-torch)
CLIENTS := .venv-clients/.setup
TRITON := .cache/triton/.setup
DASHBOARD := gateway/static/.built
PACKAGES := gateway documents engine variants service_identity weight_files catalog tenants storage telemetry local_platform worker_runtime cli migrations
CHECKED := $(PACKAGES) bench scripts spark tests
PYTEST := $(BIN)/python -m pytest
# Tests that need no store, no model and no child process.
FAST_TESTS := tests/test_floor_plan.py tests/test_docs.py tests/test_lock.py tests/test_packages.py tests/telemetry \
  tests/engine/protocol tests/engine/scheduling $(addprefix tests/engine/test_,$(addsuffix .py,block_manager scheduler sequence)) \
  $(addprefix tests/gateway/,http/test_json_body.py test_placement.py test_routing.py) \
  $(addprefix tests/catalog/test_,$(addsuffix .py,card manifest pricing safetensors_header schemas)) \
  $(addprefix tests/cli/test_,$(addsuffix .py,output up_options)) \
  $(addprefix tests/local_platform/test_,$(addsuffix .py,data_dir readiness)) tests/scripts

BENCHES := constrained first_token http_streams lora prefix_ttft engine_cpu gateway_cpu host_step

.PHONY: help setup dashboard up check test test-full test-gpu screenshots figures bench docs lock spark clean
.DEFAULT_GOAL := help

help:  ## list these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) $(DASHBOARD)  ## create .venv, install everything and build the dashboard (SYSTEM_TORCH=1: the torch of this machine; STARTER=0: no starter model)

$(STAMP): pyproject.toml requirements.lock scripts/setup.sh
	@PYTHON="$(PYTHON)" SYSTEM_TORCH="$(SYSTEM_TORCH)" TORCH_INDEX_URL="$(TORCH_INDEX_URL)" STARTER="$(STARTER)" sh scripts/setup.sh

$(CLIENTS): requirements-clients.lock scripts/clients.sh
	-@sh scripts/clients.sh

$(TRITON): scripts/triton.sh | $(STAMP)
	-@sh scripts/triton.sh

dashboard: $(STAMP)  ## build the dashboard again if its sources have changed
	@$(BIN)/python -m scripts.build_dashboard

$(DASHBOARD): $(shell find dashboard -type f -not -path '*/node_modules/*' 2>/dev/null) | $(STAMP)
	@$(BIN)/python -m scripts.build_dashboard --optional

up: $(STAMP) $(DASHBOARD)  ## start the whole platform with embedded stores and print example calls (STARTER=0: without the starter model)
	@$(BIN)/hearth up $(if $(filter 0,$(STARTER)),--no-starter) $(ARGS)

check: $(STAMP)  ## format, lint, types, import rules, fast tests: under a minute
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/mypy
	$(PYTEST) -q $(wildcard $(FAST_TESTS)) -m "not full and not gpu"

test: $(STAMP)  ## all tests that need no GPU and are not long
	@$(BIN)/python -m scripts.run_tests --in-two "not full and not gpu" $(ARGS)

test-full: $(STAMP) $(DASHBOARD) $(CLIENTS) $(TRITON)  ## kill campaigns, official clients, browsers, long tests
	@$(BIN)/python -m scripts.fetch_node_clients
	@$(BIN)/python -m scripts.run_tests --in-two "full and not gpu" $(ARGS)

test-gpu: $(STAMP)  ## tests that need a CUDA device
	@$(BIN)/python -m scripts.run_tests "gpu" $(ARGS)

screenshots: $(STAMP) $(CLIENTS) dashboard  ## write pictures of all screens of the dashboard to .cache/screenshots (ARGS=--readme: those of README.md)
	@$(BIN)/python -m scripts.screenshots $(ARGS)

figures: $(STAMP)  ## measure the figures of docs/promises.md (ARGS="P6 T4": only these)
	$(BIN)/python -m scripts.measure_promises $(ARGS)
	$(BIN)/python -m scripts.write_docs

bench: $(STAMP)  ## run the benchmarks of bench/ one after the other
	@for bench in $(BENCHES); do echo "== bench.$$bench"; $(BIN)/python -m bench.$$bench || exit 1; done
	@echo "== bench.fork_to_ready"; $(BIN)/python -m bench.fork_to_ready catalog/builtin/spark

docs: $(STAMP)  ## write the generated pages of docs/
	$(BIN)/python -m scripts.write_docs

lock: $(STAMP)  ## write requirements.lock from the versions in .venv
	$(BIN)/python -m scripts.write_lock

spark: $(STAMP)  ## train the built-in chat model from its generator
	$(BIN)/python -m spark.train $(ARGS)

clean:  ## remove the environment and all caches (not .hearth, the data of a platform)
	rm -rf $(VENV) .venv-clients .cache tests/clients/node/node_modules dashboard/node_modules gateway/static .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
