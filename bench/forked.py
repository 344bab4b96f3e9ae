#!/usr/bin/env python3
"""What a checkpoint and a restore of forked processes take, and how much memory these have before and after.

    bench/forked.py REPORT.json [--mib 256] [--children 8] [--own 4] [--restores 3] [--mode cow] [--device soft]

A process fills `--mib` MiB and forks `--children` others, each of which writes `--own` MiB of that. They are checkpointed, killed, and restored:
with a cold daemon, then `--restores` times with a warm image, and once with `--eager`. `pss` is the memory that all of them take, what they have in common
once: before the checkpoint, and when the restored processes have all of theirs. Needs root and a build tree (FERMATA_BUILD, default build/).
"""

import argparse
import json
import mmap
import os
import pathlib
import shutil
import sys
import tempfile
import time

from measure import Daemon, document, facts, wait_for

MIB = 1 << 20


def program(mib, children, own):
    """What is measured."""
    area = mmap.mmap(-1, mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, mib * MIB, MIB):
        area[at : at + MIB] = os.urandom(MIB)
    for child in range(children):
        if os.fork() == 0:
            at = child * own * MIB % (mib * MIB)
            area[at : at + own * MIB] = os.urandom(own * MIB)
            break
    print("ready", flush=True)
    while True:
        time.sleep(0.01)


def pss(daemon, name):
    return daemon.memory(name)["program"]["pss"]


def restored(daemon, image, name, *flags):
    """One restore; ends when all memory is there."""
    there = len(daemon.page_faults())
    begun = time.time()
    told = document(daemon.fermata("restore", image, "--detach", "--name", name, "--json", *flags))
    took = time.time() - begun
    if "--eager" not in flags:
        wait_for(lambda: len(daemon.page_faults()) > there, "the program's memory")
    found = {
        "command_s": took, "memory_there_s": time.time() - begun, "pss": pss(daemon, name),
        "phases": {it["name"]: round(it["seconds"], 4) for it in told["phases"]},
    }
    daemon.told("kill", name)
    return found


def measured(daemon, args):
    words = [sys.executable, __file__, "--program", args.mib, args.children, args.own]
    daemon.fermata("run", "--device", args.device, "--detach", "--name", "forked", "--", *words)
    ready = lambda: daemon.told("logs", "forked").count("ready") == args.children + 1
    wait_for(ready, "the processes")
    found = {"pss": pss(daemon, "forked")}
    told = document(daemon.fermata("checkpoint", "forked", "-o", "image", "--mode", args.mode, "--json", limit=600))
    daemon.told("kill", "forked")
    found |= {"checkpoint_s": told["seconds"], "stopped_s": told["stopped_seconds"], "host_bytes": told["host_bytes"]}
    found["cold"] = restored(daemon, "image", "cold")
    daemon.fermata("images", "warm", "image")
    found["warm"] = [restored(daemon, "image", f"warm-{it}") for it in range(args.restores)]
    found["eager"] = restored(daemon, "image", "eager", "--eager")
    return found


def main():
    if sys.argv[1:2] == ["--program"]:
        program(*map(int, sys.argv[2:]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--children", type=int, default=8)
    parser.add_argument("--own", type=int, default=4)
    parser.add_argument("--restores", type=int, default=3)
    parser.add_argument("--mode", default="cow")
    parser.add_argument("--device", default="soft")
    args = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="forked-"))
    daemon = Daemon(work, work / "images")
    try:
        report = {**facts(), "arguments": {key: str(value) for key, value in vars(args).items()}, **measured(daemon, args)}
        args.report.write_text(json.dumps(report, indent=1) + "\n")
    finally:
        daemon.end()
        shutil.rmtree(work, ignore_errors=True)
    ends = report["warm"][-1]
    print(
        f"checkpoint {report['checkpoint_s']:.2f} s, stood still {report['stopped_s'] * 1e3:.0f} ms; restore {report['cold']['command_s']:.2f} s, warm "
        f"{ends['command_s']:.2f} s, eager {report['eager']['command_s']:.2f} s; {report['pss'] / MIB:.0f} MiB before, {ends['pss'] / MIB:.0f} MiB after"
    )


if __name__ == "__main__":
    main()
