#!/bin/sh
# Puts MPICH and Open MPI of this machine's Debian suite into .deps/mpi/, and mpi4py
# into .deps/mpi4py/, for the tests of the application library's ranks and of MPI jobs.
set -eu

cd "$(dirname "$0")/.."
mpi=$PWD/.deps/mpi
python=$PWD/.deps/mpi4py
if [ ! -e "$python/done" ]; then
    pip=$(sh tools/find-pip.sh)
    rm -rf "$python"
    echo "setup: installing mpi4py into .deps/mpi4py"
    $pip install -q --disable-pip-version-check --target "$python" mpi4py==4.1.2
    # By this name its wheel looks for an MPI that is MPICH.
    ln -s ../mpi/usr/lib/x86_64-linux-gnu/libmpich.so.12 "$python/libmpi.so.12"
    touch "$python/done"
fi
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
