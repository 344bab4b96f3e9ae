#!/usr/bin/env python3
"""How long a checkpoint holds a program whose data does not fit its GPUs' staging memory, as one JSON object.

    device_staging.py FOLDER STAGING_GIB GIB,GIB,... [LIMIT] [--ranks] [--ways=NAME,...]

Needs GPUs and the build tree (FERMATA_BUILD).

GPU n has the n-th GIB of data, all of it changed before every checkpoint, and STAGING_GIB of staging memory (`stage.device_bytes`).
What does not fit there goes by three schedules (`stage.schedule`): to the host (`local-only`), to the peer
behind the fastest link (`greedy`), and in the least time (`optimum`, the collaborative one); and at last everything
goes to the host, without staging on devices (`none`). Reported for each checkpoint: how long the program was held, in
which the data is hashed and staging memory is made, too; how long data was on its way (`moved_s`), and what the schedule had
predicted for it. The first checkpoint of each makes buffers and is not counted; host buffers hold all that goes there
at once. Each way's last checkpoint is read back into emptied memory, and every word of it compared with what was there:
a difference ends the bench. The links' rates are measured first. What does not fit into LIMIT seconds is listed in
`left_out`.

All GPUs are one process's, or with --ranks each is that of a rank of its own; then times are the slowest rank's.
"""
import ctypes as c
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

tree = os.environ.get("FERMATA_BUILD") or str(pathlib.Path(__file__).resolve().parent.parent / "build")
sys.path.insert(0, os.path.join(tree, "python"))
BLOCK, ROUNDS = 1 << 20, 2
WAYS = "optimum", "local-only", "greedy", "none"
# What a checkpoint may take at the least rate seen, in bytes per second, to know what still fits.
SLOW = 1.8e9
# `fill` gives every word its value, `check` counts the words that have another.
PTX = """.version 7.0
.target sm_75
.address_size 64
"""
ENTRY = """.visible .entry %s(.param .u64 at, .param .u64 words, .param .u64 seed, .param .u64 wrong)
{
    .reg .pred %%p;
    .reg .b32 %%r<4>;
    .reg .b64 %%d<11>;
    ld.param.u64 %%d0, [at];
    ld.param.u64 %%d1, [words];
    ld.param.u64 %%d2, [seed];
    ld.param.u64 %%d9, [wrong];
    mov.u32 %%r0, %%ctaid.x;
    mov.u32 %%r1, %%ntid.x;
    mov.u32 %%r2, %%tid.x;
    mul.wide.u32 %%d3, %%r0, %%r1;
    cvt.u64.u32 %%d4, %%r2;
    add.u64 %%d3, %%d3, %%d4;
    mov.u32 %%r3, %%nctaid.x;
    mul.wide.u32 %%d5, %%r3, %%r1;
next:
    setp.ge.u64 %%p, %%d3, %%d1;
    @%%p bra done;
    add.u64 %%d6, %%d3, %%d2;
    mul.lo.u64 %%d6, %%d6, 0x9E3779B97F4A7C15;
    shr.u64 %%d7, %%d6, 29;
    xor.b64 %%d6, %%d6, %%d7;
    mul.lo.u64 %%d6, %%d6, 0xBF58476D1CE4E5B9;
    shl.b64 %%d8, %%d3, 3;
    add.u64 %%d8, %%d0, %%d8;
%s
    add.u64 %%d3, %%d3, %%d5;
    bra next;
done:
    ret;
}
"""
PTX = (PTX + ENTRY % ("fill", "    st.global.u64 [%d8], %d6;") + ENTRY % ("check", """    ld.global.u64 %d7, [%d8];
    setp.ne.u64 %p, %d7, %d6;
    @%p red.global.add.u64 [%d9], 1;""")).encode()
cuda = c.CDLL("libcuda.so.1", mode=c.RTLD_GLOBAL)


def call(name, *args):
    """A call of the driver; ends the process where it fails."""
    result = getattr(cuda, name)(*args)
    if result:
        sys.exit(f"{name}: error {result}")


class Gpu:
    """A device with `bytes` of data."""

    def __init__(self, number, size):
        self.context, self.stream = c.c_void_p(), c.c_void_p()
        self.at, self.size = c.c_uint64(), size
        module, self.wrong, self.seed = c.c_void_p(), c.c_uint64(), 0
        call("cuDevicePrimaryCtxRetain", c.byref(self.context), number)
        self.use()
        call("cuModuleLoadData", c.byref(module), PTX)
        self.kernels = {name: c.c_void_p() for name in ("fill", "check")}
        for name, kernel in self.kernels.items():
            call("cuModuleGetFunction", c.byref(kernel), module, name.encode())
        call("cuMemAlloc_v2", c.byref(self.at), c.c_size_t(size))
        call("cuMemAlloc_v2", c.byref(self.wrong), c.c_size_t(8))

    def use(self):
        call("cuCtxSetCurrent", self.context)

    def run(self, name):
        """A kernel over all words, and its end."""
        self.use()
        values = [c.c_uint64(v) for v in (self.at.value, self.size // 8, self.seed << 40, self.wrong.value)]
        args = (c.c_void_p * 4)(*(c.addressof(v) for v in values))
        call("cuLaunchKernel", self.kernels[name], 512, 1, 1, 256, 1, 1, 0, None, args, None)
        call("cuCtxSynchronize")

    def change(self, seed):
        """Gives every word a new value."""
        self.seed = seed
        self.run("fill")

    def empty(self):
        self.use()
        call("cuMemsetD8_v2", self.at, 0, c.c_size_t(self.size))

    def differences(self):
        """Words that are not what `change` has made them."""
        self.use()
        call("cuMemsetD8_v2", self.wrong, 0, c.c_size_t(8))
        self.run("check")
        found = c.c_uint64()
        call("cuMemcpyDtoH_v2", c.byref(found), self.wrong, c.c_size_t(8))
        return found.value

    @property
    def __cuda_array_interface__(self):
        return {"data": (self.at.value, False), "shape": (self.size // 8,), "typestr": "<i8", "strides": None,
                "version": 2}


def rate(gpu, copy, size):
    """The best of three copies, in bytes per second."""
    best = 1e9
    for _ in range(3):
        start = time.monotonic()
        copy()
        gpu.use()
        call("cuCtxSynchronize")
        best = min(best, time.monotonic() - start)
    return size / best


def rates(gpus):
    """From the first GPU to the second one and to the host."""
    out, own = {}, gpus[0]
    size = min(min(g.size for g in gpus), 1 << 30)
    own.use()
    host = c.c_void_p()
    call("cuMemAllocHost_v2", c.byref(host), c.c_size_t(size))
    copy = lambda: call("cuMemcpyDtoHAsync_v2", host, own.at, c.c_size_t(size), None)  # noqa: E731
    out["to_host"] = rate(own, copy, size)
    call("cuMemFreeHost", host)
    if len(gpus) > 1:
        can = c.c_int()
        call("cuDeviceCanAccessPeer", c.byref(can), 0, 1)
        if can.value:
            call("cuCtxEnablePeerAccess", gpus[1].context, 0)
        copy = lambda: call("cuMemcpyAsync", gpus[1].at, own.at, c.c_size_t(size), None)  # noqa: E731
        out["to_peer"] = rate(own, copy, size)
        out["peer_access"] = can.value
    return out


def way_of(name, folder, room, sizes, recover=False):
    """The configuration of one way; `sizes` are those of the process's GPUs."""
    space = 0 if name == "none" else room
    host = sum(max(0, s - space) for s in sizes)
    text = (f'block_bytes = {BLOCK}\nkeep_last = 1\nrecover = {str(recover).lower()}\nverify_blocks = false\n'
            f'staging_bytes = {host + (64 << 20)}\n[local]\nfolders = ["{folder}"]\n[stage]\ndevice_bytes = {space}\n')
    return text + (f'schedule = "{name}"\n' if space else "")


def checkpoints(name, session, gpus, enough):
    """One way's checkpoints, the first one included, as long as there is time; and which were left out."""
    rows, seed = [], len(name) << 8
    for n, gpu in enumerate(gpus):
        session.protect(n, gpu)
    for number in range(ROUNDS + 1):
        if not enough():
            return rows, [f"{name}, checkpoint {number}"]
        for gpu in gpus:
            seed += 1
            gpu.change(seed)
        session.checkpoint(number)
        session.wait()
        info = session.info
        rows.append({"blocked_s": info.last_blocked, "complete_s": info.last_total, "written": info.last_written,
                     "moved_s": info.last_moved, "predicted_s": info.last_predicted})
        print(name, json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows, []


def read_back(name, session, gpus, number):
    """Recovers the way's last checkpoint into emptied memory and compares it; ends the process where it differs."""
    for n, gpu in enumerate(gpus):
        gpu.empty()
        session.protect(n, gpu)
    session.recover()
    wrong = sum(gpu.differences() for gpu in gpus)
    if wrong or session.info.recovery_bytes != sum(gpu.size for gpu in gpus):
        sys.exit(f"{name}: {wrong} words of {session.info.recovery_bytes} recovered bytes differ")
    print(name, f"checkpoint {number} came back as it was", file=sys.stderr, flush=True)


def one_process(folder, room, gpus, enough, ranks=None):
    """Every way's checkpoints by name, and what was left out. `ranks` gives a session its message passing."""
    import fermata

    ways, left = {}, []
    for name in chosen():

        def session(recover):
            gpus[0].use()
            message_passing = ranks(f"{name}-{recover}") if ranks else None
            text = way_of(name, folder, room, [g.size for g in gpus], recover)
            return message_passing, fermata.Session(text=text, ranks=message_passing)

        message_passing, saving = session(False)
        with saving:
            agreed = (lambda: agree(message_passing, enough())) if ranks else enough
            ways[name], out = checkpoints(name, saving, gpus, agreed)
            left += out
        if ways[name]:
            _, reading = session(True)
            with reading:
                read_back(name, reading, gpus, len(ways[name]) - 1)
                reading.done()
    return ways, left


def chosen():
    """The ways that were asked for; all, if none was."""
    asked = [a.partition("=")[2].split(",") for a in sys.argv if a.startswith("--ways=")]
    return asked[0] if asked else WAYS


def agree(ranks, mine):
    """What rank 0 thinks."""
    said = bytearray([mine])
    ranks.broadcast(memoryview(said), 0)
    return bool(said[0])


def one_rank(folder, room, sizes, enough, rank):
    """As `one_process`, for one of several ranks; prints it."""
    import fermata_ranks

    def meet(name):
        place = f"{folder}/sockets-{name}"
        os.makedirs(place, exist_ok=True)
        return fermata_ranks.Sockets(place, rank, len(sizes))

    gpu = Gpu(rank, sizes[rank])
    own = f"{folder}/rank-{rank}"
    os.makedirs(own)
    json.dump(one_process(own, room, [gpu], enough, meet), sys.stdout)


def all_ranks(arguments, count):
    """As `one_process`, of the slowest rank in each checkpoint."""
    start = [sys.executable, __file__, *arguments, f"--ways={','.join(chosen())}"]
    ranks = [subprocess.Popen([*start, f"--rank={n}"], stdout=subprocess.PIPE) for n in range(count)]
    texts = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("a rank has failed")
    found = [json.loads(text) for text in texts]
    # Every rank has compared its own data, or has ended with an error.
    slowest = lambda rows: {key: max(row[key] for row in rows) for key in rows[0]}  # noqa: E731
    together = lambda name: [slowest(rows) for rows in zip(*(ways[name] for ways, _ in found))]  # noqa: E731
    return {name: together(name) for name in chosen()}, found[0][1]


def main():
    begun = time.monotonic()
    options = [a for a in sys.argv[1:] if a.startswith("--")]
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    folder, room = arguments[0], int(float(arguments[1]) * (1 << 30)) // BLOCK * BLOCK
    sizes = [int(float(g) * (1 << 30)) // BLOCK * BLOCK for g in arguments[2].split(",")]
    limit = float(arguments[3]) if len(arguments) > 3 else 1e9
    enough = lambda: limit - (time.monotonic() - begun) >= 3 + sum(sizes) / SLOW  # noqa: E731
    call("cuInit", 0)
    rank = [o.partition("=")[2] for o in options if o.startswith("--rank=")]
    if rank:
        return one_rank(folder, room, sizes, enough, int(rank[0]))
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    gpus = [Gpu(n, size) for n, size in enumerate(sizes)]
    out = {"revision": os.environ.get("FERMATA_REVISION"), "gib": [s / (1 << 30) for s in sizes],
           "room_gib": room / (1 << 30), "rates": rates(gpus),
           "ranks": len(gpus) if "--ranks" in options else 1, "ways": []}
    print(json.dumps(out["rates"]), file=sys.stderr, flush=True)
    if "--ranks" in options:
        for n in range(len(gpus)):
            call("cuDevicePrimaryCtxReset_v2", n)
        ways, out["left_out"] = all_ranks(arguments, len(gpus))
    else:
        ways, out["left_out"] = one_process(folder, room, gpus, enough)
    for name, rows in ways.items():
        row = {"way": name, "first": rows[:1], "rest": rows[1:], "came_back": bool(rows)}
        if rows[1:]:
            for key in ("blocked_s", "moved_s", "predicted_s"):
                row[key] = statistics.median(r[key] for r in rows[1:])
            if row["predicted_s"]:
                row["moved_by_predicted"] = row["moved_s"] / row["predicted_s"]
        out["ways"].append(row)
    shutil.rmtree(folder, ignore_errors=True)
    json.dump(out, sys.stdout, indent=1)
    print()


main()
