#!/bin/sh
# The main job, shown: a heat program runs under Fermata, is checkpointed in the
# middle, killed, restored, and ends with the bytes of an uninterrupted run.
#
#   tools/demo.sh [soft|gpu|auto]      default: auto, the GPU if there is one
#
# FERMATA_BUILD is the tree to use instead of build/, FERMATA_DEMO_COMMAND the command instead of the tree's, and
# FERMATA_DEMO_PROGRAM the program instead of the tree's programs/heat2d.
set -eu

cd "$(dirname "$0")/.."
tree=${FERMATA_BUILD:-$PWD/build}
device=${1:-auto}
fermata=${FERMATA_DEMO_COMMAND:-$tree/bin/fermata}
heat=${FERMATA_DEMO_PROGRAM:-$tree/programs/heat2d}
steps=${FERMATA_DEMO_STEPS:-4000}

if [ "$device" = auto ]; then
    device=soft
    if [ -e /dev/nvidiactl ]; then
        device=gpu
    fi
fi
library_path=
if [ "$device" = soft ]; then
    library_path=$tree/lib/softgpu
fi

work=$(mktemp -d /tmp/fermata-demo.XXXXXX)
export FERMATA_RUNTIME_DIR="$work/run" FERMATA_IMAGE_DIR="$work/images"
mkdir -m 700 "$FERMATA_RUNTIME_DIR" "$FERMATA_IMAGE_DIR"

# Ends what the demo started, whatever happened.
cleanup() {
    for session in heat heat-again; do
        timeout 20 "$fermata" kill $session >/dev/null 2>&1 || true
    done
    daemon=$("$fermata" version --json | sed -n 's/^ *"pid": \([0-9]*\).*/\1/p')
    if [ -n "$daemon" ]; then
        kill "$daemon" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { printf '\n== %s\n' "$*"; }
now() { date +%s%N; }
since() { awk "BEGIN { printf \"%.2f s\", ($(now) - $1) / 1e9 }"; }
digest() { sed -n 's/^digest [^ ]* //p'; }
steps_done() { grep -c '^step' || true; }

say "1. An uninterrupted run on device \`$device\`, without Fermata"
begun=$(now)
expected=$(LD_LIBRARY_PATH=$library_path timeout 120 "$heat" --steps "$steps" | digest)
if [ -z "$expected" ]; then
    echo "demo: \`$heat\` does not run on device \`$device\`" >&2
    exit 1
fi
echo "digest $expected, $(since "$begun")"

say "2. The same program under Fermata, checkpointed in the middle"
timeout 60 "$fermata" run --device "$device" --name heat --detach -- "$heat" --steps "$steps" --pause-ms 5
tries=0
until [ "$("$fermata" logs heat | steps_done)" -ge 20 ]; do
    tries=$((tries + 1))
    if [ $tries -gt 1000 ]; then
        echo "demo: the program does not get on; its log:" >&2
        "$fermata" logs heat >&2
        exit 1
    fi
    sleep 0.05
done
begun=$(now)
timeout 60 "$fermata" checkpoint heat -o "$FERMATA_IMAGE_DIR/heat-1"
took=$(since "$begun")
"$fermata" logs heat | tail -n 1
echo "checkpoint in $took, image $(du -sh "$FERMATA_IMAGE_DIR" | cut -f 1)"

say "3. Killed (signal 9)"
"$fermata" ps
timeout 20 "$fermata" kill heat

say "4. Restored from the image, run to its end"
begun=$(now)
timeout 60 "$fermata" restore "$FERMATA_IMAGE_DIR/heat-1" --name heat-again --device "$device" --detach
echo "restored in $(since "$begun")"
tries=0
until "$fermata" logs heat-again | grep -q '^digest'; do
    tries=$((tries + 1))
    if [ $tries -gt 600 ]; then
        echo "demo: the restored program did not end" >&2
        exit 1
    fi
    sleep 0.1
done
"$fermata" logs heat-again | tail -n 2
actual=$("$fermata" logs heat-again | digest)

say "5. Compared"
echo "uninterrupted  $expected"
echo "restored       $actual"
if [ "$expected" != "$actual" ]; then
    echo "demo: the digests differ" >&2
    exit 1
fi
echo "the same"
