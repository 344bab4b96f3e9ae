#!/bin/sh
# Compiles the kernels to the PTX that is checked in beside them: for compute capability 7.5, with
# the version lowered so that drivers from CUDA 11 on take it. Usage: kernels/build.sh [NVCC]
set -eu
cd "$(dirname "$0")"
nvcc=${1:-../.deps/cuda/bin/nvcc}
for source in *.cu; do
    name=${source%.cu}
    "$nvcc" -O3 -arch=compute_75 -ptx -o "$name.tmp" "$source"
    # Comments name the compiler's build and the version line the toolkit: neither matters here.
    sed -e '/^\/\//d' -e 's/^\.version .*/.version 7.0/' "$name.tmp" > "$name.ptx"
    rm "$name.tmp"
done
