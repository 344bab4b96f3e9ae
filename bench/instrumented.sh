#!/bin/sh
# Runs every program of programs/ with instrumented kernels, once allowed to touch everything and once
# checked against what is predicted, compares digests, and writes one JSON document.
#
#   bench/instrumented.sh REPORT.json [gpu|soft]
#
# Needs a build tree (FERMATA_BUILD, default build/). On a GPU the programs' text is compiled by the
# driver, for they carry machine code of another architecture than their text.
set -u

report=$1
device=${2:-gpu}
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$(cd "${FERMATA_BUILD:-$root/build}" && pwd)
work=$(mktemp -d)
export FERMATA_RUNTIME_DIR="$work/run" FERMATA_IMAGE_DIR="$work/images" CUDA_FORCE_PTX_JIT=1
mkdir -p "$FERMATA_RUNTIME_DIR" "$FERMATA_IMAGE_DIR"

finish() {
    # The daemon of this run only: its process is in the line that says it was started.
    daemon=$(sed -n 's/.*(process \([0-9]*\),.*/\1/p' "$work"/*.err 2>/dev/null | head -1)
    [ -z "$daemon" ] || kill "$daemon" 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# programs MODE: all of them, their records in the folder MODE.
programs() {
    grep -v '^#' "$root/programs/digests.txt" | while read -r name digest; do
        case $name in static | server) continue ;; esac
        out="$work/$1-$name"
        (cd "$tree/programs" && timeout 60 "$tree/bin/fermata" trace --json --device "$device" \
            -o "$out" -- "./$name" < /dev/null > "$out.out" 2> "$out.err")
        got=$(cat "$out.out" "$out.err" | awk '/^digest/ { print $3 }')
        [ "$got" = "$digest" ] && right=true || right=false
        echo "$1 $name $right $out/trace.json"
    done
}

{
    FERMATA_WORKER_FERMATA_TEST_INSTRUMENTED=both programs everything
    programs predicted
} > "$work/list"

python3 - "$work/list" "$device" > "$report" << 'END'
import json, sys
out = {"device": sys.argv[2], "runs": []}
for line in open(sys.argv[1]):
    mode, name, right, path = line.split()
    run = {"allowed": mode, "program": name, "digest_right": right == "true"}
    try:
        kernels = json.load(open(path))["kernels"]
        for key in ("launches", "complete", "checked", "mispredicted", "wrongly_complete"):
            run[key] = sum(kernel[key] for kernel in kernels)
        run["kernels"] = len(kernels)
        run["not_instrumented"] = [k["name"] + ": " + k["unchecked"] for k in kernels if k["unchecked"]]
    except OSError as error:
        run["error"] = str(error)
    out["runs"].append(run)
print(json.dumps(out, indent=1))
END
grep -c true "$work/list" >&2
