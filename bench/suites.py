#!/usr/bin/env python3
"""How far the software GPU carries programs of others: runs a suite's programs one after another and counts outcomes.

    bench/suites.py LIST.json REPORT.json [--limit SECONDS] [--only REGEX] [--again]
    bench/suites.py --junit RESULTS.xml REPORT.json

Suites are built by hand, outside of this tree, with nvcc and `-arch=compute_90`, so that the programs hold PTX. LIST.json
says what came of that, an object for each program:

    {"name": "reduction", "cwd": "/where/it/runs", "argv": ["./reduction", "--n=65536"]}
    {"name": "hybridsort", "unbuilt": "texture references"}      it does not build here, and why
    {"name": "simpleGL", "excluded": "graphics"}                  it is not part of the count, and why

`"env"` adds variables; `"holds"` is a regular expression for what the output of a right run says, where the words that are
looked for otherwise mislead. `--junit` counts the tests of a pytest run instead (numba-cuda's own suite), and lists those
that do not pass.

| outcome | when |
| --- | --- |
| passes | exit status 0, and it says that its own check holds |
| ends | exit status 0, and it checks nothing or does not say so |
| waived | it says itself that it does not run on such a machine |
| refused | it does not pass, and the software GPU, or its cuBLAS, has named what it lacks |
| wrong | its own check fails |
| fails | another exit status |
| crash | a signal |
| timeout | it took longer than the limit |

A program that was not run again keeps its row, with the revision of its run. Reports name no folder of this machine.
Needs a build tree (FERMATA_BUILD, default build/) and no GPU.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("FERMATA_BUILD", ROOT / "build"))
KEPT = 64 << 10  # of what a program prints, from its end
WAIVED = 2  # the exit status by which CUDA's samples say so
HOLDS = re.compile(r"\b(pass|passed|success|successful|correct|match|matches|verified|okay|ok)\b", re.IGNORECASE)
BROKEN = re.compile(
    r"\b(fail|failed|failure|mismatch(es)?|incorrect|wrong|does not match|do not match|not ok|test: error)\b",
    re.IGNORECASE,
)
# What says that nothing is wrong: counts of zero.
NOTHING = re.compile(
    r"(fail\w*|mismatch\w*|error\w*|incorrect|wrong)\W{0,4}[:=]?\s*0\b|\b(0|no) (fail\w*|mismatch\w*|errors?)"
)
REFUSED = re.compile(r"^software GPU: (.*)$|^(.*(?:CUBLAS_STATUS_NOT_SUPPORTED|undefined symbol: cublas).*)$", re.MULTILINE)


def run(entry, limit):
    """The outcome of one program, as it goes into the report."""
    library_path = f"{BUILD / 'lib/softgpu'}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    environment = {**os.environ, **entry.get("env", {}), "LD_LIBRARY_PATH": library_path}
    begun = time.monotonic()
    process = subprocess.Popen(
        entry["argv"], cwd=entry["cwd"], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        status = None
    text = output[-KEPT:].decode(errors="replace")
    refusals = ["".join(found) for found in REFUSED.findall(output.decode(errors="replace"))]
    if status == 0 and "holds" in entry:
        held = re.search(entry["holds"], text) is not None
        outcome, why = ("passes", "") if held else ("wrong", f"it does not say {entry['holds']!r}")
    else:
        outcome, why = judge(status, text, refusals)
    return {"outcome": outcome, "why": why, "seconds": round(time.monotonic() - begun, 1)}


def judge(status, text, refusals):
    """Outcome and reason of an exit status (None: the limit), the end of what was printed, and what was refused."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not REFUSED.match(line)]
    if status is None:
        return "timeout", refusals[0] if refusals else ""
    broken = next((line for line in lines if BROKEN.search(NOTHING.sub("", line))), None)
    if status == 0 and broken is None:
        if any(HOLDS.search(line) or NOTHING.search(line) for line in lines):
            return "passes", ""
        if not refusals:
            return "ends", ""
    if refusals:
        return "refused", refusals[0]
    if status == WAIVED:
        return "waived", lines[-1] if lines else ""
    if status < 0:
        return "crash", signal.Signals(-status).name
    if broken is not None:
        return "wrong", broken
    return "fails", f"status {status}: {lines[-1] if lines else 'no output'}"


def junit(path):
    """The programs of a pytest run, a report's rows."""
    rows = []
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        found = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        outcome = "passes" if found is None else {"failure": "fails", "error": "fails", "skipped": "skipped"}[found.tag]
        if found is not None and found.get("type") == "pytest.xfail":
            outcome = "expected failure"
        refusals = ["".join(found) for found in REFUSED.findall("".join(case.itertext()))]
        if outcome == "fails" and refusals:
            outcome = "refused"
        why = "" if found is None else (refusals[0] if outcome == "refused" else found.get("message", ""))
        rows.append({"name": f"{case.get('classname')}.{case.get('name')}", "outcome": outcome, "why": why,
                     "seconds": round(float(case.get("time", 0)), 1)})
    return rows


def without_folders(text):
    """A reason without the folders of this machine, and with mangled names cut short."""
    text = re.sub(r"`(\w{40})\w+`", r"`\1...`", text)
    return re.sub(r"(?<![\w.])(/[\w.+-]+){2,}/", "", text)[:300]


def revision():
    """The revision of this tree."""
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return asked.stdout.strip()


def report(path, rows, left_out=()):
    """Writes the report: counts first, then the programs, but for those of some outcomes."""
    for row in rows:
        row["why"] = without_folders(row["why"])
    document = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "revision": revision(),
        "counts": dict(collections.Counter(row["outcome"] for row in rows).most_common()),
        "programs": [row for row in rows if row["outcome"] not in left_out],
    }
    pathlib.Path(path).write_text(json.dumps(document, indent=1) + "\n")
    return document["counts"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", nargs="?", help="LIST.json")
    parser.add_argument("report", help="REPORT.json, which is continued if it is there")
    parser.add_argument("--junit", help="count a pytest run of this file instead")
    parser.add_argument("--limit", type=float, default=60, help="seconds for each program")
    parser.add_argument("--only", default="", help="programs whose names match")
    parser.add_argument("--again", action="store_true", help="run also what the report has already")
    options = parser.parse_args()
    if options.junit:
        print(report(options.report, junit(options.junit), ("passes",)))
        return
    before = {}
    if os.path.exists(options.report):
        before = {row["name"]: row for row in json.loads(pathlib.Path(options.report).read_text())["programs"]}
    rows = []
    entries = json.loads(pathlib.Path(options.list).read_text())
    for entry in entries:
        name = entry["name"]
        chosen = re.search(options.only, name) is not None
        if "excluded" in entry or "unbuilt" in entry:
            outcome = "excluded" if "excluded" in entry else "unbuilt"
            row = {"outcome": outcome, "why": entry[outcome], "seconds": 0.0}
        elif name in before and not (chosen and options.again):
            row = before[name]
        elif chosen:
            row = {"arguments": entry["argv"][1:], "revision": revision(), **run(entry, options.limit)}
            print(f"{row['outcome']:8} {row['seconds']:6.1f} {name}  {without_folders(row['why'])}", flush=True)
        else:
            continue
        rows.append({"name": name, **row})
        counts = report(options.report, rows + [row for row in before.values() if row["name"] not in
                                                 {entry["name"] for entry in entries}])
    print(counts)


if __name__ == "__main__":
    main()
