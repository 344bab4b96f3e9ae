"""This process's own session: its checkpoints, and that it is ready."""

from __future__ import annotations

import os
import secrets
import time
import warnings
from typing import Optional

from fermata import _daemon

_MODES = ("auto", "stop", "snapshot", "cow", "recopy")
# The seconds that an answer is given at least.
_SHORTEST = 1.0
_said = False


class CheckpointError(Exception):
    """A checkpoint that failed; the program goes on as before. `hint` is what can be done, or ""."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Handle:
    """A checkpoint that was asked for.

    `state` is "taking", "taken", "failed", "restored" (this process has been brought back from an image since) or "outside"
    (it runs under no session, and nothing is done).
    """

    def __init__(self, identity: str, generation: Optional[str], state: str = "taking") -> None:
        self._id, self._generation, self._state = identity, generation, state
        self._process = os.getpid()
        self._path: Optional[str] = None
        self._error: Optional[CheckpointError] = None

    @property
    def state(self) -> str:
        """How it stands now, as the daemon says."""
        self._look()
        return self._state

    @property
    def path(self) -> Optional[str]:
        """The folder of the image; None until it is complete. After a restore that of the image restored."""
        self._look()
        return self._path

    @property
    def restored(self) -> bool:
        """Whether this process has been brought back from an image since the checkpoint was asked for."""
        self._look()
        return self._state == "restored"

    def done(self) -> bool:
        """Whether nothing is being done any more. Raises CheckpointError if it failed."""
        self._look()
        return self._ended()

    def wait(self, timeout: Optional[float] = None) -> Handle:
        """Waits until it is done, and returns this handle. Raises CheckpointError if it failed, TimeoutError if it takes
        longer than `timeout` seconds. With a daemon that does not answer it may last a second longer."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = 0.005
        while True:
            left = _daemon.LIMIT if until is None else until - time.monotonic()
            self._look(min(max(left, _SHORTEST), _daemon.LIMIT))
            if self._ended():
                return self
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(f"the checkpoint is not complete after {timeout} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        return self

    def __repr__(self) -> str:
        return f"<fermata.Handle {self._state} {self._path or ''}>"

    def _ended(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._state != "taking"

    def _look(self, limit: float = _daemon.LIMIT) -> None:
        if self._state in ("failed", "restored", "outside"):
            return
        if self._differs():
            self._state, self._path = "restored", image()
        elif self._state == "taking":
            self._take(f"status {self._id}", limit)

    def _differs(self) -> Optional[bool]:
        """Whether this is another life of the process that asked; None if that cannot be told now."""
        now, process = _daemon.generation(), os.getpid()
        if now is None:
            return None
        if process != self._process:
            # A forked child, which was started later than its parent. A restored process keeps its number.
            self._process, self._generation = process, now
        return now != self._generation

    def _take(self, question: str, limit: float = _daemon.LIMIT) -> None:
        failure: Optional[_daemon.NoDaemon] = None
        answer = []
        try:
            answer = _daemon.ask(question, limit)
        except _daemon.NoDaemon as error:
            failure = error
        differs = self._differs()
        if differs:
            # Restored in the middle of it.
            self._state, self._path = "restored", image()
        elif differs is None and question.startswith("status"):
            # What is short for that was short for the question, too: the next look asks again.
            return
        elif failure is not None:
            # Where the caller gave it less time, the next look asks again.
            if limit >= _daemon.LIMIT or not isinstance(failure, _daemon.NoAnswer):
                self._fail(str(failure), "`fermata ps` says how the session is")
        elif differs is None:
            # A daemon that has restored this process would not know the request: the next look tells.
            return
        elif answer[0] == "taken":
            self._state, self._path = "taken", "\n".join(answer[1:])
        elif answer[0] == "failed":
            self._fail(answer[1], answer[2] if len(answer) > 2 else "")
        elif answer[0] == "refused":
            self._fail(answer[1], "")
        elif answer[0] == "unknown":
            self._fail("the daemon that was taking the checkpoint has ended", "ask for another one")

    def _fail(self, message: str, hint: str) -> None:
        self._state, self._error = "failed", CheckpointError(message, hint)


def checkpoint(
    mode: str = "auto", wait: bool = False, name: Optional[str] = None, tcp_close: bool = False
) -> Handle:
    """Asks for an image of this process's session, and returns at once; it is taken while the program runs on, as
    `fermata checkpoint --mode` does. Of several ranks in one session, call it in one: the image holds all of them.

    name: name of the image in the folder of images; SESSION-1, SESSION-2, ... if absent.
    wait: return when the image is complete; raises CheckpointError if there is none.
    tcp_close: leave out TCP connections to processes outside the session, on this host or another, instead of refusing. This
        process keeps them; in a restored one they are closed.
    """
    if mode not in _MODES:
        raise ValueError(f"the mode is one of {', '.join(_MODES)}, not {mode!r}")
    if name is not None and ("/" in name or "\n" in name):
        raise ValueError("an image is named by a name in the folder of images, not by a path")
    if not in_session():
        say_outside()
        return Handle("", "", "outside")
    handle = Handle(secrets.token_hex(16), _daemon.generation())
    if handle._generation is None:
        handle._fail("this process cannot read `/proc`, which tells whether it was restored", "too many files may be open")
        return handle.wait() if wait else handle
    close = " tcp-close" if tcp_close else ""
    handle._take(f"checkpoint {handle._id} {mode}{close}\n{name or ''}")
    return handle.wait() if wait else handle


def ready() -> bool:
    """Tells Fermata that the program is ready for what it is to do: `fermata wait --ready NAME` returns. Whether there is
    a session to tell."""
    if not in_session():
        say_outside()
        return False
    try:
        return _daemon.ask("ready")[0] == "done"
    except _daemon.NoDaemon as error:
        warnings.warn(f"fermata: {error}", RuntimeWarning, stacklevel=2)
        return False


def in_session() -> bool:
    """Whether this process runs under Fermata."""
    return _daemon.in_session()


def session_name() -> Optional[str]:
    """The name of this process's session; None outside of one."""
    answer = _session()
    return answer[1] if answer else None


def image() -> Optional[str]:
    """The folder of the image that this process was restored from, or None."""
    answer = _session()
    return "\n".join(answer[2:]) or None if answer else None


def say_outside() -> None:
    """Says once that nothing is done."""
    global _said
    if not _said:
        _said = True
        text = "fermata: this process runs under no session, so checkpoints do nothing; start it with `fermata run`"
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def _session() -> Optional[list]:
    if not in_session():
        return None
    try:
        answer = _daemon.ask("session")
    except _daemon.NoDaemon:
        return None
    return answer if answer[0] == "session" else None
