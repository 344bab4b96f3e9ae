"""How long short reads of a disk take beside long ones: what CRIU and page faults wait for while a restore reads device data.

    bench/disk_beside.py REPORT.json [--folder FOLDER] [--gib 6] [--seconds 1.5]

Writes a file of so many GiB to FOLDER, and reads it past the page cache, by so many threads that read one long piece after the
other, and by one thread that reads 4 KiB and 256 KiB in turns at random places. The report has, for each number and length
of long reads, their rate in GB/s, and the median and the longest time of the short ones in milliseconds. See
docs/decisions/058-turns-at-a-disk.md. Needs a disk with direct I/O.
"""

import argparse
import json
import mmap
import os
import pathlib
import random
import statistics
import threading
import time

from measure import facts

KIB, GIB = 1 << 10, 1 << 30
SHORT = (4 * KIB, 256 * KIB)
WAYS = [(0, 2048), (1, 2048), (2, 2048), (4, 2048), (8, 2048), (1, 512), (2, 512), (4, 512), (8, 512)]


def write(path, length):
    """A file whose blocks are on the disk, and hold no zeros that a file system could leave out."""
    block = os.urandom(64 << 20)
    with open(path, "wb") as file:
        for _ in range(length // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def read_long(file, length, size, until, lock, place, done):
    into = mmap.mmap(-1, size)
    while time.monotonic() < until:
        with lock:
            at = place[0]
            place[0] = (at + size) % (length - size)
        done.append(os.preadv(file, [into], at))


def read_short(file, length, until, took):
    into = {size: mmap.mmap(-1, size) for size in SHORT}
    while time.monotonic() < until:
        for size in SHORT:
            at = random.randrange(0, (length - size) // 4096) * 4096
            begun = time.perf_counter()
            os.preadv(file, [into[size]], at)
            took[size].append(1000 * (time.perf_counter() - begun))


def beside(file, length, threads, size, seconds):
    """Short reads beside `threads` that read `size` bytes at once."""
    begun = time.monotonic()
    until, lock, done, took = begun + seconds, threading.Lock(), [], {it: [] for it in SHORT}
    place = [random.randrange(0, length // (8 << 20)) * (8 << 20) % (length - size)]
    work = [threading.Thread(target=read_long, args=(file, length, size, until, lock, place, done)) for _ in range(threads)]
    work.append(threading.Thread(target=read_short, args=(file, length, until, took)))
    for it in work:
        it.start()
    for it in work:
        it.join()
    found = {"threads": threads, "kib": size // KIB, "gb_s": sum(done) / (time.monotonic() - begun) / 1e9}
    for name, times in (("4_kib", took[SHORT[0]]), ("256_kib", took[SHORT[1]])):
        found |= {f"{name}_ms": statistics.median(times), f"{name}_longest_ms": max(times)}
    return found


def scheduler(path):
    """What the kernel says of the disk that `path` is on."""
    device = os.stat(path).st_dev
    block = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    queue = next((it / "queue" for it in (block, block.parent) if (it / "queue").exists()), None)
    return (queue / "scheduler").read_text().strip() if queue else None


def main():
    known = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known.add_argument("report", type=pathlib.Path)
    known.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/var/tmp"))
    known.add_argument("--gib", type=int, default=6)
    known.add_argument("--seconds", type=float, default=1.5)
    given = known.parse_args()
    path, length = given.folder / f"fermata-disk-{os.getpid()}", given.gib * GIB
    try:
        write(path, length)
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        found = []
        for threads, kib in WAYS:
            found.append(beside(file, length, threads, kib * KIB, given.seconds))
            print(json.dumps(found[-1]), flush=True)
        os.close(file)
        given.report.write_text(json.dumps({**facts(), "scheduler": scheduler(given.folder), "reads": found}, indent=1))
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
