"""Ranks of torch.distributed over gloo that add up tensors, each of which lives on the device; prints a digest of the sums.

    gloo.py [--ranks N] [--steps N] [--pause-ms N]

The first process starts the ranks and waits for them; the first rank prints the lines that `common.h` describes, and stands still
for tests as `hold.h` says, while the others wait for it in gloo. Tensors are changed on the host, so that this runs on the software
GPU too: the kernels of PyTorch are machine code of NVIDIA's GPUs."""
import argparse
import hashlib
import os
import socket
import subprocess
import sys
import time

from hold import hold

LENGTH = 1 << 16
FACTOR = 1664525


def rank(options):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    me = dist.get_rank()
    first = me == 0
    nonce = os.urandom(8).hex()
    if first:
        print("run", nonce, flush=True)
    values = (torch.arange(LENGTH, dtype=torch.int64) * (me + 1)).cuda()
    digest = hashlib.sha256()
    for step in range(options.steps):
        mine = values.cpu() * FACTOR + me + step
        dist.all_reduce(mine)
        values.copy_(mine % (1 << 31) + me)
        if first:
            digest.update(mine.numpy().tobytes())
            print(f"step {step + 1} of {options.steps}", flush=True)
            hold(step + 1)
            time.sleep(options.pause_ms / 1000)
    # Each rank's tensor is part of the result.
    last = values.cpu()
    dist.all_reduce(last)
    if first:
        digest.update(last.numpy().tobytes())
        print(f"done {nonce}\ndigest gloo {digest.hexdigest()}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause-ms", type=int, default=0)
    options = parser.parse_args()
    if "RANK" in os.environ:
        return rank(options)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(options.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **shared, "RANK": str(number)})
        for number in range(options.ranks)
    ]
    sys.exit(max(abs(it.wait()) for it in ranks))


if __name__ == "__main__":
    main()
