#!/usr/bin/env python3
"""How long a program stands still whose host memory is rewritten during a checkpoint, as it has felt it itself.

    bench/hoststop.py REPORT.json [--mib 1024,10240] [--rates 200,0] [--runs 3] [--threads N] [--mappings N] [--libraries N] [--huge] [--burst MIB]
                      [--churn MIB] [--feed MIB] [--device soft] [--mode cow] [--settings NAME=VALUE,...]

`hoststop` holds so much host memory and rewrites it at each rate, in MB/s; 0 is as fast as it can. In every run it is
checkpointed once: `stood_still_ms` is what Fermata says, `longest_gap_ms` the longest time in which a spinning thread of the
program did not run, `gap_before_ms` the same as long before the checkpoint, which says how busy the machine is. `phases`
are the steps of `fermata checkpoint --times`, in milliseconds, with when they began; `written_mb_s` is what the program wrote
before and meanwhile. With `--burst` it also maps and fills so much memory every second or so; a checkpoint then comes at any moment
of that. With `--churn` it holds so much in mappings that are all new. With `--feed` it copies so much of its memory to the device, again and
again. `--libraries` are copies of the C library's `libm.so.6`, so that it has
as many threads, mappings and libraries as a program of PyTorch. The last image of each case is restored, and must run on. Needs root and a build tree (FERMATA_BUILD,
default build/), and space for two images.
"""

import argparse
import json
import pathlib
import random
import shutil
import statistics
import tempfile
import time

from measure import TREE, Daemon, document, facts, wait_for

LIBRARY = "/lib/x86_64-linux-gnu/libm.so.6"


def lines(daemon, name):
    """What the program has printed: seconds, longest gap in ms, MB written."""
    told = daemon.told("logs", name).splitlines()
    return [tuple(map(float, it.split())) for it in told if it.count(" ") == 2 and it[0].isdigit()]


def copies(folder, count):
    """A folder with so many files of a library, each of which the loader takes for another one."""
    folder.mkdir()
    for number in range(count):
        shutil.copy(LIBRARY, folder / f"{number}.so")
    return folder


def one(daemon, command, number, args):
    """One program, checkpointed once."""
    name = f"hoststop-{number}"
    daemon.fermata("run", "--device", args.device, "--detach", "--name", name, "--", *command, limit=600)
    wait_for(lambda: len(lines(daemon, name)) >= 15, "a line of the program", limit=600)
    if args.burst:
        time.sleep(random.uniform(0, 2))
    before = lines(daemon, name)
    told = document(daemon.fermata("checkpoint", name, "--mode", args.mode, "--json", limit=600))
    time.sleep(0.5)
    during = [it for it in lines(daemon, name)[len(before) :] if it[0] < before[-1][0] + told["seconds"] + 0.4]
    daemon.told("kill", name)
    if number == args.runs - 1:
        again = f"again-{number}"
        daemon.fermata("restore", told["image"], "--detach", "--name", again, limit=600)
        came = len(lines(daemon, again))
        wait_for(lambda: len(lines(daemon, again)) >= came + 5, "the restored program's next line")
        daemon.told("kill", again)
    daemon.told("images", "rm", told["image"])
    quiet, rate = before[5:], lambda rows: sum(it[2] for it in rows) / max(rows[-1][0] - rows[0][0], 0.1)
    return {
        "stood_still_ms": told["stopped_seconds"] * 1e3,
        "longest_gap_ms": max(it[1] for it in during),
        "gap_before_ms": max(it[1] for it in quiet),
        "seconds": told["seconds"],
        "host_bytes": told["host_bytes"],
        "written_mb_s": {"before": rate(quiet), "during": rate(during)},
        "phases": [
            {"name": it["name"], "start": round(it["start"] * 1e3, 2), "ms": round(it["seconds"] * 1e3, 2)}
            for it in told["phases"]
        ],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--mib", default="1024")
    parser.add_argument("--rates", default="200,0")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--mappings", type=int, default=0)
    parser.add_argument("--libraries", type=int, default=0)
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--burst", type=int, default=0)
    parser.add_argument("--churn", type=int, default=0)
    parser.add_argument("--feed", type=int, default=0)
    parser.add_argument("--device", default="soft")
    parser.add_argument("--mode", default="cow")
    parser.add_argument("--settings", default="", help="of the daemon")
    parser.add_argument("--work", type=pathlib.Path, help="where images go; else a folder for temporary files")
    args = parser.parse_args()
    settings = dict(it.split("=", 1) for it in args.settings.split(",") if it)
    report = {**facts(), "arguments": {key: str(value) for key, value in vars(args).items()}, "cases": []}
    work = pathlib.Path(tempfile.mkdtemp(prefix="hoststop-", dir=args.work))
    libraries = copies(work / "libraries", args.libraries)
    daemon = Daemon(work, work / "images", **settings)
    try:
        for mib in map(int, args.mib.split(",")):
            for rate in map(float, args.rates.split(",")):
                command = [TREE / "bench" / "hoststop", "--mib", mib, "--rate", rate, "--threads", args.threads]
                command += ["--mappings", args.mappings, "--huge", int(args.huge), "--burst", args.burst, "--churn", args.churn, "--feed", args.feed]
                command += ["--libraries", libraries] if args.libraries else []
                runs = [one(daemon, command, number, args) for number in range(args.runs)]
                middle = {
                    key: statistics.median(run[key] for run in runs)
                    for key in ("stood_still_ms", "longest_gap_ms", "gap_before_ms", "seconds")
                }
                report["cases"].append({"mib": mib, "rate_mb_s": rate, "median": middle, "runs": runs})
                print(
                    f"{mib} MiB at {rate or 'full'} MB/s: stood still {middle['stood_still_ms']:.1f} ms, longest gap "
                    f"{middle['longest_gap_ms']:.1f} ms (before: {middle['gap_before_ms']:.1f}), {middle['seconds']:.2f} s",
                    flush=True,
                )
                args.report.write_text(json.dumps(report, indent=1) + "\n")
    finally:
        daemon.end()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
