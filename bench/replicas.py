#!/usr/bin/env python3
"""What an image of ranks takes that hold the same data, as in data-parallel training, and how soon they are back from a disk.

    bench/replicas.py REPORT.json --images FOLDER [--program ddp_language] [--steps N] [--modes cow] [--first N]

A program of `bench/frameworks` runs natively and then under Fermata, where it is checkpointed with each mode into FOLDER, which is on a
disk, killed, and restored with an empty page cache, which needs root. At the end its digest is held against the native one. What the
disk has brought is what the kernel counts for it. Needs a build tree (FERMATA_BUILD, default build/).
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from measure import HERE, Daemon, Succession, document, empty_page_cache, facts, wait_for

LIMIT = 400


def read_bytes(folder):
    """Bytes that the disk of a folder has brought since the machine started."""
    device = os.stat(folder).st_dev
    counts = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat").read_text().split()
    return int(counts[2]) * 512


def stored_bytes(images):
    return sum(it.stat().st_size for it in (images / ".store" / "packs").glob("*.pack"))


def ends(text):
    found = re.search(r"^digest \S+", text, re.MULTILINE)
    return found and found.group()


class Job(Succession):
    def steps(self):
        return len(re.findall(r"^step ", self.log(), re.MULTILINE))

    def round(self, mode, images):
        """A checkpoint, a kill and a restore."""
        begun, before = time.time(), stored_bytes(images)
        told = document(self.daemon.fermata("checkpoint", self.name(), "-o", "image", "--mode", mode, "--json", limit=LIMIT))
        command = time.time() - begun
        stored = stored_bytes(images) - before
        self.daemon.fermata("kill", self.name())
        empty_page_cache()
        self.count += 1
        read, asked = read_bytes(images), time.time()
        self.daemon.fermata("restore", "image", "--detach", "--name", self.name(), "--json", limit=LIMIT)
        restored = time.time() - asked
        arrival = self.daemon.arrived(self.name(), LIMIT)
        there = time.time() - asked
        read = read_bytes(images) - read
        self.daemon.remove("image", LIMIT)
        return {
            "mode": mode, "command_s": command, "stopped_s": told["stopped_seconds"], "device_bytes": told["device"]["device_bytes"],
            "written_bytes": told["device"]["written_bytes"], "stored_bytes": stored, "host_bytes": told["host_bytes"],
            "phases": {it["name"]: round(it["seconds"], 4) for it in told["phases"]},
            "restore_command_s": restored, "data_s": there, "arrival": arrival, "read_bytes": read,
        }


def main():
    known = argparse.ArgumentParser()
    known.add_argument("report", type=pathlib.Path)
    known.add_argument("--images", type=pathlib.Path, required=True)
    known.add_argument("--program", default="ddp_language")
    known.add_argument("--steps", type=int, default=400)
    known.add_argument("--modes", default="cow")
    known.add_argument("--first", type=int, default=20)
    known.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/dev/shm/fermata-replicas"))
    given = known.parse_args()
    work, images = given.work / str(os.getpid()), given.images / str(os.getpid())
    program = [sys.executable, str(HERE / "frameworks" / "programs.py"), given.program, str(given.steps)]
    native = subprocess.run(program, capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    daemon = Daemon(work, images)
    report = {**facts(), "program": given.program, "steps": given.steps, "rounds": []}
    job = Job(daemon, "ranks", program)
    try:
        wait_for(lambda: job.steps() >= given.first, "the first steps", LIMIT)
        for mode in given.modes.split(","):
            one = job.round(mode, images)
            report["rounds"].append(one)
            gib = lambda name: f"{one[name] / 2**30:.2f} GiB"
            print(f"{mode}: stopped {one['stopped_s'] * 1e3:.0f} ms, complete after {one['command_s']:.1f} s; {gib('device_bytes')} on devices, "
                  f"{gib('written_bytes')} written; back after {one['data_s']:.1f} s, {gib('read_bytes')} read", flush=True)
            given.report.write_text(json.dumps(report, indent=1))
        wait_for(lambda: ends(job.log()), "the program's end", LIMIT)
        report |= {"end": ends(job.log()), "equal": ends(job.log()) == ends(native)}
        print("equal" if report["equal"] else f"NOT equal: {report['end']}, {ends(native)}")
    finally:
        daemon.end(job.name())
        shutil.rmtree(work, ignore_errors=True)
    given.report.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
