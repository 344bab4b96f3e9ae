#!/bin/sh
# Prints a command that runs pip. Debian's python3 comes without pip and without ensurepip; then the wheel of pip
# that Debian packages is fetched into .deps/ and run in place.
set -eu

cd "$(dirname "$0")/.."
deps=$PWD/.deps

if python3 -m pip --version >/dev/null 2>&1; then
    echo "python3 -m pip"
    exit
fi
if ! ls "$deps"/pip/usr/share/python-wheels/pip-*.whl >/dev/null 2>&1; then
    rm -rf "$deps/pip" "$deps/pip.new"
    mkdir -p "$deps/pip.new"
    sh tools/fetch-debs.sh "" "$deps/pip.debs" python3-pip-whl >&2
    dpkg-deb -x "$deps"/pip.debs/python3-pip-whl_*.deb "$deps/pip.new"
    rm -rf "$deps/pip.debs"
    mv "$deps/pip.new" "$deps/pip"
fi
echo "python3 $(ls "$deps"/pip/usr/share/python-wheels/pip-*.whl)/pip"
