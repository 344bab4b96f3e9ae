"""A mixture of experts that trains: what stops and restores of large programs are measured with.

    experts.py --gib N --host-gib H --steps S [--rate MB] [--read] [--feed MIB]

Each expert has one GiB: two layers of 4096 by 16384 and their momenta. A step trains one of them and prints "step N" with the time, in
seconds since 1970; with `--read` it reads its loss, a copy of 4 bytes to the host, and with `--feed` so much of its input, at most
64 MiB, comes from the host. So much host memory is filled, and rewritten by a thread, so many MB a second. At the end "median",
"host bad" with how many blocks of host memory are not as the thread has written them, and "digest", of all experts.
"""

import argparse
import hashlib
import statistics
import threading
import time

import numpy
import torch

WIDTH, INNER, BATCH = 4096, 16384, 4096
# Words of a block of host memory.
BLOCK = 1 << 20


class Host:
    """Host memory that is rewritten: every word of a block is what it was at first plus one number, that of the block."""

    FACTOR = 0x9E3779B97F4A7C15

    def __init__(self, gib, rate):
        blocks = max(1, int(gib * (1 << 30)) // (8 * BLOCK))
        self.words = numpy.arange(blocks * BLOCK, dtype=numpy.uint64)
        self.words *= numpy.uint64(self.FACTOR)
        self.pause = 8 * BLOCK / (rate * 1e6) if rate else None
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.write)

    def block(self, number):
        at = number % (len(self.words) // BLOCK)
        return at, self.words[at * BLOCK : (at + 1) * BLOCK]

    def write(self):
        number = 0
        while self.pause and not self.ended.wait(self.pause):
            block = self.block(number)[1]
            block += numpy.uint64(1)
            number += 1

    def bad(self):
        """Blocks that are not whole."""
        self.ended.set()
        self.thread.join()
        first = numpy.arange(BLOCK, dtype=numpy.uint64)
        wrong = 0
        for number in range(len(self.words) // BLOCK):
            at, block = self.block(number)
            added = block - (first + numpy.uint64(at * BLOCK)) * numpy.uint64(self.FACTOR)
            wrong += bool((added != added[0]).any())
        return wrong


def main():
    known = argparse.ArgumentParser()
    known.add_argument("--gib", type=int, default=1)
    known.add_argument("--host-gib", type=float, default=0.1)
    known.add_argument("--steps", type=int, default=100)
    known.add_argument("--rate", type=float, default=200)
    known.add_argument("--read", action="store_true")
    known.add_argument("--feed", type=int, default=0)
    known.add_argument("--device", default="cuda")
    given = known.parse_args()
    torch.manual_seed(7)
    host = Host(given.host_gib, given.rate)
    new = lambda *shape: torch.randn(*shape, device=given.device) * 0.01
    experts = []
    for _ in range(given.gib):
        layers = [torch.nn.Parameter(new(INNER, WIDTH)), torch.nn.Parameter(new(WIDTH, INNER))]
        experts.append((layers, [torch.zeros_like(it) for it in layers]))
    asked, wanted = new(BATCH, WIDTH), new(BATCH, WIDTH)
    fed = torch.randn(given.feed << 18) * 0.01
    synchronize = torch.cuda.synchronize if given.device == "cuda" else lambda: None
    times = []
    host.thread.start()
    for number in range(given.steps):
        begun = time.time()
        if given.feed:
            asked.view(-1)[: len(fed)].copy_(fed)
        layers, momenta = experts[number * 7 % len(experts)]
        with torch.autocast(given.device, dtype=torch.bfloat16):
            inner = torch.nn.functional.gelu(asked @ layers[0].t())
            loss = ((inner @ layers[1].t()).float() - wanted).square().mean()
        grads = torch.autograd.grad(loss, layers)
        with torch.no_grad():
            for layer, momentum, grad in zip(layers, momenta, grads):
                momentum.mul_(0.9).add_(grad)
                layer.add_(momentum, alpha=-0.05)
        loss.item() if given.read else synchronize()
        ended = time.time()
        times.append(ended - begun)
        print(f"step {number + 1} {ended:.6f}", flush=True)
    print(f"median {statistics.median(times[len(times) // 3 :]):.6f}")
    print(f"host bad {host.bad()}")
    sums = [part.detach().view(torch.int32).sum(dtype=torch.int64).item() for layers, momenta in experts for part in (*layers, *momenta)]
    print(f"digest {hashlib.sha256(str(sums).encode()).hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
