#!/bin/sh
# Makes a Python wheel of the build tree: build/packages/fermata-VERSION-py3-none-manylinux_2_34_x86_64.whl.
#
# It brings the command, the daemon, the worker, the libraries for programs, the software GPU, CRIU and the Python package;
# installing it takes no root.
#
#   tools/make-wheel.sh BUILD_FOLDER
set -eu

cd "$(dirname "$0")/.."
tree=$1
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

sh tools/stage-tree.sh "$tree" "$stage/tree" bin lib include share
# Links are not kept in a wheel. Those that a loader asks for become the file; those for linkers become a script of the
# linker, where there is something to link with.
find "$stage/tree" -type l | while read -r link; do
    target=$(readlink "$link")
    file=$(readlink -f "$link")
    rm "$link"
    case $link in
    */libfermata.so) echo "INPUT($target)" >"$link" ;;
    */lib/libcuda.so | */client/*.so | */softgpu/*.so) ;;
    *) cp "$file" "$link" ;;
    esac
done
# What only had other names: a library is asked for by the name it says.
for file in "$stage"/tree/lib/criu/lib/*.so.*; do
    name=$(objdump -p "$file" 2>/dev/null | sed -n 's/^ *SONAME *//p')
    if [ -n "$name" ] && [ "$name" != "$(basename "$file")" ]; then
        rm "$file"
    fi
done

cp -R "$tree/python/." "$stage/"
cp packaging/wheel/setup.cfg packaging/wheel/pyproject.toml "$stage/"
sed -i "s/@VERSION@/$version/" "$stage/pyproject.toml"
cp packaging/wheel/_command.py "$stage/fermata/"
mv "$stage/tree/share" "$stage/share"
mkdir -p "$stage/tree/share"
cp -R "$stage/share/systemd" "$stage/share/doc" "$stage/tree/share/"
mv "$stage/tree" "$stage/fermata/_tree"
cp README.md LICENSE "$stage/"

mkdir -p "$tree/packages"
pip=$(sh tools/find-pip.sh)
rm -f "$tree"/packages/fermata-*.whl
$pip wheel -q --disable-pip-version-check --no-deps -w "$tree/packages" "$stage"
ls -l "$tree"/packages/fermata-*.whl
