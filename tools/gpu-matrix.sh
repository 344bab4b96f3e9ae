#!/bin/sh
# Runs every program at many moments on this machine's GPU and writes a JSON
# report. Needs only the build tree, so the tree can be copied to a GPU machine.
#
#   tools/gpu-matrix.sh REPORT.json [MOMENTS] [MODES]
set -eu

report=$1
moments=${2:-20}
modes=${3:-stop}
tree=${FERMATA_BUILD:-$(cd "$(dirname "$0")/.." && pwd)/build}

"$tree/test/e2e" straight --device gpu
"$tree/test/e2e" matrix --device gpu --moments "$moments" --modes "$modes" --jobs 4 --json "$report"
