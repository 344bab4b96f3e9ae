#!/bin/sh
# Puts MPICH and Open MPI of this machine's Debian suite into .deps/mpi/, for the
# tests of the application library's ranks. Not part of the default set.
set -eu

cd "$(dirname "$0")/.."
deps=$PWD/.deps
mkdir -p "$deps/mpi"

# unpack NAME PACKAGE...: the packages and what they need, without compilers and libc.
unpack() {
    name=$1
    shift
    if [ -e "$deps/mpi/$name/done" ]; then
        return
    fi
    echo "setup: fetching $name into .deps/mpi"
    rm -rf "$deps/mpi/$name" "$deps/mpi/$name.debs"
    mkdir -p "$deps/mpi/$name"
    sh tools/fetch-debs.sh "" "$deps/mpi/$name.debs" "$@"
    for deb in "$deps/mpi/$name.debs"/*.deb; do
        case ${deb##*/} in
        libc6_* | libc6-dev_* | libc-* | libgcc* | libstdc++* | gcc* | g++* | cpp* | gfortran* | \
            libgfortran-* | perl* | libperl* | binutils* | libbinutils* | python* | libpython*) ;;
        *) dpkg-deb -x "$deb" "$deps/mpi/$name" ;;
        esac
    done
    rm -rf "$deps/mpi/$name.debs" "$deps/mpi/$name/usr/share/man" "$deps/mpi/$name/usr/share/doc"
    touch "$deps/mpi/$name/done"
}

unpack mpich mpich libmpich-dev
unpack openmpi openmpi-bin libopenmpi-dev
echo "setup: MPICH and Open MPI are in .deps/mpi"
