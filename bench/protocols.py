#!/usr/bin/env python3
"""Measures checkpoints behind a running program on this machine's GPU, beside the stopped one.

    bench/protocols.py REPORT.json [--gib 40] [--memory | --disk FOLDER] [--cases stop,cow:6GiB,...]

The program is bench/programs/hot.cu: it rewrites a tenth of its memory every 10 ms. For each case
it is run under Fermata with a fresh store, checkpointed once, killed, restored from the image and
ended. The report has, for each: what `fermata checkpoint --json` says, and what the program itself
saw, from the log of its steps: its usual step, the longest, and the time lost in all.
Needs a build tree (FERMATA_BUILD, default build/) with the bench programs in it.
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
import tempfile
import time

from measure import FERMATA, TREE, call, document, facts, native_environment


def steps_of(path):
    rows = [line.split() for line in path.read_text().splitlines()]
    return [(float(row[0]), float(row[1])) for row in rows if len(row) == 4]


def seen(steps, begun, ended):
    """What the program noticed between two moments: microseconds since 1970."""
    before = [end - start for start, end in steps if end < begun][-100:]
    usual = statistics.median(before)
    starts = [start for start, _ in steps]
    gaps = [b - a for a, b in zip(starts, starts[1:])]
    pace = statistics.median([g for g, start in zip(gaps, starts) if start < begun][-100:])
    during = [(s, e) for s, e in steps if e >= begun and s <= ended]
    paces = [g for g, start in zip(gaps, starts) if begun <= start <= ended]
    longest = max((e - s for s, e in during), default=0)
    return {
        "usual_step_us": usual,
        "usual_pace_us": pace,
        "steps_during": len(during),
        "longest_step_us": longest,
        "longest_gap_us": max(paces, default=0),
        # Every step's time above the usual one: stalls of any kind, the stop included.
        "lost_us": sum(max(0.0, (e - s) - usual) for s, e in during),
        "median_step_during_us": statistics.median([e - s for s, e in during]) if during else None,
        # The five longest, to tell the stop from what comes after it.
        "longest_steps_us": sorted((e - s for s, e in during), reverse=True)[:5],
    }


def settled(log, limit=120):
    """Waits until the steps have been even for a while: what is made ready behind is ready."""
    until = time.time() + limit
    while time.time() < until:
        last = [end - start for start, end in steps_of(log)[-200:]] if log.exists() else []
        if len(last) == 200 and statistics.quantiles(last, n=10)[-1] < 1.5 * statistics.median(last):
            return
        time.sleep(0.1)
    raise RuntimeError("the program's steps do not become even")


def gpu_stall(done):
    """Seconds that the GPU state has cost the program: quiesce, device, and waits behind."""
    phases = {p["name"]: p["seconds"] for p in done["phases"]}
    stall = done["device"]["stall"]
    parts = {
        "quiesce": phases.get("quiesce", 0),
        "device": phases.get("device", 0),
        "waited": stall["waited_seconds"],
        "issuing": stall["issuing_seconds"],
    }
    return {**parts, "all": sum(parts.values())}


def drivers_own(gib):
    """The driver's own checkpoint of the same program, run natively."""
    work = pathlib.Path(tempfile.mkdtemp())
    try:
        env = native_environment()
    except RuntimeError as error:
        return {"case": "driver", "gib": gib, "error": str(error)}
    log = work / "steps"
    program = [TREE / "bench" / "hot", "--gib", gib, "--buffers", 400 if gib >= 8 else 40]
    program += ["--until", work / "go", "--log", log]
    running = subprocess.Popen([str(w) for w in program], env=env, stdout=subprocess.DEVNULL)
    try:
        settled(log)
        begun = time.time() * 1e6
        told = document(call(TREE / "bench" / "peer", running.pid, "--restore", env=env))
        ended = time.time() * 1e6
        time.sleep(0.5)
        return {"case": "driver", "gib": gib, "peer": told, "first_seen": seen(steps_of(log), begun, ended)}
    except Exception as error:
        return {"case": "driver", "gib": gib, "error": str(error)}
    finally:
        (work / "go").touch()
        try:
            running.wait(60)
        except subprocess.TimeoutExpired:
            running.kill()
        shutil.rmtree(work, ignore_errors=True)


def case(name, gib, images, transfer):
    mode, _, pool = name.partition(":")
    work = pathlib.Path(tempfile.mkdtemp())
    shutil.rmtree(images, ignore_errors=True)
    images.mkdir(parents=True)
    env = {**os.environ, "FERMATA_RUNTIME_DIR": str(work / "run"), "FERMATA_IMAGE_DIR": str(images)}
    (work / "run").mkdir()
    result = {"case": name, "gib": gib, "transfer_mib": transfer}
    try:
        if str(images).startswith("/dev/shm"):
            call(FERMATA, "images", "prepare", int(gib * 1.4) + 2, env=env)
        go, log = work / "go", work / "steps"
        program = [TREE / "bench" / "hot", "--gib", gib, "--buffers", 400 if gib >= 8 else 40]
        program += ["--until", go, "--log", log, "--transfer", transfer]
        call(FERMATA, "-q", "run", "--detach", "--name", "hot", "--", *program, env=env)
        sessions = work / "run"
        settled(log)
        words = ["checkpoint", "hot", "--json", "--mode", mode] + (["--pool", pool] if pool else [])
        # The first of a process loads what later ones use; both are told.
        for run in ("first",):
            begun = time.time() * 1e6
            result[run] = document(call(FERMATA, *words, env=env))
            ended = time.time() * 1e6
            time.sleep(0.5)
            result[run + "_seen"] = seen(steps_of(log), begun, ended)
            result[run + "_gpu_stall_s"] = gpu_stall(result[run])
        call(FERMATA, "kill", "hot", env=env)
        time.sleep(4)
        shutil.copy(log, work / "steps-1")
        begun = time.time()
        out = document(
            call(
                FERMATA, "restore", "hot-1", "--name", "again", "--detach", "--json",
                # The log of the steps goes on where the killed program has left it.
                "--ignore-changed-files", env=env,
            )
        )
        result["restore_s"] = time.time() - begun
        result["restore"] = {"seconds": out["seconds"], "phases": out["phases"]}
        go.touch()
        call(FERMATA, "wait", "again", env=env)
        text = call(FERMATA, "logs", "again", env=env)
        found = re.search(r"digest hot ([0-9a-f]+) steps (\d+)", text)
        result["restored_digest"] = found and found.groups()
    except Exception as error:  # one case's failure is that case's result
        result["error"] = str(error)
    finally:
        subprocess.run([str(FERMATA), "kill", "hot", "again"], env=env, capture_output=True)
        subprocess.run(["pkill", "-f", f"{TREE}/bin/fermatad"], capture_output=True)
        time.sleep(1)
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(images, ignore_errors=True)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--gib", type=int, default=40)
    parser.add_argument("--disk", type=pathlib.Path, help="a folder on a disk; else /dev/shm")
    parser.add_argument("--transfer", type=int, default=0, help="MiB of transfers a step")
    parser.add_argument("--cases", default="driver,stop,snapshot,cow:6GiB,cow:2GiB,cow:0,recopy")
    args = parser.parse_args()
    images = (args.disk or pathlib.Path("/dev/shm")) / f"fermata-protocols-{os.getpid()}"
    report = {**facts(), "cases": []}
    for name in args.cases.split(","):
        if name == "driver":
            report["cases"].append(drivers_own(args.gib))
        else:
            report["cases"].append(case(name, args.gib, images, args.transfer))
        args.report.write_text(json.dumps(report, indent=1) + "\n")
        last = report["cases"][-1]
        print(name, json.dumps(last.get("first_seen") or last.get("error")), file=sys.stderr)


if __name__ == "__main__":
    main()
