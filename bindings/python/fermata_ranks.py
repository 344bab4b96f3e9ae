"""Message passing between the ranks of a Python job, for fermata.Session(..., ranks=...).

    fermata_ranks.Mpi(mpi4py.MPI.COMM_WORLD)        # any MPI
    fermata_ranks.Torch()                           # torch.distributed, whatever its backend
    fermata_ranks.Sockets(folder, rank, size)       # processes of one machine, without MPI

Anything else: a subclass of Ranks with `rank`, `size`, `send` and `receive`. All calls come from the thread that calls
the library, in the same order on every rank. Data are memoryviews of bytes.
"""

import ctypes as c
import os
import socket
import time

# MPI's counts are ints.
_PIECE = 1 << 30


def _pieces(data):
    return (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))


class Ranks:
    """The ranks of a job: `rank`, from 0, and `size`; `send` and `receive` by a subclass, the others out of them."""

    rank, size = 0, 1

    def send(self, data, to):
        """Sends to a rank, which receives as many bytes."""
        raise NotImplementedError

    def receive(self, data, source):
        """Fills `data` with what a rank sends."""
        raise NotImplementedError

    def broadcast(self, data, root):
        """Gives rank `root`'s bytes to all."""
        if self.rank != root:
            self.receive(data, root)
            return
        for to in range(self.size):
            if to != root:
                self.send(data, to)

    def gather(self, mine, all, root):
        """Collects `mine`, of the same length everywhere, in `all` at `root`, by rank; `all` is None elsewhere."""
        if self.rank != root:
            self.send(mine, root)
            return
        for source in range(self.size):
            part = all[source * len(mine) : (source + 1) * len(mine)]
            if source == root:
                part[:] = mine
            else:
                self.receive(part, source)

    def barrier(self):
        """Waits until every rank is here."""
        self.gather(memoryview(b"."), memoryview(bytearray(self.size)), 0)
        self.broadcast(memoryview(bytearray(1)), 0)


class Mpi(Ranks):
    """The ranks of an mpi4py communicator, in one of its own."""

    def __init__(self, comm):
        self._comm = comm.Dup()
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def send(self, data, to):
        for piece in _pieces(data):
            self._comm.Send(piece, to)

    def receive(self, data, source):
        for piece in _pieces(data):
            self._comm.Recv(piece, source)

    def broadcast(self, data, root):
        for piece in _pieces(data):
            self._comm.Bcast(piece, root)

    def gather(self, mine, all, root):
        self._comm.Gather(mine, all, root)

    def barrier(self):
        self._comm.Barrier()


class Torch(Ranks):
    """The ranks of torch.distributed, which must be initialised; in a group of their own over gloo, since the messages
    are in host memory."""

    def __init__(self):
        import torch
        import torch.distributed as dist

        self._dist, self._group = dist, dist.new_group(backend="gloo")
        self._tensor = lambda data: torch.frombuffer(data, dtype=torch.uint8)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def send(self, data, to):
        for piece in _pieces(data):
            self._dist.send(self._tensor(piece), to, group=self._group)

    def receive(self, data, source):
        for piece in _pieces(data):
            self._dist.recv(self._tensor(piece), source, group=self._group)

    def broadcast(self, data, root):
        for piece in _pieces(data):
            self._dist.broadcast(self._tensor(piece), root, group=self._group)

    def barrier(self):
        self._dist.barrier(group=self._group)


class Sockets(Ranks):
    """Processes of one machine that meet in `folder`, which they share and nobody else uses.

    Each waits for the others, and for every message, at most `seconds`."""

    def __init__(self, folder, rank, size, seconds=600.0):
        self.rank, self.size = rank, size
        place = lambda rank: os.path.join(folder, f"rank-{rank}")  # noqa: E731
        with socket.socket(socket.AF_UNIX) as meeting:
            meeting.bind(place(rank))
            meeting.listen(size)
            meeting.settimeout(seconds)
            self._to = [self._connect(place(to), seconds) for to in range(size)]
            self._from = [None] * size
            for _ in range(size):
                stream, _ = meeting.accept()
                stream.settimeout(seconds)
                who = bytearray(4)
                self._fill(stream, memoryview(who))
                self._from[int.from_bytes(who, "little")] = stream
        os.unlink(place(rank))

    def _connect(self, place, seconds):
        until = time.monotonic() + seconds
        while True:
            stream = socket.socket(socket.AF_UNIX)
            try:
                stream.connect(place)
                stream.settimeout(seconds)
                stream.sendall(self.rank.to_bytes(4, "little"))
                return stream
            except (FileNotFoundError, ConnectionRefusedError):
                stream.close()
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)

    @staticmethod
    def _fill(stream, data):
        while data:
            got = stream.recv_into(data)
            if not got:
                raise ConnectionError("a rank is gone")
            data = data[got:]

    def send(self, data, to):
        self._to[to].sendall(data)

    def receive(self, data, source):
        self._fill(self._from[source], data)

    def close(self):
        """Ends the connections."""
        for stream in self._to + self._from:
            stream.close()


class _Comm(c.Structure):
    """fermata_comm; see fermata.h."""

    _NUMBER = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_int))
    _ALL = c.CFUNCTYPE(c.c_int, c.c_void_p)
    _DATA = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_size_t, c.c_int)
    _GATHER = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_void_p, c.c_size_t, c.c_void_p, c.c_int)
    _fields_ = [
        ("size_of_this", c.c_size_t),
        ("context", c.c_void_p),
        ("rank", _NUMBER),
        ("size", _NUMBER),
        ("barrier", _ALL),
        ("broadcast", _DATA),
        ("gather", _GATHER),
        ("send", _DATA),
        ("receive", _DATA),
        ("behind", c.c_void_p),
    ]


def _bytes(address, length):
    return memoryview((c.c_char * length).from_address(address)).cast("B") if length else memoryview(bytearray())


# What a call of the library that is under way has raised in Python; it becomes that call's cause.
_failures = []


def failure():
    """The exception of message passing that has made a call fail, if one has; told once."""
    return _failures.pop() if _failures else None


def _said(call, *args):
    # Nothing may unwind into the library.
    try:
        call(*args)
        return 0
    except BaseException as e:
        _failures[:] = [e]
        return 1


class Bridge:
    """The library's view of `ranks`, for as long as it uses it."""

    def __init__(self, ranks):
        def number(value):
            def tell(_, out):
                out[0] = value
                return 0

            return tell

        def gather(_, mine, length, all, root):
            whole = _bytes(all, length * ranks.size) if ranks.rank == root else None
            return _said(ranks.gather, _bytes(mine, length), whole, root)

        def data(call):
            return lambda _, at, length, rank: _said(call, _bytes(at, length), rank)

        self.comm = _Comm(
            size_of_this=c.sizeof(_Comm),
            rank=_Comm._NUMBER(number(ranks.rank)),
            size=_Comm._NUMBER(number(ranks.size)),
            barrier=_Comm._ALL(lambda _: _said(ranks.barrier)),
            broadcast=_Comm._DATA(data(ranks.broadcast)),
            gather=_Comm._GATHER(gather),
            send=_Comm._DATA(data(ranks.send)),
            receive=_Comm._DATA(data(ranks.receive)),
        )
