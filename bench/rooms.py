#!/usr/bin/env python3
"""How long a checkpoint holds a program whose data does not fit its GPU's room, as one JSON object.

    rooms.py FOLDER GIB ROOM_GIB      needs GPUs, PyTorch and the build tree (FERMATA_BUILD)

GIB of one GPU's memory are checkpointed with every block changed: without room on devices, with ROOM_GIB on the own
GPU only, and with as much on the other GPUs too, where there are some. Each way is a process of its own, since GPUs
that a process does not use are no peers. The first checkpoint makes buffers and is not counted; host buffers are
large enough for all of it, so what is measured is the way out of the GPU.
"""
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys

tree = os.environ.get("FERMATA_BUILD") or str(pathlib.Path(__file__).resolve().parent.parent / "build")
BLOCK, ROUNDS = 1 << 20, 3


def one(folder, gib, room, peers):
    """Checkpoints in this process: how long each held it, and when it was complete."""
    sys.path.insert(0, os.path.join(tree, "python"))
    import fermata
    import torch

    blocks = int(gib * (1 << 30)) // BLOCK
    data = torch.randint(0, 1 << 62, (blocks, BLOCK // 8), dtype=torch.int64, device="cuda:0")
    kept = [torch.zeros(1, device=f"cuda:{n}") for n in range(1, torch.cuda.device_count() if peers else 1)]
    text = (f'block_bytes = {BLOCK}\nkeep_last = 1\nrecover = false\nverify_blocks = false\n'
            f'staging_bytes = {int(gib * 1.02 * (1 << 30))}\n[local]\nfolders = ["{folder}"]\n'
            f'[stage]\ndevice_bytes = {int(room * (1 << 30))}\n')
    rows = []
    with fermata.Session(text=text) as session:
        session.protect(0, data)
        for number in range(ROUNDS + 1):
            data[:, number] += 1
            torch.cuda.synchronize()
            session.checkpoint(number)
            session.wait()
            info = session.info
            rows.append({"blocked_s": info.last_blocked, "complete_s": info.last_total, "written": info.last_written})
        session.done()
    return {"peers": len(kept), "room_gib": room, "first": rows[0], "rest": rows[1:],
            "median_blocked_s": statistics.median(r["blocked_s"] for r in rows[1:])}


def main():
    folder, gib, room = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    if len(sys.argv) > 4:
        print(json.dumps(one(folder, gib, room, sys.argv[4] == "peers")))
        return
    out = {"gib": gib, "ways": []}
    for space, peers in ((0.0, "alone"), (room, "alone"), (room, "peers")):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        run = subprocess.run([sys.executable, __file__, folder, str(gib), str(space), peers],
                             stdout=subprocess.PIPE, check=False)
        lines = run.stdout.decode().splitlines()
        out["ways"].append(json.loads(lines[-1]) if run.returncode == 0 else {"failed": run.returncode})
    shutil.rmtree(folder, ignore_errors=True)
    json.dump(out, sys.stdout, indent=1)
    print()


main()
