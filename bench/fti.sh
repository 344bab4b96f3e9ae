#!/bin/sh
# Builds FTI with its GPU part from a checkout of its published source, for bench/compare.py, against MPICH and the
# CUDA compiler in .deps. Its last revision, f60871f of 2022-11-25, does not compile for GPUs as it is: five places are
# mended in a copy, none of which changes what it does.
#
#   bench/fti.sh CHECKOUT OUT      then: FERMATA_FTI=OUT bench/compare.py ...
set -eu

deps=$(cd "$(dirname "$0")/.." && pwd)/.deps
mkdir -p "$2"
out=$(cd "$2" && pwd)
rm -rf "$out/source"
cp -r "$1" "$out/source"
cd "$out/source"

: >include/fti-defs.h
# A macro's line that does not go on; the type of a pointer to a function; an overload that is not there; a field that
# has another name now; and, when linking, a variable that two files define.
sed -i '/"Cuda error %d %s:: %s", __LINE__, __func__,$/s/$/ \\/' src/api-cuda.h
sed -i 's/\((\*cpuHash)([^,]*, *\)uint32_t/\1unsigned long/; s/min(numKernels,1024L)/min(numKernels,1024)/' src/IO/cuda-md5/md5Opt.cu
sed -i 's/\.filePosStored/.filePos/' src/api.c

flags="-O2 -w -D_FILE_OFFSET_BITS=64 -DGPUSUPPORT -I$deps/mpi/usr/include/x86_64-linux-gnu/mpich -Iinclude -Isrc
    -Isrc/deps/iniparser -Isrc/deps/jerasure/include -Isrc/deps/md5 -Isrc/deps"
# shellcheck disable=SC2086
"$deps/cuda/bin/nvcc" $flags -Wno-deprecated-gpu-targets -gencode arch=compute_75,code=compute_75 \
    -gencode arch=compute_90,code=sm_90 -cudart shared -Xcompiler -fPIC -c -o md5Opt.o src/IO/cuda-md5/md5Opt.cu
# shellcheck disable=SC2086
gcc $flags -I"$deps/cuda/include" -fPIC -shared -o "$out/libfti.so" src/*.c src/util/*.c src/deps/iniparser/*.c \
    src/deps/jerasure/src/*.c src/deps/md5/md5.c src/IO/posix.c src/IO/posix-dcp.c src/IO/ftiff.c src/IO/ftiff-dcp.c \
    src/IO/mpio.c src/IO/hdf5-fti.c md5Opt.o -L"$deps/cuda-link" -L"$deps/cuda/lib" -lcudart -lz -lm -lstdc++ \
    -Wl,--allow-shlib-undefined -Wl,-z,muldefs
rm -rf "$out/include"
cp -r include "$out/include"
rm -rf "$out/source"
echo "FTI is in $out"
