"""A small transformer that learns to continue sequences, trained with AdamW; prints a digest of losses and weights.

    transformer.py [--steps N] [--pause-ms N]

Prints the lines that `common.h` describes, and stands still for tests as `hold.h` says. Every step is compiled by `torch.compile`: PyTorch's own kernels are machine code of NVIDIA's GPUs, the compiled ones
are PTX, so this runs on the software GPU too (docs/softgpu.md says what it needs). The digest is that of any other run
on the same device: single precision, no kernel with atomics, and weights and data drawn on the host."""
import argparse
import hashlib
import os
import time

import torch
import torch._inductor.config
from torch import nn
from torch.nn import functional

from hold import hold

TOKENS, LENGTH, WIDTH, HEADS, BATCH = 32, 16, 32, 2, 4


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each behind a norm and around a sum."""

    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        split = (BATCH, LENGTH, 3, HEADS, WIDTH // HEADS)
        query, key, value = self.heads(self.before(x)).view(split).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    """Tokens come as rows with a single one: looking rows up would add gradients with atomics, in any order."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Linear(TOKENS, WIDTH, bias=False)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS)

    def forward(self, rows, wanted):
        x = self.blocks(self.tokens(rows) + self.places)
        return -(functional.log_softmax(self.scores(self.norm(x)), -1) * wanted).sum() / (BATCH * LENGTH)


def batch(step):
    """Sequences that count up by a stride each: rows for the model, and those that come next."""
    draw = torch.Generator().manual_seed(step)
    first, stride = (torch.randint(1, TOKENS, (BATCH, 1), generator=draw) for _ in range(2))
    tokens = (first + stride % 4 * torch.arange(LENGTH + 1)) % TOKENS
    rows = functional.one_hot(tokens, TOKENS).float()
    return rows[:, :-1].contiguous().cuda(), rows[:, 1:].contiguous().cuda()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause-ms", type=int, default=0)
    options = parser.parse_args()
    nonce = os.urandom(8).hex()
    print("run", nonce, flush=True)
    torch.manual_seed(14)
    # The compiler would compute constants with kernels of PyTorch's own.
    torch._inductor.config.joint_graph_constant_folding = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.backends.cuda.enable_cudnn_sdp(False)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, capturable=True)
    for weights in model.parameters():
        nothing = torch.zeros(weights.shape)
        optimizer.state[weights] = {
            "step": torch.zeros(()).cuda(),
            "exp_avg": nothing.cuda(),
            "exp_avg_sq": nothing.cuda(),
        }
    loss_of = torch.compile(model)
    update = torch.compile(optimizer.step)
    one = torch.ones(()).cuda()
    digest = hashlib.sha256()
    for step in range(options.steps):
        loss = loss_of(*batch(step))
        loss.backward(one)
        update()
        optimizer.zero_grad(set_to_none=True)
        told = loss.detach().cpu()
        digest.update(told.numpy().tobytes())
        print(f"loss {told.item():.6f}\nstep {step + 1} of {options.steps}", flush=True)
        hold(step + 1)
        time.sleep(options.pause_ms / 1000)
    for weights in model.parameters():
        digest.update(weights.detach().cpu().numpy().tobytes())
    print(f"done {nonce}\ndigest transformer {digest.hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
