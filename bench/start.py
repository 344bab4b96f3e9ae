#!/usr/bin/env python3
"""Time to the first kernel of a large library, native and under Fermata in turn.

    bench/start.py REPORT.json [--mib 300] [--runs 5] [--device soft|gpu]

Makes a file with a fat binary of so many MiB (one small kernel as text, and machine code for other architectures that
nobody loads), and runs `build/bench/start` on it: with the driver library itself, and with `fermata run`. Needs a build
tree (FERMATA_BUILD, default build/) with `make -C bench` done; a daemon is started for it.
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile

TREE = pathlib.Path(os.environ.get("FERMATA_BUILD", pathlib.Path(__file__).parent.parent / "build")).resolve()
OFFSET = 4096
PTX = b""".version 7.0
.target sm_75
.address_size 64
.visible .entry mark(.param .u64 p)
{
    .reg .b32 %r<2>;
    .reg .b64 %d<3>;
    ld.param.u64 %d1, [p];
    cvta.to.global.u64 %d2, %d1;
    mov.u32 %r1, 42;
    st.global.u32 [%d2], %r1;
    ret;
}
\0"""


def entry(kind, sm, payload, version=(0, 0)):
    """One as `fatbinary` of CUDA 13 writes it; `version`: of the text, without which the driver takes it for none."""
    payload += b"\0" * (-len(payload) % 8)
    head = bytearray(0x50)
    struct.pack_into("<HHIQ", head, 0, kind, 0x101, len(head), len(payload))
    struct.pack_into("<IHHI", head, 0x14, 0x40, version[1], version[0], sm)
    # For 64-bit addresses, on Linux.
    struct.pack_into("<Q", head, 0x28, 0x11)
    struct.pack_into("<Q", head, 0x40, 0x48)
    return bytes(head) + payload


def make(path, mib):
    """A fat binary at OFFSET; its machine code is noise."""
    part = (mib << 20) // 4
    body = [entry(2, sm, os.urandom(part)) for sm in (50, 52, 53, 61)] + [entry(1, 75, PTX, (7, 0))]
    length = sum(len(it) for it in body)
    with open(path, "wb") as file:
        file.write(b"\0" * OFFSET + struct.pack("<IHHQ", 0xBA55ED50, 1, 16, length))
        for it in body:
            file.write(it)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report")
    parser.add_argument("--mib", type=int, default=300)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--device", choices=("soft", "gpu"), default="soft")
    asked = parser.parse_args()
    program = TREE / "bench" / "start"
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        image = work / "library"
        make(image, asked.mib)
        environment = dict(os.environ, FERMATA_RUNTIME_DIR=str(work / "run"), FERMATA_IMAGE_DIR=str(work / "images"))
        native = dict(os.environ)
        run = [str(TREE / "bin" / "fermata"), "-q", "run"]
        if asked.device == "soft":
            native["LD_LIBRARY_PATH"] = str(TREE / "lib" / "softgpu")
            run += ["--device", "soft"]
        (work / "run").mkdir()
        log = open(work / "log", "wb")
        daemon = subprocess.Popen([TREE / "bin" / "fermatad"], env=environment, stdout=log, stderr=log)
        words = [str(program), str(image), str(OFFSET)]
        runs = {"native": [], "fermata": []}
        try:
            for _ in range(asked.runs):
                for name, command, env in (("native", words, native), ("fermata", run + ["--"] + words, environment)):
                    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
                    if done.returncode != 0:
                        sys.exit(f"{name}: {done.stderr}")
                    runs[name].append(json.loads(done.stdout))
        finally:
            daemon.terminate()
            daemon.wait(timeout=60)
    middle = {name: {key: statistics.median(it[key] for it in of) for key in of[0]} for name, of in runs.items()}
    report = {
        "mib": asked.mib,
        "device": asked.device,
        "kernel": os.uname().release,
        "cores": os.cpu_count(),
        "median": middle,
        "ratio": {key: round(middle["fermata"][key] / middle["native"][key], 3) for key in middle["native"]},
        "runs": runs,
    }
    pathlib.Path(asked.report).write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({key: report[key] for key in ("median", "ratio")}, indent=1))


if __name__ == "__main__":
    main()
