#!/bin/sh
# Makes a small Debian system in a folder, of the release that this machine has, for tools/try-packages.sh and
# tools/make-image.sh. Needs root and apt's mirror.
#
#   tools/base-root.sh FOLDER [PACKAGE,PACKAGE...]
set -eu

cd "$(dirname "$0")/.."
root=$1
deps=$PWD/.deps
include=${2:-}

if [ ! -e "$deps/debootstrap/usr/sbin/debootstrap" ]; then
    rm -rf "$deps/debootstrap" "$deps/debootstrap.debs"
    sh tools/fetch-debs.sh "" "$deps/debootstrap.debs" debootstrap-
    mkdir -p "$deps/debootstrap"
    dpkg-deb -x "$deps"/debootstrap.debs/debootstrap_*.deb "$deps/debootstrap"
    rm -rf "$deps/debootstrap.debs"
fi
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
    awk '$1 !~ /security/ && $2 ~ /^[a-z]+$/ && $2 != "nodistro" { print; exit }')
rm -rf "$root.new"
DEBOOTSTRAP_DIR="$deps/debootstrap/usr/share/debootstrap" sh "$deps/debootstrap/usr/sbin/debootstrap" \
    --variant=minbase ${include:+--include=$include} "${mirror#* }" "$root.new" "${mirror% *}" >"$root.log" 2>&1 || {
    tail -n 20 "$root.log" "$root.new/debootstrap/debootstrap.log" >&2 || true
    echo "base-root: cannot make a system of ${mirror#* }" >&2
    exit 1
}
rm -rf "$root.new"/var/cache/apt/archives/*.deb "$root.new"/var/lib/apt/lists/*
rm -rf "$root"
mv "$root.new" "$root"
