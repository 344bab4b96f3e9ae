#!/bin/sh
# Puts nvcc and the CUDA headers into .deps/cuda, from Python wheels.
#
# .deps/cuda      -> the wheels' toolkit folder (bin/nvcc, include/, lib/)
# .deps/cuda-link    holds libcudart.so, the name the linker asks for
set -eu

cd "$(dirname "$0")/.."
deps=$PWD/.deps
wheels=$deps/wheels
stamp=$wheels/.complete

packages="nvidia-cuda-nvcc==13.0.88 nvidia-cuda-runtime==13.0.96
nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.*
nvidia-cuda-profiler-api==13.0.85"

if [ "$(cat "$stamp" 2>/dev/null)" != "$packages" ]; then
    pip=$(sh tools/find-pip.sh)
    rm -rf "$wheels"
    echo "setup: installing the CUDA compiler into .deps/wheels"
    # shellcheck disable=SC2086
    $pip install -q --disable-pip-version-check --target "$wheels" $packages
    printf '%s\n' "$packages" >"$stamp"
fi

ln -sfn wheels/nvidia/cu13 "$deps/cuda"
mkdir -p "$deps/cuda-link"
ln -sfn ../cuda/lib/libcudart.so.13 "$deps/cuda-link/libcudart.so"
echo "setup: nvcc $("$deps/cuda/bin/nvcc" --version | sed -n 's/.*, V//p')"
