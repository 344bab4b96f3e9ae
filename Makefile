# Entry points of the project. `make help` lists them.
#
# Everything made lands in build/ (relocatable), $(TARGET) (cargo) and .deps/.

SHELL := /bin/sh
TARGET := $(or $(CARGO_TARGET_DIR),target)
CARGO := cargo
PROFILE := release
BUILT = $(TARGET)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))
CORES := $(shell nproc)
# What cargo is asked for.
ASKED = $(addprefix -p ,$(PACKAGES))
HASHES = -p fermata-device
PACKAGES := fermata-cli fermata-daemon fermata-worker fermata-client fermata-ml fermata-pagefilter \
            fermata-softgpu fermata-softblas fermata-c fermata-e2e

# What the demo runs.
DEMO := fermata-cli fermata-daemon fermata-worker fermata-client fermata-softgpu fermata-pagefilter

.PHONY: help deps build rust libs programs test compiled others whole parts lint check e2e mpi-test demo demo-tree bundle \
        wheel deb image try-packages clean
.DEFAULT_GOAL := build

help:
	@echo 'make build    build/: a tree that can be moved and copied'
	@echo 'make test     every check and test, the same as in CI'
	@echo 'make mpi-test ranks of the application library, over two MPIs'
	@echo 'make demo     a heat program, checkpointed, killed and restored'
	@echo 'make bundle   build/ packed into one archive'
	@echo 'make wheel    build/ as a Python wheel, in build/packages'
	@echo 'make deb      build/ as a package for Debian, in build/packages'
	@echo 'make image    build/ as a container image'
	@echo 'make try-packages   installs these three in systems of their own and runs the demo there'
	@echo 'make clean    removes build/ and what cargo made'

deps:
	@sh tools/setup.sh

build: libs programs

rust: deps
	$(CARGO) build --profile $(PROFILE) --locked $(ASKED)

libs: rust
	sh tools/install-tree.sh $(BUILT) build

# Those in programs/app link with libfermata.
programs: deps libs
	$(MAKE) --no-print-directory -j$(CORES) -C programs OUT=$(CURDIR)/build/programs
	$(MAKE) --no-print-directory -j$(CORES) -C bench OUT=$(CURDIR)/build/bench
	$(CARGO) build --profile $(PROFILE) --locked $(HASHES) --example hashes
	cp $(BUILT)/examples/hashes build/bench/hashes

# With the examples, for which cargo chooses the features that clippy's libraries have: else it checks most of them again. The
# command has the C library's name, and so a line of its own.
DOC := $(CARGO) doc --workspace --no-deps --document-private-items --locked
lint: deps
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(DOC) --lib --examples --bin fermatad --bin e2e --bin xtask
	RUSTDOCFLAGS='-D warnings' $(DOC) --examples --bin fermata

check: lint
	$(CARGO) xtask check

# Tests of whole programs beside all others: either wait for processes and deadlines much of their time.
test: deps
	$(MAKE) --no-print-directory -j2 compiled others
	$(MAKE) --no-print-directory -C programs mpi OUT=$(CURDIR)/build/programs
	$(MAKE) --no-print-directory -j2 whole parts

whole:
	RUST_TEST_THREADS=$(CORES) $(CARGO) test --workspace --locked --test whole

parts:
	RUST_TEST_THREADS=$(CORES) $(CARGO) test --workspace --locked --exclude fermata-e2e
	RUSTFLAGS='--cfg loom' $(CARGO) test -p fermata-wire --lib --locked --target-dir $(TARGET)/loom
	build/test/e2e quick --jobs $(CORES)
	build/test/e2e runtimes --jobs $(CORES)

# In the profile of cargo's own tests, and all that cargo will be asked for at once: asked for a part, it chooses other features
# of libraries, and compiles them, and what uses them, again.
compiled: PROFILE := dev
compiled: ASKED := --workspace --lib --bins --tests --examples
compiled: HASHES := --workspace
compiled: lint build
	$(BUILT)/xtask check
	$(MAKE) --no-print-directory -j$(CORES) -C programs runtimes OUT=$(CURDIR)/build/programs

# What the tests run besides, which arrives while the rest is compiled.
others:
	sh tools/setup.sh mpi nvml torch trainers mpi-cuda

# Ranks over MPICH and Open MPI, which are fetched into .deps/mpi.
mpi-test: deps
	sh tools/setup.sh mpi
	$(CARGO) build -p fermata-object --example object_store --locked
	$(CARGO) test -p fermata-c --test mpi --test between --locked

e2e: build
	build/test/e2e quick --jobs 2

# With build/ if it is there; else with a tree of its own, of what the demo runs, compiled in a hurry.
demo: $(if $(wildcard build/programs/heat2d),build,demo-tree)
	FERMATA_BUILD=$(CURDIR)/$(if $(wildcard build/programs/heat2d),build,build/demo) sh tools/demo.sh

demo-tree: deps
	$(CARGO) build --profile demo --locked $(addprefix -p ,$(DEMO))
	sh tools/install-tree.sh $(TARGET)/demo build/demo demo
	$(MAKE) --no-print-directory -C programs OUT=$(CURDIR)/build/demo/programs $(CURDIR)/build/demo/programs/heat2d

bundle: build
	sh tools/bundle.sh build

wheel: build
	sh tools/make-wheel.sh build

deb: build
	sh tools/make-deb.sh build

image: deb
	sh tools/make-image.sh build

try-packages: wheel deb image
	sh tools/try-packages.sh build

clean:
	rm -rf build
	$(CARGO) clean
