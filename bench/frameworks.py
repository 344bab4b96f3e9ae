"""Programs of the frameworks (bench/frameworks/programs.py), native and under Fermata in turn, on a GPU.

    bench/frameworks.py REPORT.json [--only NAME,...] [--checkpoints NAME,...] [--modes MODE,...] [--limit SECONDS]

For each program: whether its result equals the native one bit for bit (where two native runs agree), the time to its
first result, and the median of a step, with their ratios. Then programs are checkpointed at a random step with each
mode, killed and restored: the result must be that of a run that went through. Time that is left is asked before each
part; what did not fit is listed. The software GPU cannot run them: NVIDIA's libraries hold machine code only.
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

import measure

PROGRAMS = measure.HERE / "frameworks" / "programs.py"
STEPS = {"resnet": 60, "encoder": 100, "language": 60, "generation": 12, "unet": 100, "graph": 2000, "loader": 300,
         "nccl": 500, "ranks": 200, "compiled": 200, "jax": 500, "cupy": 200, "triton": 1000}
# Long enough to be stopped in the middle.
LONG = {"resnet": 400, "encoder": 1200, "language": 400, "graph": 40000, "loader": 4000, "jax": 20000,
        "cupy": 5000, "nccl": 20000, "ranks": 1500, "triton": 20000, "generation": 60, "compiled": 2000, "unet": 800}


def parse(text):
    found = dict(re.findall(r"^(first|median|digest) (\S+)", text, re.M))
    if "digest" not in found:
        raise RuntimeError(f"no digest: {text.strip()[-300:]}")
    return {"first_s": float(found["first"]), "median_s": float(found["median"]), "digest": found["digest"]}


def run(words, env, limit):
    done = subprocess.run(words, env=env, timeout=limit, capture_output=True, text=True)
    try:
        return parse(done.stdout)
    except (RuntimeError, KeyError) as error:
        raise RuntimeError(f"status {done.returncode}: {error}; {done.stderr.strip()[-500:]}") from error


def pair(daemon, name, limit):
    """Native and under Fermata in turn, twice: the first run of each fills caches of files and of compiled code."""
    words = [sys.executable, str(PROGRAMS), name, str(STEPS[name])]
    under = [str(measure.FERMATA), "--quiet", "run", "--device", "gpu", "--"] + words
    native, ours = [], []
    for _ in range(2):
        native.append(run(words, os.environ, limit))
        ours.append(run(under, daemon.env, limit))
    digests = {it["digest"] for it in native}
    best = lambda runs, key: min(it[key] for it in runs)
    ratio = lambda key: best(ours, key) / best(native, key)
    return {
        "program": name, "native": native, "fermata": ours, "native_repeats": len(digests) == 1,
        "equal": {it["digest"] for it in ours} == digests if len(digests) == 1 else None,
        "first_ratio": ratio("first_s"), "median_ratio": ratio("median_s"),
    }


def interrupted(daemon, name, mode, expected, limit):
    """Checkpointed at a random step, killed, restored."""
    words = [sys.executable, str(PROGRAMS), name, str(LONG[name])]
    session, image = f"{name}-{mode}", str(daemon.images / f"{name}-{mode}")
    daemon.fermata("run", "--device", "gpu", "--detach", "--name", session, "--", *words)
    log = lambda of: daemon.told("logs", of)
    measure.wait_for(lambda: "step 10 " in log(session), f"{name}'s tenth step", limit)
    time.sleep(random.uniform(0, 2))
    took = json.loads(daemon.fermata("checkpoint", session, "-o", image, "--mode", mode, "--json", limit=limit))
    daemon.told("kill", session)
    begun = time.time()
    daemon.fermata("restore", image, "--detach", "--name", session + "-restored", limit=limit)
    restored = time.time() - begun
    measure.wait_for(lambda: "digest " in log(session + "-restored"), f"{name}'s digest", limit)
    digest = parse(log(session + "-restored"))["digest"]
    daemon.told("images", "rm", image)
    return {"program": name, "mode": mode, "equal": digest == expected, "checkpoint": took, "restore_command_s": restored}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("report", type=pathlib.Path)
    arguments.add_argument("--only", default=",".join(STEPS))
    arguments.add_argument("--checkpoints", default="resnet,language,encoder")
    arguments.add_argument("--modes", default="cow,snapshot,recopy,stop")
    arguments.add_argument("--limit", type=float, default=540)
    arguments.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/dev/shm/fermata-frameworks"))
    arguments = arguments.parse_args()
    end = time.time() + arguments.limit
    random.seed(7)
    work = arguments.work / str(os.getpid())
    daemon = measure.Daemon(work, work / "images")
    report = {**measure.facts(), "programs": [], "checkpoints": [], "failed": [], "left_out": []}

    def part(what, needs, into, act):
        if time.time() + needs > end:
            report["left_out"].append(what)
            return
        try:
            into.append(act())
            print(what, json.dumps({k: v for k, v in into[-1].items() if k not in ("native", "fermata", "checkpoint")}),
                  flush=True)
        except Exception as error:
            report["failed"].append({"what": what, "error": str(error)[-800:]})
            print(what, "failed:", str(error)[-800:], flush=True)
        arguments.report.write_text(json.dumps(report, indent=1))

    straight = {}
    for name in filter(None, arguments.checkpoints.split(",")):
        for mode in arguments.modes.split(","):
            def act():
                if name not in straight:
                    words = [sys.executable, str(PROGRAMS), name, str(LONG[name])]
                    straight[name] = run(words, os.environ, 150)["digest"]
                return interrupted(daemon, name, mode, straight[name], 120)
            part(f"{name}, {mode}", 45, report["checkpoints"], act)
    for name in filter(None, arguments.only.split(",")):
        part(name, 40, report["programs"], lambda: pair(daemon, name, 120))
    daemon.end()
    arguments.report.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
