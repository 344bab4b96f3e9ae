"""What the reports of benches are held against: for each part of `goals.py` a function that yields its goals.

A goal is what it is of, what was measured, `<=` or `>=`, what is asked for, and the unit. Where a report has nothing to judge, measured is
None, and the unit says why.
"""

import csv
import json
import statistics

GB = 1e9


def load(folder, part, name):
    return json.loads((folder / part / name).read_text())


def rows_of(folder, part, name):
    with open(folder / part / name, newline="") as file:
        return list(csv.DictReader(file))


def calls(folder):
    told = load(folder, "calls", "calls.json")
    ratio = told["ratio"]
    yield "a launch, cost to the caller", told["fermata"]["launch_us"], "<=", 0.1, "us"
    yield "launch and cudaDeviceSynchronize, of native", ratio["launch_sync_us"], "<=", 1.15, "times"
    yield "launch and cudaStreamSynchronize, of native", ratio["launch_stream_sync_us"], "<=", 1.15, "times"
    yield "4 bytes to the host, of native", ratio["copy4_us"], "<=", 1.15, "times"
    yield "1 GiB from pinned memory, of native", ratio["h2d_gbs"], ">=", 0.97, "times"
    yield "1 GiB to pinned memory, of native", ratio["d2h_gbs"], ">=", 0.97, "times"


class Missing:
    """Steps of a report that are null in it, as rows that are neither held nor missed."""

    def __init__(self, told):
        self.told, self.rows = told, []

    def unless(self, name):
        if not self.told.get(name):
            why = self.told.get(f"{name}_failed", "its report has no such step")
            self.rows.append((f"`{name}`", None, "", None, why))
        return self.told.get(name)


def several(runs):
    """The restores of one kind, of which older reports have one only."""
    return runs if isinstance(runs, list) else [runs]


def usual(runs):
    """Seconds that they took."""
    return statistics.median_high(it["command_seconds"] for it in several(runs))


def tier(folder):
    told = load(folder, "tier", "tier.json")
    size = told["gib"] * (1 << 30) / GB
    rates, missing = told["rates"], Missing(told)
    if memory := missing.unless("memory"):
        yield "stopped checkpoint into memory, its device part", rates["checkpoint_device_GBps"], ">=", 50, "GB/s"
        yield "stopped checkpoint into memory, the whole stop", rates["checkpoint_stopped_GBps"], ">=", 50, "GB/s"
        yield "restore from memory, all data first, whole command", size / usual(memory["eager"]), ">=", 50, "GB/s"
    if memory and (peer := missing.unless("driver_checkpoint")):
        ratio = peer["checkpoint_s"] / memory["first"]["stopped_seconds"]
        yield "the driver's own stop, of ours", ratio, ">=", 20, "times"
    yield from on_disk(missing)
    yield from in_cache(missing)
    yield from missing.rows


def on_disk(missing):
    if disk := missing.unless("disk"):
        part = disk["gib"] / 4
        wrote, read = disk["disk_write_4gib_s"] * part, disk["disk_read_4gib_s"] * part
        stopped = disk["first"]["stopped_seconds"]
        yield "stopped checkpoint to the disk, of what it writes", wrote / stopped, ">=", 0.9, "times"
        yield "restore from the disk, of what it reads", read / usual(disk["eager"]), ">=", 0.9, "times"
        yield "host memory for an image on the disk", disk["extra_host_bytes"] / (1 << 30), "<=", 1, "GiB"


def in_cache(missing):
    if cached := missing.unless("cached"):
        size = cached["gib"] * (1 << 30) / GB
        behind = several(cached["behind"])
        seconds = statistics.median_high(it["arrival"]["seconds"] for it in behind)
        yield "restore from a disk whose packs are in memory, the command", usual(behind) * 1e3, "<=", 100, "ms"
        yield "its data behind the program", size / seconds, ">=", 50, "GB/s"
        told = [*(it["phases"] for it in several(cached["eager"])), *(it["arrival"]["steps"] for it in behind)]
        kept = min(sum(it["bytes"] for it in steps if it["name"].endswith("cache")) for steps in told)
        yield "of its data, taken from memory", kept / GB / size, ">=", 0.99, "of all"


def disk(folder):
    missing = Missing(load(folder, "disk", "disk.json"))
    yield from on_disk(missing)
    yield from missing.rows


def cached(folder):
    missing = Missing(load(folder, "cached", "cached.json"))
    yield from in_cache(missing)
    yield from missing.rows


def hashes(folder):
    told = json.loads((folder / "hashes" / "stdout").read_text())
    yield "BLAKE3 on the GPU", told["blake3_gbs"], ">=", 1600, "GB/s"
    yield "change check of 40 GiB", told["change_s"] * 1e3, "<=", 12, "ms"


def matrix(part):
    def judge(folder):
        told = load(folder, part, f"{part}.json")
        cases = len(told["cases"]) + told.get("left_out", 0)
        yield "cases that broke a promise", told["failed"], "<=", 0, f"of {cases}"
        # A program that had ended before its moment has shown nothing, nor has a case for which no time was left.
        yield "cases that were shown", told["passed"] / cases if cases else 0, ">=", 0.95, f"of {cases}"

    return judge


def validators(folder):
    yield from matrix("validators")(folder)
    asked = ("graphs", "cow", "ptx", "passed")
    cases = load(folder, "validators", "validators.json")["cases"]
    graphs = [it for it in cases if (it["program"], it["mode"], it["validate"], it["verdict"]) == asked]
    alone = sum(it["validated_by"] == "ptx" for it in graphs)
    yield "images of graphs for which their kernels alone vouch", alone, ">=", max(len(graphs), 1), f"of {len(graphs)}"


def protocols(folder):
    cases = {it["case"]: it for it in load(folder, "protocols", "protocols.json")["cases"]}
    for name, limit in (("snapshot", 40), ("cow:6GiB", 50), ("recopy", 150), ("transfer", None)):
        case = cases.get(name, {})
        if "first" not in case:
            yield f"`{name}`", None, "", None, case.get("error", "its report has no such case")
            continue
        told, seen = case["first"], case["first_seen"]
        if name == "transfer":
            slower = seen["median_step_during_us"] / seen["usual_step_us"]
            yield "transfers of the program's own, its step meanwhile", slower, "<=", 1.05, "times"
            continue
        yield f"{name}: stalled by the GPU's state", case["first_gpu_stall_s"]["all"] * 1e3, "<=", limit, "ms"
        speed = case["while_copied"]["speed_by_median"]
        yield f"{name}: the program's speed while it is copied", speed, ">=", 0.95, "of its own"
        device = told["device"]
        copied = device["stall"]["copying_seconds"]
        yield f"{name}: copied behind the program", device["written_bytes"] / copied / GB, ">=", 45, "GB/s"


def order(folder):
    rows = {row["order"]: row for row in rows_of(folder, "order", "restore.csv")}
    size = 40 * (1 << 30) / GB
    yield "first kernel after the command", float(rows["profile"]["first_step_ms"]), "<=", 100, "ms"
    yield "data behind the restored program", float(rows["profile"]["data_gb_s"]), ">=", 50, "GB/s"
    yield "restore of 40 GiB, all data first", size / float(rows["eager"]["command_ms"]) * 1e3, ">=", 50, "GB/s"


def overhead(folder):
    ratios = [float(row["ratio"]) for row in rows_of(folder, "overhead", "overhead.csv")]
    yield "a step outside of checkpoints, of native", statistics.median_high(ratios), "<=", 1.005, "times"


def pool(folder):
    enough = [float(row["gpu_state_ms"]) for row in rows_of(folder, "pool", "pool.csv") if float(row["of_hot"]) >= 1]
    yield "`cow` of 4 GiB with a pool for all that is hot", max(enough), "<=", 50, "ms"


def validator(folder):
    for row in rows_of(folder, "validator", "validator.csv"):
        if row["validator"] != "off":
            yield f"a step while `{row['validator']}` vouches", float(row["ratio"]), "<=", 1.12, "times"


def traces(folder):
    told = load(folder, "traces", "traces.json")
    yield "programs that could not be traced", len(told["failed"]), "<=", 0, f"of {len(told['programs'])}"
    yield "counts that are not those of the software GPU", len(told["differences"]), "<=", 0, "counts"
    graphs = next(it for it in told["programs"] if it["program"] == "graphs")
    yield "graphs whose nodes do not name all they use", graphs["open_graph_launches"], "<=", 0, f"of {graphs['graph_launches']}"


def early(folder):
    told = load(folder, "early", "early.json")
    restores = {it["case"]: it for it in told["restores"]}
    wrong = [it for it in told["restores"] if it["digest"] != told["straight"]]
    yield "restores that ended in other bytes", len(wrong), "<=", 0, f"of {len(restores)}"
    first = restores["first"]
    if not first["caught"]:
        yield "a kernel that is too early is named", None, "", None, "it was not too early on this machine"
    else:
        named = [it for it in first["arrival"]["misses"] if "spread" in it["kernel"] and 2 <= it["buffer"] <= 7]
        yield "a kernel that is too early is named, with its buffer", len(named), ">=", 1, "kernels"
    again = [it for it in restores.values() if it["case"] not in ("unchecked", "first")]
    yield "restores after that which start again", sum(it["caught"] for it in again), "<=", 0, f"of {len(again)}"
    seconds = {
        way: statistics.median_high(it["to_the_end_s"] for it in again if it["case"].startswith(way))
        for way in ("checked", "off")
    }
    yield "a restored program's time to its end with checks, of without", seconds["checked"] / seconds["off"], "<=", 1.12, "times"


def ranks(folder):
    lines = (folder / "ranks" / "stdout").read_text().splitlines()
    yield "runs of the library's programs with wrong bytes", sum("WRONG" in it for it in lines), "<=", 0, f"of {len(lines)}"
    yield "runs of them with the right ones", sum("WRONG" not in it for it in lines), ">=", 12, "runs"


def hosthash(folder):
    ways = {it["hash_host_on_gpu"]: it for it in load(folder, "hosthash", "hosthash.json")["ways"]}
    yield "host variables recovered byte by byte", sum(bool(it.get("recovered")) for it in ways.values()), ">=", 2, "of 2"
    steps = {way: {it["what"]: it for it in told["steps"]} for way, told in ways.items()}
    other = [told["unchanged, the other way"]["written"] for told in steps.values()]
    yield "bytes that the CPU's names and the GPU's do not share", sum(other), "<=", 0, "bytes"
    cpu = {way: told["unchanged"]["cpu_s"] for way, told in steps.items()}
    yield "CPU time of a check of host data by the GPU, of the CPU's own", cpu[True] / cpu[False], "<=", 1, "times"


def machine(folder):
    told = load(folder, "machine", "machine.json")
    ratios = [it for row in told["of_measured"]["links"] for it in row if it is not None] + told["of_measured"]["host"]
    yield "rates that a plan expects, of measured: the least", min(ratios), ">=", 0.75, "times"
    yield "rates that a plan expects, of measured: the most", max(ratios), "<=", 1.25, "times"


def whole(told):
    """That a bench's programs had the right bytes at their end."""
    right = told.get("equal", told.get("whole"))
    yield "programs with the right bytes at their end", int(bool(right)), ">=", 1, "of 1"


def trained(part, still):
    def judge(folder):
        """A large program that trains; it may stand still for so many milliseconds."""
        told = load(folder, part, f"{part}.json")
        rounds = {it["mode"]: it for it in told["rounds"]}
        for mode in ("snapshot", "cow"):
            if mode not in rounds:
                yield f"`{mode}`", None, "", None, "the program had come to its end before"
                continue
            it = rounds[mode]
            yield f"{mode}: stands still", it["stopped_s"] * 1e3, "<=", still, "ms"
            yield f"{mode}: steps meanwhile, the median", it["step_ratio"], "<=", 1.03, "times"
            yield f"{mode}: the mean", it["mean_step_ratio"], "<=", 1.03, "times"
        yield from back(told, 0.1)
        yield from whole(told)

    return judge


def back(told, soon):
    seconds = [it["first_step_s"] for one in told["rounds"] for it in (one, *one["again"])]
    yield "restored: to the end of the next step", statistics.median_high(seconds), "<=", soon, "s"


def cold(folder):
    told = load(folder, "cold", "cold.json")
    yield from back(told, 0.5)
    yield from whole(told)


def paused(folder):
    told = load(folder, "paused", "paused.json")
    for what in ("pause", "resume"):
        seconds = statistics.median_high(it[f"{what}_s"] for it in told["rounds"])
        yield f"{what} of {told['gib']} GiB", seconds, "<=", 1.2, "s"
    yield from whole(told)


def instances(folder):
    told = load(folder, "instances", "instances.json")
    first, *others = told["instances"]
    yield "13 billion parameters: first token", first["first_kernel_s"], "<=", 0.6, "s"
    yield "of a second instance beside the first", others[0]["first_kernel_s"], "<=", 0.15, "s"
    after = [it["used_after_mib"] for it in told["instances"]]
    own = statistics.median_high(later - earlier for earlier, later in zip(after, after[1:]))
    weights = max(it["bytes_of_others"] for it in others) / (1 << 20)
    taken = after[-1] - first["used_before_mib"]
    yield f"memory of {len(after)}, of the weights once and their own", taken / (weights + len(after) * own), "<=", 1, "times"
    yield from whole(told)


def functions(folder):
    told = load(folder, "functions", "functions.json")
    right = sum(bool(it.get("right")) for it in told["rows"])
    yield "requests without the right answer", told["requests"] - right, "<=", 0, f"of {told['requests']}"


def start(folder):
    rows = {row["way"]: float(row["first_ms"]) for row in rows_of(folder, "start", "start.csv") if row["billions"] == "13"}
    yield "13 billion parameters: first result, from memory", rows["profile"], "<=", 600, "ms"
    yield "the driver's own checkpoint and CRIU, of that", rows["driver"] / rows["profile"], ">=", 20, "times"


stop, behind, large, largest = matrix("stop"), matrix("behind"), trained("large", 50), trained("largest", 60)
