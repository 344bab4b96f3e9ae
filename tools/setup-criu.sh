#!/bin/sh
# Puts CRIU 4.2 into .deps/criu: a private prefix with its own libc and dynamic
# loader, and a script `criu` that starts it. The folder can be moved and copied
# to any x86-64 Linux machine.
set -eu

cd "$(dirname "$0")/.."
deps=$PWD/.deps
suite=${FERMATA_CRIU_SUITE:-sid}

if ! "$deps/criu/criu" --version >/dev/null 2>&1; then
    echo "setup: fetching CRIU from Debian $suite into .deps/criu"
    rm -rf "$deps/criu.new" "$deps/criu.debs"
    mkdir -p "$deps/criu.new"
    sh tools/fetch-debs.sh "$suite" "$deps/criu.debs" criu
    for deb in "$deps"/criu.debs/*.deb; do
        dpkg-deb -x "$deb" "$deps/criu.new/all"
    done
    sh tools/pack-criu.sh "$deps/criu.new/all" "$deps/criu.new/criu"
    rm -rf "$deps/criu"
    mv "$deps/criu.new/criu" "$deps/criu"
    rm -rf "$deps/criu.new" "$deps/criu.debs"
fi

echo "setup: CRIU $("$deps/criu/criu" --version | sed -n 's/^Version: //p')"
if [ "$(id -u)" = 0 ]; then
    "$deps/criu/criu" check || echo "setup: this kernel lacks what CRIU needs, see above" >&2
else
    echo "setup: not root, so \`criu check\` was not run"
fi
