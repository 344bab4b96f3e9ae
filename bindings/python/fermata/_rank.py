"""Which rank of a job of several this process is, as far as that matters to its session."""

from __future__ import annotations

import os
from typing import Dict, Tuple

from fermata._daemon import TOKEN

# What launchers say. The rank on this machine comes first: ranks of other machines belong to other sessions.
_RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
)


def is_first() -> bool:
    """Whether this process is the one among its session's ranks that asks for their checkpoints: one image holds all of them.

    A launcher within the session (`fermata run -- torchrun`) starts each rank with its number. Where each rank is a session
    of its own (`mpirun fermata run`), the session's first process has that number already, and it says nothing here. In
    case of doubt a process asks: an image too many is better than none.
    """
    own, outside = _environments()
    for name in _RANKS:
        # A process that has set its title has overwritten what the kernel shows of its variables.
        rank = own.get(name) or os.environ.get(name)
        if rank == "0":
            return True
        if rank and outside.get(name) != rank:
            return False
    return True


def _environments() -> Tuple[Dict[str, str], Dict[str, str]]:
    """With which variables this process was started, and the highest parent of it that belongs to its session."""
    own: Dict[str, str] = {}
    outside: Dict[str, str] = {}
    try:
        process = os.getpid()
        own = _environment(process)
        variables = own
        while process > 0 and variables.get(TOKEN) == own.get(TOKEN):
            outside, process = variables, _parent(process)
            variables = _environment(process)
    except OSError:
        pass
    return own, outside


def _environment(process: int) -> Dict[str, str]:
    with open(f"/proc/{process}/environ", "rb") as file:
        words = os.fsdecode(file.read()).split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def _parent(process: int) -> int:
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        return int(file.read().rpartition(")")[2].split()[1])
