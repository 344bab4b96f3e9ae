"""Questions to the daemon, one datagram each: crates/control/src/program.rs says what they are.

Nothing is open between two questions. What is open during one can be dumped: the pipe of a program that is restored in the
middle of a question has no writer, so that it reads the end at once and asks again, the daemon that there is then.
"""

from __future__ import annotations

import array
import os
import select
import socket
import stat
import time
from typing import Callable, List, Optional, TypeVar

_AGENTS = "FERMATA_AGENT_SOCKET"
TOKEN = "FERMATA_SESSION_TOKEN"
_NAME = "program.sock"
_MOST = 4096
# An answer takes a moment; after this time it is asked again.
_AGAIN = 15.0
# For how long a question is asked: a daemon that was killed is followed by the next one.
LIMIT = 30.0
_T = TypeVar("_T")


class NoDaemon(Exception):
    """There is no daemon that answers."""


class NoAnswer(NoDaemon):
    """The time was over before one answered."""


class _Patience:
    """The seconds that a question may still wait. The time in which a wait was longer than asked for does not count: the
    program was stopped for its image, paused, or restored."""

    def __init__(self, seconds: float) -> None:
        self.left = max(seconds, 0.0)

    def wait(self, most: float, how: Callable[[float], _T]) -> _T:
        most, begun = min(most, self.left), time.monotonic()
        try:
            return how(most)
        finally:
            self.left -= min(max(time.monotonic() - begun, 0.0), most)


def in_session() -> bool:
    """Whether this process was started by `fermata run`, or restored."""
    return _socket() is not None


def generation() -> Optional[str]:
    """What another life of this process differs in: a restored one was started anew, in a namespace of its own. None if it
    cannot be read now, for example because too many files are open."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            started = file.read().rpartition(")")[2].split()[19]
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{os.readlink('/proc/self/ns/pid')} {started} {file.read().strip()}"
    except OSError:
        return None


def ask(question: str, limit: float = LIMIT) -> List[str]:
    """The lines of the answer to `question`. Raises NoAnswer if none comes within `limit` seconds, and NoDaemon if the
    question cannot be asked."""
    patience = _Patience(limit)
    while True:
        path = _socket()
        if path is None:
            raise NoDaemon("this process belongs to no session")
        try:
            answer = _once(path, question, patience)
            if answer:
                return answer
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise NoDaemon(f"the daemon at `{path}` cannot be asked: {error}") from error
        if patience.left <= 0:
            raise NoAnswer(f"no daemon answers at `{path}`")
        patience.wait(0.02, time.sleep)


def _once(path: str, question: str, patience: _Patience) -> List[str]:
    """The lines of an answer; none if it must be asked again."""
    _check(path)
    text = f"fermata 1\n{os.environ.get(TOKEN, '')}\n{question}\n".encode("utf-8", "surrogateescape")
    answers, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs]))
                sender.sendmsg([text], [rights], socket.MSG_NOSIGNAL, path)
        finally:
            os.close(theirs)
        return _read(answers, patience)
    finally:
        os.close(answers)


def _read(answers: int, patience: _Patience) -> List[str]:
    poll, data = select.poll(), b""
    poll.register(answers, select.POLLIN)
    kept = max(patience.left - _AGAIN, 0.0)
    while len(data) <= _MOST:
        if not patience.wait(patience.left - kept, lambda seconds: poll.poll(seconds * 1000)):
            return []
        try:
            piece = os.read(answers, _MOST)
        except BlockingIOError:
            continue
        if not piece:
            break
        data += piece
    return data.decode("utf-8", "surrogateescape").split("\n")[:-1]


def _check(path: str) -> None:
    """The socket and its folder must be this user's or root's, and nobody else may write to them."""
    for it, kind in ((os.path.dirname(path), stat.S_ISDIR), (path, stat.S_ISSOCK)):
        found = os.lstat(it)
        trusted = kind(found.st_mode) and found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022
        if not trusted:
            raise NoDaemon(f"`{it}` is not this user's alone")


def _socket() -> Optional[str]:
    """Where the daemon listens: the one that has restored this program, if one has, else the one that has started it."""
    try:
        with open("/proc/1/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        words = []
    restored = len(words) > 3 and words[1] == b"__init" and words[3].startswith(b"/")
    agents = os.fsdecode(words[3]) if restored else os.environ.get(_AGENTS)
    return os.path.join(os.path.dirname(agents), _NAME) if agents else None
