"""Asks NVML what frameworks ask of it, by NVIDIA's Python bindings, and prints it: a line of JSON each time.

client.py once                 without CUDA
client.py fork                 in a child of a process that has asked before
client.py cuda BYTES           with so many bytes of device memory, then in a child of that process
client.py serial             what stands still in the driver for as long as the test wants, in two processes
client.py stay BYTES FILE      before and after FILE is there; a child without CUDA does the same beside it
"""

import ctypes
import json
import os
import socket
import sys
import time

import pynvml


def tried(ask, *arguments):
    """What a function answers, or its error's number."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError as error:
        return {"error": error.value}


def say(what):
    """Prints a line as a whole: two processes print to one file."""
    os.write(1, (json.dumps(what, default=str) + "\n").encode())


def found(by, text):
    """The place of the device that is found so."""
    handle = tried(by, text)
    return handle if isinstance(handle, dict) else pynvml.nvmlDeviceGetIndex(handle)


def device(index):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = tried(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    processes = tried(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    if isinstance(processes, list):
        processes = [[it.pid, it.usedGpuMemory] for it in processes]
    fields = tried(pynvml.nvmlDeviceGetFieldValues, handle, [90])
    return {
        "name": pynvml.nvmlDeviceGetName(handle),
        "uuid": uuid,
        "bus": pci.busId,
        "legacy": pci.busIdLegacy,
        "memory": [memory.total, memory.free, memory.used],
        "second": second if isinstance(second, dict) else [second.total, second.free, second.used],
        "capability": tried(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        "found": [
            found(pynvml.nvmlDeviceGetHandleByUUID, uuid),
            found(pynvml.nvmlDeviceGetHandleByPciBusId, pci.busId),
        ],
        "processes": processes,
        "fields": [it.nvmlReturn for it in fields] if not isinstance(fields, dict) else fields,
        "utilization": tried(pynvml.nvmlDeviceGetUtilizationRates, handle),
        "temperature": tried(pynvml.nvmlDeviceGetTemperature, handle, 0),
        "link": tried(pynvml.nvmlDeviceGetNvLinkState, handle, 0),
        "peer": tried(pynvml.nvmlDeviceGetP2PStatus, handle, handle, 0),
        "ancestor": tried(pynvml.nvmlDeviceGetTopologyCommonAncestor, handle, handle),
        "affinity": list(tried(pynvml.nvmlDeviceGetCpuAffinity, handle, 2)),
        "locked": tried(pynvml.nvmlDeviceSetGpuLockedClocks, handle, 1, 2),
    }


def descriptors():
    """What is open: numbers and targets."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            pass
    return found


def describe(what):
    before = descriptors()
    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    told = {
        "what": what,
        "pid": os.getpid(),
        "driver": tried(pynvml.nvmlSystemGetDriverVersion),
        "nvml": tried(pynvml.nvmlSystemGetNVMLVersion),
        "cuda": tried(pynvml.nvmlSystemGetCudaDriverVersion),
        "devices": [device(index) for index in range(count)],
        "beyond": tried(pynvml.nvmlDeviceGetHandleByIndex, count),
    }
    pynvml.nvmlShutdown()
    told["uninitialised"] = tried(pynvml.nvmlDeviceGetCount)
    after = descriptors()
    told["left"] = {it: after[it] for it in after if it not in before}
    told["gpu"] = [it for it in after.values() if it.startswith("/dev/nvidia")]
    with open("/proc/self/maps") as maps:
        told["libraries"] = sorted({line.split()[-1] for line in maps if "libnvidia-ml" in line})
    say(told)


def allocate(size):
    cuda = ctypes.CDLL("libcuda.so.1")
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    for status in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)),
    ):
        assert status == 0, status


def in_child(body):
    child = os.fork()
    if child == 0:
        # Its parent sees by the status what is not printed.
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return child


def await_child(child):
    status = os.waitpid(child, 0)[1]
    assert status == 0, status


def wait_for(path):
    until = time.monotonic() + 600
    while not os.path.exists(path):
        assert time.monotonic() < until, path
        time.sleep(0.01)


def stay(what, path):
    describe(f"{what} before")
    # As the library has it in the middle of a call: a pipe whose other end is not here, and a socket connected to nobody.
    answers, other = os.pipe()
    os.close(other)
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with open(f"{path}.{what}", "w"):
        pass
    wait_for(path)
    assert os.read(answers, 1) == b""
    os.close(answers)
    held.close()
    describe(f"{what} after")


def main():
    mode, arguments = sys.argv[1], sys.argv[2:]
    if mode == "once":
        describe("once")
    elif mode == "fork":
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        name = pynvml.nvmlDeviceGetName(handle)

        def child():
            # With what its parent has begun and found.
            assert pynvml.nvmlDeviceGetName(handle) == name
            pynvml.nvmlShutdown()
            describe("child")

        await_child(in_child(child))
        pynvml.nvmlShutdown()
        describe("parent")
    elif mode == "cuda":
        allocate(int(arguments[0]))
        describe("cuda")
        await_child(in_child(lambda: describe("child")))
    elif mode == "serial":

        def serial(what):
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(1)
            say({what: pynvml.nvmlDeviceGetSerial(handle)})

        child = in_child(lambda: serial("child"))
        serial("parent")
        await_child(child)
    elif mode == "stay":
        child = in_child(lambda: stay("child", arguments[1]))
        allocate(int(arguments[0]))
        stay("parent", arguments[1])
        await_child(child)


main()
