# `make help` lists what there is.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
PROTOS := $(sort $(wildcard proto/trinity/api/v1/*.proto))
GENERATED := trinity/api/v1
BASELINE := proto/baseline.binpb
SCRATCH := build

.DEFAULT_GOAL := help
.PHONY: help setup prepare demo test test-all test-fast test-whole test-thorough browser wheel release check-wheel check-images check-images-heavy check-deploy check-slurm check-supply sbom pin-images check-data-juicer check-agents check-hubs check-python312 site faults soak hosts bench \
	bench-buffer bench-gpu gpu-acceptance check format types prose protos proto proto-drift proto-baseline docs docs-drift lock clean

help:  ## This list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
		awk -F'|' '{printf "  make %-15s %s\n", $$1, $$2}'

setup:  ## The environment in .venv, from requirements/cpu.lock (skipped where it is up to date)
	@PYTHON="$(PYTHON)" requirements/install.sh $(VENV)

prepare: setup  ## Data and model of the addition example
	@$(BIN)/python -m examples.addition.prepare

demo: setup  ## A small model learns to add: the addition example from start to end
	@$(BIN)/trinity demo

# A worker a core, at most four; a file of slow tests stays on one, and so do files that share
# something costly; the slowest begin (tests/scheduling.py).
WORKERS := -n logical --maxprocesses 4

# What pytest compiles of thousands of tests is kept: every worker reads all of them.
test-fast test-whole test-thorough: export PYTHONDONTWRITEBYTECODE =

# The images and SLURM have targets of their own: they need a package index, and daemons that root starts.
WHOLE := --ignore tests/e2e/images --ignore tests/e2e/slurm tests/e2e tests/chaos tests/integration
IN_PARALLEL := $(WORKERS) --dist loadfile --no-loadscope-reorder

test: test-fast test-whole  ## Each promise at least once, the fast tests first

test-all: test-fast test-thorough  ## Every test, also those marked `thorough`: before a release

test-whole: setup  ## Tests with processes, a broker and a database, without the `thorough` ones
	$(BIN)/pytest $(IN_PARALLEL) -m "not thorough" $(WHOLE)

BROWSER := build/browser
browser: setup  ## Chromium and Playwright for the tests of Studio in a browser, where they may be installed
	@requirements/browser.sh $(BIN)/python $(BROWSER)

test-thorough: browser  ## All tests with processes, a broker and a database
	TRINITY_TEST_BROWSER=$(CURDIR)/$(BROWSER) $(BIN)/pytest $(IN_PARALLEL) $(WHOLE)

test-fast: setup  ## Unit tests only
	$(BIN)/pytest $(WORKERS) --dist worksteal tests/unit

wheel: setup  ## The wheel, under dist
	$(BIN)/python -m hatchling build --target wheel --directory dist

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
release: sbom wheel  ## Wheel, sdist, bills of materials, notes and checksums under dist; nothing is uploaded
	$(BIN)/python -m hatchling build --target sdist --directory dist
	cp $(SBOM)/* dist/
	sed '/^## \[$(VERSION)\]/,/^## \[/!d;//d' CHANGELOG.md > dist/NOTES.md
	@test -s dist/NOTES.md || { echo 'CHANGELOG.md has no section [$(VERSION)]' >&2; exit 1; }
	cd dist && rm -f SHA256SUMS && sha256sum -- * > $(CURDIR)/$(SCRATCH)/SHA256SUMS && mv $(CURDIR)/$(SCRATCH)/SHA256SUMS .

check-wheel: setup  ## The wheel in empty environments of each Python that is here, and a whole demo (3 GB)
	$(BIN)/pytest -n 0 tests/e2e/images/test_wheel.py

check-images: setup  ## The environments of the buffer's and the synchronizer's image: made, weighed, started
	$(BIN)/pytest tests/e2e/images/test_images.py

check-images-heavy: setup  ## All four images for processors: made, weighed, an experiment run in them (5 GB)
	$(BIN)/pytest tests/e2e/images/test_heavy_images.py

check-deploy: setup  ## Manifests rendered for the examples, against the schemas of what takes them
	PYTHON=$(BIN)/python deploy/check.sh

check-slurm: setup  ## Jobs on a SLURM of three nodes on loopback: finished, cancelled, requeued (slurm-wlm, root)
	@$(BIN)/python -m tests.e2e.slurm.cluster
	$(BIN)/pytest -n 0 tests/e2e/slurm

DATA_JUICER := build/data-juicer
check-data-juicer: setup  ## The operators that ask Data-Juicer, against itself, in an environment under build/
	@test -x $(DATA_JUICER)/bin/python || $(BIN)/python -m venv $(DATA_JUICER)
	$(DATA_JUICER)/bin/pip --disable-pip-version-check install -q py-data-juicer==1.6.1 aiohttp
	TRINITY_TEST_DATA_JUICER=$(CURDIR)/$(DATA_JUICER)/bin/python $(BIN)/pytest -n 0 tests/unit/data_juicer

AGENTS := build/agents
check-agents: setup  ## Agents as their makers ship them (npm and pip, 1 GB), on the address of a run
	npm install --no-audit --no-fund --prefix $(AGENTS) @anthropic-ai/claude-code@2.1.197 @openai/codex@0.171.0
	cd $(AGENTS)/node_modules/@anthropic-ai/claude-code && node install.cjs
	@test -x $(AGENTS)/python/bin/python || $(BIN)/python -m venv $(AGENTS)/python
	$(AGENTS)/python/bin/pip --disable-pip-version-check install -q openai-agents==0.24.0 langchain==1.5.2 \
		langchain-openai==1.7.4 langchain-anthropic==1.7.10 mini-swe-agent==2.4.6
	$(BIN)/pytest -n 0 tests/e2e/images/test_agents.py

HUBS := build/hubs
check-hubs: setup  ## Environments of hubs with the hubs' own packages, from their locks (1 GB)
	for hub in verifiers openenv; do TRINITY_HUBS=$(CURDIR)/$(HUBS) $(BIN)/trinity setup hub $$hub || exit 1; done
	TRINITY_TEST_HUBS=$(CURDIR)/$(HUBS) $(BIN)/pytest -n 0 tests/e2e/images/test_hubs.py

PYTHON312 := build/python3.12
WITHOUT_TORCH := tests/unit/buffer tests/unit/cli tests/unit/client tests/unit/data_juicer tests/unit/diagnosis tests/unit/inspect \
	tests/unit/launch tests/unit/local tests/unit/monitors tests/unit/operators tests/unit/progress tests/unit/rewards tests/unit/rpc \
	tests/unit/security tests/unit/synchronizer tests/unit/task_operators tests/unit/telemetry tests/unit/workflows \
	tests/unit/test_interpreter.py tests/integration/hostile tests/integration/local tests/integration/synchronizer
check-python312: setup  ## The tests that need no torch, with Python 3.12, in an environment under build/
	@test -x $(PYTHON312)/bin/python || python3.12 --version >/dev/null 2>&1 || \
		{ echo 'python3.12 is not on the PATH: install Python 3.12; if pyenv has it, run `pyenv shell 3.12` first' >&2; exit 1; }
	@test -x $(PYTHON312)/bin/python || python3.12 -m venv $(PYTHON312)
	$(PYTHON312)/bin/pip --disable-pip-version-check install -q --editable \
		'.[dev,buffer,synchronizer,explorer,embedded,telemetry,export,report]' openai
	$(PYTHON312)/bin/pytest -n 0 -m "not thorough" --ignore tests/integration/local/test_environment.py \
		$(WITHOUT_TORCH)

KILLS ?= 500
faults: setup  ## Kill KILLS times what the ledger lacks, and write the table of docs/guarantees.md
	$(BIN)/python -m tests.chaos.campaign --kills $(KILLS)
	$(BIN)/python -m tests.chaos.campaign --kills $$(( $(KILLS) / 20 )) --varieties two_hosts
	$(BIN)/python -m tests.chaos.campaign --table docs/guarantees.md

MINUTES ?= 40
soak: setup  ## Work and attacks for MINUTES, and what grows meanwhile (a row of benchmarks/results/soak.jsonl)
	$(BIN)/python -m tests.chaos.soak --minutes $(MINUTES) $(if $(FOLDER),--folder $(FOLDER))

SECONDS_CUT ?= 30
hosts: setup  ## Cut every link between hosts and write the table of docs/operations.md (root, 75 minutes)
	$(BIN)/python -m tests.chaos.hosts.campaign --seconds $(SECONDS_CUT) --long-seconds 300 --slow \
		--docs docs/operations.md

bench: setup  ## Every benchmark that needs no GPU, some hours; the results go to benchmarks/results
	$(BIN)/python -m benchmarks.main_job
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.overhead.beside_trl
	$(BIN)/python -m benchmarks.learning squares
	$(BIN)/python -m benchmarks.learning hubs
	$(BIN)/python -m benchmarks.asynchrony
	$(BIN)/python -m benchmarks.command_line
	$(BIN)/python -m benchmarks.packing
	$(BIN)/python -m benchmarks.tracing
	$(BIN)/python -m benchmarks.algorithms
	$(BIN)/python -m benchmarks.algorithms.in_flight
	$(BIN)/python -m benchmarks.security
	$(BIN)/python -m benchmarks.user_processes
	$(BIN)/python -m benchmarks.sandbox
	$(BIN)/python -m benchmarks.sessions
	$(BIN)/python -m benchmarks.weight_sync
	$(BIN)/python -m benchmarks.deltas
	$(BIN)/python -m benchmarks.buffer

SIZE ?= 0.5b
bench-gpu: setup  ## Rollout, training and weight sync on a GPU, beside its limits (SIZE=0.5b, 1.5b, 3b or tiny)
	$(BIN)/python -m benchmarks.gpu --size $(SIZE)

gpu-acceptance: $(if $(filter $(VENV)/bin,$(BIN)),setup)  ## What needs a GPU, part by part, with CUDA builds in BIN (SIZE=0.5b): build/gpu-acceptance
	$(BIN)/python -m examples.addition.prepare
	$(BIN)/python -m benchmarks.acceptance --size $(SIZE)

bench-buffer: setup  ## The buffer beside raw limits, on CORES, or the last two
	$(BIN)/python -m benchmarks.buffer $(if $(CORES),--cores $(CORES))

check: setup format types prose protos proto-drift docs-drift  ## Formatting, lint, types, import rules, prose, contracts, tables
	@echo "check: all good"

format:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types:
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases examples
	$(BIN)/lint-imports

prose:
	$(BIN)/python -m tests.support.prose

protos:
	$(BIN)/buf lint proto
	$(BIN)/buf format --diff --exit-code proto
	$(BIN)/buf breaking proto --against $(BASELINE)

proto:  ## Generate trinity/api/v1 from proto/
	$(call generate,.)

proto-drift:
	@rm -rf $(SCRATCH)/proto && mkdir -p $(SCRATCH)/proto
	$(call generate,$(SCRATCH)/proto)
	@diff -r -x __pycache__ -x __init__.py $(GENERATED) $(SCRATCH)/proto/$(GENERATED) || \
		{ echo "check: $(GENERATED) is not what proto/ generates: run make proto"; exit 1; }

proto-baseline:  ## Make the contracts as they are the ones that later ones must not break
	$(BIN)/buf build proto --output $(BASELINE)

docs:  ## Write the tables of the documentation from the code
	$(BIN)/python -m trinity.algorithm.document docs/algorithms.md
	$(BIN)/python -m trinity.cli.config_document docs/configuration.md
	$(BIN)/python -m trinity.verl.document docs/align-with-verl.md
	$(BIN)/python -m trinity.runtime.security.document docs/security.md
	$(BIN)/python -m trinity.rft.document docs/workflows.md
	$(BIN)/python -m benchmarks.document README.md
	$(BIN)/python -m benchmarks.document docs/figures.md
	$(BIN)/python -m benchmarks.document docs/images.md
	$(BIN)/python -m tests.chaos.campaign --table docs/guarantees.md
	$(BIN)/python -m trinity.run.reports docs/schemas

docs-drift:
	$(BIN)/python -m trinity.algorithm.document docs/algorithms.md --check
	$(BIN)/python -m trinity.cli.config_document docs/configuration.md --check
	$(BIN)/python -m trinity.verl.document docs/align-with-verl.md --check
	$(BIN)/python -m trinity.runtime.security.document docs/security.md --check
	$(BIN)/python -m trinity.rft.document docs/workflows.md --check
	$(BIN)/python -m benchmarks.document README.md --check
	$(BIN)/python -m benchmarks.document docs/figures.md --check
	$(BIN)/python -m benchmarks.document docs/images.md --check
	$(BIN)/python -m tests.chaos.campaign --table docs/guarantees.md --check

# Pages are staged as they lie in the repository, with the sources that they link to.
SITE := $(SCRATCH)/site
SITE_FILES := '*.md' LICENSE .pre-commit-config.yaml deploy docs examples benchmarks/results proto trinity 'tests/*.py'

$(SITE)/tools/installed: requirements/build.lock requirements/site.lock
	rm -rf $(SITE)/tools && $(BIN)/python -m venv $(SITE)/tools
	for lock in $^; do requirements/install_locked.sh $$lock $(SITE)/tools/bin/python || exit 1; done
	touch $@

site: setup $(SITE)/tools/installed  ## The documentation with a search, below build/site/html; a dead link is an error
	rm -rf $(SITE)/pages && mkdir -p $(SITE)/pages
	git ls-files -z -- $(SITE_FILES) | xargs -0 cp --parents -t $(SITE)/pages
	NO_MKDOCS_2_WARNING=1 $(SITE)/tools/bin/mkdocs build --strict --site-dir $(SITE)/html
	@echo 'site: python3 -m http.server --bind 127.0.0.1 --directory $(SITE)/html'

# The tools for locks, bills of materials and audits, with hashes too, in an environment of their own.
SUPPLY := $(SCRATCH)/supply
SUPPLY_LOCKS := requirements/build.lock requirements/supply.lock
SBOM := $(SCRATCH)/sbom

$(SUPPLY)/installed: $(SUPPLY_LOCKS)
	rm -rf $(SUPPLY) && $(BIN)/python -m venv $(SUPPLY)
	for lock in $(SUPPLY_LOCKS); do requirements/install_locked.sh $$lock $(SUPPLY)/bin/python || exit 1; done
	touch $@

lock: setup $(SUPPLY)/installed  ## Write every lock again, with hashes; those for processors from .venv as it is
	PATH="$(CURDIR)/$(SUPPLY)/bin:$$PATH" requirements/lock.sh $(VENV)

check-supply: setup $(SUPPLY)/installed  ## Known vulnerabilities in the locks, and images without a digest
	requirements/check_supply.sh $(SUPPLY)

pin-images:  ## Write the digests of today's public images into the manifests
	$(or $(PYTHON),python3) deploy/images.py --pin

sbom: setup $(SUPPLY)/installed  ## Bills of materials (CycloneDX) and the report of licences, under build/sbom
	@mkdir -p $(SBOM)
	$(SUPPLY)/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --mc-type application \
		--output-reproducible --output-format JSON --output-file $(SBOM)/environment.json
	for lock in buffer synchronizer explorer-cpu trainer-cpu explorer-gpu trainer-gpu gpu; do \
		$(SUPPLY)/bin/cyclonedx-py requirements requirements/$$lock.lock --pyproject pyproject.toml --mc-type application \
			--output-reproducible --output-format JSON --output-file $(SBOM)/$$lock.json || exit 1; done
	$(SUPPLY)/bin/pip-licenses --python $(BIN)/python --from=mixed --with-system --with-urls --format=markdown \
		--output-file $(SBOM)/licences.md

clean:  ## Remove what tools leave behind; .venv and checkpoints stay
	rm -rf $(SCRATCH) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf examples/*/work
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

define generate
@$(BIN)/python -m grpc_tools.protoc -Iproto --python_out=$(1) --pyi_out=$(1) \
	--grpc_python_out=$(1) $(PROTOS)
endef
