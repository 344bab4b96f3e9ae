#!/bin/sh
# Shows programs that Fermata did not start on a real GPU: checkpointed by process id, twice, while they run natively, going on, killed,
# restored from the second image, with the same result; times on standard output, and how much of each image the store lacked. As root, in the repository, after `make build`.
#
#   bench/foreign.sh [PYTHON]     PYTHON has PyTorch; without it only the compiled program is shown. SIZE=96 for the software GPU
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${FERMATA_BUILD:-$root/build}
fermata=$build/bin/fermata
work=$(mktemp -d /tmp/foreign-XXXXXX)
export FERMATA_RUNTIME_DIR=$work/run FERMATA_IMAGE_DIR=$work/images FERMATA_CONFIG=/dev/null
mkdir "$work/run"
# Ends what may be left, the daemon and with it its sessions last.
finish() {
    [ -z "${pid:-}" ] || kill -9 "$pid" 2>/dev/null || true
    daemon=$("$fermata" version | sed -n 's/.*(process \([0-9]*\),.*/\1/p')
    [ -z "$daemon" ] || kill -TERM "$daemon" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT
now() { date +%s.%N; }
since() { echo "$(now) $1" | awk '{ printf "%.2f s", $1 - $2 }'; }
steps() { grep -c '^step' "$1" || true; }
await() { # FILE STEPS
    n=0
    while [ "$(steps "$1")" -lt "$2" ]; do n=$((n + 1)); [ $n -lt 6000 ] || { echo "no step $2 in $1"; exit 1; }; sleep 0.1; done
}

# NAME AT COMMAND...: runs it alone, then taken at step AT, killed and restored.
show() {
    name=$1 at=$2
    shift 2
    echo "== $name"
    begun=$(now)
    "$@" >"$work/straight" 2>"$work/errors" </dev/null || { tail -5 "$work/errors"; exit 1; }
    echo "alone: $(since "$begun")"
    setsid "$@" >"$work/out" 2>"$work/errors" </dev/null &
    pid=$!
    await "$work/out" "$at"
    begun=$(now)
    "$fermata" checkpoint "$pid" -o "$work/images/$name" --times
    echo "checkpoint by process id: $(since "$begun")"
    seen=$(steps "$work/out")
    await "$work/out" $((seen + 2))
    echo "it goes on: step $(steps "$work/out")"
    "$fermata" checkpoint "$pid" -o "$work/images/$name-2" --times
    seen=$(steps "$work/out")
    await "$work/out" $((seen + 2))
    kill -9 "$pid"
    wait "$pid" 2>/dev/null || true
    pid=
    "$fermata" images verify "$work/images/$name" "$work/images/$name-2"
    begun=$(now)
    "$fermata" restore "$work/images/$name-2" --name "$name" --detach --ignore-changed-files --times
    echo "restored: $(since "$begun")"
    begun=$(now)
    "$fermata" wait "$name" || true
    echo "ran to its end: $(since "$begun")"
    # The number drawn by each process differs; everything else is equal.
    if [ "$(grep -E '^(step|digest|loss)' "$work/straight")" = "$(grep -E '^(step|digest|loss)' "$work/out")" ]; then
        echo "$name: the result is that of an uninterrupted run"
    else
        echo "$name: the result DIFFERS"
        diff "$work/straight" "$work/out" | head
        exit 1
    fi
}

nvidia-smi --query-gpu=name,driver_version,memory.used --format=csv,noheader 2>/dev/null || echo "no nvidia-smi: the software GPU?"
show heat2d 40 "$build/programs/heat2d" --steps 6000 --size "${SIZE:-4096}" --pause-ms 20
[ $# -gt 0 ] || exit 0
cat >"$work/train.py" <<'PY'
import torch
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.1), 6).cuda()
ballast = torch.ones(1 << 30, dtype=torch.uint8, device='cuda')
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for step in range(1, 301):
    x = torch.randn(16, 128, 512, device='cuda')
    loss = (model(x) - x.roll(1, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f'step {step} of 300 loss {loss.item():.9e}', flush=True)
print('digest', sum(p.double().sum().item() for p in model.parameters()), int(ballast.sum()), flush=True)
PY
CUBLAS_WORKSPACE_CONFIG=:4096:8 show train 60 "$1" "$work/train.py"
