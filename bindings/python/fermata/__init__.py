"""Fermata from inside a program that runs under it: `fermata run -- python train.py`.

    import fermata

    fermata.on_restore(lambda: print("running again"))
    every = fermata.optimal_interval(checkpoint=0.2, between_failures=3600)
    ...
    handle = fermata.checkpoint(mode="cow")     # returns at once; the program runs on
    handle.wait().path                          # the image's folder

    ckpt = fermata.torch.Checkpointer()         # or one line in a training loop:
    ckpt.step()                                 # after the optimizer's step

Outside of a session nothing is done, and one warning says so. Nothing of this keeps anything open between two calls, so the
program can be checkpointed at any moment, in the middle of a call too.

The application library (`Session` and what belongs to it, see fermata.app) is another way to checkpoint: the program names
its data. It is loaded when one of its names is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from fermata._interval import optimal_interval
from fermata._restored import on_restore
from fermata._session import CheckpointError, Handle, checkpoint, image, in_session, ready, session_name

__all__ = [
    "CheckpointError",
    "Handle",
    "checkpoint",
    "image",
    "in_session",
    "on_restore",
    "optimal_interval",
    "ready",
    "session_name",
]

_APP = ("Session", "Error", "Info", "version", "LOCAL", "PARTNER", "ERASURE", "SHARED", "OBJECT")
_MODULES = ("app", "torch", "lightning", "transformers")


def __getattr__(name: str) -> Any:
    if name in _APP:
        return getattr(importlib.import_module("fermata.app"), name)
    if name in _MODULES:
        return importlib.import_module("fermata." + name)
    raise AttributeError(f"module 'fermata' has no attribute '{name}'")
