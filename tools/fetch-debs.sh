#!/bin/sh
# Downloads Debian packages with everything they depend on, without touching
# the system's package state.
#
#   tools/fetch-debs.sh SUITE FOLDER PACKAGE...     PACKAGE- comes without what it depends on, PACKAGE.src as its source
#
# The mirror, its keys and any proxy are those of the machine's own apt
# settings; only the suite is replaced ("" keeps the machine's own suite). An
# empty package database makes apt download all dependencies, libc included.
set -eu

suite=$1
out=$2
shift 2
whole= alone= sources=
for package in "$@"; do
    case $package in
    *-) alone="$alone ${package%-}" ;;
    *.src) sources="$sources ${package%.src}" ;;
    *) whole="$whole $package" ;;
    esac
done

mkdir -p "$out"
out=$(cd "$out" && pwd)
state=$out/apt
mkdir -p "$state/lists/partial" "$state/archives/partial"
: >"$state/status"

# One line per package index the machine uses: address and suite. Security and
# update archives do not carry other suites.
mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
    awk '$1 !~ /security/ && $2 !~ /-/ { print; exit }')
if [ -z "$mirror" ]; then
    echo "fetch-debs: apt on this machine names no Debian mirror" >&2
    echo "hint: packages come from the mirror in /etc/apt/sources.list.d" >&2
    exit 1
fi
uri=${mirror% *}
own_suite=${mirror##* }

# Newer suites are signed by newer keys; the archive keyring holds them all.
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
key=
if [ -e $keyring ]; then
    key=" signed-by=$keyring"
fi
echo "deb [arch=amd64$key] $uri ${suite:-$own_suite} main" >"$state/sources.list"
if [ -n "$sources" ]; then
    echo "deb-src [${key# }] $uri ${suite:-$own_suite} main" >>"$state/sources.list"
fi

apt() {
    apt-get -q -o Dir::State="$state" -o Dir::State::status="$state/status" \
        -o Dir::State::lists="$state/lists" -o Dir::Cache="$state" \
        -o Dir::Cache::archives="$state/archives" \
        -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o APT::Architecture=amd64 -o APT::Architectures=amd64 \
        -o APT::Install-Recommends=false -o APT::Sandbox::User=root \
        -o APT::Update::Post-Invoke::= -o APT::Update::Post-Invoke-Success::= \
        -o Debug::NoLocking=true -o Acquire::Retries=3 "$@"
}

# Names of packages have no spaces.
# shellcheck disable=SC2086
fetch() {
    apt update && apt install --yes --download-only $whole &&
        { [ -z "$alone" ] || (cd "$state/archives" && apt download $alone); } &&
        { [ -z "$sources" ] || (cd "$out" && apt source --download-only $sources); }
}

# A mirror that is just being renewed names packages that it does not have.
tries=1
until fetch >"$state/fetch.log" 2>&1; do
    if [ $tries -eq 4 ]; then
        cat "$state/fetch.log" >&2
        exit 1
    fi
    sleep $((tries * 5))
    tries=$((tries + 1))
done
[ -z "$whole$alone" ] || mv "$state"/archives/*.deb "$out/"
rm -rf "$state"
