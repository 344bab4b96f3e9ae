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
import csv
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

from measure import CHECKABLE, HERE, TREE, facts, processor

GB = 1e9
MEMORY = pathlib.Path("/dev/shm")


def python(name, *words):
    return [sys.executable, str(HERE / name), *map(str, words)]


def e2e(report, *words):
    fixed = ["matrix", "--device", "gpu", "--json", str(report), "--seconds", "240"]
    return [str(TREE / "test" / "e2e"), *fixed, *map(str, words)]


def bench(folder, *words):
    return [str(TREE / "bin" / "fermata"), "bench", *map(str, words), "--device", "gpu", "--out", str(folder)]


def load(folder, part, name):
    return json.loads((folder / part / name).read_text())


def rows_of(folder, part, name):
    with open(folder / part / name, newline="") as file:
        return list(csv.DictReader(file))


def calls(folder):
    told = load(folder, "calls", "calls.json")
    ratio = told["ratio"]
    yield "a launch, cost to the caller", told["fermata"]["launch_us"], "<=", 0.1, "us"
    yield "launch and cudaDeviceSynchronize, of native", ratio["launch_sync_us"], "<=", 1.15, "times"
    yield "launch and cudaStreamSynchronize, of native", ratio["launch_stream_sync_us"], "<=", 1.15, "times"
    yield "4 bytes to the host, of native", ratio["copy4_us"], "<=", 1.15, "times"
    yield "1 GiB from pinned memory, of native", ratio["h2d_gbs"], ">=", 0.97, "times"
    yield "1 GiB to pinned memory, of native", ratio["d2h_gbs"], ">=", 0.97, "times"


class Missing:
    """Steps of a report that are null in it, as rows that are neither held nor missed."""

    def __init__(self, told):
        self.told, self.rows = told, []

    def unless(self, name):
        if not self.told.get(name):
            why = self.told.get(f"{name}_failed", "its report has no such step")
            self.rows.append((f"`{name}`", None, "", None, why))
        return self.told.get(name)


def several(runs):
    """The restores of one kind, of which older reports have one only."""
    return runs if isinstance(runs, list) else [runs]


def usual(runs):
    """Seconds that they took."""
    return statistics.median_high(it["command_seconds"] for it in several(runs))


def tier(folder):
    told = load(folder, "tier", "tier.json")
    size = told["gib"] * (1 << 30) / GB
    rates, missing = told["rates"], Missing(told)
    if memory := missing.unless("memory"):
        yield "stopped checkpoint into memory, its device part", rates["checkpoint_device_GBps"], ">=", 50, "GB/s"
        yield "stopped checkpoint into memory, the whole stop", rates["checkpoint_stopped_GBps"], ">=", 50, "GB/s"
        yield "restore from memory, all data first, whole command", size / usual(memory["eager"]), ">=", 50, "GB/s"
    if memory and (peer := missing.unless("driver_checkpoint")):
        ratio = peer["checkpoint_s"] / memory["first"]["stopped_seconds"]
        yield "the driver's own stop, of ours", ratio, ">=", 20, "times"
    yield from on_disk(missing)
    yield from in_cache(missing)
    yield from missing.rows


def on_disk(missing):
    if disk := missing.unless("disk"):
        part = disk["gib"] / 4
        wrote, read = disk["disk_write_4gib_s"] * part, disk["disk_read_4gib_s"] * part
        stopped = disk["first"]["stopped_seconds"]
        yield "stopped checkpoint to the disk, of what it writes", wrote / stopped, ">=", 0.9, "times"
        yield "restore from the disk, of what it reads", read / usual(disk["eager"]), ">=", 0.9, "times"
        yield "host memory for an image on the disk", disk["extra_host_bytes"] / (1 << 30), "<=", 1, "GiB"


def in_cache(missing):
    if cached := missing.unless("cached"):
        size = cached["gib"] * (1 << 30) / GB
        behind = several(cached["behind"])
        seconds = statistics.median_high(it["arrival"]["seconds"] for it in behind)
        yield "restore from a disk whose packs are in memory, the command", usual(behind) * 1e3, "<=", 100, "ms"
        yield "its data behind the program", size / seconds, ">=", 50, "GB/s"
        told = [*(it["phases"] for it in several(cached["eager"])), *(it["arrival"]["steps"] for it in behind)]
        kept = min(sum(it["bytes"] for it in steps if it["name"].endswith("cache")) for steps in told)
        yield "of its data, taken from memory", kept / GB / size, ">=", 0.99, "of all"


def disk(folder):
    missing = Missing(load(folder, "disk", "disk.json"))
    yield from on_disk(missing)
    yield from missing.rows


def cached(folder):
    missing = Missing(load(folder, "cached", "cached.json"))
    yield from in_cache(missing)
    yield from missing.rows


def hashes(folder):
    told = json.loads((folder / "hashes" / "stdout").read_text())
    yield "BLAKE3 on the GPU", told["blake3_gbs"], ">=", 1600, "GB/s"
    yield "change check of 40 GiB", told["change_s"] * 1e3, "<=", 12, "ms"


def matrix(part):
    def judge(folder):
        told = load(folder, part, f"{part}.json")
        cases = len(told["cases"]) + told.get("left_out", 0)
        yield "cases that broke a promise", told["failed"], "<=", 0, f"of {cases}"
        # A program that had ended before its moment has shown nothing, nor has a case for which no time was left.
        yield "cases that were shown", told["passed"] / cases if cases else 0, ">=", 0.95, f"of {cases}"

    return judge


def validators(folder):
    yield from matrix("validators")(folder)
    asked = ("graphs", "cow", "ptx", "passed")
    cases = load(folder, "validators", "validators.json")["cases"]
    graphs = [it for it in cases if (it["program"], it["mode"], it["validate"], it["verdict"]) == asked]
    alone = sum(it["validated_by"] == "ptx" for it in graphs)
    yield "images of graphs for which their kernels alone vouch", alone, ">=", max(len(graphs), 1), f"of {len(graphs)}"


def protocols(folder):
    cases = {it["case"]: it for it in load(folder, "protocols", "protocols.json")["cases"]}
    for name, limit in (("snapshot", 40), ("cow:6GiB", 50), ("recopy", 150), ("transfer", None)):
        case = cases.get(name, {})
        if "first" not in case:
            yield f"`{name}`", None, "", None, case.get("error", "its report has no such case")
            continue
        told, seen = case["first"], case["first_seen"]
        if name == "transfer":
            slower = seen["median_step_during_us"] / seen["usual_step_us"]
            yield "transfers of the program's own, its step meanwhile", slower, "<=", 1.05, "times"
            continue
        yield f"{name}: stalled by the GPU's state", case["first_gpu_stall_s"]["all"] * 1e3, "<=", limit, "ms"
        speed = case["while_copied"]["speed_by_median"]
        yield f"{name}: the program's speed while it is copied", speed, ">=", 0.95, "of its own"
        device = told["device"]
        copied = device["stall"]["copying_seconds"]
        yield f"{name}: copied behind the program", device["written_bytes"] / copied / GB, ">=", 45, "GB/s"


def order(folder):
    rows = {row["order"]: row for row in rows_of(folder, "order", "restore.csv")}
    size = 40 * (1 << 30) / GB
    yield "first kernel after the command", float(rows["profile"]["first_step_ms"]), "<=", 100, "ms"
    yield "data behind the restored program", float(rows["profile"]["data_gb_s"]), ">=", 50, "GB/s"
    yield "restore of 40 GiB, all data first", size / float(rows["eager"]["command_ms"]) * 1e3, ">=", 50, "GB/s"


def overhead(folder):
    ratios = [float(row["ratio"]) for row in rows_of(folder, "overhead", "overhead.csv")]
    yield "a step outside of checkpoints, of native", statistics.median_high(ratios), "<=", 1.005, "times"


def pool(folder):
    enough = [float(row["gpu_state_ms"]) for row in rows_of(folder, "pool", "pool.csv") if float(row["of_hot"]) >= 1]
    yield "`cow` of 4 GiB with a pool for all that is hot", max(enough), "<=", 50, "ms"


def validator(folder):
    for row in rows_of(folder, "validator", "validator.csv"):
        if row["validator"] != "off":
            yield f"a step while `{row['validator']}` vouches", float(row["ratio"]), "<=", 1.12, "times"


def traces(folder):
    told = load(folder, "traces", "traces.json")
    yield "programs that could not be traced", len(told["failed"]), "<=", 0, f"of {len(told['programs'])}"
    yield "counts that are not those of the software GPU", len(told["differences"]), "<=", 0, "counts"
    graphs = next(it for it in told["programs"] if it["program"] == "graphs")
    yield "graphs whose nodes do not name all they use", graphs["open_graph_launches"], "<=", 0, f"of {graphs['graph_launches']}"


def early(folder):
    told = load(folder, "early", "early.json")
    restores = {it["case"]: it for it in told["restores"]}
    wrong = [it for it in told["restores"] if it["digest"] != told["straight"]]
    yield "restores that ended in other bytes", len(wrong), "<=", 0, f"of {len(restores)}"
    first = restores["first"]
    if not first["caught"]:
        yield "a kernel that is too early is named", None, "", None, "it was not too early on this machine"
    else:
        named = [it for it in first["arrival"]["misses"] if "spread" in it["kernel"] and 2 <= it["buffer"] <= 7]
        yield "a kernel that is too early is named, with its buffer", len(named), ">=", 1, "kernels"
    again = [it for it in restores.values() if it["case"] not in ("unchecked", "first")]
    yield "restores after that which start again", sum(it["caught"] for it in again), "<=", 0, f"of {len(again)}"
    seconds = {
        way: statistics.median_high(it["to_the_end_s"] for it in again if it["case"].startswith(way))
        for way in ("checked", "off")
    }
    yield "a restored program's time to its end with checks, of without", seconds["checked"] / seconds["off"], "<=", 1.12, "times"


def ranks(folder):
    lines = (folder / "ranks" / "stdout").read_text().splitlines()
    yield "runs of the library's programs with wrong bytes", sum("WRONG" in it for it in lines), "<=", 0, f"of {len(lines)}"
    yield "runs of them with the right ones", sum("WRONG" not in it for it in lines), ">=", 12, "runs"


def hosthash(folder):
    ways = {it["hash_host_on_gpu"]: it for it in load(folder, "hosthash", "hosthash.json")["ways"]}
    yield "host variables recovered byte by byte", sum(bool(it.get("recovered")) for it in ways.values()), ">=", 2, "of 2"
    steps = {way: {it["what"]: it for it in told["steps"]} for way, told in ways.items()}
    other = [told["unchanged, the other way"]["written"] for told in steps.values()]
    yield "bytes that the CPU's names and the GPU's do not share", sum(other), "<=", 0, "bytes"
    cpu = {way: told["unchanged"]["cpu_s"] for way, told in steps.items()}
    yield "CPU time of a check of host data by the GPU, of the CPU's own", cpu[True] / cpu[False], "<=", 1, "times"


def machine(folder):
    told = load(folder, "machine", "machine.json")
    ratios = [it for row in told["of_measured"]["links"] for it in row if it is not None] + told["of_measured"]["host"]
    yield "rates that a plan expects, of measured: the least", min(ratios), ">=", 0.75, "times"
    yield "rates that a plan expects, of measured: the most", max(ratios), "<=", 1.25, "times"


# Name: (seconds at most, the command, what it measures, what its report is held against). `{}` is the part's folder.
PARTS = {
    "calls": (70, ["sh", str(HERE / "calls.sh"), "{}/calls.json"], "single calls, native and under Fermata", calls),
    "tier": (200, python("tier.py", "{}/tier.json"), "stopped checkpoints and restores, 16 GiB, memory and disk", tier),
    "disk": (
        150,
        python("tier.py", "{}/disk.json", "--steps", "disk", "--disk-gib", 40),
        "40 GiB to the disk and back",
        disk,
    ),
    "cached": (
        180,
        python("tier.py", "{}/cached.json", "--steps", "cached", "--disk-gib", 40, "--restores", 2),
        "40 GiB back from a disk whose packs are in memory",
        cached,
    ),
    "hashes": (40, [str(TREE / "bench" / "hashes"), "libcuda.so.1", "40"], "hash kernels, 40 GiB", hashes),
    "stop": (
        290,
        e2e("{}/stop.json", "--moments", 6, "--modes", "stop", "--jobs", 12),
        "every program stopped, killed and restored, at 6 moments",
        matrix("stop"),
    ),
    "behind": (
        290,
        e2e("{}/behind.json", "--moments", 2, "--modes", "snapshot,cow,recopy", "--jobs", 12),
        "every program checkpointed while it runs, with each protocol, at 2 moments",
        matrix("behind"),
    ),
    "validators": (
        290,
        e2e("{}/validators.json", "--moments", 2, "--modes", "snapshot,cow,recopy", "--validate", "ptx,both")
        + ["--pools", "0,2147483648", "--programs", "hidden,graphs,symbols", "--jobs", "12"],
        "protocols with each pool and kernels that check themselves, at 2 moments",
        validators,
    ),
    "protocols": (280, python("protocols.py", "{}/protocols.json"), "40 GiB behind a running program", protocols),
    "order": (150, bench("{}", "restore", "--bytes", "40GiB", "--runs", 1), "restores of 40 GiB in every order", order),
    "overhead": (150, bench("{}", "overhead", "--bytes", "40GiB", "--runs", 3), "a step outside of checkpoints", overhead),
    "pool": (60, bench("{}", "pool", "--bytes", "4GiB", "--runs", 1), "the stall of `cow` by the size of its pool", pool),
    "traces": (
        120,
        python("traces.py", "{}/traces.json", "--against", HERE / "results" / "2026-11-22-soft-traces.json"),
        "what the kernels of every program touch, graphs among them",
        traces,
    ),
    "early": (150, python("early_access.py", "{}/early.json"), "restores of a kernel that is early, with checks", early),
    "ranks": (
        120,
        ["sh", str(HERE.parent / "programs/app/check.sh"), str(TREE / "programs/app"), "{}/work"],
        "the library's programs, killed and started again; eight ranks on one GPU",
        ranks,
    ),
    "hosthash": (90, python("hosthash.py", "{}/hosthash.json"), "host variables hashed by CPU and GPU", hosthash),
    "machine": (60, python("machine.py", "{}/machine.json"), "what a plan expects of this machine's links", machine),
    "validator": (60, bench("{}", "validator", "--bytes", "4GiB", "--runs", 1), "a step while it is checkpointed", validator),
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
    for row in rows:
        if row["verdict"] == "not measured":
            print(f"{row['part']:<11}{row['goal']:<55} not measured ({row['why']})")
        else:
            asked = f"{row['sense']} {row['asked']}"
            measured = f"{row['measured']:.4g} {row['unit']}"
            print(f"{row['part']:<11}{row['goal']:<55}{measured:>16} {asked:>9}  {row['verdict']}")


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
    report = {**facts(), "processor": processor(), "topology": topology(), "runs": {}}
    for part in [] if args.judge else chosen:
        limit = PARTS[part][0]
        if time.time() + limit > until:
            report["runs"][part] = {"status": "not begun: too little time left"}
        else:
            report["runs"][part] = run(part, folder, limit)
        print(part, json.dumps(report["runs"][part]), file=sys.stderr, flush=True)
    report["goals"] = [row for part in chosen for row in verdicts(folder, part)]
    (folder / "goals.json").write_text(json.dumps(report, indent=1) + "\n")
    table(report["goals"])
    return int(any(row["verdict"] != "held" for row in report["goals"]))


if __name__ == "__main__":
    sys.exit(main())
