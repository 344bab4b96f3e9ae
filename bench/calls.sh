#!/bin/sh
# Measures the cost of single calls, native and under Fermata in turn, and writes one JSON document:
# every run, and the medians of both with their ratios.
#
#   bench/calls.sh REPORT.json [PAIRS]
#
# Needs a build tree (FERMATA_BUILD, default build/) with `make -C bench` done, and python3.
set -u

report=$1
pairs=${2:-5}
tree=${FERMATA_BUILD:-$(cd "$(dirname "$0")/.." && pwd)/build}
tree=$(cd "$tree" && pwd)
work=$(mktemp -d)
export FERMATA_RUNTIME_DIR="$work/run" FERMATA_IMAGE_DIR="$work/images"
mkdir -p "$FERMATA_RUNTIME_DIR" "$FERMATA_IMAGE_DIR"

# Ends the daemon of this runtime folder, no other.
finish() {
    pid=$("$tree/bin/fermata" version --json 2>/dev/null | tr ',{}' '\n\n\n' | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1)
    [ -z "$pid" ] || kill "$pid" 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

for _ in $(seq "$pairs"); do
    timeout 60 "$tree/bench/calls" --copy-mib 1024 >> "$work/native" || exit 1
    timeout 60 "$tree/bin/fermata" -q run -- "$tree/bench/calls" --copy-mib 1024 >> "$work/fermata" || exit 1
done

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
python3 - "$work/native" "$work/fermata" "$gpu" "$(uname -r)" "$(nproc)" \
    "${FERMATA_REVISION:-$(git rev-parse --short HEAD 2>/dev/null)}" > "$report" <<'PY'
import datetime, json, statistics, sys

native, fermata = ([json.loads(line) for line in open(path)] for path in sys.argv[1:3])
middle = lambda runs: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
of_native, of_fermata = middle(native), middle(fermata)
print(json.dumps({
    "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    "gpu": sys.argv[3], "kernel": sys.argv[4], "cores": int(sys.argv[5]), "revision": sys.argv[6],
    "native": of_native, "fermata": of_fermata,
    "ratio": {key: round(of_fermata[key] / of_native[key], 3) for key in of_native},
    "runs": {"native": native, "fermata": fermata},
}, indent=1))
PY
cat "$report"
