"""When a training loop checkpoints: what the hooks for PyTorch, Lightning and Transformers have in common."""

from __future__ import annotations

import time
import warnings
from collections import deque
from typing import Callable, Deque, Optional

from fermata._interval import optimal_interval
from fermata._rank import is_first
from fermata._session import CheckpointError, Handle, checkpoint, in_session, say_outside

# How many steps without a checkpoint say how long a step usually takes, and how many checkpoints what one costs. Medians,
# because a loop also evaluates, compiles, or is paused for an hour.
_STEPS = 15
_CHECKPOINTS = 5


def _median(values: Deque[float]) -> float:
    """The lower one of an even number."""
    return sorted(values)[(len(values) - 1) // 2]


class Schedule:
    """Asks for a checkpoint after every `every` steps, every `seconds`, or, with neither, at the interval that wastes least
    for what checkpoints have cost this program so far (see fermata.optimal_interval).

    A checkpoint that is still being taken is waited for by none: the next one comes at the first step after it. At the
    interval that wastes least, one step without a checkpoint lies between two: it says how long a step usually takes.
    Of several ranks in one session the first asks, for an image that holds all of them. A checkpoint that fails is a warning;
    the program goes on. `mode` and `tcp_close` are those of fermata.checkpoint().
    """

    def __init__(
        self,
        every: Optional[int] = None,
        seconds: Optional[float] = None,
        mode: str = "auto",
        between_failures: float = 3600.0,
        gpus: int = 1,
        clock: Callable[[], float] = time.monotonic,
        tcp_close: bool = False,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError("a checkpoint is taken after every 1 or more steps")
        self._every, self._seconds, self._mode = every, seconds, mode
        self._tcp_close = tcp_close
        self._between_failures, self._gpus, self._clock = between_failures, gpus, clock
        self._is_first = is_first()
        self._steps = 0
        self._last = clock()
        self._step_began: Optional[float] = None
        self._free: Deque[float] = deque(maxlen=_STEPS)
        self._costs: Deque[float] = deque(maxlen=_CHECKPOINTS)
        self._cost: Optional[float] = None
        self._is_free = False
        self._took = 0.0
        self._slow = 0.0
        self.handle: Optional[Handle] = None
        if not in_session():
            say_outside()

    @property
    def interval(self) -> float:
        """Seconds between two checkpoints now; infinite if steps are counted."""
        if self._every is not None:
            return float("inf")
        if self._seconds is not None:
            return self._seconds
        # One second until the first is measured.
        cost = 1.0 if self._cost is None else self._cost
        return optimal_interval(cost, self._between_failures, self._gpus, max(self._took, 1.0))

    def step(self) -> Optional[Handle]:
        """To be called after each step of the optimizer. The handle, if a checkpoint has been asked for now."""
        now = self._clock()
        self._measure(now)
        self._steps += 1
        if not self._is_first or not in_session() or self._is_taking(now):
            return None
        if not self._is_due(now):
            return None
        self._last, self._slow = now, 0.0
        self.handle = checkpoint(self._mode, tcp_close=self._tcp_close)
        return self.handle

    def _is_due(self, now: float) -> bool:
        if self._every is not None:
            return self._steps % self._every == 0
        if self._seconds is None and not self._is_free:
            return False
        return now - self._last >= self.interval

    def _is_taking(self, now: float) -> bool:
        if self.handle is None:
            return False
        try:
            taking = not self.handle.done()
        except CheckpointError as error:
            warnings.warn(f"fermata: no checkpoint: {error}", RuntimeWarning, stacklevel=3)
            taking = False
        if not taking:
            if self.handle.state == "taken":
                self._took = now - self._last
                # The stop and what steps lost behind it, as the loop has felt both.
                self._costs.append(self._slow)
                self._cost = _median(self._costs)
            elif self.handle.state == "restored":
                # The clock went on while there was no program.
                self._last, self._step_began = now, None
            self.handle = None
        return taking

    def _measure(self, now: float) -> None:
        """What this step took longer than steps without a checkpoint."""
        self._is_free = self._step_began is not None and self.handle is None
        if self._step_began is not None:
            took = now - self._step_began
            if self.handle is None:
                self._free.append(took)
            elif self._free:
                self._slow += max(took - _median(self._free), 0.0)
        self._step_began = now
