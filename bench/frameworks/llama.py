"""A Llama-like model of any size in plain PyTorch: norms, rotary positions, grouped attention, gated layers."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional


@dataclasses.dataclass
class Size:
    """What decides how many parameters there are."""

    width: int
    inner: int
    layers: int
    heads: int
    groups: int
    words: int
    longest: int = 1024

    @property
    def head(self):
        return self.width // self.heads


# 3.0 billion parameters: 28 layers of 101 million, and two tables of 98 million.
BILLIONS = Size(width=3072, inner=8192, layers=28, heads=24, groups=8, words=32000)
# 0.9 billion parameters: 16 layers of 47 million, and two tables of 66 million.
NEARLY_ONE = Size(width=2048, inner=5632, layers=16, heads=16, groups=8, words=32000)
# 13 billion parameters: 40 layers of 317 million, and two tables of 164 million.
THIRTEEN = Size(width=5120, inner=13824, layers=40, heads=40, groups=40, words=32000)
TINY = Size(width=64, inner=128, layers=2, heads=4, groups=2, words=100, longest=64)


def rotate(x, turns):
    """Turns pairs of channels by their position's angles."""
    cosine, sine = turns
    low, high = x.chunk(2, -1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


class Layer(nn.Module):
    """Attention and a gated feed-forward layer, each behind a norm and around a sum."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        keys = size.groups * size.head
        self.before, self.between = nn.RMSNorm(size.width), nn.RMSNorm(size.width)
        self.query, self.joined = (nn.Linear(size.width, size.width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(size.width, keys, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(size.width, size.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(size.inner, size.width, bias=False)

    def attend(self, x, turns, kept, at):
        size, (batch, length, _) = self.size, x.shape
        heads = lambda y, count: y.view(batch, length, count, size.head).transpose(1, 2)
        query = rotate(heads(self.query(x), size.heads), turns)
        key, value = rotate(heads(self.key(x), size.groups), turns), heads(self.value(x), size.groups)
        if kept is not None:
            for whole, part in zip(kept, (key, value)):
                whole[:, :, at : at + length] = part
            key, value = (whole[:, :, : at + length] for whole in kept)
        each = size.heads // size.groups
        key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
        # A single new word sees all before it.
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        return self.joined(seen.transpose(1, 2).reshape(batch, length, size.width))

    def forward(self, x, turns, kept=None, at=0):
        x = x + self.attend(self.before(x), turns, kept, at)
        y = self.between(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Words in, scores of the next word out."""

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.words = nn.Embedding(size.words, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm, self.scores = nn.RMSNorm(size.width), nn.Linear(size.width, size.words, bias=False)
        with torch.no_grad():
            for weights in self.parameters():
                if weights.dim() > 1:
                    weights.normal_(0, 0.02)

    def turns(self, at, length):
        weights = self.scores.weight
        places = torch.arange(at, at + length, device=weights.device, dtype=torch.float32)
        steps = torch.arange(0, self.size.head, 2, device=weights.device, dtype=torch.float32)
        angles = places[:, None] * 500000.0 ** (-steps / self.size.head)
        return angles.cos().to(weights.dtype), angles.sin().to(weights.dtype)

    def forward(self, words, kept=None, at=0):
        x, turns = self.words(words), self.turns(at, words.shape[1])
        for number, layer in enumerate(self.layers):
            x = layer(x, turns, kept and kept[number], at)
        return self.scores(self.norm(x))

    def loss(self, words):
        scores = self(words[:, :-1]).float()
        return functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())

    @torch.no_grad()
    def generate(self, words, count):
        """`words` and the `count` most likely ones that follow, one after another."""
        size, weights = self.size, self.scores.weight
        shape = (words.shape[0], size.groups, size.longest, size.head)
        room = lambda: torch.zeros(shape, device=weights.device, dtype=weights.dtype)
        kept = [(room(), room()) for _ in range(size.layers)]
        at, new = 0, words
        for _ in range(count):
            scores = self(new, kept, at)
            at += new.shape[1]
            new = scores[:, -1].argmax(-1, keepdim=True)
            words = torch.cat((words, new), 1)
        return words


def build(size, device="cuda"):
    """A model with weights of the seed that is set, in bfloat16 from the start: no room for others is left behind."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            return Llama(size)
    finally:
        torch.set_default_dtype(torch.float32)
