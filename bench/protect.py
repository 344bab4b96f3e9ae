"""A program under `fermata protect` that is made to fail again and again: does it end with the right bytes, and what did it cost?

    bench/protect.py REPORT.json [--program heat2d|transformer] [--minutes 60] [--failures 30] [--device gpu|soft] [--seed 1]

The program runs for about MINUTES, were nothing to happen to it: `heat2d`, or the PyTorch training of
`programs/transformer.py` (on the software GPU, with the packages of `tools/setup.sh torch`). It fails FAILURES times in all, at
random moments, exponentially distributed: its process, its worker or the daemon is killed, or, on the software GPU, its device is
lost. `protect` takes images at the interval that it finds (`--every auto`). The report has every event but those of
images, and:

- whether the digest is that of a run that went through;
- seconds of work that were done twice (`repeated_s`): from the begin of the newest complete image to each failure;
- what the model predicts for that (PhoenixOS, appendix A.1): a failure comes at any moment between two images, so half an interval for
  each, and the time that an image took, because until it is complete the one before counts. As moments are random, so is the sum:
  the prediction is its mean and the range of two standard deviations, in which 95 of 100 runs lie;
- seconds until failures were noticed, in restarts, and lost to images.
"""

import argparse
import json
import math
import os
import pathlib
import random
import re
import signal
import subprocess
import time

from measure import FERMATA, HERE, TREE, Daemon, facts, wait_for

NAME = "protected"
# How each program is called, and how many steps it makes between two lines that it prints. A pause of a second follows each.
PROGRAMS = {
    "heat2d": {"words": [TREE / "programs" / "heat2d", "--size", "512"], "every": 20},
    "transformer": {"words": ["python3", HERE.parent / "programs" / "transformer.py"], "every": 1},
}


def variables(work):
    """What PyTorch needs on the software GPU (docs/softgpu.md)."""
    packages, soft = HERE.parent / ".deps", TREE / "lib" / "softgpu"
    headers = packages / "python-headers" / "usr" / "include"
    return {
        "PYTHONPATH": str(packages / "torch"), "PYTHONDONTWRITEBYTECODE": "", "LD_LIBRARY_PATH": str(soft),
        "CPATH": ":".join(map(str, [*headers.glob("*"), headers])),
        "TRITON_PTXAS_PATH": str(soft / "ptxas"), "TRITON_PTXAS_BLACKWELL_PATH": str(soft / "ptxas"),
        "TRITON_CACHE_DIR": str(work / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(work / "compiled"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


class Protection:
    """`fermata protect` at work, and what it has told."""

    def __init__(self, daemon, work, expected):
        self.path = work / "events.jsonl"
        self.errors = open(work / "errors", "w")
        words = [FERMATA, "--json", "protect", NAME, "--between-failures", str(expected)]
        self.process = subprocess.Popen(words, env=daemon.env, stdout=open(self.path, "w"), stderr=self.errors)

    def events(self, kind=None):
        # The last line may be in the middle of being written.
        lines = self.path.read_text().rpartition("\n")[0].splitlines()
        told = [json.loads(line) for line in lines if line.startswith('{"')]
        return [it for it in told if kind in (None, it["event"])]

    def wait(self, kind, count, limit=300):
        def there():
            if self.process.poll() is not None:
                raise RuntimeError(f"protect has ended: {self.path.read_text()[-600:]}")
            return len(self.events(kind)) >= count

        wait_for(there, f"event {count} of kind `{kind}`", limit)


def daemon_pid(daemon):
    found = re.search(r"release \S+, process (\d+)", daemon.told("doctor"))
    return int(found.group(1))


def fail(daemon, protection, kind, hold):
    """Makes it fail in one way, and returns when that was, once it runs again."""
    event = "daemon-ended" if kind == "daemon" else "restored"
    before = len(protection.events(event))
    if kind == "device":
        # The next call takes the file away, and the device with it; it is not later than what tells of it.
        lost, at = hold / "lost", time.time()
        lost.touch()

        def gone():
            nonlocal at
            if lost.exists():
                at = time.time()
                return False
            return True

        wait_for(gone, "a call to the device that is to be lost", 60, 0.005)
    else:
        pid = daemon_pid(daemon) if kind == "daemon" else daemon.session(NAME)["pid" if kind == "program" else "worker_pid"]
        at = time.time()
        os.kill(pid, signal.SIGKILL)
    protection.wait(event, before + 1)
    return at


def losses(events, failures):
    """Of each failure that was restored: what kind, seconds of work done again, seconds until it was noticed, and what
    the model knew: the interval, and how long an image took."""
    found = []
    for kind, at in failures:
        before = [it for it in events if it["event"] == "checkpoint" and it["time"] <= at]
        noticed = next(it for it in events if it["event"] == "failure" and it["time"] >= at) if kind != "daemon" else None
        if noticed and before:
            restored = next(it for it in events if it["event"] == "restored" and it["time"] >= noticed["time"])
            late = noticed["time"] - at
            found.append({"kind": kind, "repeated": restored["repeated_seconds"] - late, "noticed": late,
                          "interval": before[-1]["interval"], "image": before[-1]["seconds"]})
    return found


def summary(events, failures):
    """What it cost, in seconds."""
    of = lambda kind, field: [it[field] for it in events if it["event"] == kind and it.get(field) is not None]
    each, kinds = losses(events, failures), [kind for kind, _ in failures]
    repeated = sum(it["repeated"] for it in each)
    expected = sum(it["interval"] / 2 + it["image"] for it in each)
    # A moment between two images is as likely as any other.
    spread = 2 * math.sqrt(sum(it["interval"] ** 2 / 12 for it in each))
    return {
        "failures": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "failures_seen": {what: of("failure", "what").count(what) for what in sorted(set(of("failure", "what")))},
        "images": len(of("checkpoint", "image")), "lost_to_images_s": sum(of("checkpoint", "lost_seconds")),
        "intervals_s": [min(of("checkpoint", "interval")), max(of("checkpoint", "interval"))],
        "restored": len(of("restored", "seconds")), "restarts_s": sum(of("restored", "seconds")),
        "noticed_s": sum(it["noticed"] for it in each), "repeated_s": repeated, "predicted_s": expected,
        "predicted_range_s": [expected - spread, expected + spread], "within": abs(repeated - expected) <= spread,
        "losses": each,
    }


def told(events):
    """What is kept of the events: thousands of images are summed up, and paths say nothing later."""
    kept = [it for it in events if it["event"] not in ("checkpoint", "removed")]
    return [{key: it[key] for key in it if key not in ("image", "log", "session")} for it in kept]


def digest(text):
    lines = [line for line in text.splitlines() if line.startswith("digest ")]
    return lines[-1] if lines else None


def main():
    known = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known.add_argument("report", type=pathlib.Path)
    known.add_argument("--program", choices=list(PROGRAMS), default="heat2d")
    known.add_argument("--minutes", type=float, default=60)
    known.add_argument("--failures", type=int, default=30)
    known.add_argument("--device", choices=["gpu", "soft"], default="gpu")
    known.add_argument("--seed", type=int, default=1)
    known.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/dev/shm/fermata-protect"))
    given = known.parse_args()
    chance, gap = random.Random(given.seed), given.minutes * 60 / given.failures
    gaps = [chance.expovariate(1 / gap) for _ in range(given.failures)]
    # Together they leave time for what else happens before the program's end.
    gaps = [it * 0.9 * given.minutes * 60 / sum(gaps) for it in gaps]
    program = PROGRAMS[given.program]
    # It goes on for a while after the last failure.
    steps = int(program["every"] * given.minutes * 60)
    work = given.work / str(os.getpid())
    daemon = Daemon(work, work / "images")
    if given.program == "transformer":
        daemon.env |= variables(work)

    def start(name, *options):
        words = [*program["words"], "--steps", str(steps), *options]
        daemon.fermata("run", "--device", given.device, "--name", name, "--detach", "--", *words)

    start("straight")
    wait_for(lambda: digest(daemon.told("logs", "straight")), "the digest of a run that goes through", given.minutes * 60)
    straight = digest(daemon.told("logs", "straight"))
    hold, kinds = work / "hold", ["program", "worker", "daemon"]
    if given.device == "soft":
        hold.mkdir()
        daemon.env["FERMATA_SOFTGPU_HOLD"] = str(hold)
        kinds.append("device")
    start(NAME, "--pause-ms", "1000")
    wait_for(lambda: "step " in daemon.told("logs", NAME), "the program's first step", 300)
    begun, failures = time.monotonic(), []
    protection = Protection(daemon, work, gap)
    try:
        protection.wait("checkpoint", 1)
        for gap in gaps:
            # Four failures in a row without an image between them would be taken for the program's own.
            protection.wait("checkpoint", len(protection.events("checkpoint")) + 1)
            time.sleep(gap)
            kind = chance.choice(kinds)
            failures.append((kind, fail(daemon, protection, kind, hold)))
            print(f"{time.monotonic() - begun:6.0f} s: {kind} failed, {len(failures)} of {given.failures}", flush=True)
        wait_for(lambda: protection.process.poll() is not None, "the end", given.minutes * 60)
        events = protection.events()
        last = digest(daemon.told("logs", NAME))
        report = {**facts(), "program": given.program, "minutes": given.minutes, "steps": steps, "seconds": time.monotonic() - begun,
                  "equal": last is not None and last == straight, **summary(events, failures), "events": told(events)}
        given.report.write_text(json.dumps(report, indent=1))
        print(json.dumps({key: value for key, value in report.items() if key not in ("events", "losses")}, indent=1))
    finally:
        protection.process.kill()
        daemon.end(NAME)


if __name__ == "__main__":
    main()
