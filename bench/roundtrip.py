"""Launches that are waited for, native and under Fermata in turn, with the thread that calls the driver on the same core.

    bench/roundtrip.py REPORT.json [--cores N] [--turns N] [--rounds N]

The cores of one machine differ by a tenth and more in how fast they reach the GPU, and threads are moved among them, so runs
that are not bound say little. Here the native program is bound to a core; under Fermata the worker's thread that serves
the program is bound to that one, and the program to the next. Ratios are those of one turn on one core; the report has
each, and their medians. `free`: the same with nothing bound. `bound`: the program alone is bound, as by a launcher of MPI jobs.
Needs a build tree (FERMATA_BUILD, default build/) with `make -C bench` done.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import measure

PROGRAM = measure.TREE / "bench" / "roundtrip"


def native(rounds, core=None):
    done = subprocess.Popen([PROGRAM, str(rounds)], stdout=subprocess.PIPE, text=True)
    if core is not None:
        os.sched_setaffinity(done.pid, {core})
    return json.loads(done.communicate(timeout=120)[0])


def serving(pid):
    """The thread of worker `pid` that serves its program."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == "serve":
            return int(task.name)
    return None


def under(daemon, name, rounds, worker_core=None, program_core=None):
    """One run as session `name`, with threads bound as soon as they are there."""
    run = subprocess.Popen([measure.FERMATA, "--quiet", "run", "--name", name, "--", PROGRAM, str(rounds)],
                           env=daemon.env, stdout=subprocess.PIPE, text=True)
    bound = {"worker": worker_core is None, "program": program_core is None}

    def binds():
        sessions = measure.document(daemon.fermata("ps", "--json"))["sessions"]
        for process in (process for it in sessions if it["name"] == name for process in it["processes"]):
            thread = serving(process["worker_pid"]) if process.get("worker_pid") else None
            if not bound["worker"] and thread:
                os.sched_setaffinity(thread, {worker_core})
                bound["worker"] = True
            if not bound["program"] and process.get("pid"):
                os.sched_setaffinity(process["pid"], {program_core})
                bound["program"] = True
        return all(bound.values())

    measure.wait_for(binds, "its threads", 20)
    return json.loads(run.communicate(timeout=120)[0])


def ratios(ours, plain):
    return {key: round(ours[key] / plain[key], 3) for key in plain}


def main():
    known = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known.add_argument("report", type=pathlib.Path)
    known.add_argument("--cores", type=int, default=6, help="how many cores the driver is called on, one after the other")
    known.add_argument("--turns", type=int, default=2)
    known.add_argument("--rounds", type=int, default=60)
    given = known.parse_args()
    all_cores = sorted(os.sched_getaffinity(0))
    every = max(1, len(all_cores) // given.cores)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        daemon = measure.Daemon(work, work / "images")
        report = {**measure.facts(), "pairs": []}
        try:
            for turn in range(given.turns):
                for at in range(0, every * given.cores, every):
                    core, other = all_cores[at % len(all_cores)], all_cores[(at + 1) % len(all_cores)]
                    for how, cores in (("same core", (core, other)), ("bound", (None, other)), ("free", (None, None))):
                        plain = native(given.rounds, {"same core": core, "bound": other}.get(how))
                        ours = under(daemon, f"r{turn}-{at}-{how[:1]}", given.rounds, *cores)
                        pair = {"how": how, "core": core, "native": plain, "fermata": ours, "ratio": ratios(ours, plain)}
                        report["pairs"].append(pair)
                        print(json.dumps(pair), flush=True)
        finally:
            daemon.end()
        for how in ("same core", "bound", "free"):
            pairs = [it for it in report["pairs"] if it["how"] == how]
            report[how] = {key: statistics.median(it["ratio"][key] for it in pairs) for key in pairs[0]["ratio"]}
            print(how, report[how])
        given.report.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
