# What a person types. CONTRIBUTING.md explains the rest; `.ci/run` is what CI does.

CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)

# What `make demo` tells the example, for instance DEMO_ARGS="--rounds 1".
DEMO_ARGS ?=
# What `make test-rdma` runs: words that its suites have in their names. All, where nothing is said.
RDMA ?=
# The free-threaded Python that `make wheel` and `make pgo-wheel` build for, for instance python3.14t. Where nothing is said, all others.
WHEEL_PYTHON ?=
# How long `make soak-rdma` goes on, in seconds, and what it is told else, for instance SOAK_ARGS="--seed 17".
SOAK ?= 600
SOAK_ARGS ?=
# How long `make chaos` goes on, in seconds, and what it is told else.
CHAOS ?= 3600
CHAOS_ARGS ?=
# How long `make fuzz` keeps at each target, in seconds, and words that the targets have in their names: all, where nothing is said.
FUZZ ?= 600
FUZZ_TARGET ?= fuzz_

# What `make count` tells its script, for instance COUNT_ARGS=--record.
COUNT_ARGS ?=

# Which frameworks `make test-frameworks` tests: names of folders in transfer-python/tests_frameworks. All, where nothing is said.
FRAMEWORK ?=

# Of the end-to-end tests between nodes, the modules that run over shared memory too.
SHM_SUITES ?= round_trips lost_peers slices sharded into_memory
# Most tests wait for processes, so more of them run at a time than there are cores.
export RUST_TEST_THREADS ?= $(shell echo $$((3 * $$(nproc))))
# What the demo's programs are built with (Cargo.toml).
DEMO_PROFILE := demo
.DEFAULT_GOAL := help
.PHONY: help demo pictures check test test-all test-tools test-host test-rdma test-packaging test-python test-python-all test-ray test-frameworks test-gpu count wheel pgo pgo-wheel soak-rdma chaos fuzz loom miri bench lint doc deb setup fresh-machine

help: ## Shows this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: setup ## Builds what it needs and trains a network through two sidecars on this machine
	$(CARGO) build --profile $(DEMO_PROFILE) --package digits --package transfer-server --no-default-features --bins
	$(TARGET)/$(DEMO_PROFILE)/digits demo --transferd $(TARGET)/$(DEMO_PROFILE)/transferd $(DEMO_ARGS)

pictures: setup test-tools ## Makes the pictures of the status page while the demo trains (docs/images); --sweep of scripts/pictures.py that of the sweep
	$(CARGO) build --profile $(DEMO_PROFILE) --package digits --package transfer-server --no-default-features --bins
	scripts/pictures.py --build $(TARGET)/$(DEMO_PROFILE)

test: test-host test-packaging ## Builds everything and runs all tests but those that need an RDMA device

test-all: ## Everything, at full length: with a device, 100,000 schedules, ten minutes of chaos and of the soak, the fuzzers, empty machines
	TRANSFER_SCHEDULES=7000 TRANSFER_TEST_WORST_SECONDS=60 $(MAKE) test
	$(MAKE) test-rdma
	$(MAKE) chaos CHAOS=600
	$(MAKE) soak-rdma SOAK=600
	$(MAKE) fuzz FUZZ=60
	$(MAKE) fresh-machine

check: ## Checks what has changed since the last commit, and the end-to-end tests of E2E="retention takeover"
	scripts/check-change.sh $(E2E)

# One set of features: with others, everything below would be built again. The end-to-end tests start target/debug/transferd.
test-host: setup test-tools ## Those tests that need no RDMA device
	$(CARGO) build --workspace --all-targets
	CARGO="$(CARGO)" scripts/host-tests.sh $(addsuffix ::,$(SHM_SUITES))

wheel: setup ## Builds the Python package's wheel into target/wheels, and tries it in an empty environment; WHEEL_PYTHON=python3.14t the one for that
	scripts/wheel.sh $(WHEEL_PYTHON)

pgo: setup ## Builds the programs into target/pgo/release with a profile of what they do, which makes small messages faster
	scripts/pgo.sh

pgo-wheel: pgo ## Builds the wheel with the profile of `make pgo`
	scripts/wheel.sh --pgo $(WHEEL_PYTHON)

test-python: setup ## Those of the Python package: pytest, its types, its stub
	$(CARGO) build --workspace
	scripts/test-python.sh

test-python-all: setup ## Those of the Python package that need torch, jax, polars and duckdb, which it installs (6 GB)
	$(CARGO) build --workspace
	scripts/test-python-all.sh

test-ray: setup ## Those of transferd.ray, with a cluster of Ray on this host; it installs Ray, and what test-python-all does
	$(CARGO) build --workspace
	scripts/test-ray.sh

test-frameworks: setup ## Those of the plugs for frameworks, which it installs, with what test-python-all does; FRAMEWORK=torchft one of them
	$(CARGO) build --workspace
	scripts/test-frameworks.sh $(FRAMEWORK)

test-gpu: setup ## Those that need a GPU, on a machine that has one; PYTHON=... an interpreter with torch for CUDA, cupy and pytest
	$(CARGO) build --workspace
	CARGO="$(CARGO)" scripts/test-gpu.sh

test-tools:
	@scripts/test-tools.sh

test-rdma: setup ## Those that do, in a guest that has one (tests/rdma-vm)
	tests/rdma-vm/tests.py $(RDMA)

test-packaging: setup ## Those of the systemd unit, the Debian package, the image's recipe and the Kubernetes manifests
	packaging/test.sh

soak-rdma: setup ## Everything at once over RDMA in that guest, for 10 minutes
	tests/rdma-vm/tests.py --soak $(SOAK) $(SOAK_ARGS)

chaos: setup ## Kills, stops and restarts workers and sidecars at random under load, for an hour
	$(CARGO) build --workspace --all-targets
	$(TARGET)/debug/transfer-test-soak --stops --seconds $(CHAOS) $(CHAOS_ARGS)

fuzz: setup ## Mutates what strangers may say, 10 minutes for each parser
	TRANSFER_FUZZ_SECONDS=$(FUZZ) $(CARGO) test --workspace --lib -- --nocapture $(FUZZ_TARGET)

loom: setup ## Tries every order of steps in the lock-free parts; also a part of `make test`
	$(CARGO) test --package transfer-loom

miri: ## Runs the core's tests under miri, which sees undefined behaviour, where it is installed
	scripts/miri.sh

bench: setup ## Runs the benchmarks; takes a while, and wants a quiet machine
	$(CARGO) build --release --workspace --bins
	$(CARGO) bench --package transfer-benches

count: setup ## Counts the instructions of a small message by step, and fails where one has grown by more than 10 %
	scripts/test-tools.sh
	$(CARGO) build --release --package transfer-bench --no-default-features
	scripts/count.py --program $(TARGET)/release/transfer-bench $(COUNT_ARGS)

lint: setup ## Checks format, lints and house rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	scripts/check-core-is-pure.sh
	scripts/check-unsafe.sh
	scripts/check-flows.py
	scripts/check-targets.py

doc: setup ## Builds the API documentation; warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

deb: setup ## Builds the Debian package
	packaging/debian/build.sh

fresh-machine: ## Runs `make demo` on empty machines: Debian 12 and 13, as root and as a plain user
	tests/fresh-machine/all.sh

setup: ## Looks for the tools that are needed, and installs what it can
	@scripts/setup.sh
