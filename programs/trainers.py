"""A small model that a framework's trainer trains, with Fermata's callback for it; prints a digest of weights and of what is on the GPU.

    trainers.py lightning|transformers [--steps N] [--every N]

Prints the lines that `common.h` describes, and stands still for tests as `hold.h` says. `fermata.lightning.Callback` or
`fermata.transformers.Callback` asks for an image of the program after every so many steps of the optimizer. The model is on the
host, because PyTorch's kernels are machine code of NVIDIA's GPUs; what it has seen is on the GPU, so that this runs on the
software GPU too."""
import argparse
import hashlib
import os
import sys
import warnings

import torch
from torch import nn

from hold import hold

warnings.filterwarnings("ignore", category=FutureWarning)
WIDTH, BATCH, ROWS = 16, 4, 64


class Model(nn.Module):
    """Learns a linear map. The sum of what it was shown is on the GPU."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(WIDTH, 1)
        self.seen = torch.zeros(WIDTH).cuda()

    def forward(self, x=None, labels=None):
        found = self.map(x)
        self.seen.copy_(self.seen.cpu() + x.detach().sum(0))
        return {"loss": (found - labels).pow(2).mean(), "logits": found}


def data():
    draw = torch.Generator().manual_seed(5)
    rows = torch.randn(ROWS, WIDTH, generator=draw)
    return [{"x": row, "labels": row.sum(0, keepdim=True)} for row in rows]


class Steps:
    """Says when steps of the optimizer end."""

    def __init__(self, count):
        self.count, self.done = count, 0

    def step(self):
        self.done += 1
        print(f"step {self.done} of {self.count}", flush=True)
        hold(self.done)


def lightning(model, steps, every):
    import fermata.lightning
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Callback

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    class Printer(Callback):
        def on_train_batch_end(self, *_):
            steps.step()

    trainer = Trainer(
        max_steps=steps.count, max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[fermata.lightning.Callback(every=every), Printer()],
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(data(), batch_size=BATCH))


def transformers(model, steps, every):
    import fermata.transformers
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Printer(TrainerCallback):
        def on_step_end(self, *_, **__):
            steps.step()

    arguments = TrainingArguments(
        output_dir="trainers-output", max_steps=steps.count, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, per_device_train_batch_size=BATCH, seed=3,
    )
    callbacks = [fermata.transformers.Callback(every=every), Printer()]
    Trainer(model=model, args=arguments, train_dataset=data(), callbacks=callbacks).train()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=["lightning", "transformers"])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--every", type=int, default=6)
    options = parser.parse_args()
    nonce = os.urandom(8).hex()
    print("run", nonce, flush=True)
    torch.manual_seed(7)
    model, steps = Model(), Steps(options.steps)
    {"lightning": lightning, "transformers": transformers}[options.trainer](model, steps, options.every)
    digest = hashlib.sha256()
    for part in (*model.parameters(), model.seen):
        digest.update(part.detach().cpu().numpy().tobytes())
    print(f"done {nonce}\ndigest {options.trainer} {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
