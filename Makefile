# Thin targets over the project's own commands. `make demo` and `make test` set up what they need in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := $(VENV)/.demo
READY  := $(VENV)/.ready
PEERS  := build/peers
RELEASE := build/release
SCAN   := build/checkov
SITE   := build/site-tools
STORES := build/stores
CLIENTS := 33.1.0 37.0.2
IMAGE  ?= ddp-trainer:$(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BUILD  ?= $(firstword $(foreach tool,docker podman buildah,$(if $(shell command -v $(tool) 2>/dev/null),$(tool))))
BENCH  ?= --list
TORCH  ?= 2.14.1
BASE   ?= main
# --no-compile, because most installed modules are never imported.
PIP_FLAGS := --disable-pip-version-check --quiet --no-compile
# Flags of pytest that repeat failed tests. They cost 40 ms per test, so test-unit and test-local repeat failures in a
# second run instead.
RERUNS ?=
# File in which `make test` records skipped tests and their reasons.
SKIPPED := build/skipped-tests
AGAIN := --last-failed --last-failed-no-failures none

# Tests start thousands of processes, and each would compile its imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-text picture test test-unit test-busy test-local test-cluster test-cluster-shared test-cluster-alone test-cluster-quiet peers bench-peers test-peers test-torch test-long torch-table stores clients tools charts lint check bench gpu-report docs manifests image lock release-check sbom checkov site site-check dashboards-check clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: $(DEMO) ## Train on 2 nodes x 2 processes, kill a worker, and check that no step was lost
	@$(BIN)/python -m bench.measurements.demo

demo-text: $(DEMO) ## Train a byte-level language model of Python in two processes, on the sources of the standard library
	@$(BIN)/ddp-launch --standalone --nproc-per-node 2 -m ddp_trainer train --task text \
		--data "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
		--model gpt:layers=2 --window 64 --global-batch 32 --batch-slices 2 --max-steps 700 --learning-rate 0.004 --warmup-steps 30 --log-steps 70

picture: $(READY) build/dashboards-check/.installed ## Regenerate the pictures of the documentation from a real run: needs npm, Chromium, Prometheus and an idle machine
	@$(BIN)/python -m tools.pictures docs/assets

test: $(READY) ## Run every test that this machine can run, and count the skipped ones
	@$(MAKE) --no-print-directory tools || echo "make: Helm and kubectl could not be installed; tests with them are skipped" >&2
	@rm -f $(SKIPPED)
	@export DDP_TEST_SKIPPED=$(abspath $(SKIPPED)); status=0; \
	for part in unit busy cluster-quiet; do $(MAKE) --no-print-directory test-$$part || { status=$$?; break; }; done; \
	$(BIN)/python -m tests.support.skipped_tests $(SKIPPED); exit $$status

test-busy: $(READY) ## Tests with real processes, and tests on a cluster that need no quiet machine
	@$(MAKE) --no-print-directory --jobs 2 NICE='nice -n 10' test-local test-cluster-alone # or local tests starve the cluster
	@$(MAKE) --no-print-directory test-cluster-shared

test-unit: $(READY) ## Tests without long-lived processes, in one process more than there are cores, since some tests wait
	@$(BIN)/python -m pytest -q -n $$(($$(nproc) + 1)) tests/unit tests/render $(if $(RERUNS),|| $(BIN)/python -m pytest -q $(AGAIN) tests/unit tests/render)

test-local: $(READY) ## Tests with real processes, four at a time, and every command of the documents
	@$(NICE) $(BIN)/python -m pytest -q -n 4 --dist loadgroup --no-loadscope-reorder -m 'not long' tests/local tests/docs $(if $(RERUNS),|| $(BIN)/python -m pytest -q $(AGAIN) tests/local tests/docs)

test-cluster: $(READY) ## Tests on the cluster that KUBECONFIG names; skipped without one
	@$(MAKE) --no-print-directory test-cluster-shared
	@$(MAKE) --no-print-directory test-cluster-alone
	@$(MAKE) --no-print-directory test-cluster-quiet

test-cluster-shared: $(READY) ## Tests that share the cluster, four at a time
	@$(BIN)/python -m pytest -q $(RERUNS) -n 4 --dist loadgroup -m 'not alone and not quiet and not long' tests/cluster

test-cluster-alone: $(READY) ## Tests that need the cluster for themselves, such as those of lost machines
	@$(BIN)/python -m pytest -q $(RERUNS) -m alone tests/cluster

test-cluster-quiet: $(READY) ## Tests that compare times of ranks, and need the machine for themselves
	@$(BIN)/python -m pytest -q $(RERUNS) -m quiet tests/cluster

peers: $(PEERS)/.ready ## Install Lightning, Accelerate, transformers, W&B and MLflow in build/peers, on top of .venv

bench-peers: $(patsubst bench/peers/requirements/%.txt,build/peer-%/.ready,$(wildcard bench/peers/requirements/*.txt)) ## Install torchft, nvidia-resiliency-ext and Ray Train, each in build/peer-NAME, for `make bench BENCH=peers`; 3 GB

test-peers: $(PEERS)/.ready ## Tests with other libraries, after `make peers`
	@$(PEERS)/bin/python -m pytest -q $(RERUNS) -p no:cacheprovider tests/peers

test-torch: build/torch-$(TORCH)/.ready ## Test a run, faults, resizes, checkpoints and each layout on another torch: make test-torch TORCH=2.14.1
	@build/torch-$(TORCH)/bin/python -m pytest -q -n 2 -m any_torch tests/local tests/unit/ddp_trainer/train/distributed

test-long: $(READY) ## Tests of a minute each, which repeat checks of `make test` for other layouts
	@$(BIN)/python -m pytest -q -n 2 -m long tests/local tests/cluster

torch-table: $(READY) ## Write tests/torch_api/VERSION.json, the signatures of torch that the trainer uses: make torch-table TORCH=2.15.0
	@$(BIN)/python -m tools.torch_api $(TORCH)

stores: $(STORES)/.ready ## Install S3 servers (OpenStack Swift, rclone) in build/stores, for tests and bench of object stores

clients: $(CLIENTS:%=build/clients/%/.ready) ## Install versions of the Kubernetes client in build/clients, for test-cluster

tools: build/tools/.ready ## Install Helm 3, Helm 4 and kubectl in build/tools, for tests of charts and manifests

charts: $(READY) ## Package the charts in dist/, reproducibly
	@$(BIN)/python -m tools.release charts

lint: $(READY) ## Check style, types and imports between packages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy tests/scripts/client_job.py
	@$(BIN)/mypy -m bench.measurements.peers -m bench.peers.page -p bench.peers.launches
	@for platform in darwin win32; do $(BIN)/mypy --platform $$platform --cache-dir .mypy_cache/$$platform \
		-p kubectl_ddp -p ddp_report --exclude '/backends/local/|/top/(watch|terminal)\.py' || exit 1; done
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.references

check: lint ## Before a push: lint, and the unit tests of changed folders and of their importers since BASE (main)
	@changed=$$(git diff --name-only --diff-filter=d $$(git merge-base $(BASE) HEAD); git ls-files --others --exclude-standard); \
	folders=$$(echo "$$changed" | sed -nE 's,^(trainer/|kubectl_plugin/)?(.*)/[^/]*\.py$$,:(glob)tests/unit/\2/test_*.py,p' | sort -u); \
	modules=$$(echo "$$changed" | sed -nE '/\.py$$/{s,/__init__,,;s,^(trainer|kubectl_plugin)/,,;s,/([^/]*)\.py$$,.*\\b\1\\b,;y,/,.,;p}'); \
	tests=$$({ echo "$$changed"; git ls-files -- $${folders:-none}; git grep -lE "$${modules:-a^}" -- tests/unit; } \
		| grep '^tests/unit/.*/test_.*\.py$$' | sort -u); \
	if [ "$$tests" ]; then $(BIN)/python -m pytest -q -n auto $$tests; else echo "make check: no unit test is near what changed"; fi

bench: $(READY) ## Run a measurement: make bench BENCH=recovery
	@$(BIN)/python -m bench $(BENCH)

gpu-report: $(READY) ## Copy the report of bench gpu into docs/status.md: make gpu-report REPORT=build/gpu/report.json
	@$(BIN)/python -m bench.gpu_checks.report $(REPORT)

docs: $(READY) ## Regenerate the tables of docs/ and charts, dashboards and manifests/examples
	@$(BIN)/python -m tools.docs

manifests: $(READY) build/tools/.ready ## Regenerate manifests/ from charts/ddp-platform
	@$(BIN)/python -m tools.release manifests

image: ## Build the trainer image, target cpu: make image TORCH_INDEX=<index of torch's CPU builds>
	@test -n "$(BUILD)" || { echo "make image: none of docker, podman and buildah is installed; install one of them." >&2; exit 1; }
	$(BUILD) build --target cpu --tag $(IMAGE) $(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX)) $(if $(PYTHON_IMAGE),--build-arg PYTHON_IMAGE=$(PYTHON_IMAGE)) .

lock: $(READY) $(RELEASE)/.ready ## Pin the packages of .venv in constraints.txt, and write locks/ with digests
	@$(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -v '^pip==' > constraints.txt
	@TORCH_INDEX="$(TORCH_INDEX)" $(RELEASE)/bin/python -m tools.release lock

release-check: $(RELEASE)/.ready ## Build wheel, source and charts twice, install the wheel, and report differences
	@PYTHON_IMAGE="$(PYTHON_IMAGE)" $(RELEASE)/bin/python -m tools.release check

sbom: $(RELEASE)/.ready ## Write the SBOM of wheel and images to dist/, as CycloneDX, after `make release-check`
	@$(RELEASE)/bin/python -m tools.release sbom

checkov: $(SCAN)/.ready $(READY) build/tools/.ready ## Scan every object of charts, overlays and examples with checkov, except the skips of tools/scan/skips.toml
	@$(BIN)/python -m tools.scan $(SCAN)/bin/checkov

site: $(SITE)/.ready ## Build the documentation as a site in build/site, and check its links; the site loads nothing from the network
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet

site-check: site ## Check every page of the site for accessibility with axe-core in Chromium, and take screenshots; needs npm and Chromium
	@chromium=$$(command -v chromium chromium-browser google-chrome | head -n 1); \
	if ! command -v npm >/dev/null || [ -z "$$chromium" ]; then echo "make site-check: npm or Chromium is not installed; the pages are not checked."; exit 0; fi; \
	mkdir -p build/site-check && cp tools/site/package.json tools/site/package-lock.json tools/site/check.mjs build/site-check && \
	npm --prefix build/site-check ci --no-audit --no-fund --loglevel error || { echo "make site-check: axe-core could not be installed; the pages are not checked."; exit 0; }; \
	node build/site-check/check.mjs build/site "$$chromium" build/site-check/pictures

dashboards-check: $(READY) ## Render every dashboard with Grafana's components over a real Prometheus, and check the panels; needs npm, Chromium and Prometheus
	@chromium=$$(command -v chromium chromium-browser google-chrome | head -n 1); \
	if ! command -v npm >/dev/null || ! command -v prometheus >/dev/null || [ -z "$$chromium" ]; then echo "make dashboards-check: npm, Prometheus or Chromium is not installed; the dashboards are not drawn."; exit 0; fi; \
	$(MAKE) --no-print-directory build/dashboards-check/.installed || { echo "make dashboards-check: Grafana's components could not be installed; the dashboards are not drawn."; exit 0; }; \
	$(BIN)/python -m tools.dashboards_check "$$chromium"

clean: ## Remove generated files and environments
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(PEERS)/.ready: $(READY) constraints-peers.txt
	@$(BIN)/python -m venv --without-pip --clear $(PEERS)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> "$$($(PEERS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/venv_of_ours.pth"
	@$(BIN)/python -m pip --python $(PEERS)/bin/python install $(PIP_FLAGS) \
		--constraint constraints.txt --constraint constraints-peers.txt --group bench
	@touch $@

build/peer-%/.ready: bench/peers/requirements/%.txt
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) --requirement $<
	@# A package whose wheels need a newer C library only for their GPU part.
	@sed -n 's/^# wheel: //p' $< | xargs --no-run-if-empty $(@D)/bin/python -m pip install $(PIP_FLAGS) --no-deps \
		--only-binary :all: --target "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@touch $@

build/torch-%/.ready: pyproject.toml constraints.txt
	@echo "make: installing torch $* in $(@D); a CUDA build takes 5 GB" >&2
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) 'pip>=25.1'
	@grep -v -e '^torch==' -e '^setuptools==' constraints.txt > $(@D)/constraints.txt
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) --constraint $(@D)/constraints.txt torch==$* --group test --editable '.[trainer]'
	@touch $@

$(STORES)/.ready: pyproject.toml
	@$(PYTHON) -m venv --clear $(STORES)
	@$(STORES)/bin/python -m pip install $(PIP_FLAGS) 'pip>=25.1'
	@$(STORES)/bin/python -m pip install $(PIP_FLAGS) --group stores
	@touch $@

$(SCAN)/.ready: locks/scan.txt
	@$(PYTHON) -m venv --clear $(SCAN)
	@$(SCAN)/bin/python -m pip install $(PIP_FLAGS) --require-hashes --requirement locks/scan.txt
	@touch $@

$(SITE)/.ready: locks/site.txt
	@$(PYTHON) -m venv --clear $(SITE)
	@$(SITE)/bin/python -m pip install $(PIP_FLAGS) --require-hashes --requirement locks/site.txt
	@touch $@

$(RELEASE)/.ready: locks/release.txt
	@$(PYTHON) -m venv --clear $(RELEASE)
	@$(RELEASE)/bin/python -m pip install $(PIP_FLAGS) --require-hashes --requirement locks/release.txt
	@touch $@

build/clients/%/.ready: | $(READY)
	@$(BIN)/python -m pip install $(PIP_FLAGS) --target build/clients/$* kubernetes==$*
	@touch $@

build/tools/.ready: tests/support/tools.py | $(READY)
	@$(BIN)/python -m tests.support.tools $(@D)
	@touch $@

build/dashboards-check/.installed: tools/dashboards_check/package-lock.json
	@mkdir -p $(@D) && cp tools/dashboards_check/package.json tools/dashboards_check/package-lock.json $(@D)
	@cmp -s $@ $< || npm --prefix $(@D) ci --no-audit --no-fund --loglevel error
	@cp $< $@

# The demo's environment, without linters and tests. On Linux, CPU builds of torch come from torch's own index, at a tenth of
# the size, if it is reachable and no other index is configured.
$(DEMO): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is not installed; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"make: {sys.executable} is Python {v[0]}.{v[1]}, and 3.11 or newer is needed; name another: make PYTHON=/path/to/python3.")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot create virtual environments; on Debian and Ubuntu install python3-venv." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --upgrade --constraint constraints.txt 'pip>=25.1'
	@echo "make: setting up $(VENV): torch, scikit-learn, kubernetes and their dependencies" >&2
	@$(BIN)/python tools/install_torch.py --constraint constraints.txt
	@$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --editable '.[trainer]'
	@touch $@

$(READY): $(DEMO)
	@echo "make: adding dependencies of tests and linters to $(VENV)" >&2
	@$(BIN)/python -m pip install $(PIP_FLAGS) --constraint constraints.txt --group dev --editable '.[trainer]'
	@touch $@
