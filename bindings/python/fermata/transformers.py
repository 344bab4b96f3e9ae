"""A callback for the Trainer of Hugging Face's transformers:

    trainer = transformers.Trainer(..., callbacks=[fermata.transformers.Callback(every=100)])

Takes the arguments of fermata.torch.Checkpointer.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback as _Base

from fermata._schedule import Schedule

__all__ = ["Callback"]


class Callback(_Base):  # type: ignore[misc]
    """Checkpoints after steps of the optimizer."""

    def __init__(self, **schedule: Any) -> None:
        self.schedule = Schedule(**schedule)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After gradients were accumulated and the optimizer has stepped."""
        self.schedule.step()
