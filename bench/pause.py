"""How long a session takes to give its GPU memory back and to go on, and whether its data is what it was.

    bench/pause.py REPORT.json [--gib N] [--rounds N] [--apart SECONDS] [--plain | --checkpoint [--rewrite N]]

`hold` fills N GiB of a GPU with known bytes. It is paused into registered host memory (`--plain`: into /dev/shm, which is
not registered), the device's free memory is held against that before the program came, and it is resumed `--apart` seconds later: the
driver copies at half the rate for a quarter of a second after so much memory was given back (`bench/link.py --freed`), and
the worker that gave it back takes seconds to end. At the end the program checks every byte. The link's own time, one copy of as many
bytes between registered host memory and the device, is what `bench/link.py` measures. Needs host memory for twice the data.
`--checkpoint`: an image of it is in registered memory before the first pause, and the program rewrites N GiB before each.
"""

import argparse
import json
import os
import pathlib
import time

from measure import TREE, Daemon, call, document, facts, wait_for


def free_mib():
    """Free memory of the first GPU, in MiB."""
    told = call("nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits")
    return int(told.splitlines()[0])


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("report", type=pathlib.Path)
    arguments.add_argument("--gib", type=int, default=16)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--plain", action="store_true")
    arguments.add_argument("--checkpoint", action="store_true")
    arguments.add_argument("--rewrite", type=int, default=0)
    arguments.add_argument("--apart", type=float, default=5)
    arguments.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/dev/shm/fermata-pause"))
    arguments = arguments.parse_args()
    work, gib = arguments.work / str(os.getpid()), arguments.gib
    # What a pause copies must be ready, and what a resume copies registered, an image included.
    copied = arguments.rewrite if arguments.checkpoint else gib
    held = copied + gib if arguments.checkpoint else gib
    tier = {} if arguments.plain else {"FERMATA_MEMORY_TIER": f"{copied + 1}G", "FERMATA_MEMORY_TIER_LIMIT": f"{held + 8}G"}
    daemon = Daemon(work, work / "images", **tier)
    go, again = work / "go", work / "again"
    before = free_mib()
    daemon.fermata("run", "--device", "gpu", "--detach", "--name", "hold", "--", str(TREE / "bench" / "hold"),
                   "--gib", str(gib), "--buffers", str(gib), "--until", str(go), "--again", str(again),
                   "--rewrite", str(arguments.rewrite))
    wait_for(lambda: "ready" in daemon.told("logs", "hold"), "the program's `ready`")
    report = {**facts(), "gib": gib, "registered": not arguments.plain, "apart_s": arguments.apart, "free_before_mib": before, "rounds": []}

    looks = []

    def is_ready():
        # It is made ready in the background, and again after data has left it. What was registered for that is given up then.
        looks.append(daemon.tier())
        ready, registered = looks[-1]
        steady = len(looks) >= 20 and len(set(looks[-20:])) == 1
        return arguments.plain or (ready >= copied << 30 and registered >= held << 30 and steady)

    if arguments.checkpoint:
        report["checkpoint"] = document(daemon.fermata("checkpoint", "hold", "--json"))
        report["rewrite_gib"] = arguments.rewrite
    for _ in range(arguments.rounds):
        looks.clear()
        wait_for(is_ready, "the memory tier")
        if arguments.rewrite:
            again.touch()
            wait_for(lambda: not again.exists(), "other data")
        running = free_mib()
        begun = time.time()
        paused = document(daemon.fermata("pause", "hold", "--json"))
        pause_s = time.time() - begun
        free = free_mib()
        time.sleep(arguments.apart)
        begun = time.time()
        resumed = document(daemon.fermata("resume", "hold", "--eager", "--json"))
        resume_s = time.time() - begun
        report["rounds"].append({
            "pause_s": pause_s, "resume_s": resume_s, "free_running_mib": running, "free_paused_mib": free,
            "paused": paused, "resumed": resumed,
        })
        print(f"paused in {pause_s:.2f} s ({running} to {free} MiB free), resumed in {resume_s:.2f} s", flush=True)
        # What is left of the pause is removed behind the program.
        time.sleep(2)
    go.touch()
    wait_for(lambda: "digest" in daemon.told("logs", "hold"), "the program's digest")
    last = daemon.told("logs", "hold").strip().splitlines()[-1]
    report["program"], report["whole"] = last, last.endswith("bad 0")
    print(last)
    daemon.end()
    arguments.report.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
