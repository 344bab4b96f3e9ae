#!/usr/bin/env python3
"""What `fermata plan` takes this machine to be, beside what copies between its GPUs and to the host get.

    bench/machine.py REPORT.json [--mib 1024]

`topology` is what NVML's answers come to, `measured` the best of three copies between every two GPUs and between each
GPU and registered host memory, in bytes per second, and `of_measured` how many times that the plan expects. `schedule`
is the plan for 8 GiB on the first GPU and 2 on each other, where each has room for 4.
Needs a build tree (FERMATA_BUILD, default build/) and NVIDIA's driver.
"""

import argparse
import ctypes as C
import json
import pathlib
import time

from link import Driver
from measure import FERMATA, call, document, facts

MIB = 1 << 20


class Gpus:
    """This machine's GPUs with a buffer on each, and one in host memory."""

    def __init__(self, size):
        self.cu, self.size = Driver(), size
        count = C.c_int()
        self.cu.cuInit(0)
        self.cu.cuDeviceGetCount(C.byref(count))
        self.contexts, self.buffers, self.streams = [], [], []
        for device in range(count.value):
            at, stream = C.c_uint64(), C.c_void_p()
            self.contexts.append(self.cu.use(device))
            self.cu.cuMemAlloc_v2(C.byref(at), C.c_size_t(size))
            self.cu.cuStreamCreate(C.byref(stream), 1)
            self.buffers.append(at)
            self.streams.append(stream)
        self.host = C.c_void_p()
        self.cu.cuMemHostAlloc(C.byref(self.host), C.c_size_t(size), 1)

    def open_peers(self, here, there):
        """Whether the first reaches the second's memory by itself; it does then."""
        can = C.c_int()
        self.cu.cuDeviceCanAccessPeer(C.byref(can), here, there)
        if can.value:
            self.cu.cuCtxSetCurrent(self.contexts[here])
            self.cu.cuCtxEnablePeerAccess(self.contexts[there], 0)
        return bool(can.value)

    def rate(self, device, copy):
        self.cu.cuCtxSetCurrent(self.contexts[device])
        best = 0
        for _ in range(4):  # the first makes pages and links ready
            begun = time.perf_counter()
            copy(self.streams[device])
            self.cu.cuStreamSynchronize(self.streams[device])
            best = max(best, self.size / (time.perf_counter() - begun))
        return best

    def between(self, here, there):
        def copy(stream):
            ends = (self.buffers[there], self.contexts[there], self.buffers[here], self.contexts[here])
            self.cu.cuMemcpyPeerAsync(*ends, C.c_size_t(self.size), stream)

        return self.rate(here, copy)

    def to_host(self, device):
        def copy(stream):
            self.cu.cuMemcpyDtoHAsync_v2(self.host, self.buffers[device], C.c_size_t(self.size), stream)

        return self.rate(device, copy)


def of(expected, measured):
    return expected / measured if measured else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--mib", type=int, default=1024, help="of each copy")
    args = parser.parse_args()
    report = facts()
    topology = report["topology"] = document(call(FERMATA, "plan", "topology", "--json"))
    gpus = Gpus(args.mib * MIB)
    all_of = range(len(gpus.buffers))
    report["gpus"] = len(all_of)
    report["peers"] = [[i != j and gpus.open_peers(i, j) for j in all_of] for i in all_of]
    links = [[0.0 if i == j else gpus.between(i, j) for j in all_of] for i in all_of]
    host = [gpus.to_host(i) for i in all_of]
    report["measured"] = {"links": links, "host": host}
    report["of_measured"] = {
        "links": [[of(topology["links"][i][j], links[i][j]) for j in all_of] for i in all_of],
        "host": [of(topology["host"][i], host[i]) for i in all_of],
    }
    sizes = [8] + [2] * (len(all_of) - 1)
    words = ["--sizes", ",".join(map(str, sizes)), "--free", ",".join("4" for _ in sizes)]
    report["schedule"] = document(call(FERMATA, "plan", "schedule", "--machine", "here", *words, "--json"))
    args.report.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
