"""Prints what the test's own management library (calls.c) is to have answered through ours."""

import json

import pynvml

pynvml.nvmlInit()
one, other = (pynvml.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
second = pynvml.nvmlDeviceGetHandleByUUID("GPU-test-1")
memory = pynvml.nvmlDeviceGetMemoryInfo(other)
rates = pynvml.nvmlDeviceGetUtilizationRates(other)
fields = pynvml.nvmlDeviceGetFieldValues(other, [90, 91])
processes = pynvml.nvmlDeviceGetComputeRunningProcesses(other)


def failure(ask, *arguments):
    try:
        return ask(*arguments)
    except pynvml.NVMLError as error:
        return error.value


print(
    json.dumps(
        {
            "names": [pynvml.nvmlDeviceGetName(it) for it in (one, other, second)],
            "bus": pynvml.nvmlDeviceGetPciInfo(other).bus,
            "memory": [memory.total, memory.free, memory.used],
            "rates": [rates.gpu, rates.memory],
            "remote": pynvml.nvmlDeviceGetNvLinkRemotePciInfo(other, 3).bus,
            "peers": [pynvml.nvmlDeviceGetP2PStatus(one, other, 2), pynvml.nvmlDeviceGetP2PStatus(other, one, 2)],
            "fields": [[it.nvmlReturn, it.value.ullVal] for it in fields],
            "processes": [[it.pid, it.usedGpuMemory] for it in processes],
            "unknown": failure(pynvml.nvmlDeviceGetHandleByUUID, "GPU-other"),
            "lacking": failure(pynvml.nvmlDeviceGetTemperature, one, 0),
            "setting": failure(pynvml.nvmlDeviceSetPowerManagementLimit, one, 1),
            "event": failure(pynvml.nvmlEventSetCreate),
        }
    )
)
