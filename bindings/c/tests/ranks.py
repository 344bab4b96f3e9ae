"""A rank of a Python job: checkpoints copied to the partner, one rank's folder lost, recovered; then a rank that goes.
   ranks.py FOLDER RANK RANKS | ranks.py FOLDER mpi | torchrun --nproc-per-node 3 ranks.py FOLDER torch"""
import array
import os
import pathlib
import shutil
import sys

import fermata
import fermata_ranks

folder = pathlib.Path(sys.argv[1])


def meet(name):
    """The other ranks, over MPI, torch.distributed or sockets."""
    if over == "mpi":
        return fermata_ranks.Mpi(MPI.COMM_WORLD)
    if over == "torch":
        return fermata_ranks.Torch()
    place = folder / name
    place.mkdir(exist_ok=True)
    return fermata_ranks.Sockets(str(place), rank, size, seconds=60)


over = sys.argv[2]
if over == "mpi":
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
elif over == "torch":
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
else:
    rank, size = int(sys.argv[2]), int(sys.argv[3])
own = folder / f"node-{rank}"
own.mkdir(exist_ok=True)
text = f'name = "ranks"\nblock_bytes = 16384\n[local]\nfolders = ["{own}"]\n'
content = lambda n: array.array("d", [rank + 0.5 * i * n for i in range(100_000)])  # noqa: E731
field = content(1)
with fermata.Session(text=text, ranks=meet("first")) as s:
    assert s.recoverable is None
    s.protect(0, field)
    s.checkpoint(1)
    field[:] = content(2)
    s.checkpoint(2, fermata.PARTNER)
    s.wait()

if rank == 1:
    shutil.rmtree(own)
    own.mkdir()
field[:] = content(3)
ranks = meet("second")
ranks.barrier()
with fermata.Session(text=text, ranks=ranks) as s:
    s.protect(0, field)
    assert s.recoverable == 2 and s.recover() == 2
    assert field == content(2)
    s.done()

if over in ("mpi", "torch"):
    # A rank that goes would end them all.
    print("fine")
    sys.exit()

# Message passing that fails is the error's cause, and the session can still be ended.
ranks = meet("third")
s = fermata.Session(text=text, ranks=ranks)
s.protect(0, field)
ranks.barrier()
if rank == size - 1:
    os._exit(0)
try:
    s.checkpoint(1)
    raise SystemExit("a rank is gone")
except fermata.Error as e:
    assert isinstance(e.__cause__, OSError), repr(e.__cause__)
print("fine")
