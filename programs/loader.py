"""A PyTorch program as training loops begin: a loader with worker processes and pinned memory feeds a stream.

    loader.py [--items N] [--workers N]

Prints a digest of what came back from the device. It calls no kernel, so it runs on the software GPU too."""
import argparse
import hashlib
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    """`items` rows, the same in every run."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return self.items

    def __getitem__(self, index):
        return torch.randn(256, generator=torch.Generator().manual_seed(index))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=8000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    loader = DataLoader(
        Noise(options.items), batch_size=16, num_workers=options.workers, pin_memory=True
    )
    stream, copied = torch.cuda.Stream(), torch.cuda.Event()
    digest = hashlib.sha256()
    for number, batch in enumerate(loader):
        with torch.cuda.stream(stream):
            there = batch.cuda(non_blocking=True)
            copied.record(stream)
        copied.synchronize()
        digest.update(there.cpu().numpy().tobytes())
        if number % 50 == 0:
            print(number, flush=True)
        time.sleep(0.01)
    print("digest", digest.hexdigest())


if __name__ == "__main__":
    main()
