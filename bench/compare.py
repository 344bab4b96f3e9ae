#!/usr/bin/env python3
"""The application library beside other ways of saving device memory, in one run, as one JSON object.

    compare.py FOLDER MIB [--ranks N] [--limit SECONDS] [--programs FOLDER]

Each of N ranks has MIB on the GPU: a plain file a rank, one file through MPI-IO, torch.save, and the library with the
program held until all is stored, held until it is captured, and with room on the device; where there is one, FTI too,
in full (its level 1) and by its differential checkpoints (level 4). `compare.cu` says what each does. "full" is the
first save of all, "changed" one after a fifth has changed (torch.save writes the same once more), "back" a process that
starts anew. Ratios say how many times as long the plain file took. A way that cannot be had here is in `left_out`, by
name and reason.

The programs are built into --programs, or found there: `compare`, with nvcc and MPICH in .deps (tools/setup.sh mpi) and
the build tree (FERMATA_BUILD), and, if FERMATA_FTI names a folder with FTI's include/ and libfti.so, `compare-fti`.
MPICH is found in .deps or in --programs/mpi.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

root = pathlib.Path(__file__).resolve().parent.parent
tree = pathlib.Path(os.environ.get("FERMATA_BUILD") or root / "build")
ARCH = "usr/lib/x86_64-linux-gnu"
WAYS = [("plain", "compare"), ("mpiio", "compare"), ("fermata", "compare"), ("fermata-behind", "compare"),
        ("fermata-room", "compare"), ("fti", "compare-fti"), ("fti-dcp", "compare-fti")]
FTI = """[Basic]
head = 0
node_size = {ranks}
ckpt_dir = {folder}/local
glbl_dir = {folder}/global
meta_dir = {folder}/meta
ckpt_l1 = 0
ckpt_l2 = 0
ckpt_l3 = 0
ckpt_l4 = 0
dcp_l4 = 0
inline_l2 = 1
inline_l3 = 1
inline_l4 = 1
keep_last_ckpt = 0
group_size = 1
max_sync_intv = 0
ckpt_io = 1
enable_staging = 0
enable_dcp = {dcp}
dcp_mode = 1
dcp_block_size = 16384
verbosity = 3
[Restart]
failure = 0
exec_id = x
[Injection]
rank = 0
number = 0
position = 0
frequency = 0
[Advanced]
block_size = 1024
transfer_size = 16
mpi_tag = 2612
general_tag = 2612
ckpt_tag = 711
stage_tag = 406
final_tag = 3107
local_test = 1
lustre_striping_unit = 4194304
lustre_striping_factor = -1
lustre_striping_offset = -1
"""
TORCH = """
import json, os, sys, time, torch
path, words, back = sys.argv[1], int(sys.argv[2]) << 17, sys.argv[3] == "back"
if back:
    torch.zeros(1, device="cuda")
    start = time.monotonic()
    data = torch.load(path + "changed")
    torch.cuda.synchronize()
    print(json.dumps({"what": "back", "held_s": time.monotonic() - start}))
else:
    data = torch.randint(0, 1 << 62, (words,), dtype=torch.int64, device="cuda")
    for what in ("full", "changed"):
        start = time.monotonic()
        with open(path + what, "wb") as file:
            torch.save(data, file)
            file.flush()
            os.fsync(file.fileno())
        took = time.monotonic() - start
        print(json.dumps({"what": what, "held_s": took, "stored_s": took}))
    os.unlink(path + "full")
print(json.dumps({"what": "sum", "sum": data.sum().item()}))
"""


def build(programs, mpi):
    """Builds what can be built here and is not there yet."""
    cuda = root / ".deps/cuda"
    nvcc = [cuda / "bin/nvcc", "-O2", "-std=c++17", "-Wno-deprecated-gpu-targets", "-gencode",
            "arch=compute_75,code=compute_75", "-gencode", "arch=compute_90,code=sm_90",
            f"-I{mpi}/usr/include/x86_64-linux-gnu/mpich", f"-L{mpi}/{ARCH}", "-lmpich",
            f"-L{cuda}/lib", "-Xlinker", "--allow-shlib-undefined", str(root / "bench/compare.cu")]
    fti = os.environ.get("FERMATA_FTI")
    more = {"compare": [f"-I{root}/bindings/c/include", f"-L{tree}/lib", "-lfermata"],
            # FTI's library uses the shared runtime; one process has one.
            "compare-fti": ["-cudart", "shared", f"-L{root}/.deps/cuda-link", "-Xlinker", f"-rpath={cuda}/lib", "-DWITH_FTI", "-DGPUSUPPORT", f"-I{fti}/include", f"-L{fti}", "-lfti"]}
    for name, options in more.items():
        if not (programs / name).exists() and nvcc[0].exists() and (name == "compare" or fti):
            programs.mkdir(parents=True, exist_ok=True)
            subprocess.run([*nvcc, *options, "-o", str(programs / name)], check=True)


def command(args, programs, mpi, name):
    """A program in N ranks, and where it finds its libraries."""
    folders = [programs, tree / "lib", mpi / ARCH, mpi / "lib/x86_64-linux-gnu", os.environ.get("FERMATA_FTI", ""),
               os.environ.get("LD_LIBRARY_PATH", "")]
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(str(f) for f in folders if str(f))}
    start = [] if args.ranks == 1 else [str(mpi / "usr/bin/mpiexec.hydra"), "-n", str(args.ranks)]
    return [*start, str(programs / name)], env


def run(call, env, seconds):
    """What a program printed, or why it failed."""
    try:
        done = subprocess.run(call, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=max(1, seconds),
                              check=False)
    except subprocess.TimeoutExpired:
        return "", f"had not ended after {seconds:.0f} s"
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return "", f"ended with {done.returncode}: {' | '.join(lines[-3:])}"
    return done.stdout.decode(errors="replace"), None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("mib", type=int)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1e6)
    parser.add_argument("--programs", type=pathlib.Path, default=tree / "bench/compare")
    args = parser.parse_args()
    begun = time.monotonic()
    mpi = args.programs / "mpi" if (args.programs / "mpi").exists() else root / ".deps/mpi"
    build(args.programs, mpi)
    out = {"revision": os.environ.get("FERMATA_REVISION"), "ranks": args.ranks, "mib_each": args.mib,
           "folder": args.folder, "ways": {}, "left_out": {}}
    names = [("torch.save", None), *WAYS]
    for way, program in names:
        left = args.limit - (time.monotonic() - begun)
        if left < 5:
            out["left_out"][way] = "no time was left"
            continue
        if program and not (args.programs / program).exists():
            out["left_out"][way] = f"{program} has not been built"
            continue
        if not program and args.ranks > 1:
            out["left_out"][way] = "is for one process"
            continue
        shutil.rmtree(args.folder, ignore_errors=True)
        os.makedirs(args.folder)
        if program:
            for folder in ("local", "global", "meta"):
                os.makedirs(os.path.join(args.folder, folder))
            with open(os.path.join(args.folder, "fti.cfg"), "w") as file:
                file.write(FTI.format(folder=args.folder, ranks=args.ranks, dcp=int(way == "fti-dcp")))
            start, env = command(args, args.programs, mpi, program)
            call = [*start, way, args.folder, str(args.mib)]
        else:
            call, env = [sys.executable, "-c", TORCH, os.path.join(args.folder, "torch-"), str(args.mib)], os.environ
        of, sums = {}, []
        for half in ("save", "back"):
            text, failed = run([*call, half], env, args.limit - (time.monotonic() - begun))
            if failed:
                out["left_out"][way] = f"{half}: {failed}"
                break
            rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            of.update({row["what"]: row for row in rows})
            sums.append(of["sum"]["sum"])
        if len(sums) < 2:
            continue
        if sums[0] != sums[1]:
            out["left_out"][way] = "what came back is not what was saved"
            continue
        out["ways"][way] = {"full_held_s": of["full"]["held_s"], "full_stored_s": of["full"]["stored_s"],
                            "changed_held_s": of["changed"]["held_s"], "changed_stored_s": of["changed"]["stored_s"],
                            "back_s": of["back"]["held_s"]}
        print(way, json.dumps(out["ways"][way]), file=sys.stderr, flush=True)
    shutil.rmtree(args.folder, ignore_errors=True)
    plain = out["ways"].get("plain")
    for row in out["ways"].values():
        if plain:
            row["plain_by_this"] = {key: round(plain[key] / value, 2) for key, value in row.items() if value > 0}
    json.dump(out, sys.stdout, indent=1)
    print()


main()
