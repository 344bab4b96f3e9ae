#!/bin/sh
# Starts two ranks of `halo` with an MPI of tools/setup.sh, for frameworks.py: `start.sh staged|direct STEPS`. Staged messages go
# by MPICH, direct ones by the CUDA-aware Open MPI, which maps device memory of the other rank.
# FERMATA_MPI: the folder that has both MPIs (default .deps of this repository). FERMATA_BUILD: the build tree.
set -eu

root=$(cd "$(dirname "$0")/../../.." && pwd)
mpis=${FERMATA_MPI:-$root/.deps}
halo=${FERMATA_BUILD:-$root/build}/bench/mpi/halo
case $1 in
staged)
    at=$mpis/mpi
    libraries=$at/usr/lib/x86_64-linux-gnu:$at/lib/x86_64-linux-gnu
    set -- "$at/usr/bin/mpiexec.hydra" -n 2 "$halo-mpich" "$2" staged
    ;;
direct)
    at=$mpis/mpi-cuda
    libraries=$at/lib
    export OPAL_PREFIX="$at" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    set -- "$at/bin/mpirun" --oversubscribe --mca pml ob1 --mca btl self,smcuda -n 2 "$halo-openmpi" "$2" direct
    ;;
*)
    echo "start.sh: \`$1\` is neither staged nor direct" >&2
    exit 2
    ;;
esac
# Under Fermata the libraries of the session come first.
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$libraries"
exec "$@"
