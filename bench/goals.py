#!/usr/bin/env python3
"""Holds this machine's GPU against the project's goals: runs the benches one after another, keeps what each wrote,
and says in one table what was asked for, what was measured, and whether it holds.

    bench/goals.py FOLDER [PART ...] [--seconds N] [--judge] [--list]

Without names every part is run; `--list` shows them with the seconds that each may take, `--judge` runs none and only
reads what lies in FOLDER. A part that does not fit into what is left of `--seconds` is not begun. FOLDER/goals.json has
the verdicts: `held`, `missed`, or `not measured`, which is no success either. Exit status: 0 if every goal of the parts
that were asked for is held.

Needs a build tree (FERMATA_BUILD, default build/) with the bench programs in it.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import judges
from measure import CHECKABLE, HERE, TREE, facts, processor

MEMORY = pathlib.Path("/dev/shm")


def python(name, *words):
    return [sys.executable, str(HERE / name), *map(str, words)]


def e2e(report, *words):
    fixed = ["matrix", "--device", "gpu", "--json", str(report), "--seconds", "240"]
    return [str(TREE / "test" / "e2e"), *fixed, *map(str, words)]


def bench(folder, *words):
    return [str(TREE / "bin" / "fermata"), "bench", *map(str, words), "--device", "gpu", "--out", str(folder)]


# Name: (seconds at most, the command, what it measures, what its report is held against). `{}` is the part's folder.
PARTS = {
    "calls": (70, ["sh", str(HERE / "calls.sh"), "{}/calls.json"], "single calls, native and under Fermata", judges.calls),
    "tier": (200, python("tier.py", "{}/tier.json"), "stopped checkpoints and restores, 16 GiB, memory and disk", judges.tier),
    "disk": (
        150,
        python("tier.py", "{}/disk.json", "--steps", "disk", "--disk-gib", 40),
        "40 GiB to the disk and back",
        judges.disk,
    ),
    "cached": (
        180,
        python("tier.py", "{}/cached.json", "--steps", "cached", "--disk-gib", 40, "--restores", 2),
        "40 GiB back from a disk whose packs are in memory",
        judges.cached,
    ),
    "hashes": (40, [str(TREE / "bench" / "hashes"), "libcuda.so.1", "40"], "hash kernels, 40 GiB", judges.hashes),
    "stop": (
        290,
        e2e("{}/stop.json", "--moments", 6, "--modes", "stop", "--jobs", 12),
        "every program stopped, killed and restored, at 6 moments",
        judges.stop,
    ),
    "behind": (
        290,
        e2e("{}/behind.json", "--moments", 2, "--modes", "snapshot,cow,recopy", "--jobs", 12),
        "every program checkpointed while it runs, with each protocol, at 2 moments",
        judges.behind,
    ),
    "validators": (
        290,
        e2e("{}/validators.json", "--moments", 2, "--modes", "snapshot,cow,recopy", "--validate", "ptx,both")
        + ["--pools", "0,2147483648", "--programs", "hidden,graphs,symbols", "--jobs", "12"],
        "protocols with each pool and kernels that check themselves, at 2 moments",
        judges.validators,
    ),
    "protocols": (280, python("protocols.py", "{}/protocols.json"), "40 GiB behind a running program", judges.protocols),
    "order": (150, bench("{}", "restore", "--bytes", "40GiB", "--runs", 1), "restores of 40 GiB in every order", judges.order),
    "overhead": (150, bench("{}", "overhead", "--bytes", "40GiB", "--runs", 3), "a step outside of checkpoints", judges.overhead),
    "pool": (60, bench("{}", "pool", "--bytes", "4GiB", "--runs", 1), "the stall of `cow` by the size of its pool", judges.pool),
    "traces": (
        120,
        python("traces.py", "{}/traces.json", "--against", HERE / "results" / "2026-11-22-soft-traces.json"),
        "what the kernels of every program touch, graphs among them",
        judges.traces,
    ),
    "early": (150, python("early_access.py", "{}/early.json"), "restores of a kernel that is early, with checks", judges.early),
    "ranks": (
        120,
        ["sh", str(HERE.parent / "programs/app/check.sh"), str(TREE / "programs/app"), "{}/work"],
        "the library's programs, killed and started again; eight ranks on one GPU",
        judges.ranks,
    ),
    "hosthash": (90, python("hosthash.py", "{}/hosthash.json"), "host variables hashed by CPU and GPU", judges.hosthash),
    "machine": (60, python("machine.py", "{}/machine.json"), "what a plan expects of this machine's links", judges.machine),
    "validator": (60, bench("{}", "validator", "--bytes", "4GiB", "--runs", 1), "a step while it is checkpointed", judges.validator),
    "large": (
        260,
        python("blink.py", "{}/large.json", "--gib", 10, "--rounds", 1, "--again", 1, "--steps", 13000),
        "10 GiB that train, 1.4 GiB of host memory: checkpoints, steps meanwhile, restores",
        judges.large,
    ),
    "largest": (
        420,
        python("blink.py", "{}/largest.json", "--gib", 60, "--host-gib", 10, "--rounds", 1, "--again", 1, "--steps", 9000),
        "the same with 60 and 10 GiB, for which a host needs 162 GiB",
        judges.largest,
    ),
    "cold": (
        300,
        python("blink.py", "{}/cold.json", "--gib", 10, "--modes", "snapshot", "--rounds", 1, "--again", 1, "--steps", 11000)
        + ["--images", "{}/images"],
        "the program of 10 GiB restored from a disk, the page cache empty",
        judges.cold,
    ),
    "paused": (240, python("pause.py", "{}/paused.json", "--gib", 60), "pause and resume of 60 GiB", judges.paused),
    "instances": (
        300,
        python("share.py", "{}/instances.json", "--billions", 13, "--instances", 8, "--warm"),
        "instances of a model of 13 billion parameters at the same time",
        judges.instances,
    ),
    "functions": (
        260,
        python("served.py", "{}/functions.json"),
        "200 requests to a function with a model of 0.9 billion parameters",
        judges.functions,
    ),
    "start": (
        420,
        bench("{}", "start", "--sizes", 13, "--at-once", 2, "--runs", 1),
        "first results of 13 billion parameters, also by the driver's own checkpoint and CRIU",
        judges.start,
    ),
}

# Those in which kernels check themselves.
CHECKED = {"validators", "validator"}


def run(part, folder, limit):
    """Runs a part in a folder of its own; what it said, and when it ended, stay there."""
    place = folder / part
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    images, sockets = MEMORY / f"fermata-goals-{os.getpid()}", pathlib.Path(f"/tmp/fermata-goals-{os.getpid()}")
    words = [word.replace("{}", str(place)) for word in PARTS[part][1]]
    begun = time.time()
    settings = dict(os.environ, FERMATA_RUNTIME_DIR=str(sockets), FERMATA_IMAGE_DIR=str(images))
    settings |= CHECKABLE if part in CHECKED else {}
    for made in (images, sockets):
        made.mkdir(parents=True, exist_ok=True)
    with open(place / "stdout", "w") as out, open(place / "stderr", "w") as err:
        try:
            status = subprocess.run(words, stdout=out, stderr=err, timeout=limit, env=settings).returncode
        except subprocess.TimeoutExpired:
            status = f"not done after {limit} s"
        except OSError as error:
            status = str(error)
    for made in (images, sockets):
        shutil.rmtree(made, ignore_errors=True)
    return {"status": status, "seconds": round(time.time() - begun, 1)}


def verdicts(folder, part):
    """A part's goals, and what it left nothing to judge of, with why."""
    rows = []

    def not_measured(goal, why):
        rows.append({"part": part, "goal": goal, "verdict": "not measured", "why": why})

    try:
        for what, measured, sense, goal, unit in PARTS[part][3](folder):
            if measured is None:
                not_measured(what, unit)
                continue
            held = measured <= goal if sense == "<=" else measured >= goal
            row = {"part": part, "goal": what, "sense": sense, "asked": goal, "measured": round(measured, 4)}
            rows.append(row | {"unit": unit, "verdict": "held" if held else "missed"})
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        not_measured(PARTS[part][2], f"{type(error).__name__}: {error}")
    if not rows:
        not_measured(PARTS[part][2], "its report has no such case")
    return rows


def table(rows):
    """Prints verdicts, one a line."""
    for row in rows:
        if row["verdict"] == "not measured":
            print(f"{row['part']:<11}{row['goal']:<55} not measured ({row['why']})")
        else:
            asked = f"{row['sense']} {row['asked']}"
            measured = f"{row['measured']:.4g} {row['unit']}"
            print(f"{row['part']:<11}{row['goal']:<55}{measured:>16} {asked:>9}  {row['verdict']}")
    sys.stdout.flush()


def topology():
    """How threads lie on cores and sockets: what single calls cost depends on it."""
    told = subprocess.run(["lscpu", "--extended=CPU,CORE,SOCKET,NODE"], capture_output=True, text=True).stdout
    return told.splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, nargs="?")
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for all parts together")
    parser.add_argument("--judge", action="store_true", help="run nothing; judge what is there")
    parser.add_argument("--list", action="store_true", help="show the parts")
    args = parser.parse_args()
    if args.list:
        for name, (seconds, _, what, _) in PARTS.items():
            print(f"{name:<12}{seconds:>4} s  {what}")
        return 0
    unknown = [name for name in args.parts if name not in PARTS]
    if args.folder is None or unknown:
        parser.error(f"no part `{unknown[0]}`; `--list` shows them" if unknown else "name a folder for the results")
    chosen = args.parts or list(PARTS)
    folder, until = args.folder.resolve(), time.time() + args.seconds
    folder.mkdir(parents=True, exist_ok=True)
    report = {**facts(), "processor": processor(), "topology": topology(), "runs": {}, "goals": []}
    for part in chosen:
        if not args.judge:
            limit = PARTS[part][0]
            if time.time() + limit > until:
                report["runs"][part] = {"status": "not begun: too little time left"}
            else:
                report["runs"][part] = run(part, folder, limit)
            print(part, json.dumps(report["runs"][part]), file=sys.stderr, flush=True)
        rows = verdicts(folder, part)
        report["goals"] += rows
        # After each part: if this is ended, what was measured until then is there.
        (folder / "goals.json").write_text(json.dumps(report, indent=1) + "\n")
        table(rows)
    return int(any(row["verdict"] != "held" for row in report["goals"]))


if __name__ == "__main__":
    sys.exit(main())
