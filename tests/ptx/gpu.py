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
        if word in ("texture", "surface"):
            args.append({"image": image(word, ty, rest)})
            continue
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


def image(kind, ty, rest):
    """What a `texture` or `surface` line says."""
    words, _, texels = rest.partition(":")
    keys = dict((w.split("=") + [True])[:2] for w in words.split())
    size = [int(n) for n in keys["size"].split(",")]
    return {"kind": kind, "ty": ty, "size": size, "keys": keys, "data": pack(ty, values(ty, texels))}


FORMATS = {"u8": 1, "u16": 2, "u32": 3, "s8": 8, "s16": 9, "s32": 10, "f16": 16, "f32": 32}
ADDRESS = {"wrap": 0, "clamp": 1, "mirror": 2, "border": 3}


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

    def image(self, i):
        """A texture or surface object; the objects stay until the process ends."""
        keys, (w, h, d) = i["keys"], (i["size"] + [0, 0])[:3]
        channels = int(keys.get("channels", 1))
        layered = "layered" in keys
        if layered and len(i["size"]) == 2:
            h, d = 0, h
        row = w * channels * width(i["ty"])
        resource = (ctypes.c_uint64 * 18)()
        if "linear" in keys or "pitch" in keys:
            pitch = int(keys["pitch"]) if "pitch" in keys else row
            rows = max(h, 1)
            data = b"".join(i["data"][n * row : n * row + row].ljust(pitch, b"\0") for n in range(rows))
            address = ctypes.c_uint64()
            self.check("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(len(data)))
            self.check("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(len(data)))
            resource[0], resource[1], resource[2] = (3 if "pitch" in keys else 2), address.value, FORMATS[i["ty"]] | channels << 32
            resource[3:6] = [w, rows, pitch] if "pitch" in keys else [len(data), 0, 0]
        else:
            flags = (1 if layered else 0) | (2 if i["kind"] == "surface" else 0)
            shape = (ctypes.c_uint64 * 5)(w, h, d, FORMATS[i["ty"]] | channels << 32, flags)
            array = ctypes.c_uint64()
            self.check("cuArray3DCreate_v2", ctypes.byref(array), shape)
            data = ctypes.create_string_buffer(i["data"], len(i["data"]))
            copy = (ctypes.c_uint64 * 25)()
            copy[4], copy[5], copy[9], copy[10] = 1, ctypes.addressof(data), row, max(h, 1)
            copy[15], copy[18] = 3, array.value
            copy[22:25] = [row, max(h, 1), max(d, 1)]
            self.check("cuMemcpy3D_v2", copy)
            resource[1] = array.value
        made = ctypes.c_uint64()
        if i["kind"] == "surface":
            self.check("cuSurfObjectCreate", ctypes.byref(made), resource)
            return made
        texture = (ctypes.c_uint32 * 26)()
        texture[0:3] = [ADDRESS[keys.get("address", "clamp")]] * 3
        texture[3] = 1 if keys.get("filter") == "linear" else 0
        texture[4] = (1 if "raw" in keys else 0) | (2 if "normalized" in keys else 0)
        border = keys.get("border")
        if border:
            texture[10:14] = [struct.unpack("<I", struct.pack("<f", float(v)))[0] for v in border.split(",")]
        self.check("cuTexObjectCreate", ctypes.byref(made), resource, texture, None)
        return made

    def run(self, text, run):
        """Error code, and the buffers afterwards."""
        module, function = self.module(text), ctypes.c_void_p()
        self.check("cuModuleGetFunction", ctypes.byref(function), module, run["kernel"].encode())
        slots, buffers = [], []
        for arg in run["args"]:
            if "image" in arg:
                slots.append(self.image(arg["image"]))
                continue
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
