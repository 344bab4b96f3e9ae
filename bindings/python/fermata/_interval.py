"""How often to checkpoint (PhoenixOS, appendix A.1)."""

from __future__ import annotations

import math


def optimal_interval(
    checkpoint: float, between_failures: float = 3600.0, gpus: int = 1, shortest: float = 0.0
) -> float:
    """The seconds between two checkpoints that waste least: sqrt(2 O M), which is 1 / f* of appendix A.1.

    checkpoint: seconds that the program loses to one (`fermata checkpoint` says for how long it stood still).
    between_failures: mean seconds between two failures of one GPU.
    gpus: GPUs of the job, of which any one that fails fails the job.
    shortest: seconds that a checkpoint takes in all; the next one cannot begin earlier.
    """
    costs = (checkpoint, shortest)
    if not all(it >= 0 and math.isfinite(it) for it in costs) or not between_failures > 0 or gpus < 1:
        raise ValueError("costs must not be negative, and there must be time between failures")
    return max(math.sqrt(2.0 * checkpoint * between_failures / gpus), shortest)
