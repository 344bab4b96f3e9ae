#!/bin/sh
# Measures Fermata on this machine's GPU beside the same programs run natively and beside the
# driver's own checkpoint, and writes one JSON document.
#
#   bench/gpu.sh REPORT.json [GIB]
#
# Needs a build tree (FERMATA_BUILD, default build/) with `make -C bench` done, and NVIDIA's
# libcudart.so.13 for the native runs (FERMATA_NATIVE_CUDART, a folder; searched for else). Every
# step has a deadline; a step that fails is null in the report, and its output is on stderr.
set -u

report=$1
gib=${2:-16}
tree=${FERMATA_BUILD:-$(cd "$(dirname "$0")/.." && pwd)/build}
tree=$(cd "$tree" && pwd)
work=$(mktemp -d)
export FERMATA_RUNTIME_DIR="$work/run" FERMATA_IMAGE_DIR="$work/images"
mkdir -p "$FERMATA_RUNTIME_DIR" "$FERMATA_IMAGE_DIR"
fermata=$tree/bin/fermata
native=${FERMATA_NATIVE_CUDART:-$(dirname "$(find / -name libcudart.so.13 -not -path '/proc/*' -not -path "$tree/*" 2>/dev/null | head -1)")}

finish() {
    "$fermata" kill disk memory disk-r memory-r > /dev/null 2>&1
    pkill -f "$tree/bin/fermatad" 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT INT TERM

# json COMMAND...: its last line of output if it is a JSON object, else null.
json() {
    timeout 120 "$@" > "$work/out" 2> "$work/err" || { echo "failed: $*" >&2; tail -5 "$work/err" "$work/out" >&2; }
    grep '^{.*}$' "$work/out" | tail -1 | grep . || echo null
}

# seconds COMMAND...: how long it takes, null if it fails.
seconds() {
    start=$(date +%s.%N)
    if timeout 180 "$@" > "$work/out" 2> "$work/err"; then
        awk "BEGIN{printf \"%.4f\n\", $(date +%s.%N) - $start}"
    else
        echo "failed: $*" >&2
        tail -5 "$work/err" "$work/out" >&2
        echo null
    fi
}

wait_for() {
    for _ in $(seq 1200); do
        grep -q "$1" "$2" 2>/dev/null && return 0
        sleep 0.05
    done
    echo "no '$1' in $2" >&2
    return 1
}

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
calls_native=$(LD_LIBRARY_PATH=$native json "$tree/bench/calls")
calls_fermata=$(json "$fermata" -q run -- "$tree/bench/calls")

# The driver's own checkpoint of the same program, run natively.
LD_LIBRARY_PATH=$native "$tree/bench/hold" --gib "$gib" --until "$work/go-native" > "$work/native.log" 2>&1 &
pid=$!
peer=null
if wait_for ready "$work/native.log"; then
    peer=$(json "$tree/bench/peer" "$pid" --restore)
fi
touch "$work/go-native"
wait "$pid"
peer_digest=$(sed -n 's/^digest hold //p' "$work/native.log")

# Ours: to disk, then to memory; each restored, each digest compared.
ours() {
    images=$1
    name=$2
    # A daemon of its own: where images lie is a daemon's setting.
    export FERMATA_IMAGE_DIR="$images" FERMATA_RUNTIME_DIR="$work/run-$name"
    mkdir -p "$images" "$FERMATA_RUNTIME_DIR"
    # Memory is set aside beforehand, as a daemon's cache would be; a disk is taken as it is.
    [ "$name" != memory ] || "$fermata" images prepare "$((gib + 1))" >&2
    "$fermata" -q run --detach --name "$name" -- "$tree/bench/hold" --gib "$gib" --until "$work/go-$name" > /dev/null 2> "$work/err" || cat "$work/err" >&2
    for _ in $(seq 1200); do
        "$fermata" logs "$name" 2>/dev/null | grep -q ready && break
        sleep 0.05
    done
    first=$(timeout 180 "$fermata" checkpoint "$name" --json 2> "$work/err" | tr -d '\n') || cat "$work/err" >&2
    again=$(timeout 180 "$fermata" checkpoint "$name" --json 2> "$work/err" | tr -d '\n') || cat "$work/err" >&2
    "$fermata" kill "$name" > /dev/null 2>&1
    # The driver takes a while to give back what the killed worker held; and reading shall come from
    # the disk where there is one.
    sleep 5
    sync
    echo 3 > /proc/sys/vm/drop_caches 2>/dev/null
    restore=$(timeout 180 "$fermata" restore "$name-1" --name "$name-r" --detach --json 2> "$work/err" | tr -d '\n') || cat "$work/err" >&2
    touch "$work/go-$name"
    timeout 60 "$fermata" wait "$name-r" > /dev/null 2>&1
    digest=$("$fermata" logs "$name-r" 2>/dev/null | sed -n 's/^digest hold //p')
    printf '{"checkpoint":%s,"again":%s,"restore":%s,"digest":"%s"}' "${first:-null}" "${again:-null}" "${restore:-null}" "$digest"
    "$fermata" kill "$name-r" > /dev/null 2>&1
    rm -rf "$images"
}
disk_write=$(seconds dd if=/dev/zero of="$work/probe" bs=16M count=256 oflag=direct)
rm -f "$work/probe"
disk=$(ours "$work/images" disk)
memory=$(ours "/dev/shm/fermata-bench-$$" memory)

cat > "$report" <<JSON
{"date":"$(date -u +%Y-%m-%dT%H:%M:%SZ)","gpu":"$gpu","kernel":"$(uname -r)","cores":$(nproc),
"revision":"${FERMATA_REVISION:-$(git rev-parse --short HEAD 2>/dev/null)}","gib":$gib,
"calls_native":$calls_native,
"calls_fermata":$calls_fermata,
"driver_checkpoint":$peer,
"driver_checkpoint_digest":"$peer_digest",
"disk_write_4gib_s":$disk_write,
"to_disk":$disk,
"to_memory":$memory}
JSON
cat "$report"
