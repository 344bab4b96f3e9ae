#!/bin/sh
# Builds a small S3-compatible server, which keeps objects in a folder, into
# .deps/s3/, for the tests of the application library's object store level.
set -eu

cd "$(dirname "$0")/.."
version=0.14.1
s3=$PWD/.deps/s3
if [ -x "$s3/bin/s3s-fs" ]; then
    exit
fi
echo "setup: building s3s-fs $version into .deps/s3"
mkdir -p "$s3"
# Built fast rather than for speed, and apart from what this repository builds.
env -u RUSTFLAGS CARGO_TARGET_DIR="$s3/target" CARGO_PROFILE_DEV_DEBUG=0 \
    cargo install --quiet --debug --locked --version "$version" --features binary \
    --root "$s3" s3s-fs >"$s3/install.log" 2>&1 || {
    cat "$s3/install.log" >&2
    exit 1
}
rm -rf "$s3/target"
echo "setup: s3s-fs is in .deps/s3"
