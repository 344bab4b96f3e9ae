#!/usr/bin/env python3
"""What `hash_host_on_gpu` of the application library costs and spares: checkpoints of a host variable whose blocks are
hashed by the CPU, and by the GPU to which they are streamed for it.

    bench/hosthash.py REPORT.json [--gib 8] [--folder FOLDER]

For each way, in a process of its own: a first checkpoint, one with nothing changed and one with a fifth of the blocks
changed, each with its rate and the CPU time that the process took; then recovery, byte by byte. Both ways write the same
bytes: what one has stored the other finds unchanged. Needs a GPU and a build tree (FERMATA_BUILD, default build/).
"""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

from link import Driver
from measure import TREE, facts

BLOCK = 1 << 20


def settings(folder, on_gpu, recover=False):
    flags = {"hash_host_on_gpu": on_gpu, "recover": recover, "background": False}
    lines = [f"{name} = {str(value).lower()}" for name, value in flags.items()]
    return "\n".join([f"block_bytes = {BLOCK}", "keep_last = 1", *lines, f'[local]\nfolders = ["{folder}"]\n'])


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def one_way(folder, gib, on_gpu):
    """The checkpoints and the recovery of one way; writes what it measured to standard output."""
    sys.path.insert(0, str(TREE / "python"))
    import fermata

    # The library hashes in a context that the program has: this makes it a program with a GPU.
    Driver().use(0)
    blocks = int(gib * (1 << 30)) // BLOCK
    data = mmap.mmap(-1, blocks * BLOCK)
    pattern = os.urandom(BLOCK - 8)
    for block in range(blocks):
        data[block * BLOCK : (block + 1) * BLOCK] = block.to_bytes(8, "little") + pattern
    steps = []

    def checkpoint(session, number, what):
        used, begun = cpu_seconds(), time.monotonic()
        session.checkpoint(number)
        session.wait()
        took = time.monotonic() - begun
        steps.append({"what": what, "seconds": took, "gb_s": len(data) / took / 1e9, "cpu_s": cpu_seconds() - used,
                      "written": session.info.last_written})

    session = fermata.Session(text=settings(folder, on_gpu))
    session.protect(0, data)
    checkpoint(session, 1, "first")
    checkpoint(session, 2, "unchanged")
    for block in range(0, blocks, 5):
        data[block * BLOCK + 100] ^= 1
    checkpoint(session, 3, "a fifth changed")
    session.close()
    # The other way must find nothing to write.
    session = fermata.Session(text=settings(folder, not on_gpu))
    session.protect(0, data)
    checkpoint(session, 4, "unchanged, the other way")
    session.close()
    want = mmap.mmap(-1, len(data))
    address = lambda buffer: ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    ctypes.memmove(address(want), address(data), len(data))
    ctypes.memset(address(data), 0, len(data))
    session = fermata.Session(text=settings(folder, on_gpu, recover=True))
    session.protect(0, data)
    begun = time.monotonic()
    session.recover()
    steps.append({"what": "recovery", "seconds": time.monotonic() - begun})
    session.done()
    compare = ctypes.CDLL(None).memcmp
    compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    same = compare(address(want), address(data), len(data)) == 0
    json.dump({"hash_host_on_gpu": on_gpu, "recovered": same, "steps": steps}, sys.stdout)
    return 0 if same else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/dev/shm"), help="for the checkpoints")
    parser.add_argument("--way", choices=("cpu", "gpu"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        return one_way(args.folder, args.gib, args.way == "gpu")
    report = {**facts(), "gib": args.gib, "ways": []}
    failed = False
    for way in ("cpu", "gpu"):
        work = tempfile.mkdtemp(prefix="fermata-hosthash-", dir=args.folder)
        words = [sys.executable, __file__, args.report, "--gib", args.gib, "--folder", work, "--way", way]
        done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=300)
        shutil.rmtree(work, ignore_errors=True)
        if done.stdout:
            report["ways"].append(json.loads(done.stdout))
        else:
            report["ways"].append({"hash_host_on_gpu": way == "gpu", "error": done.stderr.strip()[-400:]})
        failed |= done.returncode != 0
        args.report.write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
