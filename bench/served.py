#!/usr/bin/env python3
"""A function that is created, served, asked as `functions.py` asks, and removed: how long cold and warm starts take.

    bench/served.py REPORT.json [--port N] [--memory GIB] [--path /hello] [--rate 4] [--pause 8] [--requests 200] [-- PROGRAM...]

The program, which listens on port N - 1, is `frameworks/server.py`, a language model of 0.9 billion parameters, unless another one is
named. At most four instances, kept for 2 s; images are in so much registered memory. The answer must be what the program itself answers
without Fermata's front. Needs a build tree (FERMATA_BUILD, default build/).
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import urllib.request

from measure import FERMATA, HERE, Daemon, wait_for

LIMIT = 240


def answers(url):
    """What is answered there; none if nobody listens."""
    try:
        return urllib.request.urlopen(url, timeout=60).read()
    except OSError:
        return None


def straight(program, url):
    """What the program answers by itself."""
    with subprocess.Popen(program, stdout=subprocess.DEVNULL) as server:
        try:
            wait_for(lambda: answers(url) or server.poll() is not None, "the program's own answer", LIMIT)
            if server.poll() is not None:
                sys.exit(f"`{program[0]}` has ended with status {server.returncode} before it answered")
            return answers(url)
        finally:
            server.kill()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("report", type=pathlib.Path)
    arguments.add_argument("--port", type=int, default=8321)
    arguments.add_argument("--memory", type=int, default=12)
    arguments.add_argument("--path", default="/hello")
    arguments.add_argument("--rate", type=float, default=4)
    arguments.add_argument("--pause", type=float, default=8)
    arguments.add_argument("--requests", type=int, default=200)
    arguments.add_argument("--work", type=pathlib.Path, default=pathlib.Path("/dev/shm/fermata-served"))
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    given = arguments.parse_args(words[:at])
    program = words[at + 1 :] or [sys.executable, str(HERE / "frameworks" / "server.py"), str(given.port - 1)]
    shutil.rmtree(given.work, ignore_errors=True)
    given.work.mkdir(parents=True)
    expected = given.work / "expected"
    expected.write_bytes(straight(program, f"http://127.0.0.1:{given.port - 1}{given.path}"))
    tier = {"FERMATA_MEMORY_TIER": f"{given.memory}G", "FERMATA_MEMORY_TIER_LIMIT": f"{2 * given.memory}G"}
    daemon = Daemon(given.work, given.work / "images", FERMATA_COMMON_MEMORY="1", **tier)
    front, url = None, f"http://127.0.0.1:{given.port}"
    try:
        daemon.fermata("function", "create", "served", "--", *program, limit=LIMIT)
        words = [FERMATA, "function", "serve", "served", "--port", str(given.port), "--most", "4", "--keep", "2"]
        front = subprocess.Popen(words, env=daemon.env)
        wait_for(lambda: answers(url + given.path), "an answer of the function", LIMIT)
        asked = [sys.executable, str(HERE / "functions.py"), str(given.report), url, "--path", given.path, "--expect", str(expected)]
        for option in ("rate", "pause", "requests"):
            asked += [f"--{option}", str(getattr(given, option))]
        subprocess.run(asked, timeout=LIMIT, check=True)
        report = json.loads(given.report.read_text()) | {"program": [pathlib.Path(it).name for it in program], "common_memory": True, "most": 4, "keep": 2}
        given.report.write_text(json.dumps(report, indent=1))
    finally:
        if front:
            front.terminate()
            front.wait(timeout=60)
        daemon.end()
        shutil.rmtree(given.work, ignore_errors=True)


if __name__ == "__main__":
    main()
