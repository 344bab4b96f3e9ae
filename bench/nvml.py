#!/usr/bin/env python3
"""Compares NVML under Fermata with the driver's own, function by function, on a machine with GPUs; prints JSON.

    python3 bench/nvml.py [FERMATA] >nvml.json      FERMATA: the command, build/bin/fermata if it is not given

Every function of crates/nvml/src/table.rs is called in two processes, one native and one under `fermata run`: for every
device, with small numbers for numbers, and with each version that its structure may have. Of each call the status and
the bytes that were filled are compared:

| verdict | what it says |
| --- | --- |
| same | status and bytes are the driver's |
| live | the status is; the value changes from call to call (temperatures, clocks, memory in use, counters) |
| longer | the driver fills more bytes than the table says, and what it says is right |
| differs | anything else: both sides are shown |
| absent | the driver's library lacks the function, ours says NVML_ERROR_FUNCTION_NOT_FOUND (or lacks it too) |

The exit status is 1 if a call differs, if the program under Fermata has a device of the GPU open, or if a symbol that
NVIDIA's library exports is not in ours. Needs no Python package.
"""

import ctypes
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FILL = 0x5A
SPARE = 512
FUNCTION_NOT_FOUND = 13
LIVE = re.compile(
    "Utilization|Temperature|Power|Clock|MemoryInfo|MemoryUsage|Energy|Throughput|Fan|Samples|Violation|FieldValues|"
    "Processes|Counter|PerformanceState|Pstate|Reasons|BBX|FBC|Encoder|CurrPcie|PcieSpeed|Cooler|Thermal|Accounting"
)
# What ours refuses and the driver's does: not in the table, so not called here.
TIMED = ["nvmlDeviceGetCount_v2", "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetUtilizationRates"]


def table():
    """Names and kinds of the functions that are answered."""
    with open(os.path.join(ROOT, "crates/nvml/src/table.rs")) as file:
        text = file.read()
    found = re.findall(r"^\s*(nvml\w+)\(([\w(), ]*)\);$", text, re.MULTILINE)
    return {name: re.findall(r"(\w+)(?:\((\d+)\))?", kinds) for name, kinds in found}


class Library:
    def __init__(self):
        self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        status = self.nvml.nvmlInit_v2()
        assert status == 0, f"nvmlInit_v2: {status}"
        count = ctypes.c_uint()
        self.nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        self.devices, self.names = [], [b"nonsense"]
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                self.devices.append(handle)
                uuid = ctypes.create_string_buffer(96)
                self.nvml.nvmlDeviceGetUUID(handle, uuid, 96)
                pci = ctypes.create_string_buffer(256)
                self.nvml.nvmlDeviceGetPciInfo_v3(handle, pci)
                self.names += [uuid.value, pci.raw[:16].split(b"\0")[0], pci.raw[36:68].split(b"\0")[0]]

    def index(self, handle):
        for index, known in enumerate(self.devices):
            if known.value == handle:
                return index
        return None

    def ways(self, kind, size, many):
        """What is tried for a parameter: values that both processes take for the same."""
        if kind == "Device":
            return range(len(self.devices))
        if kind in ("Number", "Long"):
            return range(3 if many else 8)
        if kind == "Name":
            return range(len(self.names))
        if kind == "Versioned":
            return [version << 24 | int(size) for version in range(1, 5)]
        if kind == "Text":
            return [96, 1]
        if kind == "Words":
            return [8]
        if kind in ("List", "Processes"):
            return [0, 64]
        if kind == "Values":
            return [3]
        return [0]

    def call(self, name, kinds, ways):
        """Status, and what was filled, as hexadecimal digits."""
        arguments, filled = [], []
        for (kind, size), way in zip(kinds, ways):
            size = int(size or 0)
            room = ctypes.create_string_buffer(bytes([FILL]) * (size + SPARE), size + SPARE)
            if kind == "Device":
                arguments.append(self.devices[way])
            elif kind == "Number":
                arguments.append(ctypes.c_uint(way))
            elif kind == "Long":
                arguments.append(ctypes.c_ulonglong(way))
            elif kind == "Name":
                arguments.append(ctypes.c_char_p(self.names[way]))
            elif kind == "Handle":
                handle = ctypes.c_void_p()
                arguments.append(ctypes.byref(handle))
                filled.append(lambda handle=handle: self.index(handle.value))
            elif kind == "Out":
                arguments.append(room)
                filled.append(lambda room=room, size=size: [room.raw[:size].hex(), extent(room.raw)])
            elif kind == "Versioned":
                ctypes.memset(room, 0, len(room))
                ctypes.memmove(room, ctypes.byref(ctypes.c_uint(way)), 4)
                arguments.append(room)
                filled.append(lambda room=room, size=size: room.raw[:size].hex())
            elif kind == "Text":
                arguments += [room, ctypes.c_uint(way)]
                filled.append(lambda room=room: room.raw.split(b"\0")[0].decode(errors="replace"))
            elif kind == "Words":
                room = (ctypes.c_ulong * way)()
                arguments += [ctypes.c_uint(way), room]
                filled.append(lambda room=room: list(room))
            elif kind in ("List", "Processes"):
                count = ctypes.c_uint(way)
                room = ctypes.create_string_buffer(max(1, way * size))
                arguments += [ctypes.byref(count), room if way else None]
                filled.append(lambda room=room, count=count, size=size: [count.value, room.raw[: count.value * size].hex()])
            elif kind == "Values":
                room = ctypes.create_string_buffer(way * size)
                for at, field in enumerate((90, 91, 60)):
                    ctypes.memmove(ctypes.byref(room, at * size), ctypes.byref(ctypes.c_uint(field)), 4)
                arguments += [ctypes.c_int(way), room]
                filled.append(lambda room=room: room.raw.hex())
        status = getattr(self.nvml, name)(*arguments)
        return status, [one() for one in filled] if status == 0 else []


def extent(raw):
    """How many bytes were written, as far as the fill tells."""
    return len(raw.rstrip(bytes([FILL])))


def ask():
    """Every call of one side."""
    library = Library()
    calls, timed = {}, {}
    for name, kinds in table().items():
        if not hasattr(library.nvml, name):
            calls[name] = [None, []]
            continue
        many = sum(kind in ("Number", "Long") for kind, _ in kinds) > 1
        for ways in itertools.product(*(library.ways(kind, size, many) for kind, size in kinds)):
            calls[f"{name}{list(ways)}"] = library.call(name, kinds, ways)
    for name in TIMED:
        kinds = table()[name]
        ways = [0 if kind == "Device" else 96 for kind, _ in kinds]
        spans = []
        for _ in range(200):
            begun = time.perf_counter()
            library.call(name, kinds, ways)
            spans.append(time.perf_counter() - begun)
        timed[name] = round(1e6 * statistics.median(spans), 1)
    texts = library.nvml.nvmlErrorString
    texts.restype = ctypes.c_char_p
    calls.update({f"nvmlErrorString[{code}]": [0, [texts(code).decode()]] for code in [*range(30), 999]})
    opened = []
    for number in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            pass
    with open("/proc/self/maps") as maps:
        paths = sorted({line.split()[-1] for line in maps if "libnvidia-ml" in line})
    library.nvml.nvmlShutdown()
    json.dump(
        {
            "calls": calls,
            "microseconds": timed,
            "library": paths,
            "gpu_descriptors": [it for it in opened if it.startswith("/dev/nvidia")],
        },
        sys.stdout,
    )


def symbols(path):
    """What a library exports, by its dynamic symbols."""
    try:
        text = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return {line.split()[-1].split("@")[0] for line in text.splitlines() if " nvml" in line}


def verdict(call, native, ours):
    if native[0] is None:
        return "absent" if ours[0] in (None, FUNCTION_NOT_FOUND) else "differs"
    if native == ours:
        return "same"
    if native[0] != ours[0]:
        return "differs"
    if LIVE.search(call):
        return "live"
    pairs = list(zip(native[1], ours[1]))
    if all(a == b or (isinstance(a, list) and a[0] == b[0] and a[1] > b[1]) for a, b in pairs):
        return "longer"
    return "differs"


def main():
    if sys.argv[1:] == ["ask"]:
        return ask()
    fermata = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build/bin/fermata")
    own = [sys.executable, os.path.abspath(__file__), "ask"]

    def run(words):
        done = subprocess.run(words, capture_output=True, text=True, timeout=1800)
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stderr}{done.stdout}")
        return json.loads(done.stdout[done.stdout.index("{") :])

    native, ours = run(own), run([fermata, "run", "--", *own])
    # Calls on devices or with names that only one side has show up as differences.
    calls = {**native["calls"], **ours["calls"]}
    missing = [None, ["not called"]]
    sides = {call: (native["calls"].get(call, missing), ours["calls"].get(call, missing)) for call in calls}
    verdicts = {call: verdict(call, *both) for call, both in sides.items()}
    exported = [symbols(side["library"][0]) if side["library"] else None for side in (native, ours)]
    unexported = sorted(exported[0] - exported[1]) if all(exported) else None
    shown = ("differs", "longer")
    json.dump(
        {
            "host": platform.node(),
            "libraries": [native["library"], ours["library"]],
            "calls": {it: list(verdicts.values()).count(it) for it in sorted(set(verdicts.values()))},
            "not_exported": unexported,
            "gpu_descriptors": ours["gpu_descriptors"],
            "microseconds": {"native": native["microseconds"], "fermata": ours["microseconds"]},
            "shown": {
                call: {"verdict": verdicts[call], "native": native_call, "fermata": our_call}
                for call, (native_call, our_call) in sides.items()
                if verdicts[call] in shown
            },
        },
        sys.stdout,
        indent=1,
    )
    print()
    bad = "differs" in verdicts.values() or ours["gpu_descriptors"] or unexported
    return 1 if bad else 0


sys.exit(main())
