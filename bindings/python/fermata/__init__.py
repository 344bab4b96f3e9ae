"""Fermata: checkpoints of GPU programs.

The application library (`Session` and what belongs to it, see fermata.app) is loaded when one of its names is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

_APP = ("Session", "Error", "Info", "version", "LOCAL", "PARTNER", "ERASURE", "SHARED", "OBJECT")


def __getattr__(name: str) -> Any:
    if name in _APP:
        return getattr(importlib.import_module("fermata.app"), name)
    raise AttributeError(f"module 'fermata' has no attribute '{name}'")
