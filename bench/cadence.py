#!/usr/bin/env python3
"""What regular checkpoints of device memory cost a PyTorch program, as one JSON object.

    cadence.py FOLDER GIB SECONDS      needs a GPU, PyTorch and the build tree (FERMATA_BUILD)

The program multiplies matrices all the time and holds GIB of device memory. Every SECONDS it changes a share of
the blocks and makes a checkpoint, written behind it: everything changed, then 5, 20, 50 and 80 %; then everything
and 20 % once more with room for the data in device memory (`stage.device_bytes`). Reported are
how long each checkpoint held the program, when it was complete, what was written, and how many steps the program
did in the same time with and without checkpoints. At last the same memory is copied to the host and then written
to a plain file: the two steps apart, which the library does at once.
"""
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

folder, gib, every = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
blocks = int(gib * (1 << 30)) // BLOCK
data = torch.randint(0, 1 << 62, (blocks, WORDS), dtype=torch.int64, device="cuda")
left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
right = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
out = {"gib": gib, "every_s": every, "device": torch.cuda.get_device_name(), "cases": []}


def step():
    for _ in range(10):
        torch.matmul(left, right)
    torch.cuda.synchronize()


def change(percent, seed):
    """Changes one word in each of `percent` % of the blocks, others each time."""
    chosen = (torch.arange(blocks, device="cuda") * 37 + seed * 11) % 100 < percent
    data[chosen, seed % WORDS] += 1
    torch.cuda.synchronize()


def work(seconds):
    """Steps for so long: how many, and the median of one."""
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.monotonic()
        step()
        times.append(time.monotonic() - start)
    return len(times), statistics.median(times) if times else None


def case(session, percent, count, number, staged=False):
    rows, steps, took = [], 0, 0.0
    for n in range(count):
        change(percent, number + n)
        begun = time.monotonic()
        session.checkpoint(number + n)
        done, median = work(begun + every - time.monotonic())
        took += time.monotonic() - begun
        steps += done
        # The steps are counted: waiting now costs the program nothing that is reported.
        session.wait()
        info = session.info
        rows.append({"blocked_s": info.last_blocked, "complete_s": info.last_total, "written": info.last_written,
                     "median_step_s": median})
    return {"changed_percent": percent, "staged": staged, "seconds": took, "steps": steps, "checkpoints": rows}


shutil.rmtree(folder, ignore_errors=True)
os.makedirs(folder)
work(1)
alone, median = work(every)
out["alone"] = {"seconds": every, "steps": alone, "median_step_s": median}
stage = int(gib * 1.05 * (1 << 30))
text = f'block_bytes = {BLOCK}\nkeep_last = 1\nrecover = false\nstaging_bytes = 4294967296\n[local]\nfolders = ["{folder}"]\n'
session = fermata.Session(text=text)
session.protect(0, data)
session.checkpoint(1)
session.wait()
out["first"] = {"blocked_s": session.info.last_blocked, "complete_s": session.info.last_total,
                "written": session.info.last_written}
number = 2
for percent, count, staged in ((100, 3, False), (5, 1, False), (20, 2, False), (50, 1, False), (80, 1, False),
                               (100, 2, True), (20, 2, True)):
    if staged and not out["cases"][-1]["staged"]:
        session.close()
        session = fermata.Session(text=text + f"[stage]\ndevice_bytes = {stage}\n")
        session.protect(0, data)
    result = case(session, percent, count, number, staged)
    number += count
    result["overhead"] = 1 - result["steps"] / result["seconds"] * every / alone
    out["cases"].append(result)
    print(json.dumps(result), file=sys.stderr, flush=True)
session.done()
del session

start = time.monotonic()
host = data.cpu()
copied = time.monotonic()
with open(os.path.join(folder, "plain"), "wb") as file:
    file.write(memoryview(host.numpy()).cast("B"))
    file.flush()
    os.fsync(file.fileno())
out["copy_then_write"] = {"copy_s": copied - start, "write_s": time.monotonic() - copied}
shutil.rmtree(folder, ignore_errors=True)
json.dump(out, sys.stdout, indent=1)
print()
