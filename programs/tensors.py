"""A PyTorch process that moves tensors between host and device and within it, and prints a digest of what came back.

    tensors.py [--steps N]

It calls none of NVIDIA's closed libraries and no kernel, so it runs on the software GPU too."""
import argparse
import hashlib
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=300)
steps = parser.parse_args().steps
host = torch.arange(1 << 20, dtype=torch.float32)
first = torch.empty(1 << 20, device="cuda")
second = torch.empty_like(first)
digest = hashlib.sha256()
for step in range(steps):
    first.copy_(host)
    second.copy_(first)
    host = second.cpu() * 1.0000001 + step
    digest.update(host.numpy().tobytes())
    if step % 50 == 0:
        print(step, flush=True)
    time.sleep(0.01)
print("digest", digest.hexdigest())
