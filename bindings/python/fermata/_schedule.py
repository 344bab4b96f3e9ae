"""When a training loop checkpoints: what the hooks for PyTorch, Lightning and Transformers have in common."""

from __future__ import annotations

import time
import warnings
from typing import Callable, Optional

from fermata._interval import optimal_interval
from fermata._session import CheckpointError, Handle, checkpoint, in_session, say_outside


class Schedule:
    """Asks for a checkpoint after every `every` steps, every `seconds`, or, with neither, at the interval that wastes least
    for what checkpoints have cost this program so far (see fermata.optimal_interval).

    A checkpoint that is still being taken is waited for by none: the next one comes at the first step after it.
    One that fails is a warning; the program goes on. `mode` and `tcp_close` are those of fermata.checkpoint().
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
        self._steps = 0
        self._last = clock()
        self._step_began: Optional[float] = None
        self._usual: Optional[float] = None
        self._cost: Optional[float] = None
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
        if not in_session() or self._is_taking(now):
            return None
        due = self._steps % self._every == 0 if self._every else now - self._last >= self.interval
        if not due:
            return None
        self._last, self._slow = now, 0.0
        self.handle = checkpoint(self._mode, tcp_close=self._tcp_close)
        return self.handle

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
                self._cost = self._slow if self._cost is None else (self._cost + self._slow) / 2
            elif self.handle.state == "restored":
                # The clock went on while there was no program.
                self._last, self._step_began = now, None
            self.handle = None
        return taking

    def _measure(self, now: float) -> None:
        """What this step took longer than steps without a checkpoint."""
        if self._step_began is not None:
            took = now - self._step_began
            if self.handle is None:
                self._usual = took if self._usual is None else 0.9 * self._usual + 0.1 * took
            elif self._usual is not None:
                self._slow += max(took - self._usual, 0.0)
        self._step_began = now
