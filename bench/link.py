#!/usr/bin/env python3
"""Measures what this machine's link gives between memory of a file system in memory, registered with the driver, and
GPU memory made of physical blocks: the limit of checkpoints into the memory tier and of restores out of it.

    bench/link.py [--gib 4] [--freed GIB]

Prints one JSON document: the machine, GB/s down and up, the best of three, in copies of 4 and 64 MiB on one stream, and what
registering takes. `--freed`: also how long it takes to give so much other GPU memory back, and GB/s up right after, one GiB
after the other, while the driver, presumably, clears it. Calls the driver itself; nothing of Fermata is in it.
"""

import argparse
import ctypes as C
import json
import mmap
import os
import time

from measure import facts

MIB, GIB = 1 << 20, 1 << 30
SLICE = 64 * MIB  # registered at once, as Fermata does


class Location(C.Structure):
    _fields_ = [("type", C.c_int), ("id", C.c_int)]


class Properties(C.Structure):
    _fields_ = [("type", C.c_int), ("handles", C.c_int), ("location", Location), ("windows", C.c_void_p), ("flags", C.c_ubyte * 8)]


class Access(C.Structure):
    _fields_ = [("location", Location), ("flags", C.c_int)]


class Driver:
    """libcuda; every call that fails is an error."""

    def __init__(self):
        self.library = C.CDLL("libcuda.so.1")

    def __getattr__(self, name):
        function = getattr(self.library, name)

        def call(*arguments):
            status = function(*arguments)
            if status:
                raise RuntimeError(f"{name} failed with {status}")

        return call

    def use(self, device):
        """Makes the device's primary context current, and returns it."""
        context = C.c_void_p()
        self.cuInit(0)
        self.cuDevicePrimaryCtxRetain(C.byref(context), device)
        self.cuCtxSetCurrent(context)
        return context


def device_memory(cu, size):
    """Its address, and the memory."""
    on_gpu = Location(1, 0)
    at, memory = C.c_uint64(), C.c_uint64()
    properties = Properties(type=1, handles=1, location=on_gpu)
    access = Access(on_gpu, 3)
    cu.cuMemAddressReserve(C.byref(at), C.c_size_t(size), C.c_size_t(2 * MIB), C.c_uint64(0), C.c_uint64(0))
    cu.cuMemCreate(C.byref(memory), C.c_size_t(size), C.byref(properties), C.c_uint64(0))
    cu.cuMemMap(at, C.c_size_t(size), C.c_size_t(0), memory, C.c_uint64(0))
    cu.cuMemSetAccess(at, C.c_size_t(size), C.byref(access), C.c_size_t(1))
    return at.value, memory


def host_memory(size):
    path = f"/dev/shm/fermata-link-{os.getpid()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.unlink(path)
    os.ftruncate(file, size)
    mapped = mmap.mmap(file, size)
    for at in range(0, size, MIB):
        mapped[at : at + MIB] = bytes(MIB)
    return mapped


def give_back(cu, gib):
    """Makes so many GiB and gives them back: seconds for that."""
    blocks = [device_memory(cu, GIB) for _ in range(gib)]
    time.sleep(2)
    begun = time.perf_counter()
    for at, _ in blocks:
        cu.cuMemUnmap(C.c_uint64(at), C.c_size_t(GIB))
    unmapped = time.perf_counter()
    for _, memory in blocks:
        cu.cuMemRelease(memory)
    return {"unmap_s": unmapped - begun, "release_s": time.perf_counter() - unmapped}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=int, default=4)
    parser.add_argument("--freed", type=int, default=0)
    given = parser.parse_args()
    size = given.gib * GIB
    cu = Driver()
    stream = C.c_void_p()
    cu.use(0)
    cu.cuStreamCreate(C.byref(stream), 1)
    (gpu, _), mapped = device_memory(cu, size), host_memory(size)
    host = C.addressof(C.c_char.from_buffer(mapped))
    begun = time.perf_counter()
    for at in range(0, size, SLICE):
        cu.cuMemHostRegister_v2(C.c_void_p(host + at), C.c_size_t(SLICE), 0)
    told = {"register_s_per_gib": (time.perf_counter() - begun) / (size / GIB)}

    def rate(way, piece, size=size):
        """GB/s of a copy."""
        begun = time.perf_counter()
        for at in range(0, size, piece):
            here, there = C.c_void_p(host + at), C.c_uint64(gpu + at)
            if way == "to_host":
                cu.cuMemcpyDtoHAsync_v2(here, there, C.c_size_t(piece), stream)
            else:
                cu.cuMemcpyHtoDAsync_v2(there, here, C.c_size_t(piece), stream)
        cu.cuStreamSynchronize(stream)
        return size / (time.perf_counter() - begun) / 1e9

    for piece in (4 * MIB, 64 * MIB):
        for way in ("to_host", "to_device"):
            told[f"{way}_GBps_by_{piece // MIB}MiB"] = max(rate(way, piece) for _ in range(3))
    if given.freed:
        then = give_back(cu, given.freed)
        rates = [rate("to_device", 16 * MIB, GIB) for _ in range(32)]
        told["freed"] = {"gib": given.freed, **then, "then_to_device_GBps": [round(it, 1) for it in rates]}
    print(json.dumps({**facts(), **told}))


if __name__ == "__main__":
    main()
