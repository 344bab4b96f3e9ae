"""The command of a wheel: becomes the program `fermata` of the tree that the wheel has brought."""

import os
import pathlib
import signal
import sys


def main() -> None:
    """Does not return."""
    tree = pathlib.Path(__file__).resolve().parent / "_tree"
    program = os.fspath(tree / "bin" / "fermata")
    # Python ignores these, and what is ignored stays so in the program.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    # As this process has got it: Python may have added LC_CTYPE.
    with open("/proc/self/environ", "rb") as file:
        variables = (it.partition(b"=") for it in file.read().split(b"\0") if b"=" in it)
        environment = {name: value for name, _, value in variables}
    os.execve(program, [program, *sys.argv[1:]], environment)
