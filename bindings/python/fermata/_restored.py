"""Notices that this process has been restored from an image."""

from __future__ import annotations

import threading
import time
from typing import Callable, List, Optional

from fermata import _daemon

# How often a thread looks, where callbacks are registered: nothing tells a program that it was away.
_EVERY = 0.1

_lock = threading.Lock()
_callbacks: List[Callable[[], object]] = []
_watch: Optional[threading.Thread] = None
_last: Optional[str] = None


def on_restore(callback: Callable[[], object]) -> Callable[[], object]:
    """Has `callback` called after each restore, in a thread of this package, soon after the program runs again. What it
    raises goes to threading.excepthook. Returns `callback`, so that it can be used as a decorator."""
    global _watch, _last
    if not _daemon.in_session():
        from fermata._session import say_outside

        say_outside()
        return callback
    with _lock:
        _callbacks.append(callback)
        if _watch is None or not _watch.is_alive():
            _last = _daemon.generation()
            _watch = threading.Thread(target=_look, name="fermata-restored", daemon=True)
            _watch.start()
    return callback


def _look() -> None:
    global _last
    while True:
        time.sleep(_EVERY)
        now = _daemon.generation()
        if now is None or now == _last:
            continue
        known, _last = _last is not None, now
        if not known:
            continue
        with _lock:
            called = list(_callbacks)
        for callback in called:
            try:
                callback()
            except Exception as error:  # The others are called all the same.
                threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
