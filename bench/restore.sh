#!/bin/sh
# Measures restores on this machine's GPU: from the command to the first kernel done, as the program itself
# sees it, and to all data there, in the order of earlier use, by address, in the worst order, and with
# everything read first (gCROP, figure 11), beside the driver's own checkpoint of the same program. Writes one
# JSON document, with the steps of each restore and the process before and after, and one CSV. When a restore
# fails, nothing is written; when a digest differs, all is written and the status is 1.
#
#   bench/restore.sh REPORT.json [GIB [BUFFERS [PASSES]]]
#
# Needs a build tree (FERMATA_BUILD, default build/) with `make -C bench` done. Images lie in memory, so that
# a disk is not what is measured; FERMATA_BENCH_IMAGES names another folder. With FERMATA_BENCH_DEVICE=soft
# the software GPU is used, and nothing native is measured.
set -u

report=$1
gib=${2:-16}
buffers=${3:-160}
passes=${4:-40}
device=${FERMATA_BENCH_DEVICE:-gpu}
tree=${FERMATA_BUILD:-$(cd "$(dirname "$0")/.." && pwd)/build}
tree=$(cd "$tree" && pwd)
work=$(mktemp -d)
images=${FERMATA_BENCH_IMAGES:-/dev/shm/fermata-restore-$$}
export FERMATA_RUNTIME_DIR="$work/run" FERMATA_IMAGE_DIR="$images"
mkdir -p "$FERMATA_RUNTIME_DIR" "$images"
fermata=$tree/bin/fermata
rows=$work/rows
csv=${report%.json}.csv

daemon() {
    "$fermata" version --json 2>/dev/null | tr ',{}' '\n\n\n' | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1
}

native=
finish() {
    [ -z "$native" ] || kill "$native" 2>/dev/null
    "$fermata" kill passes passes-r > /dev/null 2>&1
    pid=$(daemon)
    [ -z "$pid" ] || kill "$pid" 2>/dev/null
    rm -rf "$work" "$images"
}
trap finish EXIT
trap 'exit 130' INT TERM

# give_up WHAT: ends without a report, with what the last command has said.
give_up() {
    echo "restore: $1" >&2
    cat "$work/err" >&2
    exit 1
}

wait_for() {
    for _ in $(seq 2400); do
        grep -q "$1" "$2" 2>/dev/null && return 0
        sleep 0.05
    done
    echo "no '$1' in $2" >&2
    return 1
}

# quoted TEXT: as JSON has it; null if there is none.
quoted() {
    if [ -n "$1" ]; then printf '"%s"' "$1"; else printf null; fi
}

# phases: those of a document, without what names this machine's folders.
phases() {
    tr -d '\n' | grep -o '"phases": *\[[^]]*\]' | sed 's/^"phases": *//'
}

# value NAME: of the last document in $work/arrival.
value() {
    grep -o "\"$1\": *[^,}]*" "$work/arrival" | head -1 | sed 's/.*: *//; s/[" ]//g'
}

# session NAME: what `ps` says of it, for `value`.
session() {
    "$fermata" ps --json 2>/dev/null | tr -d '\n' | sed 's/{ *"argv"/\n&/g' | grep "\"name\": *\"$1\"" > "$work/arrival"
}

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
peer=null
peer_first=null
expected=
if [ "$device" = gpu ]; then
    "$tree/bench/passes" --gib "$gib" --buffers "$buffers" --passes "$passes" --until "$work/go-native" > "$work/native.log" 2>&1 &
    native=$!
    if wait_for ready "$work/native.log"; then
        peer=$(timeout 120 "$tree/bench/peer" "$native" --restore 2>"$work/err" | grep '^{.*}$' | tail -1)
        [ -n "$peer" ] || { peer=null; cat "$work/err" >&2; }
    fi
    begun=$(date +%s.%N)
    touch "$work/go-native"
    wait "$native"
    native=
    peer_first=$(awk "/^first/{printf \"%.4f\", \$2 - $begun}" "$work/native.log")
    expected=$(sed -n 's/^digest passes //p' "$work/native.log")
    peer_pass=$(awk '/^first/{f=$2} /^last/{printf "%.4f", $2 - f}' "$work/native.log")
    sleep 4
fi

[ "${images#/dev/shm}" = "$images" ] || "$fermata" images prepare "$((gib + 1))" >&2
"$fermata" -q run --device "$device" --detach --name passes -- "$tree/bench/passes" --gib "$gib" --buffers "$buffers" --passes "$passes" --until "$work/go" > /dev/null 2> "$work/err" || give_up "the program cannot be started"
log=$FERMATA_RUNTIME_DIR/sessions/passes/log
wait_for ready "$log" || exit 1
session passes
process=$(value pid)
told=$(timeout 300 "$fermata" checkpoint passes -o "$images/image" --mode stop --json 2> "$work/err") || give_up "the checkpoint has failed"
checkpoint=$(printf '%s' "$told" | phases)
"$fermata" kill passes > /dev/null 2>&1
touch "$work/go"

# one NAME OPTIONS...: a restore; a row of the report.
one() {
    name=$1
    shift
    # The driver takes seconds to give back what a killed worker held, and a spare worker to be ready.
    sleep "${FERMATA_BENCH_REST:-6}"
    begun=$(date +%s.%N)
    told=$(timeout 120 "$fermata" restore "$images/image" --name passes-r --detach --json "$@" 2> "$work/err") || give_up "restore \`$name\` has failed"
    command=$(awk "BEGIN{printf \"%.4f\", $(date +%s.%N) - $begun}")
    document=$(printf '%s' "$told" | phases)
    printf '%s' "$told" | tr -d '\n' > "$work/arrival"
    restored=$(value pid)
    timeout 120 "$fermata" wait passes-r > /dev/null 2> "$work/err" || give_up "restore \`$name\`: the program has not ended well"
    log=$FERMATA_RUNTIME_DIR/sessions/passes-r/log
    first=$(awk "/^first/{printf \"%.4f\", \$2 - $begun}" "$log")
    last=$(awk "/^last/{printf \"%.4f\", \$2 - $begun}" "$log")
    digest=$(sed -n 's/^digest passes //p' "$log")
    for printed in "$first" "$last" "$digest"; do
        [ -n "$printed" ] || give_up "restore \`$name\`: a line is missing in the program's log"
    done
    expected=${expected:-$digest}
    [ "$digest" = "$expected" ] || differing="$differing $name"
    session passes-r
    stand=$(value stand)
    [ "$name" != eager ] || stand=eager
    seconds=$(value seconds)
    total=$(value total)
    printf '%s,%s,%s,%s,%s,%s,%s,%s\n' "$name" "$command" "$first" "$last" "$stand" "$total" "$seconds" "$digest" >> "$rows"
    printf '%s{"order":"%s","command_s":%s,"first_kernel_s":%s,"last_kernel_s":%s,"stand":%s,"late_bytes":%s,"late_s":%s,"digest":"%s","process":%s,"phases":%s}' \
        "$comma" "$name" "$command" "$first" "$last" "$(quoted "$stand")" "${total:-null}" "${seconds:-null}" "$digest" "${restored:-null}" "${document:-null}" >> "$work/json"
    comma=,
    "$fermata" kill passes-r > /dev/null 2>&1
}

comma=
differing=
: > "$rows"
: > "$work/json"
for round in $(seq "${FERMATA_BENCH_ROUNDS:-1}"); do
    one eager --eager
    one default --order default
    one profile --order profile
    one worst --order worst
done

{
    echo "order,command_s,first_kernel_s,last_kernel_s,stand,late_bytes,late_s,digest"
    cat "$rows"
} > "$csv"
cat > "$report" <<JSON
{"date":"$(date -u +%Y-%m-%dT%H:%M:%SZ)","gpu":"${gpu:-software GPU}","kernel":"$(uname -r)","cores":$(nproc),
"revision":"${FERMATA_REVISION:-$(git rev-parse --short HEAD 2>/dev/null)}","gib":$gib,"buffers":$buffers,"passes":$passes,
"driver_checkpoint":$peer,"driver_first_kernel_after_s":${peer_first:-null},"native_pass_s":${peer_pass:-null},
"process":${process:-null},"checkpoint_phases":${checkpoint:-null},
"restores":[$(cat "$work/json")]}
JSON
cat "$csv"
if [ -n "$differing" ]; then
    echo "restore: digests differ from $expected:$differing" >&2
    exit 1
fi
