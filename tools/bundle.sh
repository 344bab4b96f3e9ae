#!/bin/sh
# Packs the build tree, without debug information, into one archive:
# fermata-VERSION-x86_64.tar.xz (or .tar.zst where xz is missing).
#
# Fails if the archive is too large.
#
#   tools/bundle.sh BUILD_FOLDER
set -eu

cd "$(dirname "$0")/.."
tree=$1
limit=60000000
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
name=fermata-$version-x86_64
stage=$tree/bundle

rm -rf "$stage"
trap 'rm -rf "$stage"' EXIT
sh tools/stage-tree.sh "$tree" "$stage/$name" bin lib programs bench include python share
# Programs for other runtimes are for tests.
rm -rf "$stage/$name/programs/"*-shared "$stage/$name/programs/"*-cuda1[12] "$stage/$name/programs/runtime"
cp LICENSE "$stage/$name/"
sh tools/stage-pages.sh "$stage/$name"

if command -v xz >/dev/null 2>&1; then
    archive=$tree/$name.tar.xz
    tar -C "$stage" -cf - "$name" | xz -T0 -6 >"$archive"
else
    archive=$tree/$name.tar.zst
    tar -C "$stage" -cf - "$name" | zstd -q -T0 -12 >"$archive"
fi

size=$(wc -c <"$archive")
echo "$archive: $size bytes"
if [ "$size" -gt $limit ]; then
    echo "bundle: larger than $limit bytes" >&2
    exit 1
fi
