"""Programs of the frameworks (bench/frameworks/programs.py) and of nvcc, native and under Fermata in turn.

    bench/frameworks.py REPORT.json [--only NAME,...] [--checkpoints NAME,...] [--modes MODE,...] [--moments N]
                        [--turns N] [--seconds S] [--no-rates] [--tier GIB] [--limit SECONDS]
                        [--device gpu|soft] [--swap] [--warm] [--list]

For each program: whether its result equals the native one bit for bit (where two native runs agree), the time to its
first result, the median of a step, with their ratios, and its launches a second, which a run under Fermata counts
(FERMATA_TALLY). Then programs are checkpointed with each mode at so many random steps of one run; after each, the program
is killed and restored. The result must be that of a run that went through.

What fails is reported, and the others go on. Time that is left is asked before each part; what did not fit is listed.
`--tier` keeps so much registered memory ready for images. On the software GPU `static`, `static12`, `numba`, `mpi` and
`mpi_direct` run: NVIDIA's libraries hold machine code only. Needs a build tree (FERMATA_BUILD, default build/) with
`make -C bench` done, and for MPI `tools/setup.sh mpi mpi-cuda` before that.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import measure

SCRIPT = measure.HERE / "frameworks" / "programs.py"
BUILT = measure.TREE / "bench"
OF_MPI = ["sh", measure.HERE / "programs" / "mpi" / "start.sh"]
# Programs of nvcc: with its default, the static runtime of the toolkit, with that of CUDA 12, and two ranks of an MPI job.
COMMANDS = {
    "static": [BUILT / "launches"], "static12": [BUILT / "launches-cuda12"],
    "mpi": [*OF_MPI, "staged"], "mpi_direct": [*OF_MPI, "direct"],
}
STEPS = {
    "static": 2000, "static12": 2000, "numba": 5000, "triton": 10000, "cupy": 200, "jax": 2000, "nccl": 5000, "graph": 2000,
    "green": 1000,
    "compiled": 200, "loader": 300, "encoder": 100, "unet": 100, "resnet": 60, "language": 60, "generation": 12,
    "ranks": 200, "ranks_8": 20, "ddp": 300, "ddp_shm": 300, "ddp_8": 20, "ddp_graph": 60, "ddp_reduces": 400,
    "fsdp": 15, "ddp_language": 15, "tensor": 8,
    "language_compiled": 30, "language_3b": 30, "generation_3b": 8, "halves": 300, "replicas": 200, "mpi": 600, "mpi_direct": 2000,
}
# Steps at most of a run that is checkpointed: what takes some fifteen seconds where programs are fastest. Where a step takes
# longer, there are fewer (`--seconds`).
LONG = {
    "static": 30000, "static12": 30000, "numba": 80000, "triton": 500000, "cupy": 15000, "jax": 100000, "nccl": 300000,
    "graph": 100000, "green": 15000, "compiled": 7000, "loader": 8000, "encoder": 800, "unet": 2500, "resnet": 900, "language": 800,
    "generation": 300, "ranks": 1500, "ranks_8": 3000, "ddp": 12000, "ddp_shm": 12000, "ddp_8": 4000, "ddp_graph": 200000,
    "ddp_reduces": 12000, "fsdp": 300, "ddp_language": 1500, "tensor": 150, "language_compiled": 2500, "language_3b": 1500,
    "generation_3b": 200, "halves": 12000, "replicas": 12000, "mpi": 8000, "mpi_direct": 12000,
}
# A run through STEPS, in seconds, where it takes longer than most.
SLOW = {"language_compiled": 90, "language_3b": 120, "generation_3b": 45} | dict.fromkeys(
    ("ranks", "ranks_8", "ddp", "ddp_shm", "ddp_8", "ddp_graph", "ddp_reduces", "ddp_language", "fsdp", "tensor"), 60)
# Steps of these are too long, or too few, for what the software GPU can do in the time.
SOFT_STEPS = {"static": 20, "static12": 20, "numba": 20, "mpi": 3, "mpi_direct": 3}
# Seconds that a run has for its last steps, after the last checkpoint.
ENDING = 30
GIB = 1 << 30


class Runner:
    """How programs are started: natively, and in sessions of a daemon."""

    def __init__(self, daemon, device, seconds):
        self.daemon, self.device, self.seconds = daemon, device, seconds
        self.long = dict(LONG)
        self.native_env = dict(os.environ)
        if device == "soft":
            folders = [str(measure.TREE / "lib" / "softgpu"), os.environ.get("LD_LIBRARY_PATH", "")]
            self.native_env["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))

    def steps(self, name, table):
        return SOFT_STEPS[name] * (1 if table is STEPS else 10) if self.device == "soft" else table[name]

    def words(self, name, table):
        command = COMMANDS.get(name, [sys.executable, SCRIPT, name])
        return [str(it) for it in (*command, self.steps(name, table))]

    def straight(self, name, limit):
        """A native run as long as those that are checkpointed: how many steps these have is found out by it."""
        if self.device == "gpu":
            step = self.native(name, STEPS, limit)["median_s"]
            self.long[name] = max(STEPS[name], min(LONG[name], int(self.seconds / step)))
        return self.native(name, self.long, limit)

    def native(self, name, table, limit):
        return finished(self.words(name, table), self.native_env, limit)

    def under(self, name):
        return [str(measure.FERMATA), "--quiet", "run", "--device", self.device, "--", *self.words(name, STEPS)]


def parse(text):
    text = text.replace("\0", "")  # Open MPI's launcher puts these between lines
    found = dict(re.findall(r"^(first|median|digest) (\S+)", text, re.M))
    if "digest" not in found:
        raise RuntimeError(f"no digest: {text.strip()[-300:]}")
    return {"first_s": float(found["first"]), "median_s": float(found["median"]), "digest": found["digest"]}


def finished(words, env, limit):
    done = subprocess.run(words, env=env, timeout=limit, capture_output=True, text=True, errors="replace")
    try:
        return parse(done.stdout)
    except (RuntimeError, KeyError) as error:
        raise RuntimeError(f"status {done.returncode}: {error}; {done.stderr.strip()[-500:]}") from error


def counted(folder):
    """Launches of kernels and of graphs by the calls that the programs of a folder's tallies have made."""
    kernels = graphs = 0
    for file in folder.glob("program-*"):
        for line in file.read_text().splitlines():
            name, count = (line.split() + ["", "0"])[:2]
            if name.startswith("cuLaunch") and "HostFunc" not in name:
                kernels += int(count)
            elif name.startswith("cuGraphLaunch"):
                graphs += int(count)
    return kernels, graphs


def rates(runner, name, limit):
    """Launches of a step: those between its first third and its end."""
    steps = runner.steps(name, STEPS)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        env = {**runner.daemon.env, "FERMATA_TALLY": str(folder)}
        marks = []
        with subprocess.Popen(runner.under(name), env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace") as run:
            try:
                until = time.time() + limit
                for line in run.stdout:
                    step = re.match(r"step (\d+) ", line)
                    if step and int(step.group(1)) >= steps // 3:
                        marks.append((int(step.group(1)), *counted(folder)))
                    if time.time() > until:
                        raise RuntimeError(f"it takes longer than {limit} s")
            finally:
                run.kill()
    if len(marks) < 2:
        raise RuntimeError("it has too few steps to count launches in")
    (first, *before), (last, *after) = marks[0], marks[-1]
    kernels, graphs = ((b - a) / (last - first) for a, b in zip(before, after))
    return {"launches_per_step": kernels, "graph_launches_per_step": graphs}


def pair(runner, name, turns, count, limit):
    """Native and under Fermata in turn: the first run of each fills caches of files and of compiled code."""
    native, ours = [], []
    for _ in range(turns):
        native.append(runner.native(name, STEPS, limit))
        ours.append(finished(runner.under(name), runner.daemon.env, limit))
    digests = {it["digest"] for it in native}
    best = lambda runs, key: min(it[key] for it in runs)
    ratio = lambda key: best(ours, key) / best(native, key) if best(native, key) else None
    found = {
        "program": name, "native": native, "fermata": ours, "native_repeats": len(digests) == 1 if turns > 1 else None,
        "equal": {it["digest"] for it in ours} == digests if len(digests) == 1 else None,
        "first_ratio": ratio("first_s"), "median_ratio": ratio("median_s"),
    }
    if count:
        try:
            found |= rates(runner, name, limit)
            per_step = found["launches_per_step"]
            for who, runs in (("native", native), ("fermata", ours)):
                found[f"{who}_launches_per_s"] = per_step / best(runs, "median_s")
        except Exception as error:
            found["rates_failed"] = str(error)[-300:]
    return found


def size_of(folder):
    """Bytes that the files of a folder take."""
    taken = 0
    for place, _, files in os.walk(folder):
        for file in files:
            try:
                taken += os.stat(os.path.join(place, file), follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue  # it has just been removed
    return taken


def summary(told):
    """What a checkpoint cost, out of what its command tells."""
    phases = {it["name"]: it["seconds"] for it in told["phases"]}
    moved, stall = told["device"]["device_bytes"], told["device"]["stall"]
    seconds = phases.get("device", 0) if told["mode"] == "stop" else stall["copying_seconds"]
    return {
        "stopped_s": told["stopped_seconds"], "command_s": told["seconds"], "device_bytes": moved,
        "host_bytes": told["host_bytes"], "gb_s": moved / seconds / 1e9 if seconds else None, "overtaken": told["overtaken"],
    }


class Journey:
    """One run of a program that is checkpointed, killed and restored several times."""

    def __init__(self, runner, name, mode, limit, given):
        self.runner, self.daemon, self.name, self.mode = runner, runner.daemon, name, mode
        self.swap, self.warm = given.swap, given.warm
        self.limit, self.times, self.made = limit, 0, []
        self.session, self.done = f"{name}-{mode}-0", []

    def log(self):
        return self.daemon.told("logs", self.session).replace("\0", "")

    def wait(self, pattern, what):
        """Waits for a line of the program; what the pattern has found."""
        found = None

        def there():
            nonlocal found
            # What it is comes before what it has printed: the last lines of one that has ended are there.
            state = self.daemon.session(self.session)["state"]
            text = self.log()
            found = re.search(pattern, text, re.M)
            if not found and state in ("lost", "orphaned", "exited"):
                raise RuntimeError(f"it is {state} before its {what}: {text.strip()[-300:]}")
            return found

        measure.wait_for(there, f"{self.name}'s {what}", self.limit)
        return found

    def start(self):
        words = self.runner.words(self.name, self.runner.long)
        self.daemon.fermata("run", "--device", self.runner.device, "--detach", "--name", self.session, "--", *words)

    def forget(self, image):
        """Removes an image once all its data has been read."""
        self.daemon.remove(image)
        self.made.remove(image)

    def checkpoint(self, step):
        """False if that was too late."""
        self.wait(rf"^step {step} ", f"step {step}")
        image = f"{self.session}-image"
        self.made.append(image)
        memory = self.daemon.memory(self.session)
        words = ["checkpoint", self.session, "-o", image, "--mode", self.mode, "--json"]
        try:
            told = measure.document(self.daemon.fermata(*words, limit=self.limit))
        except Exception as error:
            if "has ended" in str(error) and re.search(r"^digest ", self.log(), re.M):
                return False  # it has come to its end meanwhile
            raise
        if not told["device"]["device_bytes"]:
            return False  # its processes that use the GPU have ended meanwhile
        self.daemon.told("kill", self.session)
        taken = size_of(self.daemon.images)
        self.times += 1
        self.session = f"{self.name}-{self.mode}-{self.times}"
        gpus = ["--gpus", "1,0" if self.times % 2 else "0,1"] if self.swap else []
        if self.warm:
            self.daemon.fermata("images", "warm", image, *gpus)
        begun = time.time()
        words = ["restore", image, "--detach", "--name", self.session, "--json", *gpus]
        back = measure.document(self.daemon.fermata(*words, limit=self.limit))
        restored = time.time() - begun
        self.done.append({"step": step, **summary(told), "image_bytes": taken, "restore_command_s": restored, "told": told,
                          "program_pss_before": memory and memory["program"]["pss"],
                          "restore_phases": {it["name"]: round(it["seconds"], 4) for it in back["phases"]}})
        self.forget(image)
        return True

    def end(self):
        return self.wait(r"^digest (\S+)", "digest").group(1)

    def stand(self):
        """How the session stands, and what it has said last."""
        try:
            told = self.daemon.session(self.session)
            return f"{told['state']}, {told['note']}: {self.log().strip()[-400:]}"
        except Exception as error:
            return str(error)[-200:]

    def close(self):
        self.daemon.told("kill", self.session)
        for image in self.made:
            self.daemon.told("images", "rm", image)


def interrupted(runner, name, mode, straight, limit, until, given):
    """Checkpointed at random steps of one run, killed and restored each time; at no further step after `until`."""
    steps = runner.steps(name, runner.long)
    every = max(1, steps // 200)
    printed = range(every, steps * 3 // 4, every)
    chosen = sorted(random.sample(printed, min(given.moments, len(printed))))
    journey = Journey(runner, name, mode, limit, given)
    failed = None
    try:
        journey.start()
        for step in chosen:
            if time.time() > until or not journey.checkpoint(step):
                break
        digest = journey.end()
        if digest != straight["digest"] and "repeats" not in straight:
            again = runner.native(name, runner.long, limit)["digest"]
            straight["repeats"] = again == straight["digest"]
    except Exception as error:
        digest, failed = None, f"{str(error)[-600:]}; {journey.stand()}"
    finally:
        journey.close()
    found = {
        "program": name, "mode": mode, "swapped": given.swap, "warm": given.warm, "steps": chosen,
        "restored": len(journey.done), "failed": failed,
        "digest": digest, "equal": None if failed else digest == straight["digest"], "native_repeats": straight.get("repeats"),
        "checkpoints": journey.done,
    }
    if not journey.done:
        raise RuntimeError(failed or "none of its checkpoints was in time: give --limit or --seconds more")
    return found


def shown(entry):
    """One line of what was found."""
    long = ("native", "fermata", "checkpoints")
    line = {key: value for key, value in entry.items() if key not in long}
    done = entry.get("checkpoints")
    if done:
        worst = lambda key: max(it[key] for it in done)
        line |= {"stopped_s": worst("stopped_s"), "restore_command_s": worst("restore_command_s")}
        line["gb_s"] = [it["gb_s"] and round(it["gb_s"], 1) for it in done]
    return json.dumps(line)


def arguments():
    known = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known.add_argument("report", type=pathlib.Path, nargs="?")
    known.add_argument("--only", default=",".join(STEPS), help="programs that are run through; empty: none")
    known.add_argument("--checkpoints", default="resnet,language,encoder", help="programs that are checkpointed; empty: none")
    known.add_argument("--modes", default="cow,snapshot,recopy,stop")
    known.add_argument("--moments", type=int, default=1)
    known.add_argument("--turns", type=int, default=2)
    known.add_argument("--no-rates", dest="rates", action="store_false")
    known.add_argument("--seconds", type=float, default=15, help="how long a run that is checkpointed takes, without what begins it")
    known.add_argument("--tier", type=int, default=0, help="GiB of registered memory that are kept ready for images")
    known.add_argument("--limit", type=float, default=540)
    known.add_argument("--device", default="gpu", choices=("gpu", "soft"))
    known.add_argument("--swap", action="store_true", help="every second restore has the two GPUs in the other order")
    known.add_argument("--warm", action="store_true", help="before each restore, workers load the image's modules")
    known.add_argument("--seed", type=int, default=7)
    known.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/dev/shm/fermata-frameworks"))
    known.add_argument("--list", action="store_true", help="names the programs")
    given = known.parse_args()
    given.only, given.checkpoints, given.modes = (list(filter(None, it.split(","))) for it in (
        given.only, given.checkpoints, given.modes))
    unknown = [name for name in given.only + given.checkpoints if name not in STEPS]
    if unknown or not (given.list or given.report):
        known.error(f"no such program: {', '.join(unknown)}" if unknown else "REPORT.json is missing")
    return given


def main():
    given = arguments()
    if given.list:
        print("\n".join(STEPS))
        return
    end = time.time() + given.limit
    random.seed(given.seed)
    work = given.work / str(os.getpid())
    tier = {"FERMATA_MEMORY_TIER": f"{given.tier}G", "FERMATA_MEMORY_TIER_LIMIT": f"{2 * given.tier + 8}G"} if given.tier else {}
    daemon = measure.Daemon(work, work / "images", **tier)
    runner = Runner(daemon, given.device, given.seconds)
    report = {**measure.facts(), "programs": [], "checkpoints": [], "failed": [], "left_out": []}

    def part(what, needs, into, act):
        left = end - time.time()
        if needs > left:
            report["left_out"].append(what)
            return
        try:
            into.append(act(max(needs, left)))
            print(what, shown(into[-1]), flush=True)
        except Exception as error:
            report["failed"].append({"what": what, "error": str(error)[-800:]})
            print(what, "failed:", str(error)[-800:], flush=True)
        given.report.write_text(json.dumps(report, indent=1))

    try:
        straight, runs = {}, len(given.checkpoints) * len(given.modes)
        for name in given.checkpoints:
            for mode in given.modes:
                def act(limit):
                    if name not in straight:
                        straight[name] = runner.straight(name, min(limit, 200))
                    # Each run that is still to come has the same share of the time left, of which it needs some to end.
                    now = time.time()
                    until = now + max(0, (end - now) / runs - ENDING)
                    return interrupted(runner, name, mode, straight[name], min(limit, 120), until, given)
                part(f"{name}, {mode}", max(40, SLOW.get(name, 0)) + 4 * given.moments, report["checkpoints"], act)
                runs -= 1
        for name in given.only:
            needs = max(20, SLOW.get(name, 0)) * given.turns
            part(name, needs, report["programs"],
                 lambda limit: pair(runner, name, given.turns, given.rates, min(limit, 200)))
    finally:
        daemon.end()
        shutil.rmtree(work, ignore_errors=True)
        given.report.write_text(json.dumps(report, indent=1))
    if report["failed"]:
        print("failed:", ", ".join(it["what"] for it in report["failed"]), file=sys.stderr)


if __name__ == "__main__":
    main()
