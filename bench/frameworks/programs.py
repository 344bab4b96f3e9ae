"""Programs of the frameworks, as their users write them: `programs.py NAME [STEPS]`.

Each prints `first SECONDS` (from its start to its first result), `step N SECONDS` as it goes, about 200 times, and at its
end `median SECONDS` of a step and `digest HEX` of all that it has computed. The same seed gives the same bytes.

What a program computes must never reach a fixed point or forget what it held: then its digest would not depend on what a
restore brought back. `Report` refuses results that are constant or that an earlier step had already given.
"""

import hashlib
import os
import statistics
import subprocess
import sys
import time

START = time.time()
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


# An odd factor that is 1 modulo 4: `x * FACTOR + odd` is a bijection of words of 32 bits, whose period is 2 ** 32.
FACTOR = 1664525
# Results before each of the last steps, which that after them must not repeat.
LAST = 4


class Report:
    """Says when steps end, and what came out."""

    def __init__(self, steps, wait):
        self.steps, self.wait, self.times, self.earlier = steps, wait, [], []

    def run(self, step, state):
        """Runs all steps and digests the arrays of `state()`, what a program has computed so far."""
        every = max(1, self.steps // 200)
        for number in range(self.steps):
            if number >= self.steps - LAST:
                self.earlier.append(digest_of(state()))
            begun = time.time()
            step()
            self.wait()
            self.times.append(time.time() - begun)
            if number == 0:
                print(f"first {time.time() - START:.3f}", flush=True)
            if number % every == every - 1:
                print(f"step {number + 1} {time.time() - START:.3f}", flush=True)
        self.end(state())

    def end(self, arrays):
        digest = digest_of(arrays)
        if all(array.min() == array.max() for array in arrays):
            raise RuntimeError("the result is constant: its digest would prove nothing")
        if digest in self.earlier:
            raise RuntimeError("the result repeats that of an earlier step: its digest would prove nothing")
        late = self.times[len(self.times) // 3 :]
        print(f"median {statistics.median(late):.6f}")
        print(f"digest {digest}", flush=True)


def digest_of(arrays):
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]


def torch_report(steps):
    import torch

    torch.manual_seed(7)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    return torch, Report(steps, torch.cuda.synchronize)


def bytes_of(torch, tensors):
    return [tensor.detach().float().cpu().numpy() for tensor in tensors]


def words_of(torch, count):
    """Random integers of 32 bits, not negative."""
    return torch.randint(1 << 31, (count,), dtype=torch.int32, device="cuda")


def train(torch, report, model, inputs, loss_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model(inputs))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    report.run(step, lambda: bytes_of(torch, model.parameters()))


def resnet(steps):
    torch, report = torch_report(steps)
    import torchvision

    model = torchvision.models.resnet50().cuda()
    images, labels = torch.randn(64, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (64,), device="cuda")
    train(torch, report, model, images, lambda out: torch.nn.functional.cross_entropy(out, labels))


def encoder(steps):
    torch, report = torch_report(steps)
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6).cuda()
    inputs = torch.randn(16, 256, 768, device="cuda")
    train(torch, report, model, inputs, lambda out: out.float().pow(2).mean())


def transformers_llama(torch, layers=16):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=8, vocab_size=32000, max_position_embeddings=2048,
    )
    with torch.device("cuda"):
        return LlamaForCausalLM(config).to(torch.bfloat16)


def language(steps):
    torch, report = torch_report(steps)
    model = transformers_llama(torch, 8).train()
    tokens = torch.randint(0, 32000, (4, 256), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step():
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    report.run(step, lambda: bytes_of(torch, list(model.parameters())[:8]))


def generation(steps):
    torch, report = torch_report(steps)
    model = transformers_llama(torch).eval()
    out = torch.arange(1, 65, device="cuda")[None]
    tokens = []

    def step():
        tokens.append(model.generate(out, max_new_tokens=8, do_sample=False, pad_token_id=0))

    report.run(step, lambda: [it.cpu().numpy() for it in tokens])


def compiled_language(steps, of):
    """Trains a model of the size that `of` takes from `llama`, each layer compiled."""
    torch, report = torch_report(steps)
    import llama

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    # Those of cuDNN and flash attention are not deterministic: with either, native runs differed. What is left is made of plain operations.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    size = of(llama)
    model = llama.build(size)
    for layer in model.layers:
        layer.compile()
    words = torch.randint(0, size.words, (2, 513), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        model.loss(words).backward()
        optimizer.step()
        optimizer.zero_grad()

    report.run(step, lambda: bytes_of(torch, list(model.parameters())[:8]))


def language_compiled(steps):
    """0.9 billion parameters."""
    compiled_language(steps, lambda llama: llama.NEARLY_ONE)


def language_3b(steps):
    """Three billion parameters; 24 GB with gradients and AdamW's state."""
    compiled_language(steps, lambda llama: llama.BILLIONS)


def generation_3b(steps):
    torch, report = torch_report(steps)
    import llama

    model = llama.build(llama.BILLIONS).eval()
    words = torch.arange(1, 65, device="cuda")[None]
    out = []
    report.run(lambda: out.append(model.generate(words, 8)), lambda: [it.cpu().numpy() for it in out])


def unet(steps):
    torch, report = torch_report(steps)
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.layers = nn.Sequential(
                nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1),
                nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1),
            )

        def forward(self, x):
            return x + self.layers(x)

    model = nn.Sequential(
        nn.Conv2d(4, 128, 3, padding=1), Block(128), nn.Conv2d(128, 256, 3, stride=2, padding=1), Block(256), Block(256),
        nn.Upsample(scale_factor=2), nn.Conv2d(256, 128, 3, padding=1), Block(128), nn.Conv2d(128, 4, 3, padding=1),
    ).cuda()
    latents = torch.randn(8, 4, 64, 64, device="cuda")
    train(torch, report, model, latents, lambda out: out.float().pow(2).mean())


def graph(steps):
    torch, report = torch_report(steps)
    # Each row of `a` is the state of a random network of 512 neurons. It is chaotic with weights as large as these: a
    # difference in any value grows. With smaller weights it would go out.
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda") / 8
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        a @ b
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(20):
            a.copy_(torch.tanh(a @ b) + 0.1 * a)
    report.run(captured.replay, lambda: bytes_of(torch, [a]))


def green(steps):
    """Every second product is computed on 16 of the GPU's multiprocessors."""
    torch, report = torch_report(steps)
    part = torch.cuda.green_contexts.GreenContext.create(num_sms=16, device_id=0)
    a, b = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda") / 8

    def step():
        for number in range(20):
            if number % 2:
                part.set_context()
            product = torch.tanh(a @ b)
            if number % 2:
                part.pop_context()
            a.mul_(0.1).add_(product)

    report.run(step, lambda: bytes_of(torch, [a]))


class Numbers:
    """A data set that a loader's workers draw from."""

    def __len__(self):
        return 4096

    def __getitem__(self, at):
        import torch

        return torch.full((256,), float(at % 97))


def loader(steps):
    torch, report = torch_report(steps)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = torch.utils.data.DataLoader(Numbers(), batch_size=64, num_workers=2, pin_memory=True)
    source = iter(batches)

    def step():
        nonlocal source
        batch = next(source, None)
        if batch is None:
            source = iter(batches)
            batch = next(source)
        batch = batch.cuda(non_blocking=True)
        (model(batch) - batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    report.run(step, lambda: bytes_of(torch, model.parameters()))


def nccl(steps):
    torch, report = torch_report(steps)
    import torch.distributed as dist

    port = str(20000 + os.getpid() % 20000)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("nccl", rank=0, world_size=1)
    values = words_of(torch, 1 << 20) | 1

    def step():
        dist.all_reduce(values)
        values.mul_(FACTOR)

    report.run(step, lambda: [values.cpu().numpy()])
    dist.destroy_process_group()


def launch_ranks(what, steps, count=2, **variables):
    """`ranks.py` in so many processes of torchrun."""
    env = {**os.environ, "FIRST_FROM": str(START), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "4", **variables}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    subprocess.run([*launch, os.path.join(os.path.dirname(__file__), "ranks.py"), what, str(steps)], env=env, check=True)


def ranks(steps):
    """Two processes on one device that train one model together: torchrun, gloo over the loopback."""
    launch_ranks("train", steps, BACKEND="gloo")


def ranks_8(steps):
    """The same with eight."""
    launch_ranks("train", steps, 8, BACKEND="gloo", OMP_NUM_THREADS="1")


def over_nccl(what, steps, count=2, **variables):
    """Ranks over NCCL, on GPUs of their own or all on one: then NCCL must be 2.30 or newer, and BENCH_NCCL may name its library."""
    library = {"LD_PRELOAD": os.environ["BENCH_NCCL"]} if "BENCH_NCCL" in os.environ else {}
    one = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo"}
    launch_ranks(what, steps, count, BACKEND="nccl", **one, **library, **variables)


def ddp(steps):
    over_nccl("train", steps)


def ddp_shm(steps):
    """The same, with NCCL's transport over host memory that both ranks register."""
    over_nccl("train", steps, NCCL_P2P_DISABLE="1", NCCL_CUMEM_HOST_ENABLE="0")


def ddp_8(steps):
    over_nccl("train", steps, 8, OMP_NUM_THREADS="1")


def ddp_graph(steps):
    over_nccl("graph", steps)


def ddp_reduces(steps):
    over_nccl("reduces", steps)


def fsdp(steps):
    over_nccl("fsdp", steps)


def ddp_language(steps):
    over_nccl("replicated", steps)


def tensor(steps):
    over_nccl("tensor", steps)


def everywhere(torch):
    """Waits for every device."""
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)


def halves(steps):
    """One process on two devices: what the first half of its layers has made goes to the other device, gradients come back."""
    torch, report = torch_report(steps)
    nn = torch.nn
    report.wait, other = lambda: everywhere(torch), torch.cuda.device_count() - 1

    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda(0)
            self.second = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda(other)

        def forward(self, x):
            return self.second(self.first(x).to(f"cuda:{other}", non_blocking=True))

    train(torch, report, Halves(), torch.randn(512, 1024, device="cuda"), lambda out: out.float().pow(2).mean())


def replicas(steps):
    """One process whose threads train copies of a model on each device, over NCCL (DataParallel)."""
    torch, report = torch_report(steps)
    report.wait = lambda: everywhere(torch)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    model = torch.nn.DataParallel(model)
    train(torch, report, model, torch.randn(512, 512, device="cuda"), lambda out: out.float().pow(2).mean())


def compiled(steps):
    torch, report = torch_report(steps)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    train(torch, report, torch.compile(model), torch.randn(256, 512, device="cuda"), lambda out: out.float().pow(2).mean())


def jax(steps):
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp
    import numpy

    keys = jax.random.split(jax.random.key(7), 3)
    weights = [jax.random.normal(keys[0], (512, 1024)) * 0.05, jax.random.normal(keys[1], (1024, 512)) * 0.05]
    inputs = jax.random.normal(keys[2], (256, 512))
    # The training converges, so the bits of all weights of each step are mixed into these.
    mixed = [jnp.zeros(it.shape, jnp.int32) for it in weights]

    @jax.jit
    def update(weights, mixed):
        def loss(weights):
            return jnp.mean((jnp.tanh(inputs @ weights[0]) @ weights[1] - inputs) ** 2)

        weights = [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights))]
        return weights, [m * FACTOR + jax.lax.bitcast_convert_type(w, jnp.int32) for m, w in zip(mixed, weights)]

    state = (weights, mixed)

    def step():
        nonlocal state
        state = update(*state)
        jax.block_until_ready(state)

    report = Report(steps, lambda: None)
    report.run(step, lambda: [numpy.asarray(it) for part in state for it in part])


def cupy(steps):
    import cupy

    # A chaotic network, as in `graph`; the solver adds a small part.
    cupy.random.seed(7)
    a, weights = (cupy.random.standard_normal((256, 256)).astype(cupy.float32) for _ in range(2))
    weights *= cupy.float32(0.2)
    values = {"a": a}

    def step():
        a = values["a"]
        b = cupy.tanh(cupy.fft.ifft(cupy.fft.fft(a @ weights)).real.astype(cupy.float32))
        values["a"] = b + 0.01 * cupy.linalg.solve(a + 300 * cupy.eye(256, dtype=cupy.float32), a)

    report = Report(steps, cupy.cuda.Device().synchronize)
    report.run(step, lambda: [cupy.asnumpy(values["a"])])


def triton(steps):
    torch, report = torch_report(steps)
    import kernels

    x, y = words_of(torch, 1 << 20), words_of(torch, 1 << 20) | 1
    report.run(lambda: kernels.blend(x, y, FACTOR), lambda: [x.cpu().numpy()])


def numba(steps):
    import numpy

    # numba-cuda asks for names that later versions of NumPy have dropped.
    for dropped, name in (("row_stack", "vstack"), ("in1d", "isin"), ("trapz", "trapezoid")):
        if not hasattr(numpy, dropped):
            setattr(numpy, dropped, getattr(numpy, name))
    from numba import cuda

    @cuda.jit
    def blend(x, y):
        at = cuda.grid(1)
        if at < x.size:
            x[at] = x[at] * numpy.uint32(FACTOR) + y[at]

    draw = numpy.random.default_rng(7)
    x, y = (draw.integers(1 << 32, size=1 << 20, dtype=numpy.uint32) for _ in range(2))
    x, y = cuda.to_device(x), cuda.to_device(y | numpy.uint32(1))
    report = Report(steps, cuda.synchronize)
    report.run(lambda: blend[x.size // 256, 256](x, y), lambda: [x.copy_to_host()])


PROGRAMS = {
    it.__name__: it
    for it in (
        resnet, encoder, language, generation, language_compiled, language_3b, generation_3b, unet, graph, green, loader, nccl,
        ranks, ranks_8, ddp,
        ddp_shm, ddp_8, ddp_graph, ddp_reduces, ddp_language, fsdp, tensor, halves, replicas, compiled, jax, cupy, triton, numba,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](int(sys.argv[2]) if len(sys.argv) > 2 else 60)
