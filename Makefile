# Everything there is to remember: `make demo`, `make test`, `make check`. `make help` lists the rest.
# A bare machine needs python3 (3.11 or newer), make and git; the rest comes from PyPI into .venv.

PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready
PROTOS := $(sort $(wildcard tests/proto/*.proto))
PROTOC  = $(BIN)/python -m grpc_tools.protoc -I . --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy
UV      = VIRTUAL_ENV= UV_PYTHON_DOWNLOADS=never
UV_PIN  = uv==$$(awk '/^name = "uv"/ {getline; gsub(/[^0-9.]/, ""); print}' uv.lock)
# The interpreter's own pip saves the three seconds that a pip in .venv takes; Debian's python3 may have none.
PIP     = { $(PYTHON) -m pip --version >/dev/null 2>&1 && pip="$(PYTHON) -m pip --python $(BIN)/python" || \
            { $(BIN)/python -m ensurepip >/dev/null && pip="$(BIN)/python -m pip"; }; } && $$pip
# Tests start hundreds of processes: where byte code is not kept, each of them compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test fuzz test-wire test-allocator soak search mutants mutants-random verify verify-mutants chaos chaos-kubernetes go-programs kubernetes-programs test-kubernetes test-kubernetes-full test-gpu check check-format check-lint check-types check-layers check-proto actionlint proto bench bench-joined cdi-hook vgpu arm64 test-arm64 image chart chart-readme docs pictures dist smoke smoke-images prometheus chromium test-page first-hour clean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' Makefile

setup: $(READY) ## the environment, from uv.lock

$(READY): pyproject.toml uv.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "plugwright needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 …" >&2; exit 1; }
	@echo "setting up .venv"
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv --without-pip .venv
	@uv=$$(command -v uv) || { uv=$(BIN)/uv; $(PIP) install --quiet --disable-pip-version-check "$(UV_PIN)"; }; \
	  $(UV) UV_PROJECT_ENVIRONMENT=.venv $$uv sync --quiet --frozen --all-extras
	@touch $@

demo: $(READY) ## a cluster in one process: ten mock GPUs by count, four by claims; one fails, stale resources go: [PAGE=1]
	@$(BIN)/python examples/demo.py $(if $(PAGE),--page)

first-hour: $(READY) ## the first hour of a new user, from a bare clone on a terminal (needs Go)
	@$(BIN)/python -m tests.kubernetes.first_hour

test: $(READY) ## ring 1: no cluster, no root, no hardware: [JOBS=6] [ARGS='-k watcher']
	@$(BIN)/python -m pytest -n $(or $(JOBS),6) --dist worksteal $(ARGS)

fuzz: $(READY) ## a million inputs to both sides of the wire, and properties with examples at random: [INPUTS=1000000]
	@PLUGWRIGHT_FUZZ_INPUTS=$(or $(INPUTS),1000000) $(BIN)/python -m pytest --timeout 3000 tests/protocol/test_wire_fuzz.py
	@$(BIN)/python -m pytest -n $(or $(JOBS),4) --dist worksteal -m hypothesis --hypothesis-profile random

test-wire: $(READY) build/h2spec build/interop ## the HTTP/2 standard's cases and Go's gRPC beside our wire (needs Go)
	@PLUGWRIGHT_H2SPEC=$(CURDIR)/build/h2spec PLUGWRIGHT_INTEROP=$(CURDIR)/build/interop \
	  $(BIN)/python -m pytest -rs tests/protocol/test_h2spec.py tests/protocol/test_interop.py

build/h2spec: $(wildcard tests/protocol/h2spec/*)
	@cd tests/protocol/h2spec && CGO_ENABLED=0 go build -trimpath -o ../../../$@ github.com/summerwind/h2spec/cmd/h2spec

build/interop: $(wildcard tests/protocol/interop/*)
	@cd tests/protocol/interop && CGO_ENABLED=0 go build -trimpath -modfile old.mod -o ../../../$@/old . && \
	  CGO_ENABLED=0 go build -trimpath -o ../../../$@/new . && touch ../../../$@

# Upstream's cases are recorded from its module, which the module proxy has.
test-allocator: $(READY) ## claims allocated and explained beside upstream's allocators of 1.36 and 1.37 (needs Go): [WORLDS=10000 SEED=50000]
	@PLUGWRIGHT_WORLDS=$(or $(WORLDS),500) $(if $(SEED),PLUGWRIGHT_SEED=$(SEED)) $(BIN)/python -m pytest -rs tests/allocator/test_upstream_cases.py tests/allocator/test_random_worlds.py \
	  tests/allocator/test_selectors_beside_kubernetes.py tests/explain/test_random_worlds_upstream.py $(ARGS)

build/allocator-oracle/1.37: $(wildcard tests/allocator/oracle/*)
	@cd tests/allocator/oracle && CGO_ENABLED=0 go build -trimpath -o ../../../$@ .

soak: $(READY) ## thousands of kills while the checkpoint is written: [KILLS=5000]
	@PLUGWRIGHT_KILLS=$(or $(KILLS),5000) $(BIN)/python -m pytest --timeout 3000 tests/kubelet/devicemanager/test_checkpoint.py -k killed $(ARGS)

search: $(READY) ## 2,000,000 steps of a model of the node, looking for a device with two holders: [STEPS=200000]
	@PLUGWRIGHT_SEARCH_STEPS=$(or $(STEPS),2000000) $(BIN)/python -m pytest -q --timeout 3600 tests/sdk/holdings/test_search.py $(ARGS)

mutants: $(READY) ## mistakes that tests must find, tried one by one in a copy of the tree: [JOBS=4] [ARGS='an-id another-id']
	@$(BIN)/python -m tests.mutants --jobs $(or $(JOBS),4) $(ARGS)

mutants-random: $(READY) ## mistakes by rule in the daemon's code, which tests must notice: SEED=7 [COUNT=200] [JOBS=2] [ARGS='--package dra']
	@$(BIN)/python -m tests.random_mutants --seed $(or $(SEED),$(error set SEED, for example SEED=7)) --count $(or $(COUNT),200) --jobs $(or $(JOBS),2) $(ARGS)

# Without PEER our own plugins and DRA drivers. PEER is a command with {dir}, {root} or {socket}.
verify: $(READY) ## the contract test on our own plugins and drivers, or on another: [PEER='program and flags'] [KUBELET=all] [ARGS=--thorough]
ifeq ($(PEER),)
	@PLUGWRIGHT_VERIFY_KUBELET=$(or $(KUBELET),1.36) $(BIN)/python -m pytest -n $(or $(JOBS),8) --timeout 600 tests/conformance/test_own_plugins.py tests/conformance/test_own_drivers.py $(ARGS)
else
	@$(BIN)/plugwright verify $(if $(KUBELET),--kubelet $(KUBELET)) $(ARGS) -- $(PEER)
endif

# The tests that PLUGWRIGHT_MUTANTS makes larger; `make test` runs the others.
MUTANT_TESTS = $(addprefix tests/conformance/test_,mutants.py driver_mutants.py small_plugin.py small_driver.py tolerated.py go.py go_driver.py)
verify-mutants: $(READY) ## every mutant of the small plugins and driver, in Python and Go, is caught by its rule; the correct ones keep all
	@PLUGWRIGHT_MUTANTS=1 $(BIN)/python -m pytest -n $(or $(JOBS),4) --timeout 600 $(MUTANT_TESTS) $(ARGS)

# Without them tests are skipped. Built ahead, since a test that has to compile client-go first takes minutes.
GO_TESTS = $(dir $(filter-out tests/protocol/%,$(wildcard tests/*/*/go.mod))) bench/yardstick/
go-programs: $(READY) ## helm, and the Go programs of tests with the modules they need (needs Go)
	@$(BIN)/python -m tests.kubernetes.building helm
	@for directory in $(GO_TESTS); do (cd $$directory && CGO_ENABLED=0 go build -trimpath -o /dev/null .) || exit 1; done

prometheus: ## Prometheus and promtool of the distribution, for the tests of alerts (Debian or Ubuntu; root)
	@command -v promtool >/dev/null || { apt-get -qq update && apt-get -qq install --yes --no-install-recommends prometheus >/dev/null; }

# `make setup` takes selenium away again when uv.lock has changed.
chromium: $(READY) ## Chromium, its driver and selenium, for the tests of the page (Debian or Ubuntu; root)
	@command -v chromium chromedriver >/dev/null && [ -e /usr/share/fonts/truetype/dejavu/DejaVuSans.ttf ] || { apt-get -qq update && \
	  apt-get -qq install --yes --no-install-recommends chromium chromium-driver fonts-dejavu-core >/dev/null; }
	@$(UV) UV_PROJECT_ENVIRONMENT=.venv $(BIN)/uv sync --quiet --frozen --all-extras --group browser

test-page: chromium ## the page in a real Chromium: errors, accessibility, keyboard, looks, hostile texts, other origins: [ARGS='-k keyboard']
	@PLUGWRIGHT_REQUIRE=chromium $(BIN)/python -m pytest -q tests/browser $(ARGS)

kubernetes-programs: $(READY) ## the programs that `make test-kubernetes` runs, which builds them itself if need be (needs Go)
	@$(BIN)/python -m tests.kubernetes.passes --build $(if $(VERSION),--version $(VERSION))

test-kubernetes: $(READY) ## ring 2, on a real Kubernetes of its own (root, Go): [VERSION=1.35.4] [ARGS='-k restarts']
	@$(BIN)/python -m tests.kubernetes.passes $(if $(VERSION),--version $(VERSION)) $(ARGS)

test-kubernetes-full: $(READY) ## all of ring 2 with its long waits, and older kubelets: [VERSION=1.37.0] [PAGE=docs/reliability.md]
	@$(BIN)/python -m tests.kubernetes.passes --full $(if $(VERSION),--version $(VERSION)) $(if $(PAGE),--write $(PAGE)) $(ARGS)
ifeq ($(VERSION)$(ARGS),)
	@$(MAKE) --no-print-directory verify KUBELET=all ARGS=--full
	@$(MAKE) --no-print-directory verify-mutants ARGS=--full
endif

test-gpu: $(READY) ## ring 3, on a machine with an NVIDIA GPU (about ten minutes); skipped with the reason where there is none
	@$(BIN)/python -m pytest --timeout 1200 tests/gpu $(ARGS)

check: check-format check-lint check-types check-layers check-proto ## format, lint, types, layers, generated code
	@echo "all good"

check-format: $(READY)
	@$(BIN)/ruff format --check .

check-lint: $(READY)
	@$(BIN)/ruff check .

check-types: $(READY)
	@$(BIN)/mypy

check-layers: $(READY)
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter

check-proto: $(READY)
	@rm -rf build/proto && mkdir -p build/proto
	@$(PROTOC) --python_out=build/proto --mypy_out=quiet:build/proto $(PROTOS)
	@cd build/proto && find . -type f | sort | while read -r file; do \
	  cmp "$$file" "../../$$file" || { echo "generated code is not what 'make proto' makes" >&2; exit 1; }; done

actionlint: build/actionlint ## the workflows' expressions, inputs and shell scripts (needs Go)
	@build/actionlint

build/actionlint:
	@GOBIN=$(CURDIR)/build GOFLAGS=-mod=mod go install github.com/rhysd/actionlint/cmd/actionlint@v1.7.8

proto: $(READY) ## the protobuf code of the tests again, after a change to a .proto
	@$(PROTOC) --python_out=. --mypy_out=quiet:. $(PROTOS)

# Measured as it is installed on a node: without the tools of development, which change what libraries load.
# PEER=yardstick is the smallest Go plugin there can be (bench/yardstick), where no other is at hand.
ifeq ($(PEER),yardstick)
override PEER := $(CURDIR)/build/yardstick -dir {dir} -count {count}
bench: build/yardstick
endif
bench: $(READY) ## the numbers beside the bars: make bench [PEER='program and flags'|yardstick] [BESIDE=other/checkout] [ARGS=--quick]
	@[ -x build/lean/bin/python ] || $(PYTHON) -m venv build/lean
	@$(UV) UV_PROJECT_ENVIRONMENT=build/lean $(BIN)/uv sync --quiet --frozen --no-dev --no-editable --compile-bytecode --reinstall-package plugwright
	@$(BIN)/python -m bench.run $(ARGS) $(if $(PEER),--peer '$(PEER)') \
	  --ours '$(CURDIR)/build/lean/bin/python -m plugwright run -c {config} --kubelet-dir {kubelet-dir}'
	@$(BIN)/python -m bench.call_profile $(filter --quick,$(ARGS))
	@$(BIN)/python -m bench.manager $(filter --quick,$(ARGS))
	@$(BIN)/python -m bench.preference $(filter --quick,$(ARGS))
	@$(BIN)/python -m bench.cluster $(filter --quick,$(ARGS))
	@$(BIN)/python -m bench.scale $(filter --quick,$(ARGS)) $(if $(BESIDE),--beside '$(BESIDE)')
	@$(BIN)/python -m bench.slices $(filter --quick,$(ARGS))
	@$(BIN)/python -m bench.allocation $(filter --quick,$(ARGS)) $(if $(wildcard build/allocator-oracle/1.37),--peer build/allocator-oracle/1.37)

# Minutes, and root is not needed: etcd and Kubernetes are built the first time, as for `make test-kubernetes`.
bench-joined: $(READY) ## 500 joined nodes on the real control plane (Go): [PEER='program --kubeconfig {kubeconfig}'] [ARGS=--quick]
	@$(BIN)/python -m bench.joined $(ARGS) $(if $(PEER),--peer '$(PEER)')

build/yardstick: $(wildcard bench/yardstick/*)
	@cd bench/yardstick && CGO_ENABLED=0 go build -trimpath -o ../../$@ .

# The real kubelet's device manager, for `make bench`: minutes to build the first time.
build/devicemanager: $(wildcard bench/devicemanager/*)
	@cd bench/devicemanager && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=mod go build -trimpath -o ../../$@ .

# As root nothing is left out; the table goes into the page with PAGE=docs/reliability.md.
chaos: $(READY) ## faults against a running daemon: [ARGS='--quick --only http --soak 3600'] [PAGE=docs/reliability.md]
	@$(BIN)/python -m chaos.run $(ARGS) $(if $(PAGE),--write $(PAGE))

chaos-kubernetes: $(READY) ## the same beside a real kubelet (root, Go): [VERSION=1.36.4] [ARGS=--quick]
	@$(BIN)/python -m chaos.run --kubernetes $(or $(VERSION),1.36.4) $(ARGS) $(if $(PAGE),--write $(PAGE))

cdi-hook: ## our CDI hook program, in build/cdi-hook (needs a C compiler and a static libc)
	@$(MAKE) --no-print-directory -s -C native/cdi-hook OUT=$(CURDIR)/build/cdi-hook

vgpu: ## the vGPU limiter's libraries, in build/vgpu (needs a C compiler)
	@$(MAKE) --no-print-directory -s -C native/vgpu OUT=$(CURDIR)/build/vgpu

arm64: ## both for arm64 in build/arm64, compiled here (Debian: gcc-aarch64-linux-gnu)
	@$(MAKE) --no-print-directory -s -C native/cdi-hook CC=aarch64-linux-gnu-gcc OUT=$(CURDIR)/build/arm64/cdi-hook
	@$(MAKE) --no-print-directory -s -C native/vgpu CC=aarch64-linux-gnu-gcc OUT=$(CURDIR)/build/arm64/vgpu

test-arm64: $(READY) ## the same under qemu-user (Debian: qemu-user)
	@PLUGWRIGHT_CROSS=aarch64-linux-gnu $(BIN)/python -m pytest -rs tests/plugins/nvidia/test_hook_program.py tests/plugins/nvidia/test_vgpu_cross.py $(ARGS)

image: ## both images, without a Docker engine or a registry (needs root, buildah, mmdebstrap and a C compiler)
	@deploy/build-image.sh --base debian

chart: $(READY) ## generate the chart's values.schema.json, families.json and dashboard.json, after a change of a family or the config types
	@$(BIN)/python deploy/helm/generate.py
	@$(BIN)/python deploy/helm/dashboard.py

chart-readme: $(READY) ## the chart's README.md, from its values
	@$(BIN)/python deploy/helm/readme.py

docs: $(READY) ## the documentation site, in build/site; a broken link or anchor is an error
	@$(BIN)/python deploy/site/reference.py reference
	@$(UV) UV_PROJECT_ENVIRONMENT=build/docs-environment $(BIN)/uv sync --quiet --frozen --only-group docs
	@build/docs-environment/bin/sphinx-build -q -W --keep-going -n -b html -c docs . build/site
	@echo "build/site/docs/index.html"

pictures: chromium ## the pictures of the documentation, from real sessions, and of the page (needs kubectl, Chromium)
	@$(BIN)/python examples/pictures.py

# helm: from HELM, from the PATH, or built (needs Go). Images: as in deploy/dist-images.sh.
dist: $(READY) chart-readme ## what a release publishes, in dist/: wheel, sdist, chart, SBOMs, and the images where root, buildah and mmdebstrap are
	@rm -rf dist
	@$(UV) $(BIN)/uv build --quiet --out-dir dist --build-constraints deploy/image/build-requirements.txt --require-hashes
	@rm -f dist/.gitignore
	@helm="$${HELM:-$$(command -v helm)}"; if [ -z "$$helm" ]; then $(BIN)/python -m tests.kubernetes.building helm && \
	  helm=$$($(BIN)/python -c 'from tests.kubernetes import building; print(building.HELM.place / "helm")'); fi; \
	  "$$helm" package deploy/helm/plugwright --destination dist >/dev/null
	@$(UV) $(BIN)/python deploy/sbom.py dist
	@IMAGES="$(IMAGES)" deploy/dist-images.sh dist
	@ls dist

smoke: dist ## the files of `make dist`, not the checkout: the wheel on every Python from 3.11 here, sdist, chart, images as the chart starts them, action
	@PLUGWRIGHT_DIST=$(CURDIR)/dist PLUGWRIGHT_REQUIRE="$(PLUGWRIGHT_REQUIRE)$(if $(filter-out none,$(IMAGES)), images)" \
	  $(BIN)/python -m pytest -rs tests/dist $(ARGS)

smoke-images: $(READY) ## the images in dist/, as the chart's package there starts them (root, runc)
	@PLUGWRIGHT_DIST=$(CURDIR)/dist PLUGWRIGHT_REQUIRE="$(PLUGWRIGHT_REQUIRE) images" $(BIN)/python -m pytest -rs tests/dist/test_images.py $(ARGS)

clean: ## everything that was made
	@rm -rf .venv .cache build dist reference
