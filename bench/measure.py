"""What the benches share: commands with a limit, daemons, the machine's facts, host memory."""

import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
TREE = pathlib.Path(os.environ.get("FERMATA_BUILD", HERE.parent / "build")).resolve()
FERMATA = TREE / "bin" / "fermata"

# The environment of runs in which kernels check themselves: a GPU's driver then compiles every program's PTX, which can be
# instrumented. Without it, kernels of which a program carries machine code for the GPU run as that and are not checked.
CHECKABLE = {"CUDA_FORCE_PTX_JIT": "1"}
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def call(*words, env=None, limit=240):
    """What a command prints on its standard output; an error, with what it says, if it fails."""
    done = subprocess.run([str(w) for w in words], env=env, timeout=limit, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {(done.stderr + done.stdout).strip()[-400:]}")
    return done.stdout


def document(text):
    """The JSON document in `text`, which may begin with other lines."""
    return json.loads(text[text.index("{") :])


def wait_for(test, what, limit=90, turn=0.05):
    until = time.time() + limit
    while time.time() < until:
        if test():
            return
        time.sleep(turn)
    raise RuntimeError(f"{what} does not come")


def facts():
    """When and where: the first entries of every report."""
    try:
        gpu = call("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").strip()
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        if all(it.isdigit() for it in seen):
            gpu = "\n".join(line for at, line in enumerate(gpu.splitlines()) if str(at) in seen)
    except OSError:
        gpu = "none: the software GPU"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "gpu": gpu,
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
        "revision": os.environ.get("FERMATA_REVISION"),
    }


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


class Daemon:
    """A daemon of its own with its folder of images; where images lie is a daemon's setting, as the others are."""

    def __init__(self, work, images, **settings):
        self.work, self.images = work, images
        self.env = dict(os.environ, FERMATA_RUNTIME_DIR=str(work / "run"), FERMATA_IMAGE_DIR=str(images))
        self.env.update(settings)
        (work / "run").mkdir(parents=True)
        images.mkdir(parents=True)
        self.fermata("ps")

    def fermata(self, *words, limit=120):
        return call(FERMATA, *words, env=self.env, limit=limit)

    def told(self, *words):
        """What a command prints whose status is no matter here."""
        return subprocess.run([FERMATA, *words], env=self.env, capture_output=True, text=True, errors="replace", timeout=60).stdout

    def session(self, name):
        """Its entry in `fermata ps --json`."""
        sessions = document(self.fermata("ps", "--json"))["sessions"]
        return next(it for it in sessions if it["name"] == name)

    def memory(self, name):
        """What `fermata ps --memory` tells of a session; none of one that has ended."""
        told = document(self.fermata("ps", "--memory", "--json"))["memory"]
        return next((it for it in told if it["session"] == name), None)

    def arrived(self, name, limit=90):
        """How the data of a restored session has come, once all of it is there."""
        wait_for(lambda: self.session(name)["arrival"]["stand"] != "coming", f"the data of `{name}`", limit)
        return self.session(name)["arrival"]

    def page_faults(self):
        """Seconds until host memory was there and page faults that waited for it, of each restore on demand so far."""
        log = (self.work / "run" / "fermatad.log").read_text(errors="replace")
        told = [line for line in log.splitlines() if "host memory is there" in line]
        numbers = lambda line: {it: float(re.search(rf"\b{it}=([\d.e-]+)", line).group(1)) for it in ("seconds", "faults")}
        return [numbers(line) for line in told]

    def remove(self, image, limit=60):
        """Removes an image once all its data has been read, and frees its space: what it had registered is free for others."""
        done = lambda *words: subprocess.run([FERMATA, "images", *words], env=self.env, capture_output=True, timeout=60).returncode == 0
        wait_for(lambda: done("rm", image), f"the end of reading `{image}`", limit)
        wait_for(lambda: done("gc"), "the space of removed images", limit)

    def tier(self):
        """Bytes ready and registered in a waiting worker."""
        found = re.search(r"memory tier: ([\d.]+) (\w+) ready of ([\d.]+) (\w+)", self.told("doctor"))
        if not found:
            return 0, 0
        ready, unit, registered, other = found.groups()
        return float(ready) * UNITS[unit], float(registered) * UNITS[other]

    def end(self, *names):
        """Kills these sessions and the daemon, and removes the images."""
        for name in names:
            self.told("kill", name)
        found = re.search(r"release \S+, process (\d+)", self.told("doctor"))
        if found:
            os.kill(int(found.group(1)), signal.SIGTERM)
        shutil.rmtree(self.images, ignore_errors=True)


class Succession:
    """A program under Fermata, killed and restored: one session after another."""

    def __init__(self, daemon, prefix, program):
        self.daemon, self.prefix, self.count = daemon, prefix, 0
        daemon.fermata("run", "--device", "gpu", "--detach", "--name", self.name(), "--", *program)

    def name(self):
        return f"{self.prefix}-{self.count}"

    def log(self):
        return self.daemon.told("logs", self.name())


def empty_page_cache():
    subprocess.run(["sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches"], check=True)


def available_memory():
    """Bytes of host memory that programs can still have."""
    text = pathlib.Path("/proc/meminfo").read_text()
    return int(re.search(r"MemAvailable:\s+(\d+)", text).group(1)) << 10


class Footprint:
    """The most host memory that was taken meanwhile, on the whole machine: what `MemAvailable` has lost,
    which counts pinned memory too, and files' cached pages as free."""

    def __enter__(self):
        self.done = threading.Event()
        self.before = self.least = available_memory()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        self.extra_bytes = self.before - self.least

    def watch(self):
        while not self.done.wait(0.01):
            self.least = min(self.least, available_memory())

