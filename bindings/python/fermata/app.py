"""Application-level checkpoints for Python programs: libfermata.so through ctypes.

    with fermata.Session("job.toml") as s:
        s.protect(0, step_array)              # any writable buffer: NumPy, array, bytearray
        s.protect(1, tensor)                  # or a CUDA array (PyTorch, CuPy)
        if s.recoverable is not None:
            s.recover()
        for ...:
            s.snapshot()                      # or s.checkpoint(number)
        s.done()

A job of several ranks gives each session its message passing, `ranks=`: see fermata_ranks.

The library is found by FERMATA_LIBRARY, else in the installation that this package belongs to, else by the
loader. Everything raises fermata.Error, whose `status` is the number in fermata.h.
"""

import ctypes as c
import os
import pathlib

import fermata_ranks

LOCAL, PARTNER, ERASURE, SHARED, OBJECT = 1, 2, 3, 4, 5
_CLASSES = {"i": 1, "u": 2, "f": 3, "c": 4}


class Error(Exception):
    """A call that failed; `status` is its number, `hint` what can be done or None."""

    def __init__(self, status, message, hint):
        super().__init__(message)
        self.status, self.hint = status, hint


class Info(c.Structure):
    """fermata_info; see fermata.h."""

    _fields_ = [
        ("size_of_this", c.c_size_t),
        ("recoverable", c.c_int32),
        ("busy", c.c_int32),
        ("recoverable_id", c.c_int64),
        ("checkpoints", c.c_uint64),
        ("failed", c.c_uint64),
        ("last_id", c.c_int64),
        ("last_level", c.c_int32),
        ("recovery_level", c.c_int32),
        ("last_bytes", c.c_uint64),
        ("last_written", c.c_uint64),
        ("last_blocked", c.c_double),
        ("last_total", c.c_double),
        ("recovery_bytes", c.c_uint64),
        ("recovery_integrity", c.c_double),
        ("recovery_data", c.c_double),
        ("interval", c.c_double),
        ("waste", c.c_double),
        ("last_moved", c.c_double),
        ("last_predicted", c.c_double),
    ]


def _load():
    here = pathlib.Path(__file__).resolve().parent
    # In a wheel, in a tree of files, and in the package for Debian.
    trees = here / "_tree", here.parent.parent, here.parent.parent.parent / "fermata"
    found = (tree / "lib" / "libfermata.so.0" for tree in trees)
    path = os.environ.get("FERMATA_LIBRARY") or next((str(it) for it in found if it.exists()), None)
    library = c.CDLL(path or "libfermata.so.0")
    library.fermata_error_message.restype = c.c_char_p
    library.fermata_error_hint.restype = c.c_char_p
    library.fermata_version.restype = c.c_char_p
    return library


_library = _load()


def version():
    """The library's release."""
    return _library.fermata_version().decode()


def _call(name, *args):
    error = c.c_void_p()
    status = getattr(_library, name)(*args, c.byref(error))
    if status:
        message = _library.fermata_error_message(error).decode()
        hint = _library.fermata_error_hint(error)
        _library.fermata_error_free(error)
        raise Error(status, message, hint.decode() if hint else None) from fermata_ranks.failure()


def _where(data):
    """Address, elements, type of what is protected, and what keeps it alive."""
    cuda = getattr(data, "__cuda_array_interface__", None)
    if cuda is not None:
        if cuda.get("strides") is not None:
            raise TypeError("only contiguous arrays can be protected")
        count = 1
        for n in cuda["shape"]:
            count *= n
        kind, size = cuda["typestr"][1], int(cuda["typestr"][2:])
        return cuda["data"][0], count, _CLASSES.get(kind, 0) << 24 | size, data
    view = memoryview(data)
    if view.readonly or not view.c_contiguous:
        raise TypeError("only writable, contiguous buffers can be protected")
    code = {"e": "f", "f": "f", "d": "f"}.get(view.format)
    if code is None:
        code = "i" if view.format in tuple("bhilqn") else "u" if view.format in tuple("BHILQN") else ""
    flat = view.cast("B") if view.nbytes else view
    address = c.addressof(c.c_char.from_buffer(flat)) if view.nbytes else 0
    # The view keeps the buffer where it is: a bytearray cannot be resized meanwhile.
    return address, view.nbytes // view.itemsize, _CLASSES.get(code, 0) << 24 | view.itemsize, view


class Session:
    """A rank's session. `config` is the path of a configuration, `text` one itself; `ranks` a fermata_ranks.Ranks, if
    the job has more than one."""

    def __init__(self, config=None, text=None, ranks=None):
        self._handle = c.c_void_p()
        self._kept = {}
        self._bridge = None if ranks is None else fermata_ranks.Bridge(ranks)
        comm = None if ranks is None else c.byref(self._bridge.comm)
        name, source = ("fermata_init", config) if text is None else ("fermata_init_text", text)
        _call(name, os.fsencode(source), comm, c.byref(self._handle))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def protect(self, number, data):
        """Protects a buffer or CUDA array as variable `number`; kept alive by the session."""
        address, count, kind, keep = _where(data)
        _call("fermata_protect", self._handle, c.c_uint32(number), c.c_void_p(address),
              c.c_size_t(count), c.c_uint32(kind))
        self._kept[number] = keep

    def unprotect(self, number):
        """Ends the protection of a variable."""
        _call("fermata_unprotect", self._handle, c.c_uint32(number))
        del self._kept[number]

    def checkpoint(self, number, level=LOCAL):
        """Makes a checkpoint called `number`."""
        _call("fermata_checkpoint", self._handle, c.c_int64(number), c.c_int(level))

    def snapshot(self):
        """Recovers or makes a checkpoint if it is time: "recovered", "checkpoint" or None."""
        kind = c.c_int()
        _call("fermata_snapshot", self._handle, c.byref(kind))
        return (None, "checkpoint", "recovered")[kind.value]

    def recover(self, number=None):
        """Fills all variables, or one; returns the checkpoint's number."""
        found = c.c_int64()
        if number is None:
            _call("fermata_recover", self._handle, c.byref(found))
        else:
            _call("fermata_recover_variable", self._handle, c.c_uint32(number), c.byref(found))
        return found.value

    def load(self, number):
        """Fills all variables from this rank's own checkpoint `number`, if it is still kept."""
        _call("fermata_load", self._handle, c.c_int64(number))

    def prefetch(self, number):
        """Begins to read checkpoint `number` into memory, for the next `load` of it."""
        _call("fermata_prefetch", self._handle, c.c_int64(number))

    def stored_bytes(self, number):
        """Bytes of a variable in the checkpoint found at the start."""
        found = c.c_uint64()
        _call("fermata_stored_bytes", self._handle, c.c_uint32(number), c.byref(found))
        return found.value

    def wait(self, seconds=600.0):
        """Waits until what is being written is complete."""
        _call("fermata_wait", self._handle, c.c_double(seconds))

    @property
    def info(self):
        """Where the session stands, as an Info."""
        info = Info(size_of_this=c.sizeof(Info))
        _call("fermata_get_info", self._handle, c.byref(info))
        return info

    @property
    def recoverable(self):
        """The number of the checkpoint that a recovery would use, or None."""
        info = self.info
        return info.recoverable_id if info.recoverable else None

    def done(self):
        """The job is done: waits, and removes its checkpoints."""
        self._finalize(1)

    def close(self):
        """Waits, and keeps the checkpoints. Does nothing after `done`."""
        self._finalize(0)

    def _finalize(self, remove):
        if self._handle:
            handle, self._handle = self._handle, c.c_void_p()
            _call("fermata_finalize", handle, c.c_int(remove))
            self._kept.clear()
