"""A language model that writes one token after another: what several instances of one image are measured with.

    tokens.py --billions 0.9|3|13 --until PATH --end PATH

Writes some tokens, prints "ready", and waits for the first file. Then it writes again, from the same words, and prints "first"
and "all" with the time, in seconds since 1970, when the first token and the first eight were there. From then on it gets other words in
each turn. Once the second file is there, it prints "digest tokens HEX bad COUNT": of what it has written from the first words, and how often
that was not what it was before.
"""

import argparse
import hashlib
import os
import time

import llama
import torch

COUNT = 8
SIZES = {"0.9": llama.NEARLY_ONE, "3": llama.BILLIONS, "13": llama.THIRTEEN, "tiny": llama.TINY}


def main():
    known = argparse.ArgumentParser()
    known.add_argument("--billions", choices=SIZES, default="0.9")
    known.add_argument("--until", required=True)
    known.add_argument("--end", required=True)
    known.add_argument("--device", default="cuda")
    given = known.parse_args()
    torch.manual_seed(7)
    model = llama.build(SIZES[given.billions], given.device).eval()
    asked = torch.arange(1, 33, device=given.device)[None]
    tell = lambda what: print(f"{what} {time.time():.6f}", flush=True)
    right = model.generate(asked, COUNT).tolist()
    print("ready", flush=True)
    while not os.path.exists(given.until):
        time.sleep(0.0005)
    one = model.generate(asked, 1).tolist()
    tell("first")
    written = model.generate(asked, COUNT).tolist()
    tell("all")
    wrong, turn = (one[0] != right[0][: len(one[0])]) + (written != right), 0
    while not os.path.exists(given.end):
        turn += 1
        model.generate(asked + turn % 50, COUNT).tolist()
        time.sleep(0.02)
    wrong += model.generate(asked, COUNT).tolist() != right
    print(f"digest tokens {hashlib.sha256(str(right).encode()).hexdigest()[:16]} bad {wrong}", flush=True)


if __name__ == "__main__":
    main()
