#!/bin/sh
# Builds a CUDA-aware Open MPI from Debian's source into .deps/mpi-cuda/, for the tests of MPI jobs that hand device memory to MPI:
# Debian's own packages, and the wheels that there are, are built without CUDA. The folder can be moved: programs find it by
# OPAL_PREFIX. It needs the CUDA compiler's headers (tools/setup-cuda.sh), and takes three minutes on two cores.
set -eu

cd "$(dirname "$0")/.."
suite=${FERMATA_MPI_SUITE:-trixie}
at=$PWD/.deps/mpi-cuda
cuda=$PWD/.deps/cuda
if [ -e "$at/done" ]; then
    exit
fi
echo "setup: building Open MPI with CUDA into .deps/mpi-cuda"
rm -rf "$at"
mkdir -p "$at/source" "$at/build"
sh tools/fetch-debs.sh "$suite" "$at/source" openmpi.src
tar -C "$at/source" --strip-components=1 -xf "$at"/source/openmpi_*.orig.tar.*

# It is linked with a libcuda.so.1 that has the names which it calls, each as of this version or the next; programs get theirs by
# the library path.
calls=$(grep -rhoE '\bcu[A-Z][A-Za-z0-9]*' "$at/source/opal/mca" | sort -u)
for call in $calls; do
    echo "void $call(void) {} void ${call}_v2(void) {}"
done >"$at/build/cuda.c"
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$at/build/libcuda.so" "$at/build/cuda.c"

cd "$at/build"
prefix=/opt/openmpi
if ! {
    "$at/source/configure" --prefix=$prefix --with-cuda="$cuda" --with-cuda-libdir="$at/build" \
        --with-hwloc=internal --with-libevent=internal --with-pmix=internal --with-prrte=internal \
        --without-ucx --without-ofi --without-psm2 --without-verbs --without-rocm \
        --disable-mpi-fortran --disable-oshmem --disable-io-romio --disable-sphinx --disable-static --disable-dlopen \
        --disable-debug --disable-dependency-tracking --disable-libompitrace CFLAGS="-O1 -g0" &&
        make -j"$(nproc)" && make install DESTDIR="$at/install"
} >"$at/build.log" 2>&1; then
    tail -n 40 "$at/build.log" >&2
    echo "setup: Open MPI was not built; the whole log is $at/build.log" >&2
    exit 1
fi
cd "$at"
mv install$prefix/bin install$prefix/lib install$prefix/etc .
mkdir share
mv install$prefix/share/openmpi install$prefix/share/pmix install$prefix/share/prte share/
strip --strip-unneeded lib/*.so.*
rm -rf source build install build.log
touch done
echo "setup: Open MPI with CUDA is in .deps/mpi-cuda"
