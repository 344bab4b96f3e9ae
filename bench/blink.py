#!/usr/bin/env python3
"""How long a large program that trains stands still for a checkpoint, what its steps take meanwhile, and how soon it does its next step
after a restore.

    bench/blink.py REPORT.json [--gib 10] [--host-gib 1.4] [--modes snapshot,cow] [--rounds 2] [--again N] [--steps N]
                   [--rate MB] [--read] [--feed MIB] [--images FOLDER]

`bench/frameworks/experts.py` trains with so much memory on the device and on the host, natively and then under Fermata, where it is
checkpointed with each mode so many times, killed each time and restored by a worker that has loaded the image (`fermata images warm`), then `--again` so many times.
Steps during a checkpoint are compared with those of 4 s before it and of 4 s once the memory tier is ready again after it, because what a
step takes drifts by some percent. With `--read` each step reads its loss, with `--feed` it copies so much to the device.
Images lie in registered memory. With `--images` they lie in that folder, on a disk: nothing is warmed then, and the page cache is
emptied before each restore, which needs root. At the end the program's digest is held against the native one. Needs host memory for
two images, and a build tree (FERMATA_BUILD, default build/).
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

from measure import HERE, Daemon, Succession, available_memory, document, empty_page_cache, facts, wait_for

GIB = 1 << 30
# Steps before the first checkpoint, and seconds before and after a checkpoint: with the steps of both, those meanwhile are compared.
FIRST, BESIDE = 100, 4
# The phases of a checkpoint in which a program does several steps.
LONG_PHASES = ("host ahead", "prepare", "host ready", "capture", "pages")
# Steps after a restore whose times are kept.
STEPS_BACK = 20
LIMIT = 240


def steps(text, since=0):
    """When each step has ended that has ended since then, in seconds since 1970."""
    times = map(float, re.findall(r"^step \d+ ([\d.]+)$", text, re.MULTILINE))
    return [it for it in times if it > since]


def lengths(times, begin, end):
    """How long the steps took that ended in this time."""
    pairs = zip(times, times[1:])
    return [later - earlier for earlier, later in pairs if begin <= later <= end]


def ratios(some, usual):
    """How many steps these are, the longest, and their median and mean, of those of usual steps."""
    if not some:
        return {"steps": 0}
    kinds = {"median": statistics.median, "mean": statistics.fmean}
    return {"steps": len(some), "longest_s": max(some), **{name: kind(some) / kind(usual) for name, kind in kinds.items()}}


class Run(Succession):
    def __init__(self, daemon, given, program):
        super().__init__(daemon, "experts", program)
        # When the program began that runs now, and when all its data was there.
        self.given, self.since, self.there = given, 0, 0

    def ended(self):
        return "digest" in self.log()

    def ready(self):
        """Waits until the tier is ready for an image."""
        if not self.given.images:
            wait_for(lambda: self.daemon.tier()[0] >= self.given.gib * GIB, "the memory tier", LIMIT)

    def round(self, mode):
        """A checkpoint, a kill and a restore; `None` if the program has come to its end."""
        self.ready()
        # While data comes, steps are not as usual.
        time.sleep(max(0, self.there + BESIDE - time.time()))
        begun = time.time()
        try:
            told = document(self.daemon.fermata("checkpoint", self.name(), "-o", "image", "--mode", mode, "--json", limit=LIMIT))
        except RuntimeError:
            if self.ended():
                return None
            raise
        done = time.time()
        self.ready()
        again = time.time()
        time.sleep(BESIDE)
        if self.ended():
            return None
        times = steps(self.log(), self.since)
        before, meanwhile, after = (
            lengths(times, *it) for it in [(begun - BESIDE, begun), (begun, done), (again, again + BESIDE)]
        )
        usual = before + after
        by_phase = {
            it["name"]: ratios(lengths(times, begun + it["start"], begun + it["start"] + it["seconds"]), usual)
            for it in told["phases"] if it["name"] in LONG_PHASES
        }
        backs = [self.back(usual) for _ in range(1 + self.given.again)]
        self.daemon.remove("image", LIMIT)
        return {
            "mode": mode, "stopped_s": told["stopped_seconds"], "command_s": done - begun, "host_bytes": told["host_bytes"],
            "device_bytes": told["device"]["device_bytes"], "step_s": statistics.median(usual),
            "steps_meanwhile": len(meanwhile), "step_ratio": statistics.median(meanwhile) / statistics.median(usual),
            "mean_step_ratio": statistics.fmean(meanwhile) / statistics.fmean(usual), "phase_step_ratios": by_phase,
            "ratio_of_steps_after_to_before": statistics.median(after) / statistics.median(before),
            "longest_s": max(meanwhile), "longest_usual_s": max(usual), **backs[0], "again": backs[1:],
            "phases": {it["name"]: round(it["seconds"], 4) for it in told["phases"]},
        }

    def back(self, usual):
        """Kills the program and restores it from `image`; `usual` is how long its steps took before."""
        self.daemon.fermata("kill", self.name())
        if self.given.images:
            empty_page_cache()
        else:
            self.daemon.fermata("images", "warm", "image", limit=LIMIT)
        self.count += 1
        asked = self.since = time.time()
        back = document(self.daemon.fermata("restore", "image", "--detach", "--name", self.name(), "--json", limit=LIMIT))
        command = time.time() - asked
        wait_for(lambda: steps(self.log(), asked), "a step after the restore", LIMIT)
        first = steps(self.log(), asked)[0] - asked
        arrival = self.daemon.arrived(self.name(), LIMIT)
        wait_for(lambda: len(self.daemon.page_faults()) >= self.count, "host memory", LIMIT)
        self.there = time.time()
        times = steps(self.log(), asked)
        then = [round(it - asked, 4) for it in times[:STEPS_BACK]]
        coming = ratios(lengths(times, asked + first, asked + arrival["seconds"]), usual)
        return {
            "asked": asked, "restore_command_s": command, "first_step_s": first, "steps_back": then,
            "steps_while_data_comes": coming, "data_s": arrival["seconds"],
            "data_steps": {it["name"]: [round(it["seconds"], 4), it["bytes"]] for it in arrival["steps"]},
            "host_memory": self.daemon.page_faults()[-1],
            "restore_phases": {it["name"]: round(it["seconds"], 4) for it in back["phases"]},
        }


def main():
    known = argparse.ArgumentParser()
    known.add_argument("report", type=pathlib.Path)
    known.add_argument("--gib", type=int, default=10)
    known.add_argument("--host-gib", type=float, default=1.4)
    known.add_argument("--modes", default="snapshot,cow")
    known.add_argument("--rounds", type=int, default=2)
    known.add_argument("--again", type=int, default=0)
    known.add_argument("--steps", type=int, default=6000)
    known.add_argument("--rate", type=float, default=200)
    known.add_argument("--read", action="store_true")
    known.add_argument("--feed", type=int, default=0)
    known.add_argument("--images", type=pathlib.Path)
    known.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/dev/shm/fermata-blink"))
    given = known.parse_args()
    work = given.work / str(os.getpid())
    program = [sys.executable, str(HERE / "frameworks" / "experts.py")]
    for option in ("gib", "host_gib", "steps", "rate"):
        program += [f"--{option.replace('_', '-')}", str(getattr(given, option))]
    program += ["--read"] * given.read + ["--feed", str(given.feed)]
    # The image in memory and the tier that is made ready beside it, the program, the copy of its memory and its place in the image.
    needed = (2 * given.gib + 12 + 3 * given.host_gib) if not given.images else 3 * given.host_gib
    if (free := available_memory()) < needed * GIB:
        sys.exit(f"this takes up to {needed:.0f} GiB of host memory, and {free / GIB:.0f} are available: give --gib or --host-gib less")
    native = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    # PyTorch keeps more than the experts have.
    ready = given.gib + 4
    tier = {} if given.images else {"FERMATA_MEMORY_TIER": f"{ready}G", "FERMATA_MEMORY_TIER_LIMIT": f"{2 * ready + 4}G"}
    daemon = Daemon(work, given.images / str(os.getpid()) if given.images else work / "images", **tier)
    keys = ("gib", "host_gib", "steps", "rate", "read", "feed")
    report = {**facts(), **{it: getattr(given, it) for it in keys}, "cold": bool(given.images), "rounds": []}
    run = Run(daemon, given, program)
    try:
        wait_for(lambda: len(steps(run.log())) >= FIRST, "the first steps", LIMIT)
        for mode in given.modes.split(",") * given.rounds:
            one = run.round(mode)
            if one is None:
                print("the program has come to its end before all rounds: give --steps more", file=sys.stderr, flush=True)
                break
            report["rounds"].append(one)
            print(f"{mode}: stopped {one['stopped_s'] * 1e3:.0f} ms, steps {one['step_ratio']:.3f} of "
                  f"{one['step_s'] * 1e3:.1f} ms, first step after a restore "
                  f"{', '.join(format(it['first_step_s'], '.3f') for it in [one, *one['again']])} s", flush=True)
            given.report.write_text(json.dumps(report, indent=1))
        wait_for(run.ended, "the program's end", LIMIT)
        ends = [re.search(r"^host bad \d+\ndigest \S+", it, re.MULTILINE).group() for it in (run.log(), native)]
        report |= {"end": ends[0], "equal": ends[0] == ends[1]}
        report["native_step_s"] = float(re.search(r"^median (\S+)", native, re.MULTILINE).group(1))
        print("equal" if report["equal"] else f"NOT equal: {ends}")
    finally:
        daemon.end(run.name())
        shutil.rmtree(work, ignore_errors=True)
    given.report.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
