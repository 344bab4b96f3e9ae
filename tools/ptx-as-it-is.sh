#!/bin/sh
# Stands in for NVIDIA's `ptxas` where kernels are for the software GPU: what Triton takes for machine code is the PTX itself,
# which that driver loads. Triton finds this file by TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH.
#
#   ptxas [OPTIONS] FILE.ptx -o FILE
set -eu

from=
to=
while [ $# -gt 0 ]; do
    case $1 in
    --version)
        # By this, Triton chooses the version of PTX; the software GPU knows 9.0.
        echo "Cuda compilation tools, release 13.0, V13.0.0"
        exit
        ;;
    -o)
        to=$2
        shift
        ;;
    -*) ;;
    *) from=$1 ;;
    esac
    shift
done
if [ -z "$from" ] || [ -z "$to" ]; then
    echo "ptxas of the software GPU: a file of PTX and \`-o FILE\` are needed" >&2
    exit 1
fi
# The driver takes text up to a NUL.
{ cat "$from" && printf '\0'; } >"$to"
