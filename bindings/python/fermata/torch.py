"""A hook for training loops of PyTorch, or of anything else that trains in steps:

    ckpt = fermata.torch.Checkpointer(every=100)      # or seconds=60, or nothing: the optimal interval
    for batch in loader:
        ...
        optimizer.step()
        ckpt.step()

After the optimizer's step activations and gradients are dead, so the image is small and few buffers are written while it
is taken (PhoenixOS, section 8.4).
"""

from fermata._schedule import Schedule as Checkpointer

__all__ = ["Checkpointer"]
