#!/usr/bin/env python3
"""What every program's kernels touch, by `fermata trace` on this machine's GPU: for each kernel its launches, how many
of them named all they use, how many were checked while they ran, and what the checks have found.

    bench/traces.py REPORT.json [--device gpu|soft] [--against OTHER.json] [--programs NAME,...]

The counts belong to the program and not to the device: `--against` holds them against those of another report (that
of the software GPU is kept in results/), and lists what differs. Exit status: 1 if anything does, or if a program ends
with another status than it should. Needs a build tree (FERMATA_BUILD, default build/).
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from measure import CHECKABLE, FERMATA, TREE, Daemon, document, facts

LIMIT = 120


def trace(program, device, daemon):
    """The program's table: counts by kernel, and of its graphs."""
    words = [FERMATA, "-q", "trace", "--device", device, "--json", "-o", daemon.work / program, "--"]
    words = [str(word) for word in (*words, TREE / "programs" / program)]
    done = subprocess.run(words, env=daemon.env, capture_output=True, text=True, timeout=LIMIT)
    if done.returncode:
        return {"program": program, "status": done.returncode, "error": done.stderr.strip()[-300:]}
    told = document(done.stdout)["trace"]
    digest = [line for line in done.stderr.splitlines() if line.startswith("digest ")]
    return {
        "program": program,
        "status": 0,
        "digest": digest[-1].split()[-1] if digest else None,
        "buffers": len(told["buffers"]),
        "transfers": told["transfers"],
        "graph_launches": told["graph_launches"],
        "open_graph_launches": told["open_graph_launches"],
        "kernels": sorted(map(counts, told["kernels"]), key=lambda it: it["name"]),
    }


def tried(program, device, daemon):
    """Its table, or why there is none."""
    try:
        return trace(program, device, daemon)
    except (subprocess.TimeoutExpired, ValueError, KeyError) as error:
        return {"program": program, "status": None, "error": f"{type(error).__name__}: {error}"}


def counts(kernel):
    """Without addresses, which are the device's."""
    names = ("name", "launches", "complete", "checked", "mispredicted", "wrongly_complete")
    return {name: kernel[name] for name in names} | {"unchecked": kernel.get("unchecked") or ""}


def differences(ours, theirs):
    others = {it["program"]: it for it in theirs["programs"]}
    for it in ours["programs"]:
        other = others.get(it["program"])
        if other is None:
            yield f"{it['program']}: not in the other report"
            continue
        for what in sorted((it.keys() | other.keys()) - {"error"}):
            if it.get(what) != other.get(what):
                yield f"{it['program']}: {what}: {json.dumps(it.get(what))} instead of {json.dumps(other.get(what))}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--device", choices=("gpu", "soft"), default="gpu")
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--programs", help="names; every program else")
    args = parser.parse_args()
    found = [it.name for it in sorted((TREE / "programs").iterdir()) if it.is_file() and os.access(it, os.X_OK)]
    names = args.programs.split(",") if args.programs else found
    report = {**facts(), "device": args.device, "programs": []}
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(pathlib.Path(folder) / "daemon", pathlib.Path(folder) / "images", **CHECKABLE)
        try:
            for name in names:
                report["programs"].append(tried(name, args.device, daemon))
        finally:
            daemon.end()
    bad = [it for it in report["programs"] if it["status"] != 0]
    report["failed"] = [it["program"] for it in bad]
    if args.against:
        report["differences"] = list(differences(report, json.loads(args.against.read_text())))
    args.report.write_text(json.dumps(report, indent=1) + "\n")
    for it in bad:
        print(f"{it['program']}: status {it['status']}: {it['error']}", file=sys.stderr)
    for line in report.get("differences", []):
        print(line, file=sys.stderr)
    return int(bool(bad or report.get("differences")))


if __name__ == "__main__":
    sys.exit(main())
