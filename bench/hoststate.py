#!/usr/bin/env python3
"""Checkpoints of programs that rewrite host memory, copied while they run and, in turn, dumped by CRIU alone.

    bench/hoststate.py REPORT.json [--mib 400,1400,10240] [--rate 200] [--runs 3] [--huge]

For each size, `ahead` and `stopped` are medians of the runs: how long the program stood still as Fermata says and as the
program has felt it (its longest pause), the whole checkpoint, the share of its time that the writes took before and
during the checkpoint, and the seconds of each phase. `ratios` are `stopped` to `ahead`. The second way is the same
tree without `lib/pagefilter.so`. The last image of each way is restored, and must run on.
Needs root, a build tree (FERMATA_BUILD, default build/), a C compiler, and space for three images.
"""

import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
TREE = pathlib.Path(os.environ.get("FERMATA_BUILD", HERE.parent / "build"))


def without_filter(work):
    """The tree again, of links, without the library for CRIU; programs are copied, for they find the rest beside them."""
    tree = work / "plain"
    shutil.copytree(TREE / "bin", tree / "bin")
    (tree / "lib").mkdir()
    for entry in (TREE / "lib").iterdir():
        if entry.name != "pagefilter.so":
            (tree / "lib" / entry.name).symlink_to(entry.resolve())
    return tree


class Way:
    """A daemon of a tree, with folders of its own."""

    def __init__(self, tree, work):
        self.tree, self.images = tree, work / "images"
        self.environment = dict(os.environ, FERMATA_RUNTIME_DIR=str(work / "run"), FERMATA_IMAGE_DIR=str(self.images))
        (work / "run").mkdir(parents=True, mode=0o700)

    def fermata(self, *words):
        command = [str(self.tree / "bin/fermata"), "--quiet", *map(str, words)]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout

    def lines(self, name):
        text = self.fermata("logs", name)
        return [tuple(map(float, line.split())) for line in text.splitlines()[1:] if line.count(" ") == 2]

    def close(self):
        def told(*words):
            command = [str(self.tree / "bin/fermata"), *words]
            return subprocess.run(command, env=self.environment, capture_output=True, text=True).stdout

        for session in json.loads(told("ps", "--json") or "{}").get("sessions", []):
            told("kill", session["name"])
        found = re.search(r"release \S+, process (\d+)", told("doctor"))
        if found:
            os.kill(int(found.group(1)), signal.SIGTERM)


def median(values):
    return statistics.median(values) if values else None


def one(way, program, number, options):
    """One program, checkpointed once; what it has felt."""
    name = f"rewrite-{number}"
    way.fermata("run", "--detach", "--name", name, "--", *program)
    until = time.monotonic() + 600
    while len(way.lines(name)) < 20:
        assert time.monotonic() < until, "the program does not begin"
        time.sleep(0.1)
    before = way.lines(name)
    told = json.loads(way.fermata("checkpoint", name, "--json"))
    time.sleep(0.5)
    during = [it for it in way.lines(name)[len(before) :] if it[0] < before[-1][0] + told["seconds"] + 0.3]
    way.fermata("kill", name)
    if number == options.runs - 1:
        again = f"again-{number}"
        way.fermata("restore", told["image"], "--detach", "--name", again)
        came = len(way.lines(again))
        while len(way.lines(again)) < came + 5:
            assert time.monotonic() < until, "the restored program stands still"
            time.sleep(0.1)
        way.fermata("kill", again)
    way.fermata("images", "rm", told["image"])
    phases = {}
    for it in told["phases"]:
        phases[it["name"]] = phases.get(it["name"], 0) + it["seconds"]
    return {
        "stood_still": told["stopped_seconds"],
        "longest_pause": max(it[1] for it in during) / 1e3,
        "seconds": told["seconds"],
        "host_bytes": told["host_bytes"],
        "busy_before": median([it[2] for it in before[2:]]),
        "busy_during": median([it[2] for it in during]),
        "phases": phases,
    }


def middle(runs):
    numbers = [key for key in runs[0] if key != "phases"]
    result = {key: median([run[key] for run in runs if run[key] is not None]) for key in numbers}
    names = {name for run in runs for name in run["phases"]}
    result["phases"] = {name: median([run["phases"].get(name, 0) for run in runs]) for name in sorted(names)}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report")
    parser.add_argument("--mib", default="400,1400,10240")
    parser.add_argument("--rate", default="200")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--huge", action="store_true")
    options = parser.parse_args()
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True).stdout
    report = {
        "host": {"kernel": platform.release(), "cores": os.cpu_count()},
        "revision": revision.strip(),
        "rate_mb_s": float(options.rate),
        "huge_pages": options.huge,
        "runs": options.runs,
        "sizes": [],
    }
    with tempfile.TemporaryDirectory(prefix="hoststate-") as folder:
        work = pathlib.Path(folder)
        program = work / "rewrite"
        subprocess.run(["cc", "-O2", "-o", program, HERE / "programs/rewrite.c"], check=True)
        ways = {"ahead": Way(TREE, work / "a"), "stopped": Way(without_filter(work), work / "b")}
        try:
            for mib in map(int, options.mib.split(",")):
                command = [program, mib, options.rate] + (["huge"] if options.huge else [])
                runs = {name: [] for name in ways}
                for number in range(options.runs):
                    for name, way in ways.items():
                        runs[name].append(one(way, command, number, options))
                size = {"mib": mib, **{name: middle(it) for name, it in runs.items()}}
                keys = ("stood_still", "longest_pause", "seconds")
                size["ratios"] = {key: size["stopped"][key] / size["ahead"][key] for key in keys}
                report["sizes"].append(size)
                ahead, stopped = size["ahead"], size["stopped"]
                print(
                    f"{mib} MiB: stood still {ahead['stood_still'] * 1e3:.0f} ms of {ahead['seconds']:.1f} s ahead, "
                    f"{stopped['stood_still'] * 1e3:.0f} ms of {stopped['seconds']:.1f} s stopped; ratios "
                    + ", ".join(f"{key} {value:.1f}" for key, value in size["ratios"].items())
                )
                pathlib.Path(options.report).write_text(json.dumps(report, indent=1) + "\n")
        finally:
            for way in ways.values():
                way.close()


if __name__ == "__main__":
    main()
