#!/usr/bin/env python3
"""Kernels on the software GPU against the same loops in C, on one core, and one JSON document of it.

    bench/loops.py REPORT.json [RUNS]

Each run compares both sides by processor time and is pinned to one core; ratios are medians over the runs
(default 7). `most` is the highest ratio of the kernels that have a goal (at most 20 times C); the short reduction
has none, it shows what shuffles cost. Needs a build tree (FERMATA_BUILD, default build/) with `make -C bench` done.
Exit status 1: a goal is missed."""

import json
import os
import pathlib
import statistics
import sys

from measure import HERE, TREE, call, facts, processor

GOAL = 20
NO_GOAL = {"short_reduction"}


def revision():
    return call("git", "-C", HERE, "rev-parse", "--short", "HEAD").strip()


def main():
    report, runs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7
    core = min(os.sched_getaffinity(0))
    environment = dict(os.environ, LD_LIBRARY_PATH=str(TREE / "lib/softgpu"))
    found = [
        json.loads(call("taskset", "-c", core, TREE / "bench/loops", env=environment)) for _ in range(runs)
    ]
    ratios = {name: statistics.median(run[name]["ratio"] for run in found) for name in found[0]}
    most = max(ratio for name, ratio in ratios.items() if name not in NO_GOAL)
    about = facts()
    about["gpu"] = "none: the software GPU"
    about["revision"] = about["revision"] or revision()
    document = {
        **about,
        "processor": processor(),
        "load": os.getloadavg()[0],
        "ratio": ratios,
        "most": most,
        "goal": GOAL,
        "runs": found,
    }
    pathlib.Path(report).write_text(json.dumps(document, indent=1) + "\n")
    print(f"{report}: at most {most} times C; {ratios}")
    return int(most > GOAL)


if __name__ == "__main__":
    sys.exit(main())
