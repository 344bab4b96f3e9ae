#!/usr/bin/env python3
"""What regular checkpoints of device memory cost a PyTorch program, as one JSON object.

    cadence.py FOLDER GIB SECONDS [LIMIT] [--only with|without] [--shares PERCENT,...] [--staging GIB]

Needs a GPU, PyTorch and the build tree (FERMATA_BUILD).

The program multiplies matrices all the time and holds GIB of device memory. For each share of changed blocks it
makes a checkpoint and works until that is complete. `lost_s` is what the program lost by it: the time from the call
until it was complete, less its steps at the length they have alone. `overhead` is that loss for one checkpoint
every SECONDS: between a checkpoint's completion and the next one nothing of the library is at work, so that time is
not waited for, and where a checkpoint takes longer than SECONDS its own time takes their place.

Each share twice: with room for the data in device memory (`stage.device_bytes`), and without, where it waits in
--staging of host memory (4 GiB); --only leaves one of the two out. With nothing changed the time is that of hashing.
Then recovery from that differential checkpoint and from a full one of the same data, and the ways of writing a part of
the data in full, from the plainest
on: copied and then written, copied to pinned memory and then written, piece by piece through the library, and behind
the program. What does not fit into LIMIT seconds is listed in `left_out`.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import sys
import time

tree = os.environ.get("FERMATA_BUILD") or str(pathlib.Path(__file__).resolve().parent.parent / "build")
sys.path.insert(0, os.path.join(tree, "python"))
import fermata  # noqa: E402
import torch  # noqa: E402

BLOCK = 1 << 20
WORDS = BLOCK // 8
# What a checkpoint may take at the least rate seen, in bytes per second, to know what still fits.
SLOW = 1.8e9

begun = time.monotonic()
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder")
parser.add_argument("gib", type=float)
parser.add_argument("every", type=float, metavar="SECONDS")
parser.add_argument("limit", type=float, nargs="?", default=1e9)
parser.add_argument("--only", choices=("with", "without"), help="room on the device")
parser.add_argument("--shares", default="5,20,50,80,100", help="of the blocks that are changed, in percent")
parser.add_argument("--staging", type=float, default=4, metavar="GIB", help="host memory for what waits")
args = parser.parse_args()
folder, gib, every, limit = args.folder, args.gib, args.every, args.limit
shares, staging = [int(s) for s in args.shares.split(",")], int(args.staging * (1 << 30))
blocks = int(gib * (1 << 30)) // BLOCK
size = blocks * BLOCK
data = torch.randint(0, 1 << 62, (blocks, WORDS), dtype=torch.int64, device="cuda")
left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
right = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
out = {"revision": os.environ.get("FERMATA_REVISION"), "gib": gib, "every_s": every, "staging_gib": args.staging,
       "device": torch.cuda.get_device_name(), "folder": folder, "cases": [],
       "left_out": []}
number = 0


def step():
    for _ in range(10):
        torch.matmul(left, right)
    torch.cuda.synchronize()


def change(percent):
    """Changes one word in each of `percent` % of the blocks, others each time."""
    chosen = (torch.arange(blocks, device="cuda") * 37 + number * 11) % 100 < percent
    data[chosen, number % WORDS] += 1
    torch.cuda.synchronize()


def alone(seconds):
    """Steps for so long: the median of one."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        step()
        times.append(time.monotonic() - start)
    return statistics.median(times)


def fits(what, bytes_written):
    """Whether there is time for so many bytes; noted when there is not."""
    left_s = limit - (time.monotonic() - begun)
    if left_s > 2 + bytes_written / SLOW:
        return True
    out["left_out"].append(f"{what}: {left_s:.0f} s were left")
    return False


def report(row):
    out["cases"].append(row)
    print(json.dumps(row), file=sys.stderr, flush=True)


def checkpoint(session, percent, **more):
    """A checkpoint with `percent` % of the blocks changed, the program at work until it is complete."""
    global number
    number += 1
    change(percent)
    steps, start = 0, time.monotonic()
    session.checkpoint(number)
    held = time.monotonic() - start
    while session.info.busy:
        step()
        steps += 1
    took = time.monotonic() - start
    session.wait()
    info = session.info
    lost = took - steps * step_s
    report({"changed_percent": percent, **more, "blocked_s": info.last_blocked, "held_s": held,
            "complete_s": info.last_total, "at_work_s": took, "written": info.last_written, "steps": steps,
            "step_s": (took - held) / steps if steps else None, "lost_s": lost, "overhead": lost / max(every, took)})


def open_session(where, staged, recover=False, background=True):
    text = (f'block_bytes = {BLOCK}\nkeep_last = 1\nrecover = {str(recover).lower()}\nstaging_bytes = {staging}\n'
            f'background = {str(background).lower()}\n[local]\nfolders = ["{where}"]\n')
    if staged:
        text += f"[stage]\ndevice_bytes = {int(size * 1.02) + (64 << 20)}\n"
    session = fermata.Session(text=text)
    session.protect(0, data)
    return session


def recover(where, what):
    """A session that finds a checkpoint and reads it into the emptied memory."""
    want = data.sum().item()
    data.zero_()
    session = open_session(where, False, recover=True)
    session.recover()
    info = session.info
    if data.sum().item() != want:
        sys.exit("the recovered data is not what was checkpointed")
    report({"recovery_from": what, "integrity_s": info.recovery_integrity, "data_s": info.recovery_data})
    session.close()


def plain(pinned):
    """A part of the data to host memory and then to a file, as programs do without a library."""
    part = data[: min(blocks, 8 << 10)]
    host = torch.empty(part.shape, dtype=part.dtype, pin_memory=True) if pinned else None
    start = time.monotonic()
    if pinned:
        host.copy_(part)
        torch.cuda.synchronize()
    else:
        host = part.cpu()
    copied = time.monotonic()
    path = os.path.join(folder, "plain")
    with open(path, "wb") as file:
        file.write(memoryview(host.numpy()).cast("B"))
        file.flush()
        os.fsync(file.fileno())
    done = time.monotonic()
    os.unlink(path)
    report({"plain": "pinned" if pinned else "pageable", "bytes": part.numel() * 8, "copy_s": copied - start,
            "write_s": done - copied, "rate": part.numel() * 8 / (done - start)})


shutil.rmtree(folder, ignore_errors=True)
os.makedirs(folder)
alone(1)
step_s = alone(2)
out["step_s"] = step_s
first, second = os.path.join(folder, "a"), os.path.join(folder, "b")


def with_room():
    session = open_session(first, True)
    if not fits("the first one", size):
        return
    checkpoint(session, 100, staged=True, first=True)
    checkpoint(session, 0, staged=True)
    for percent in shares:
        if fits(f"{percent} % with room on the device", size * percent // 100):
            checkpoint(session, percent, staged=True)
    session.close()
    if fits("recovery", 2 * size):
        recover(first, "differential")


def plain_files():
    part = min(size, 8 << 30)
    for pinned in (False, True):
        if fits("a plain file", 2 * part):
            plain(pinned)


def without_room():
    session = open_session(first, False)
    # A first one writes everything, whatever has changed.
    checkpoint(session, 100 if args.only else 0, staged=False, first=bool(args.only))
    for percent in shares:
        if fits(f"{percent} % without room", size * percent // 100):
            checkpoint(session, percent, staged=False)
    session.close()


def full():
    """The program held until all of it is written, and recovery from that."""
    if not fits("a full one, the program held until it is written", size):
        return
    shutil.rmtree(first)
    session = open_session(second, False, background=False)
    checkpoint(session, 100, staged=False, background=False)
    session.close()
    if fits("recovery from a full one", 2 * size):
        recover(second, "full")


if args.only != "without":
    with_room()
    plain_files()
if args.only != "with":
    without_room()
    full()
shutil.rmtree(folder, ignore_errors=True)
json.dump(out, sys.stdout, indent=1)
print()
