#!/usr/bin/env python3
"""Runs the PTX files of this folder on a real GPU through the driver API and compares, as the format says.

gpu.py [NAME...]   files whose names contain one of NAMEs, else all
Exit status: 0 all agree, 1 something differs, 2 no usable GPU. Deadlocks and time limits are not tried."""

import ctypes
import os
import struct
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FLOATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}
# A shared address far out of bounds is reported as an illegal instruction by some GPUs.
FAULTS = {"illegal-address": {700, 715}, "misaligned": {716}, "trap": {715, 719}, "illegal": {700, 714, 717, 718, 719}, "assert": {710}}


def width(ty):
    return int("".join(c for c in ty if c.isdigit())) // 8


def value(ty, text):
    """Bits, or None for whatever."""
    n = width(ty)
    if text == "?":
        return None
    if text == "nan":
        return (1 << (8 * n - 1)) - 1
    if text.startswith("0x"):
        return int(text, 16) & (1 << 8 * n) - 1
    if ty == "f32":
        return struct.unpack("<I", struct.pack("<f", float(text)))[0]
    if ty == "f64":
        return struct.unpack("<Q", struct.pack("<d", float(text)))[0]
    return int(text) & (1 << 8 * n) - 1


def values(ty, text):
    out = []
    for word in text.split():
        if "*" in word:
            v, n = word.split("*")
            out += [value(ty, v)] * int(n)
        elif ".." in word:
            a, b = word.split("..")
            out += [value(ty, str(v)) for v in range(int(a), int(b) + 1)]
        else:
            out.append(value(ty, word))
    return out


def pack(ty, list_):
    return b"".join((v or 0).to_bytes(width(ty), "little") for v in list_)


def parse(path):
    runs = []
    for line in open(path):
        if not line.startswith("//@ "):
            continue
        word, _, rest = line[4:].strip().partition(" ")
        if word == "run":
            keys = dict(w.split("=") for w in rest.split())
            triple = lambda k: ([int(v) for v in keys.get(k, "1").split(",")] + [1, 1])[:3]
            runs.append({"kernel": keys["kernel"], "grid": triple("grid"), "block": triple("block"), "shared": int(keys.get("shared", 0)), "fault": keys.get("fault"), "args": []})
            continue
        if word == "prints":
            continue
        args = runs[-1]["args"]
        if word == "more":
            last = args[-1]
            more = values(last["ty"], rest)
            if last["after"] is None:
                last["before"] += pack(last["ty"], more)
            else:
                last["before"] += bytes(len(more) * width(last["ty"]))
                last["after"] += more
            continue
        ty, _, rest = rest.partition(" ")
        ulp = 0
        if rest.startswith("ulp="):
            first, _, rest = rest.partition(" ")
            ulp = int(first[4:])
        if word == "arg":
            args.append({"value": pack(ty, values(ty, rest))})
        elif word == "in":
            args.append({"ty": ty, "ulp": 0, "before": pack(ty, values(ty, rest)), "after": None})
        elif word == "out":
            after = values(ty, rest)
            args.append({"ty": ty, "ulp": ulp, "before": bytes(len(after) * width(ty)), "after": after})
        else:
            before, after = rest.split("->")
            args.append({"ty": ty, "ulp": ulp, "before": pack(ty, values(ty, before)), "after": values(ty, after)})
    return runs


def same(ty, ulp, found, expected):
    if ty not in FLOATS:
        return found == expected
    e, f = FLOATS[ty]
    sign = 1 << (e + f)
    nan = lambda v: v & (sign - 1) > ((1 << e) - 1) << f
    if nan(found) or nan(expected):
        return nan(found) and nan(expected)
    if ulp == 0:
        return found == expected
    order = lambda v: -(v & (sign - 1)) if v & sign else v
    return abs(order(found) - order(expected)) <= ulp


class Driver:
    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.check("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.check("cuDeviceGet", ctypes.byref(device), 0)
        self.check("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.check("cuCtxSetCurrent", context)

    def call(self, name, *args):
        return getattr(self.lib, name)(*args)

    def check(self, name, *args):
        code = self.call(name, *args)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    def module(self, text):
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
        options = (ctypes.c_int * 2)(5, 6)
        settings = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p), 4096)
        code = self.call("cuModuleLoadDataEx", ctypes.byref(module), text.encode() + b"\0", 2, options, settings)
        if code:
            raise RuntimeError(f"load: error {code}: {log.value.decode(errors='replace')[:600]}")
        return module

    def run(self, text, run):
        """Error code, and the buffers afterwards."""
        module, function = self.module(text), ctypes.c_void_p()
        self.check("cuModuleGetFunction", ctypes.byref(function), module, run["kernel"].encode())
        slots, buffers = [], []
        for arg in run["args"]:
            if "value" in arg:
                slots.append(ctypes.create_string_buffer(arg["value"], len(arg["value"])))
                continue
            address = ctypes.c_uint64()
            self.check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(len(arg["before"]), 1)))
            self.check("cuMemcpyHtoD_v2", address, arg["before"], ctypes.c_size_t(len(arg["before"])))
            slots.append(address)
            buffers.append((arg, address))
        pointers = (ctypes.c_void_p * max(len(slots), 1))(*[ctypes.addressof(s) for s in slots])
        code = self.call("cuLaunchKernel", function, *run["grid"], *run["block"], run["shared"], None, pointers, None)
        code = code or self.call("cuCtxSynchronize")
        out = []
        if code == 0:
            for arg, address in buffers:
                data = ctypes.create_string_buffer(max(len(arg["before"]), 1))
                self.check("cuMemcpyDtoH_v2", data, address, ctypes.c_size_t(len(arg["before"])))
                out.append((arg, data.raw[: len(arg["before"])]))
                self.check("cuMemFree_v2", address)
            self.check("cuModuleUnload", module)
        return code, out


def compare(path, index, run, driver, text):
    place = f"{os.path.basename(path)} run {index} `{run['kernel']}`"
    try:
        code, buffers = driver.run(text, run)
    except RuntimeError as error:
        return [f"{place}: {error}"]
    if run["fault"]:
        return [] if code in FAULTS[run["fault"]] else [f"{place}: ended with {code}, expected {run['fault']}"]
    if code:
        return [f"{place}: ended with {code}"]
    wrong = []
    for number, (arg, data) in enumerate(buffers):
        n = width(arg["ty"])
        for k, expected in enumerate(arg["after"] or []):
            found = int.from_bytes(data[k * n : k * n + n], "little")
            if expected is not None and not same(arg["ty"], arg["ulp"], found, expected):
                wrong.append(f"{place}: buffer {number} ({arg['ty']}) element {k} is {found:#x}, expected {expected:#x}")
    return wrong


def main():
    if sys.argv[1:2] == ["--one"]:
        path, index = sys.argv[2], int(sys.argv[3])
        wrong = compare(path, index, parse(path)[index], Driver(), open(path).read())
        print("\n".join(wrong))
        return 1 if wrong else 0
    try:
        driver = Driver()
    except (OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 2
    names = sys.argv[1:] or [""]
    failures, count = 0, 0
    for file in sorted(os.listdir(HERE)):
        if not file.endswith(".ptx") or not any(n in file for n in names):
            continue
        path = os.path.join(HERE, file)
        text = open(path).read()
        for index, run in enumerate(parse(path)):
            if run["fault"] in ("deadlock", "timeout"):
                continue
            count += 1
            if run["fault"]:
                # A fault ends the context: each in a process of its own.
                done = subprocess.run([sys.executable, __file__, "--one", path, str(index)], capture_output=True, text=True, timeout=60)
                wrong = [done.stdout.strip() or done.stderr.strip()[-300:]] if done.returncode else []
            else:
                wrong = compare(path, index, run, driver, text)
            failures += len(wrong)
            for line in wrong[:6]:
                print(line)
            if len(wrong) > 6:
                print(f"... {len(wrong) - 6} more")
    print(f"{count} launches, {failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
