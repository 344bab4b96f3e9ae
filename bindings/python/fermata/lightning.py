"""A callback for Lightning:

    trainer = lightning.Trainer(callbacks=[fermata.lightning.Callback(every=100)])

Takes the arguments of fermata.torch.Checkpointer.
"""

from __future__ import annotations

from typing import Any

from fermata._schedule import Schedule

try:
    from lightning.pytorch.callbacks import Callback as _Base
except ImportError:
    from pytorch_lightning.callbacks import Callback as _Base  # type: ignore[no-redef]

__all__ = ["Callback"]


class Callback(_Base):  # type: ignore[misc, valid-type]
    """Checkpoints after steps of the optimizer."""

    def __init__(self, **schedule: Any) -> None:
        super().__init__()
        self.schedule = Schedule(**schedule)
        self._steps = 0

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Only where gradients were not just accumulated."""
        if trainer.global_step != self._steps:
            self._steps = trainer.global_step
            self.schedule.step()
