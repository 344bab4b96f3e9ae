"""One document of what reports of bench/frameworks.py say of checkpoints, killed and restored: equal or not, at which steps.

    bench/moments.py OUT.json REPORT.json ...

For runs that were made beside each other, on one GPU, to have many in the time: their results count, their times do not.
"""

import json
import pathlib
import sys


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    out, *reports = map(pathlib.Path, sys.argv[1:])
    reports = [json.loads(it.read_text()) for it in reports]
    facts = {key: reports[0][key] for key in ("gpu", "kernel", "cores")}
    found = []
    for report in reports:
        if {key: report[key] for key in facts} != facts:
            sys.exit("the reports are of several machines")
        for run in report["checkpoints"]:
            found.append({
                "program": run["program"], "mode": run["mode"], "steps": run["steps"], "restored": run["restored"],
                "equal": run["equal"], "failed": run["failed"], "revision": report["revision"],
                "device_bytes": max((it["device_bytes"] for it in run["checkpoints"]), default=None),
            })
    dates = sorted(it["date"] for it in reports)
    out.write_text(json.dumps({"date": dates[-1], **facts, "moments": found}, indent=1))
    right = sum(it["restored"] for it in found if it["equal"])
    print(f"{right} of {sum(len(it['steps']) for it in found)} restored and equal")


if __name__ == "__main__":
    main()
