#!/bin/sh
# Installs what the build and the tests need into .deps/ of this repository:
# the CUDA compiler (nvcc, as Python wheels) and CRIU (as unpacked packages of a
# newer Debian suite); on request also two MPIs with mpi4py, a CUDA-aware one, NVML's Python bindings, PyTorch and trainers for it, which `make test` asks
# for. Nothing outside .deps/ is changed, and what is already there is left alone, so a second run needs no network.
#
#   tools/setup.sh [cuda|criu|rust|mpi|mpi-cuda|nvml|torch|trainers]...      default: rust, cuda and criu
set -eu

cd "$(dirname "$0")/.."
mkdir -p .deps

if [ $# -eq 0 ]; then
    set -- rust cuda criu
fi
for part in "$@"; do
    case $part in
    rust) sh tools/setup-rust.sh ;;
    cuda) sh tools/setup-cuda.sh ;;
    criu) sh tools/setup-criu.sh ;;
    mpi) sh tools/setup-mpi.sh ;;
    mpi-cuda) sh tools/setup-mpi-cuda.sh ;;
    nvml) sh tools/setup-nvml.sh ;;
    torch) sh tools/setup-torch.sh ;;
    trainers) sh tools/setup-trainers.sh ;;
    *)
        echo "setup: no part \`$part\`; parts are rust, cuda, criu, mpi, mpi-cuda, nvml, torch, trainers" >&2
        exit 2
        ;;
    esac
done
