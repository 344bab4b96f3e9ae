"""Buffers of Python, checkpointed in one session and recovered in the next.
   python.py FOLDER"""
import array
import ctypes
import sys

import fermata

text = f'name = "python"\nblock_bytes = 16384\n[local]\nfolders = ["{sys.argv[1]}"]\n'
step, field = array.array("q", [7]), array.array("d", [n * 0.5 for n in range(50000)])
raw = bytearray(b"fermata" * 1000)
want = (step[:], field[:], bytes(raw))

with fermata.Session(text=text) as s:
    assert s.recoverable is None
    s.protect(0, step)
    s.protect(1, field)
    s.protect(2, raw)
    s.checkpoint(41)
    field[3] = -1.0
    s.checkpoint(42)
    s.wait()
    info = s.info
    assert (info.checkpoints, info.last_id, info.last_written) == (2, 42, 16384), info.last_written
    try:
        s.checkpoint(43, fermata.SHARED)
        raise SystemExit("level 4 is not configured")
    except fermata.Error as e:
        assert e.status == 3 and "shared" in str(e), e
    try:
        s.protect(3, b"constant")
        raise SystemExit("a constant cannot be recovered")
    except TypeError:
        pass

step[0], field[3], raw[:] = 0, 8.0, bytes(7000)
with fermata.Session(text=text) as s:
    assert s.recoverable == 42 and s.stored_bytes(1) == 400000
    s.protect(0, step)
    s.protect(1, field)
    s.protect(2, raw)
    assert s.recover() == 42
    assert field[3] == -1.0 and step[:] == want[0] and bytes(raw) == want[2]
    assert field[4:] == want[1][4:]
    raw[0] = 0
    assert s.recover(2) == 42 and bytes(raw) == want[2]
    s.prefetch(42)
    field[3] = 1.0
    s.load(42)
    assert field[3] == -1.0
    try:
        s.load(7)
        raise SystemExit("there is no checkpoint 7")
    except fermata.Error as e:
        assert e.status == 6 and "none is called 7" in str(e), e
    s.done()
with fermata.Session(text=text) as s:
    assert s.recoverable is None
    assert s.snapshot() is None


class DeviceBytes:
    """Device memory as CUDA libraries of Python show it."""

    def __init__(self, cuda, data):
        self.cuda, self.bytes, address = cuda, len(data), ctypes.c_uint64()
        assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(self.bytes)) == 0
        self.address = address
        self.fill(data)
        self.__cuda_array_interface__ = {
            "shape": (self.bytes // 4,),
            "typestr": "<f4",
            "data": (address.value, False),
            "version": 3,
        }

    def fill(self, data):
        assert self.cuda.cuMemcpyHtoD_v2(self.address, data, ctypes.c_size_t(self.bytes)) == 0

    def read(self):
        data = ctypes.create_string_buffer(self.bytes)
        assert self.cuda.cuMemcpyDtoH_v2(data, self.address, ctypes.c_size_t(self.bytes)) == 0
        return data.raw


cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
content = bytes(range(256)) * 800
device = DeviceBytes(cuda, content)
with fermata.Session(text=text) as s:
    s.protect(0, device)
    s.checkpoint(1)
    s.wait()
    device.fill(bytes(len(content)))
    assert device.read() != content
    assert s.recover() == 1 and device.read() == content
    s.done()
print("fine", fermata.version())
