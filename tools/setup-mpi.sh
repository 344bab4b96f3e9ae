#!/bin/sh
# Puts MPICH and Open MPI of this machine's Debian suite into .deps/mpi/, for the
# tests of the application library's ranks.
set -eu

cd "$(dirname "$0")/.."
mpi=$PWD/.deps/mpi
if [ -e "$mpi/done" ]; then
    exit
fi
echo "setup: fetching MPICH and Open MPI into .deps/mpi"
rm -rf "$mpi"
mkdir -p "$mpi"
# What the programs need to run, and the headers; the compilers are the machine's own.
sh tools/fetch-debs.sh "" "$mpi/debs" mpich libmpich-dev- openmpi-bin libopenmpi-dev-
for deb in "$mpi/debs"/*.deb; do
    case ${deb##*/} in
    libc6_* | libc-* | libgcc* | libstdc++* | gcc* | g++* | cpp* | gfortran* | perl* | libperl* | \
        binutils* | libbinutils* | python* | libpython* | adduser* | passwd* | debconf*) ;;
    *) dpkg-deb -x "$deb" "$mpi" ;;
    esac
done
rm -rf "$mpi/debs" "$mpi/usr/share/man" "$mpi/usr/share/doc"
touch "$mpi/done"
echo "setup: MPICH and Open MPI are in .deps/mpi"
