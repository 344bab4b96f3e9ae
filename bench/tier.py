#!/usr/bin/env python3
"""Measures stopped checkpoints into the registered memory tier, and restores from it, on this machine's
GPU, beside the driver's own checkpoint of the same program, and the same to and from a disk, also with
what lies there kept in memory (FERMATA_CACHE).

    bench/tier.py REPORT.json [--gib 16] [--disk-gib 8] [--restores 3] [--steps NAME,...]

Needs a build tree (FERMATA_BUILD, default build/) with the bench programs in it. A step that fails is null in
the report, with its reason beside it.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

from measure import TREE, Daemon, Footprint, call, document, facts, wait_for


def brief(told):
    """What is measured, without the names and places of this machine."""
    kept = ("mode", "seconds", "stopped_seconds", "command_seconds", "host_bytes", "device", "phases", "arrival", "digest")
    return {key: told[key] for key in kept if key in told}


class Holder(Daemon):
    """A daemon with a program that holds memory, to be checkpointed and restored."""

    def hold(self, gib):
        self.go = self.work / "go"
        self.fermata("-q", "run", "--detach", "--name", "hold", "--", TREE / "bench/hold", "--gib", gib, "--until", self.go)
        wait_for(lambda: "ready" in self.fermata("logs", "hold"), "the program's `ready`")

    def checkpoint(self):
        return brief(document(self.fermata("checkpoint", "hold", "--mode", "stop", "--json")))

    def restore(self, name, *flags):
        """Ends with the program, which has seen that its data is right."""
        self.go.unlink(missing_ok=True)
        begun = time.time()
        told = document(self.fermata("restore", "hold-1", "--name", name, "--detach", "--json", *flags))
        told["command_seconds"] = time.time() - begun
        self.go.touch()
        self.fermata("wait", name)
        found = re.search(r"digest hold (.*)", self.fermata("logs", name))
        told["digest"] = found.group(1) if found else None
        told["arrival"] = self.session(name).get("arrival")
        # Its name is free then.
        self.told("kill", name)
        return brief(told)

    def end(self):
        super().end("hold", "eager", "behind")


def peer(gib, work):
    go, log = work / "go-native", work / "native.log"
    with open(log, "w") as out:
        program = subprocess.Popen(
            [TREE / "bench/hold", "--gib", str(gib), "--until", str(go)], stdout=out, stderr=out
        )
    try:
        wait_for(lambda: "ready" in log.read_text(), "the native program's `ready`")
        told = document(call(TREE / "bench/peer", program.pid, "--restore"))
        go.touch()
        program.wait(60)
        told["digest"] = re.search(r"digest hold (.*)", log.read_text()).group(1)
        return told
    finally:
        program.kill()


def memory(gib, work, restores):
    images = pathlib.Path(f"/dev/shm/fermata-tier-{os.getpid()}")
    bytes_ = gib << 30
    begun = time.time()
    daemon = Holder(work / "memory", images, FERMATA_MEMORY_TIER=f"{gib + 1}G", FERMATA_MEMORY_TIER_LIMIT=f"{3 * gib}G")
    try:
        wait_for(lambda: daemon.tier()[0] >= bytes_, "a registered tier")
        told = {"prepared_and_registered_s": time.time() - begun}
        daemon.hold(gib)
        # The worker that now waits is the one that will restore.
        begun = time.time()
        wait_for(lambda: daemon.tier()[0] >= bytes_, "a registered tier in the next worker")
        told["registered_again_s"] = time.time() - begun
        told["first"] = daemon.checkpoint()
        told["again"] = daemon.checkpoint()
        daemon.fermata("kill", "hold")
        time.sleep(5)
        told["eager"], told["behind"] = [], []
        for name, flags in (("eager", ["--eager"]), ("behind", [])) * restores:
            # The tier is made ready again after the checkpoint, and the image's part of it registered in each worker
            # that waits; both take memory bandwidth and the driver's time.
            ready = lambda: daemon.tier()[0] >= bytes_ and daemon.tier()[1] >= 2 * bytes_
            wait_for(ready, "a registered tier after the checkpoint")
            time.sleep(1)
            told[name].append(daemon.restore(name, *flags))
        told["tier_before_restore"] = daemon.tier()
        shutil.copy(work / "memory/run/workers.log", work / "workers.log")
        return told
    finally:
        daemon.end()


def disk(gib, work):
    """The limit is what `dd` writes and reads there, past the page cache."""
    daemon = Holder(work / "disk", work / "images")
    try:
        probe = work / "probe"
        told = {"gib": gib}
        for verb, words in (
            ("write", ("if=/dev/zero", f"of={probe}", "count=256", "oflag=direct")),
            ("read", (f"if={probe}", "of=/dev/null", "iflag=direct")),
        ):
            begun = time.time()
            call("dd", "bs=16M", *words)
            told[f"disk_{verb}_4gib_s"] = time.time() - begun
        probe.unlink()
        daemon.hold(gib)
        with Footprint() as footprint:
            told["first"] = daemon.checkpoint()
        told["extra_host_bytes"] = footprint.extra_bytes
        told["again"] = daemon.checkpoint()
        daemon.fermata("kill", "hold")
        for name, flags in (("eager", ["--eager"]), ("behind", [])):
            # The driver takes seconds to give back what a killed worker held.
            time.sleep(5)
            os.sync()
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
            told[name] = daemon.restore(name, *flags)
        return told
    finally:
        daemon.end()


def cached(gib, work, restores):
    """From a disk whose packs the daemon keeps in memory: what is registered, and what is read of it."""
    images = work / "images-of-cache"
    daemon = Holder(work / "cached", images, FERMATA_CACHE=f"{gib + 1}G")
    try:
        daemon.hold(gib)
        told = {"gib": gib, "checkpoint": daemon.checkpoint()}
        daemon.fermata("kill", "hold")
        begun = time.time()
        warmed = document(daemon.fermata("images", "warm", "hold-1", "--json"))
        told["warmed"] = {name: warmed[name] for name in ("bytes", "cached")}
        told["warm_s"] = time.time() - begun
        told["eager"], told["behind"] = [], []
        for name, flags in (("eager", ["--eager"]), ("behind", [])) * restores:
            begun = time.time()
            # Every worker that waits registers the copies.
            wait_for(lambda: daemon.tier()[1] >= gib << 30, "registered copies")
            waited = time.time() - begun
            time.sleep(1)
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
            told[name].append(daemon.restore(name, *flags) | {"registered_before_s": waited})
        return told
    finally:
        daemon.end()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("report")
    parser.add_argument("--gib", type=int, default=16)
    parser.add_argument("--disk-gib", type=int, default=8)
    parser.add_argument("--restores", type=int, default=3, help="out of memory and out of the cache, of each kind")
    parser.add_argument("--steps", default="link,memory,disk,cached,driver_checkpoint", help="which; all else")
    args = parser.parse_args()
    chosen = args.steps.split(",")
    report = {**facts(), "gib": args.gib}
    work = pathlib.Path(tempfile.mkdtemp())
    link = pathlib.Path(__file__).with_name("link.py")
    steps = {
        "link": lambda: document(call(link)),
        "memory": lambda: memory(args.gib, work, args.restores),
        "disk": lambda: disk(args.disk_gib, work),
        "cached": lambda: cached(args.disk_gib, work, args.restores),
        "driver_checkpoint": lambda: peer(args.gib, work),
    }
    if unknown := set(chosen) - steps.keys():
        parser.error(f"no step `{unknown.pop()}`; there are {', '.join(steps)}")
    for name in chosen:
        try:
            report[name] = steps[name]()
        except Exception as error:  # The other steps are worth having all the same.
            report[name] = None
            report[f"{name}_failed"] = str(error)
        pathlib.Path(args.report).write_text(json.dumps(report, indent=1) + "\n")
    report["rates"] = rates(report)
    pathlib.Path(args.report).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["rates"]))
    log = work / "workers.log"
    if log.exists():
        shutil.copy(log, pathlib.Path(args.report).parent / "workers.log")
    shutil.rmtree(work, ignore_errors=True)


def rates(report):
    """GB/s of the device part and of the whole stop, and the driver's own."""
    found = {}
    bytes_ = report["gib"] << 30
    told = report.get("memory") or {}
    first = told.get("first")
    if first:
        device = next((p for p in first["phases"] if p["name"] == "device"), None)
        found["checkpoint_device_GBps"] = device and bytes_ / device["seconds"] / 1e9
        found["checkpoint_stopped_GBps"] = bytes_ / first["stopped_seconds"] / 1e9
    for one in told.get("eager", []):
        found.setdefault("restore_eager_command_GBps", []).append(bytes_ / one["command_seconds"] / 1e9)
    for one in told.get("behind", []):
        found.setdefault("restore_behind_command_s", []).append(one["command_seconds"])
        arrival = one["arrival"]
        found.setdefault("restore_behind_data_GBps", []).append(arrival["total"] / arrival["seconds"] / 1e9)
    if report.get("driver_checkpoint"):
        found["driver"] = {k: v for k, v in report["driver_checkpoint"].items() if k != "digest"}
    return found


if __name__ == "__main__":
    main()
