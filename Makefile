# Everything a person types. `make help` lists it. Each target makes the environment it needs, once.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test lint format bench sim test-spark-3.5 test-spark-latest synth test-infra lock lock-upgrade clean
MAKEFLAGS += --no-print-directory

# Settings of somebody else's Python or Spark would lead ours astray.
unexport PYTHONPATH PYTHONHOME SPARK_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Named only if python3 is not the one to use: make install PYTHON=python3.12
PYTHON :=

help:  ## this list
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ------------------------------------------------------------------------------------------------------- environments

# $(call make_venv,<folder>): a virtual environment of a Python that fits, unless a working one is there.
define make_venv
if ! $(1)/bin/python -c '' 2>/dev/null; then \
	python=; \
	for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
		if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo "Lithify needs Python 3.11, 3.12 or 3.13, but $(or $(PYTHON),python3) is $$($(or $(PYTHON),python3) --version 2>&1 | tail -n 1): install one and run make install PYTHON=/path/to/python3.11" >&2; \
		exit 2; \
	fi; \
	echo "Making $(1) with $$($$python --version)."; \
	if ! $$python -m venv --clear $(1); then \
		rm -rf $(1); \
		echo "$$python cannot make a virtual environment (on Debian and Ubuntu: apt install python3-venv); nothing is left behind." >&2; \
		exit 2; \
	fi; \
fi
endef

install: $(INSTALLED)  ## make .venv from requirements.lock (the targets below do it by themselves)
	@echo "$(BIN)/lithify is ready."

# The project itself is linked, not copied, so only a change of the lock or of pyproject.toml brings us here again.
$(INSTALLED): requirements.lock pyproject.toml
	@$(call make_venv,$(VENV))
	@echo "Installing what requirements.lock names into $(VENV): some minutes and 1 GB the first time (Spark is most of it)."
	@$(BIN)/python -m pip install -qq --require-hashes --requirement requirements.lock
	@echo "Linking Lithify itself into $(VENV)."
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@echo "Compiling the kernels for this processor."
	@$(BIN)/python -m compactor.kernels.warm
	@touch $@

# -------------------------------------------------------------------------------------------------------------- to use

demo: $(INSTALLED)  ## the whole way on this machine: queue, dispatcher, Spark, compacted tables (ARGS=--s3 for an S3)
	@$(BIN)/lithify demo $(ARGS)

test: $(INSTALLED)  ## all tests (ARGS="-k name" for some)
	@$(BIN)/python -m pytest $(ARGS)

lint: $(INSTALLED)  ## style, formatting, types, and which package may import which
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(INSTALLED)  ## let ruff lay out the code and mend what it safely can
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

bench: $(INSTALLED)  ## times against Spark's window query, DuckDB and the floor; writes tests/benchmarks/RESULTS.md
	@$(BIN)/python -m tests.benchmarks $(ARGS)

sim: $(INSTALLED)  ## random schedules of crashes and races (ARGS="--seed 7" for one of them)
	@$(BIN)/python -m tests.simulation $(ARGS)

# ------------------------------------------------------------------------------------------------------- other Sparks

# The lock pins the Spark of EMR's newest release; the same tests run on the one before it, and on the newest there is.
# Their own environments, without hashes for Spark itself: which release it is, is meant to move.
test-spark-3.5: .venv-spark-3.5/.installed  ## the Spark tests on Spark 3.5 (EMR 7)
	@.venv-spark-3.5/bin/python -m pytest -m spark $(ARGS)

test-spark-latest: .venv-spark-latest/.installed  ## the Spark tests on the newest Spark 4
	@.venv-spark-latest/bin/python -m pytest -m spark $(ARGS)

.venv-spark-3.5/.installed: SPARK := pyspark==3.5.*
.venv-spark-latest/.installed: SPARK := pyspark>=4.1,<5
.venv-spark-%/.installed: requirements.lock pyproject.toml
	@$(call make_venv,.venv-spark-$*)
	@echo "Installing requirements.lock into .venv-spark-$*, with $(SPARK) in place of its Spark."
	@awk '/^[a-z]/ {keep = !/^(pyspark|py4j)==/} keep' requirements.lock > .venv-spark-$*/without-spark.lock
	@.venv-spark-$*/bin/python -m pip install -qq --require-hashes --no-deps --requirement .venv-spark-$*/without-spark.lock
	@.venv-spark-$*/bin/python -m pip install -qq --upgrade '$(SPARK)'
	@.venv-spark-$*/bin/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@touch $@

# --------------------------------------------------------------------------------------------------------------- infra

# aws-cdk-lib is 600 MB and needs Node.js, so the CDK app has an environment of its own.
INFRA := .venv-infra
$(INFRA)/.installed: infra/requirements.lock
	@command -v node >/dev/null || { echo "The AWS CDK needs Node.js (a supported release): install it first." >&2; exit 2; }
	@$(call make_venv,$(INFRA))
	@echo "Installing what infra/requirements.lock names into $(INFRA)."
	@$(INFRA)/bin/python -m pip install -qq --require-hashes --requirement infra/requirements.lock
	@touch $@

synth: $(INFRA)/.installed  ## write the CloudFormation template of infra/ to cdk.out, and check it
	@CDK_OUTDIR=cdk.out $(INFRA)/bin/python -m infra.app
	@$(INFRA)/bin/cfn-lint cdk.out/Lithify.template.json
	@echo "cdk.out/Lithify.template.json is what would be deployed."

test-infra: $(INFRA)/.installed  ## the tests of infra/
	@$(INFRA)/bin/python -m pytest tests/infra $(ARGS)

# ------------------------------------------------------------------------------------------------------------ the lock

# No index and no path of this machine may get into a lock: the last line looks.
COMPILE = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11
lock: $(INSTALLED)  ## write both requirements.lock after a change of pyproject.toml; pins that still fit stay
	@$(COMPILE) pyproject.toml --all-extras --output-file requirements.lock $(ARGS)
	@$(COMPILE) --group infra --constraints requirements.lock --output-file infra/requirements.lock $(ARGS)
	@if grep -nE '://|file:|^-|^/' requirements.lock infra/requirements.lock; then \
		echo "A lock must name no index and no path: see the lines above." >&2; exit 1; fi

lock-upgrade:  ## the same, with the newest releases of everything
	@$(MAKE) lock ARGS=--upgrade

clean:  ## remove the environments, caches and what the demo left
	rm -rf .venv .venv-* .lithify-demo .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -rf artifacts build dist cdk.out spark-warehouse metastore_db derby.log *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
