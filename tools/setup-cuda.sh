#!/bin/sh
# Puts nvcc and the CUDA headers into .deps/cuda, and the runtimes of CUDA 12 and 11.8, for which some programs of the
# tests are built (4.4 MB), into .deps/cuda12 and .deps/cuda11; all from Python wheels.
#
# .deps/cuda      -> the wheels' toolkit folder (bin/nvcc, include/, lib/)
# .deps/cuda-link    holds libcudart.so, the name the linker asks for when the runtime is not to be linked statically
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

# older FOLDER PACKAGE: the runtime of an earlier release.
older() {
    if [ "$(cat "$deps/$1/.complete" 2>/dev/null)" != "$2" ]; then
        pip=$(sh tools/find-pip.sh)
        rm -rf "${deps:?}/$1"
        echo "setup: installing $2 into .deps/$1"
        $pip install -q --disable-pip-version-check --no-deps --target "$deps/$1" "$2"
        printf '%s\n' "$2" >"$deps/$1/.complete"
    fi
}
older cuda12 nvidia-cuda-runtime-cu12==12.9.79
older cuda11 nvidia-cuda-runtime-cu11==11.8.89
echo "setup: nvcc $("$deps/cuda/bin/nvcc" --version | sed -n 's/.*, V//p')"
