#!/usr/bin/env python3
"""Measures checkpoints behind a running program on this machine's GPU, beside the stopped one.

    bench/protocols.py REPORT.json [--gib 40] [--disk FOLDER] [--cases stop,cow:6GiB,...] [--alone]

The program is bench/programs/hot.cu: it rewrites a tenth of its memory every 10 ms. It is run under
Fermata and checkpointed once for each case, into a store that has nothing of it; the last image is
restored. `--alone` runs it anew for each case and restores each image. `native` is the program without
Fermata while a thread of its own copies its memory to the host, `driver` the driver's own checkpoint of
it, `transfer` `cow:6GiB` of one that moves data of its own. The report
has, for each: what `fermata checkpoint --json` says, and what the program itself saw, from the log of
its steps: its usual step, the longest, and the time lost in all.
Needs a build tree (FERMATA_BUILD, default build/) with the bench programs in it.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from measure import FERMATA, TREE, call, document, facts, wait_for


def rows_of(path):
    """The log's lines: begin, end, the time to issue a step's work, and what the device took for it."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return [tuple(map(float, row)) for row in rows if len(row) == 4]


def steps_of(path):
    return [row[:2] for row in rows_of(path)]


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


def while_copied(rows, begun, told):
    """The program's steps while its memory was copied behind it, beside those before the checkpoint, in microseconds.
    The mean has the few steps that something held up, the median does not; `device` is the device's part of a step, `at`
    when it began after the copying had."""
    start = next((p["start"] for p in told["phases"] if p["name"] in ("capture", "ahead")), None)
    if start is None:
        return None
    start = begun + start * 1e6
    end = start + told["device"]["stall"]["copying_seconds"] * 1e6
    before = [row for row in rows if row[1] < begun][-100:]
    during = [row for row in rows if row[0] >= start and row[1] <= end]
    if not during:
        return None
    out = {"steps": len(during)}
    for name, some in (("usual", before), ("meanwhile", during)):
        lengths, device = [row[1] - row[0] for row in some], [row[3] for row in some]
        longest = sorted(some, key=lambda row: row[0] - row[1])[:10]
        out[name] = {"mean": statistics.mean(lengths), "median": statistics.median(lengths),
                     "device_mean": statistics.mean(device), "device_median": statistics.median(device),
                     "longest": [{"at": row[0] - start, "step": row[1] - row[0], "device": row[3]} for row in longest]}
    for name in ("mean", "median"):
        out[f"speed_by_{name}"] = out["usual"][name] / out["meanwhile"][name]
    return out


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
    log = work / "steps"
    program = [TREE / "bench" / "hot", "--gib", gib, "--buffers", 400 if gib >= 8 else 40]
    program += ["--until", work / "go", "--log", log]
    running = subprocess.Popen([str(w) for w in program], stdout=subprocess.DEVNULL)
    try:
        settled(log)
        begun = time.time() * 1e6
        told = document(call(TREE / "bench" / "peer", running.pid, "--restore"))
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


def natively(gib):
    """The same program without Fermata, beside which a thread of its own copies its memory to the host: what that
    costs on this machine in any case."""
    work = pathlib.Path(tempfile.mkdtemp())
    log, go, out = work / "steps", work / "go", work / "out"
    result = {"case": "native", "gib": gib}
    try:
        program = [TREE / "bench" / "hot", "--gib", gib, "--buffers", 400 if gib >= 8 else 40]
        program += ["--until", go, "--log", log, "--beside", gib]
        with out.open("w") as told:
            running = subprocess.Popen([str(w) for w in program], stdout=told)
        try:
            found = lambda: re.search(r"beside (\d+) (\d+) gb/s ([0-9.]+)", out.read_text())
            wait_for(found, "the copy's end", 60)
            time.sleep(0.1)
            begun, ended, rate = found().groups()
            result |= {"gb_s": float(rate), "first_seen": seen(steps_of(log), float(begun), float(ended))}
        finally:
            go.touch()
            running.wait(60)
    except Exception as error:
        result["error"] = str(error)
    shutil.rmtree(work, ignore_errors=True)
    return result


class Bench:
    """A daemon with folders of its own, and the program running under it."""

    def __init__(self, gib, images, transfer):
        self.gib, self.images, self.transfer = gib, images, transfer
        self.ready = 0
        self.work = pathlib.Path(tempfile.mkdtemp())
        self.go, self.log = self.work / "go", self.work / "steps"
        shutil.rmtree(images, ignore_errors=True)
        images.mkdir(parents=True)
        (self.work / "run").mkdir()
        self.env = {
            **os.environ,
            "FERMATA_RUNTIME_DIR": str(self.work / "run"),
            "FERMATA_IMAGE_DIR": str(images),
        }

    def fermata(self, *words):
        return call(FERMATA, *words, env=self.env)

    def prepare(self, share):
        """Makes memory for an image ready."""
        if str(self.images).startswith("/dev/shm"):
            self.ready = (int(self.gib * share) + 1) << 30
            self.fermata("images", "prepare", (self.ready >> 30) + 1)

    def registered(self, limit=40):
        """Waits until workers have registered that memory: the one that the daemon tells of, and the program's."""
        until = time.time() + limit
        while self.ready and time.time() < until:
            daemon = json.loads(self.fermata("version", "--json")).get("daemon") or {}
            if (daemon.get("memory_tier") or {}).get("ready", 0) >= self.ready:
                break
            time.sleep(0.1)
        time.sleep(2)

    def start(self):
        program = [TREE / "bench" / "hot", "--gib", self.gib, "--buffers", 400 if self.gib >= 8 else 40]
        program += ["--until", self.go, "--log", self.log, "--transfer", self.transfer]
        self.fermata("-q", "run", "--detach", "--name", "hot", "--", *program)

    def checkpoint(self, name):
        mode, _, pool = name.partition(":")
        words = ["checkpoint", "hot", "--json", "--mode", mode] + (["--pool", pool] if pool else [])
        begun = time.time() * 1e6
        told = document(self.fermata(*words))
        ended = time.time() * 1e6
        time.sleep(0.5)
        steps = steps_of(self.log)
        return {
            "first": told,
            "first_seen": seen(steps, begun, ended),
            "while_copied": while_copied(rows_of(self.log), begun, told),
            "first_gpu_stall_s": gpu_stall(told),
        }

    def forget(self):
        for entry in self.images.iterdir():
            if not entry.name.startswith("."):
                self.fermata("images", "rm", entry.name)
        self.fermata("images", "gc")

    def restore(self):
        """Kills the program, brings it back from its image, and has it end."""
        image = next(it.name for it in self.images.iterdir() if not it.name.startswith("."))
        self.fermata("kill", "hot")
        time.sleep(4)
        begun = time.time()
        # The log of the steps goes on where the killed program has left it.
        words = ["restore", image, "--name", "again", "--detach", "--json", "--ignore-changed-files"]
        out = document(self.fermata(*words))
        took = time.time() - begun
        self.go.touch()
        self.fermata("wait", "again")
        found = re.search(r"digest hot ([0-9a-f]+) steps (\d+)", self.fermata("logs", "again"))
        return {
            "restore_s": took,
            "restore": {"seconds": out["seconds"], "phases": out["phases"]},
            "restored_digest": found and found.groups(),
        }

    def close(self):
        subprocess.run([str(FERMATA), "kill", "hot", "again"], env=self.env, capture_output=True)
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                ours = str(self.work).encode() in (process / "environ").read_bytes()
                if ours and (process / "comm").read_text().strip() == "fermatad":
                    os.kill(int(process.name), signal.SIGTERM)
            except OSError:
                continue  # it has ended meanwhile
        time.sleep(1)
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.rmtree(self.images, ignore_errors=True)


def ready_share(name):
    """Memory for an image of a case, in terms of the program's: what is copied again takes a place again."""
    return 1.4 if name.startswith("recopy") else 1.05


def in_turn(names, gib, images, transfer, alone):
    """The results of cases: in one session, of which the last image is restored; or each in its own."""
    bench = None
    try:
        for nth, name in enumerate(names):
            begun = time.time()
            result = {"case": name, "gib": gib, "transfer_mib": transfer, "first_of_its_process": alone or nth == 0}
            try:
                if bench is None:
                    bench = Bench(gib, images, transfer)
                    bench.prepare(ready_share(name))
                    bench.start()
                else:
                    bench.forget()
                    bench.prepare(ready_share(name))
                bench.registered()
                settled(bench.log)
                result["ready_after_s"] = time.time() - begun
                result |= bench.checkpoint(name)
                if alone or nth == len(names) - 1:
                    result |= bench.restore()
            except Exception as error:  # one case's failure is that case's result
                result["error"] = str(error)
            if bench and (alone or "error" in result):
                bench.close()
                bench = None
            result["took_s"] = time.time() - begun
            yield result
    finally:
        if bench:
            bench.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--gib", type=int, default=40)
    parser.add_argument("--disk", type=pathlib.Path, help="a folder on a disk; else /dev/shm")
    parser.add_argument("--transfer", type=int, default=256, help="MiB of transfers a step in the case `transfer`")
    parser.add_argument("--cases", default="native,snapshot,cow:6GiB,cow,recopy,stop,driver,transfer")
    parser.add_argument("--alone", action="store_true", help="each case in a process of its own, and restored")
    args = parser.parse_args()
    images = (args.disk or pathlib.Path("/dev/shm")) / f"fermata-protocols-{os.getpid()}"
    names = args.cases.split(",")
    plain = [name for name in names if name not in ("native", "driver", "transfer")]

    def all_cases():
        if "native" in names:
            yield natively(args.gib)
        yield from in_turn(plain, args.gib, images, 0, args.alone)
        if "driver" in names:
            yield drivers_own(args.gib)
        if "transfer" in names:
            for result in in_turn(["cow:6GiB"], args.gib, images, args.transfer, True):
                yield {**result, "case": "transfer"}

    report = {**facts(), "cases": []}
    for last in all_cases():
        report["cases"].append(last)
        args.report.write_text(json.dumps(report, indent=1) + "\n")
        told = last.get("error") or last.get("first_seen")
        print(last["case"], f"{last.get('took_s', 0):.0f} s", json.dumps(told), file=sys.stderr)


if __name__ == "__main__":
    main()
