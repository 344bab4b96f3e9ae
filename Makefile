# Entry points of the project. `make help` lists them.
#
# Everything made lands in build/ (relocatable), $(TARGET) (cargo) and .deps/.

SHELL := /bin/sh
TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(TARGET)/release
CARGO := cargo
CORES := $(shell nproc)
PACKAGES := fermata-cli fermata-daemon fermata-worker fermata-client fermata-ml \
            fermata-softgpu fermata-cudart fermata-c fermata-e2e

.PHONY: help deps build rust libs programs test check e2e mpi-test demo bundle clean
.DEFAULT_GOAL := build

help:
	@echo 'make build    build/: a tree that can be moved and copied'
	@echo 'make test     every check and test, the same as in CI'
	@echo 'make mpi-test ranks of the application library, over two MPIs'
	@echo 'make demo     a heat program, checkpointed, killed and restored'
	@echo 'make bundle   build/ packed into one archive'
	@echo 'make clean    removes build/ and what cargo made'

deps:
	@sh tools/setup.sh

build: libs programs

rust: deps
	$(CARGO) build --release --locked $(addprefix -p ,$(PACKAGES))

libs: rust
	sh tools/install-tree.sh $(RELEASE) build

# Those in programs/app link with libfermata.
programs: deps libs
	$(MAKE) --no-print-directory -j$(CORES) -C programs OUT=$(CURDIR)/build/programs
	$(MAKE) --no-print-directory -j$(CORES) -C bench OUT=$(CURDIR)/build/bench
	$(CARGO) build --release --locked -p fermata-device --example hashes
	cp $(RELEASE)/examples/hashes build/bench/hashes

check: deps
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) xtask check

test: check build
	sh tools/setup.sh mpi s3 nvml
	$(CARGO) test --workspace --locked
	RUSTFLAGS='--cfg loom' $(CARGO) test -p fermata-wire --lib --locked --target-dir $(TARGET)/loom
	build/test/e2e quick

# Ranks over MPICH and Open MPI, which are fetched into .deps/mpi.
mpi-test: deps
	sh tools/setup.sh mpi s3
	$(CARGO) test -p fermata-c --test mpi --test between --locked

e2e: build
	build/test/e2e quick

demo: build
	sh tools/demo.sh

bundle: build
	sh tools/bundle.sh build

clean:
	rm -rf build
	$(CARGO) clean
