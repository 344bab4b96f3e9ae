"""What each rank of torchrun runs, `ranks.py NAME STEPS`: programs.py starts them. The first rank reports for all."""

import dataclasses
import os
import sys

import programs


def begin(steps):
    """PyTorch, a report, and the process group, joined; this rank's device is set."""
    torch, report = programs.torch_report(steps)
    import torch.distributed as dist

    programs.START = float(os.environ["FIRST_FROM"])
    backend = os.environ["BACKEND"]
    device = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count() if backend == "nccl" else 0
    torch.cuda.set_device(device)
    dist.init_process_group(backend)
    if dist.get_rank() != 0:
        sys.stdout = open(os.devnull, "w")
    return torch, report, dist


def train(steps):
    """Each trains on inputs of its own; gradients are averaged."""
    torch, report, dist = begin(steps)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    torch.manual_seed(100 + dist.get_rank())
    inputs = torch.randn(256, 512, device="cuda")
    programs.train(torch, report, model, inputs, lambda out: out.float().pow(2).mean())
    dist.destroy_process_group()


def numbers(torch, dist, size):
    """So many random numbers, the same on each rank, and what changes the first `count` of them on each and adds the ranks' up."""
    torch.manual_seed(100 + dist.get_rank())
    values, noise = (programs.words_of(torch, size) for _ in range(2))
    # Two ranks' factors have the sum FACTOR and their noise an odd one: each round is a bijection without a fixed point.
    factor = programs.FACTOR - 2 if dist.get_rank() == 0 else 2
    noise = noise & -2 | int(dist.get_rank() == 0)
    dist.all_reduce(values)

    def round_of(count):
        values[:count].mul_(factor).add_(noise[:count])
        dist.all_reduce(values[:count])

    return values, round_of


def graph(steps):
    """A CUDA graph in which the ranks meet ten times."""
    torch, report, dist = begin(steps)
    values, round_of = numbers(torch, dist, 1 << 18)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, capture_error_mode="thread_local"):
        for _ in range(10):
            round_of(1 << 18)
    report.run(captured.replay, lambda: [values.cpu().numpy()])
    del captured
    dist.destroy_process_group()


def reduces(steps):
    """Sums of 4 KiB to 64 MiB one after another, the loop by which a network of GPUs is measured."""
    torch, report, dist = begin(steps)
    values, round_of = numbers(torch, dist, 1 << 24)

    def step():
        for power in range(10, 25, 2):
            round_of(1 << power)

    report.run(step, lambda: [values.cpu().numpy()])
    dist.destroy_process_group()


def learn(torch, report, dist, model, whole):
    """Each rank trains a language model of 0.9 billion parameters on words of its own; `whole` makes a parameter whole."""
    import llama

    torch.manual_seed(100 + dist.get_rank())
    words = torch.randint(0, llama.NEARLY_ONE.words, (2, 257), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        loss = torch.nn.functional.cross_entropy(model(words[:, :-1]).float().flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    report.run(step, lambda: programs.bytes_of(torch, [whole(it) for it in list(model.parameters())[:8]]))
    dist.destroy_process_group()


def fsdp(steps):
    """0.9 billion parameters in shards: gathered before each layer, gradients reduced into shards."""
    torch, report, dist = begin(steps)
    import llama
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = llama.build(llama.NEARLY_ONE)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh)
    learn(torch, report, dist, model, lambda it: it.full_tensor())


def replicated(steps):
    """0.9 billion parameters on every rank; gradients are averaged."""
    torch, report, dist = begin(steps)
    import llama

    model = llama.build(llama.NEARLY_ONE)
    model = torch.nn.parallel.DistributedDataParallel(
        model, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True)
    learn(torch, report, dist, model, lambda it: it)


def tensor(steps):
    """Generation with each layer's heads and inner channels split between the ranks."""
    torch, report, dist = begin(steps)
    import llama
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, count = llama.build(llama.NEARLY_ONE).eval(), dist.get_world_size()
    mesh = init_device_mesh("cuda", (count,))
    size = llama.NEARLY_ONE
    part = dataclasses.replace(size, width=size.width // count, heads=size.heads // count, groups=size.groups // count)
    split = {name: ColwiseParallel() for name in ("query", "key", "value", "gate", "up")}
    split |= {name: RowwiseParallel() for name in ("joined", "down")}
    model.size = part
    for layer in model.layers:
        parallelize_module(layer, mesh, split)
        layer.size = part
    words, out = torch.arange(1, 65, device="cuda")[None], []
    report.run(lambda: out.append(model.generate(words, 8)), lambda: [it.cpu().numpy() for it in out])
    dist.destroy_process_group()


if __name__ == "__main__":
    {it.__name__: it for it in (train, graph, reduces, fsdp, replicated, tensor)}[sys.argv[1]](int(sys.argv[2]))
