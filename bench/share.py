"""How soon instances of one image are at work, and what device memory each takes, where equal memory is there once.

    bench/share.py REPORT.json [--gib 16] [--instances 4] [--buffers 160] [--off] [--warm] [--device gpu|soft]
    bench/share.py REPORT.json --billions 0.9|3|13 [--instances 4] [--off] [--warm] [--tally]

`served` holds N GiB of weights that it only reads; `frameworks/tokens.py` is a PyTorch language model, whose libraries carry machine
code alone: an instance runs for some seconds first, and is ended, so that it is known which blocks such kernels leave as they were.
The program's image is restored so often, one instance after another, each beside those before it; all go on reading. For each:
seconds from the command to its first kernel done and to its first pass over all weights, until all data was there, what of it other
instances had already, and what the device had used before and after: the first token of a language model is its first kernel here,
the first eight are its first pass. At the end each proves its bytes. Images are in memory, so host memory for the data is needed.

`--off`: each instance has its own (no `FERMATA_COMMON_MEMORY`). `--warm`: a worker that has loaded the image's modules waits for each
instance; what the device has used before counts it. `--tally`: what each worker has spent the most time on, too (FERMATA_TALLY).
"""

import argparse
import json
import os
import pathlib
import re
import sys
import time

from measure import HERE, TREE, Daemon, call, document, facts, wait_for

# GiB of a model with so many billion parameters, as a tier needs them.
BYTES = {"tiny": 1, "0.9": 2, "3": 6, "13": 25}
# How long the instance runs that shows what its kernels leave as it was: until the first look and some more.
SHOWN = 7

# Rows of a tally that are kept.
MOST = 16

# A driver takes seconds to give back what an ended worker had.
REST = 3


def used_mib(device):
    """What processes use of the first GPU, in MiB; none of the software GPU."""
    if device == "soft":
        return None
    told = call("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    return int(told.splitlines()[int(first) if first.isdigit() else 0])


def memory(daemon, name):
    """Bytes that a session has on devices, and what of them others have, too."""
    devices = daemon.memory(name)["devices"]
    return {what: sum(it[what] for it in devices) for what in ("bytes", "common", "common_part")}


def moment(daemon, name, what):
    """When a program said that it had done `what`."""
    found = re.search(rf"^{what} ([\d.]+)$", daemon.told("logs", name), re.MULTILINE)
    return float(found.group(1)) if found else None


def spent(folder, daemon, name):
    """What the worker of a session has spent the most time on: how often, seconds in all and at once."""
    file = folder / f"worker-{daemon.session(name)['worker_pid']}"
    rows = [line.rsplit(maxsplit=3) for line in file.read_text(errors="replace").splitlines()]
    rows = [(it[0], int(it[1]), int(it[2]) / 1e9, int(it[3]) / 1e9) for it in rows if len(it) == 4]
    return sorted(rows, key=lambda it: -it[2])[:MOST]


def restored(daemon, name, device):
    before = used_mib(device)
    begun = time.time()
    told = document(daemon.fermata("restore", "image", "--detach", "--name", name, "--device", device, "--json"))
    command = time.time() - begun
    wait_for(lambda: moment(daemon, name, "all"), f"the first pass of `{name}`")
    arrival = daemon.arrived(name)
    common = [it["bytes"] for it in arrival["steps"] if it["name"] == "common"]
    return {
        "command_s": command,
        "phases": {it["name"]: round(it["seconds"], 4) for it in told["phases"]},
        "first_kernel_s": moment(daemon, name, "first") - begun,
        "first_pass_s": moment(daemon, name, "all") - begun,
        "data_s": arrival["seconds"],
        "stand": arrival["stand"],
        # Why it was rolled back, if it was.
        "note": daemon.session(name).get("note"),
        "bytes": arrival["total"],
        "bytes_of_others": sum(common),
        "used_before_mib": before,
        "used_after_mib": used_mib(device),
        **memory(daemon, name),
        "steps": arrival["steps"],
    }


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("report", type=pathlib.Path)
    arguments.add_argument("--gib", type=float, default=16)
    arguments.add_argument("--instances", type=int, default=4)
    arguments.add_argument("--buffers", type=int, default=160)
    arguments.add_argument("--billions", choices=["tiny", "0.9", "3", "13"])
    arguments.add_argument("--tally", action="store_true")
    arguments.add_argument("--off", action="store_true")
    arguments.add_argument("--warm", action="store_true")
    arguments.add_argument("--device", choices=["gpu", "soft"], default="gpu")
    arguments.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/dev/shm/fermata-share"))
    arguments = arguments.parse_args()
    work, gib = arguments.work / str(os.getpid()), BYTES.get(arguments.billions, arguments.gib)
    settings = {"FERMATA_SPARE_WORKERS": "2"} | ({} if arguments.off else {"FERMATA_COMMON_MEMORY": "1"})
    if arguments.device == "gpu":
        settings |= {"FERMATA_MEMORY_TIER": f"{int(gib) + 1}G", "FERMATA_MEMORY_TIER_LIMIT": f"{2 * int(gib) + 8}G"}
    tally = work / "tally"
    if arguments.tally:
        tally.mkdir(parents=True)
        settings["FERMATA_WORKER_FERMATA_TALLY"] = str(tally)
    daemon = Daemon(work, work / "images", **settings)
    go, end = work / "go", work / "end"
    if arguments.billions:
        program = [sys.executable, str(HERE / "frameworks" / "tokens.py"), "--billions", arguments.billions]
    else:
        program = [str(TREE / "bench" / "served"), "--gib", str(gib), "--buffers", str(arguments.buffers)]
    daemon.fermata("run", "--device", arguments.device, "--detach", "--name", "source", "--", *program, "--until", str(go),
                   "--end", str(end))
    wait_for(lambda: "ready" in daemon.told("logs", "source"), "the program's `ready`", 150)
    if arguments.device == "gpu":
        wait_for(lambda: daemon.tier()[0] >= gib * (1 << 30), "the memory tier")
    daemon.fermata("checkpoint", "source", "--mode", "stop", "--then", "stop", "-o", "image")
    go.touch()
    report = {**facts(), "program": [pathlib.Path(it).name for it in program], "gib": gib, "common": not arguments.off,
              "warm": arguments.warm, "instances": []}
    if arguments.billions and not arguments.off:
        report["shown"] = restored(daemon, "shown", arguments.device)
        if arguments.tally:
            report["shown"]["spent"] = spent(tally, daemon, "shown")
        time.sleep(SHOWN)
        daemon.fermata("kill", "shown")
        wait_for(lambda: daemon.session("shown")["state"] == "exited", "the end of the first instance")
    names = [f"instance-{n + 1}" for n in range(arguments.instances)]
    for name in names:
        time.sleep(REST if arguments.device == "gpu" else 0)
        if arguments.warm:
            daemon.fermata("images", "warm", "image")
        one = restored(daemon, name, arguments.device)
        if arguments.tally:
            one["spent"] = spent(tally, daemon, name)
        report["instances"].append(one)
        print(f"{name}: first kernel {one['first_kernel_s']:.3f} s, first pass {one['first_pass_s']:.3f} s, "
              f"{one['bytes_of_others'] >> 20} of {one['bytes'] >> 20} MiB of others, "
              f"device {one['used_before_mib']} to {one['used_after_mib']} MiB", flush=True)
        arguments.report.write_text(json.dumps(report, indent=1))
    end.touch()
    wait_for(lambda: all("digest" in daemon.told("logs", name) for name in names), "the programs' digests")
    ends = {daemon.told("logs", name).strip().splitlines()[-1] for name in names}
    report["programs"], report["whole"] = sorted(ends), len(ends) == 1 and ends.pop().endswith("bad 0")
    print("whole" if report["whole"] else f"NOT whole: {report['programs']}")
    daemon.end()
    arguments.report.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
