#!/bin/sh
# Checks that the pinned Rust toolchain (rust-toolchain.toml) can be used here.
set -eu

cd "$(dirname "$0")/.."

if ! command -v cargo >/dev/null 2>&1; then
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        echo "setup: cargo is in $HOME/.cargo/bin, which is not in PATH" >&2
        echo "hint: . \"$HOME/.cargo/env\"" >&2
    else
        echo "setup: no Rust toolchain found" >&2
        echo "hint: install rustup from your distribution, then run this again;" >&2
        echo "      the version that rust-toolchain.toml names is fetched by itself" >&2
    fi
    exit 1
fi
# The first call in this folder makes rustup fetch the pinned version.
echo "setup: $(cargo --version), $(rustc --version)"
