#!/usr/bin/env python3
"""A kernel that uses data before it is there, in restores on this machine's GPU: what catches it, what it is
called, and what checking costs.

    bench/early_access.py REPORT.json [--mib 1024] [--disk FOLDER] [--device gpu|soft]

The program is programs/overrun.cu: seven buffers of MIB MiB, of which its one kernel is given one and reaches the
rest by distances from it. It is stopped in its middle and restored, from a disk, whose data comes slowly enough:

  unchecked     from a copy of the image that nobody learns from; the fault says nothing of who has done it
  first         with `--validate ptx`: kernel, address and buffer are named
  checked, off  with and without `--validate ptx`, in turn: the image knows the kernel now, it waits for its data

`caught` says whether a restore had to start again; every digest must be `straight`'s, the program's own without
Fermata's help. How early a kernel is depends on the machine: a report in which `first` was not caught shows nothing.
Needs a build tree (FERMATA_BUILD, default build/).
"""

import argparse
import json
import pathlib
import re
import shutil
import tempfile
import time

from measure import CHECKABLE, TREE, Daemon, document, facts, wait_for

STEPS, HELD_AT = 200, 50


class EarlyAccess(Daemon):
    def __init__(self, work, images, mib, device, go):
        super().__init__(work, images, HOLD_AT=str(HELD_AT), HOLD_UNTIL=str(go), **CHECKABLE)
        self.go, self.device = go, ["--device", device]
        self.program = [TREE / "programs/overrun", "--size", (mib << 20) // 4, "--steps", STEPS]

    def digest(self, name):
        found = re.search(r"digest overrun (\w+)", self.fermata("logs", name))
        return found.group(1) if found else None

    def straight(self):
        self.go.touch()
        self.fermata("-q", "run", *self.device, "--detach", "--name", "straight", "--", *self.program)
        self.fermata("wait", "straight")
        self.go.unlink()
        return self.digest("straight")

    def checkpoint(self):
        """Two images of the program as it stands still: one to learn from."""
        self.fermata("-q", "run", *self.device, "--detach", "--name", "early", "--", *self.program)
        wait_for(lambda: f"step {HELD_AT} " in self.fermata("logs", "early"), "the step at which it stands still")
        for image in ("learns", "plain"):
            self.fermata("checkpoint", "early", "--output", self.images / image, "--mode", "stop")
        self.fermata("kill", "early")
        self.go.touch()

    def restore(self, image, name, *flags):
        """A restore whose program runs to its end, and what is told of it."""
        begun = time.time()
        told = document(self.fermata("restore", image, "--name", name, "--detach", "--json", *flags))
        command = time.time() - begun
        self.fermata("wait", name)
        done = time.time() - begun
        session = self.session(name)
        arrival = session.get("arrival") or {}
        out = {
            "case": name,
            "flags": flags,
            "command_s": command,
            "to_the_end_s": done,
            "caught": arrival.get("stand") == "rolled-back",
            "arrival": arrival,
            "note": session.get("note"),
            "phases": told["phases"],
            "digest": self.digest(name),
        }
        self.told("kill", name)
        return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=1024, help="of each of seven buffers")
    parser.add_argument("--disk", type=pathlib.Path, help="a folder on a disk; else the one for temporary files")
    parser.add_argument("--device", choices=("gpu", "soft"), default="gpu")
    parser.add_argument("--pairs", type=int, default=3, help="restores with and without checks, in turn")
    args = parser.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(dir=args.disk))
    daemon = EarlyAccess(work / "daemon", work / "images", args.mib, args.device, work / "go")
    report = {**facts(), "mib": args.mib, "device": args.device, "restores": []}
    try:
        report["straight"] = daemon.straight()
        daemon.checkpoint()
        cases = [("plain", "unchecked"), ("learns", "first", "--validate", "ptx")]
        for nth in range(args.pairs):
            cases += [("learns", f"checked-{nth}", "--validate", "ptx"), ("learns", f"off-{nth}")]
        for image, name, *flags in cases:
            report["restores"].append(daemon.restore(image, name, *flags))
            args.report.write_text(json.dumps(report, indent=1) + "\n")
    finally:
        daemon.end("straight", "early")
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
