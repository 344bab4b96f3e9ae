"""Requests to a function that is served: how long cold and warm starts take.

    bench/functions.py REPORT.json URL [--requests 200] [--rate 4] [--path /] [--body FILE] [--expect FILE] [--burst N]
                       [--pause SECONDS]

Sends so many requests at so many a second, each over a connection of its own and at its time, whether or not those before
it have been answered. `seconds` runs from the connection's begin to the last byte of the answer, `first` to the first.
Whether a start was cold is what the front says (`fermata-start`). With `--burst N` each N requests come at once, N/rate apart:
more of them are cold. `--expect` is a file with the only right answer. With `--pause SECONDS` nothing is sent for so long
after each tenth of the requests, so that instances that are kept for less are ended and the next starts are cold.
The report has every request, and the quantiles of cold and warm starts. Python's standard library and `measure.py` are enough;
no part of Fermata has to be on the machine that runs this.
"""

import argparse
import http.client
import json
import pathlib
import platform
import threading
import time
import urllib.parse
import urllib.request

from measure import facts


def quantile(values, q):
    """The value below which a share `q` of `values` lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def summary(rows, key):
    """Quantiles of one time in seconds."""
    values = [row[key] for row in rows]
    if not values:
        return None
    quantiles = {f"p{round(q * 100)}": quantile(values, q) for q in (0.5, 0.9, 0.99)}
    return {"count": len(values), "min": min(values), **quantiles, "max": max(values)}


class Client:
    """Sends requests and collects what came of them."""

    def __init__(self, arguments):
        place = urllib.parse.urlsplit(arguments.url)
        self.host, self.port = place.hostname, place.port or 80
        self.path = arguments.path
        self.body = arguments.body.read_bytes() if arguments.body else None
        self.expected = arguments.expect.read_bytes() if arguments.expect else None
        self.limit = arguments.limit
        self.rows, self.lock = [], threading.Lock()

    def one(self, number, due):
        """Request `number`, which was to be sent at `due`."""
        row = {"number": number, "late": time.monotonic() - due}
        begun = time.monotonic()
        try:
            connection = http.client.HTTPConnection(self.host, self.port, timeout=self.limit)
            connection.request("POST" if self.body else "GET", self.path, self.body)
            answer = connection.getresponse()
            row["first"] = time.monotonic() - begun
            text = answer.read()
            row["seconds"] = time.monotonic() - begun
            row["status"], row["start"] = answer.status, answer.getheader("fermata-start")
            row["instance"] = answer.getheader("fermata-instance")
            if answer.status != 200:
                row["said"] = text.decode(errors="replace")[:400]
            elif self.expected is not None:
                row["right"] = text == self.expected
            connection.close()
        except (OSError, http.client.HTTPException) as error:
            row["status"], row["said"] = 0, repr(error)
        with self.lock:
            self.rows.append(row)

    def metrics(self):
        """The front's own counts, as it gives them."""
        with urllib.request.urlopen(f"http://{self.host}:{self.port}/-/metrics", timeout=60) as answer:
            return answer.read().decode()


def send(client, arguments):
    """Sends all requests at their times, and waits for the answers."""
    threads, begun, paused = [], time.monotonic(), 0.0
    tenth = max(1, arguments.requests // 10)
    for number in range(arguments.requests):
        if arguments.pause and number and number % tenth == 0:
            for thread in threads:
                thread.join()
            time.sleep(arguments.pause)
            paused = time.monotonic() - begun - number / arguments.rate
        due = begun + paused + number // arguments.burst * arguments.burst / arguments.rate
        time.sleep(max(0.0, due - time.monotonic()))
        thread = threading.Thread(target=client.one, args=(number, due))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("report", type=pathlib.Path)
    arguments.add_argument("url", help="what `fermata function serve` prints")
    arguments.add_argument("--requests", type=int, default=200)
    arguments.add_argument("--rate", type=float, default=4.0, help="requests a second")
    arguments.add_argument("--burst", type=int, default=1)
    arguments.add_argument("--pause", type=float, default=0.0)
    arguments.add_argument("--path", default="/")
    arguments.add_argument("--body", type=pathlib.Path)
    arguments.add_argument("--expect", type=pathlib.Path)
    arguments.add_argument("--limit", type=float, default=300.0, help="seconds that a request may take")
    arguments = arguments.parse_args()
    client = Client(arguments)
    begun = time.monotonic()
    send(client, arguments)
    rows = sorted(client.rows, key=lambda row: row["number"])
    right = [row for row in rows if row["status"] == 200 and row.get("right", True)]
    report = {
        **facts(), "url": arguments.url, "path": arguments.path, "requests": arguments.requests, "rate": arguments.rate,
        "burst": arguments.burst, "pause": arguments.pause, "client": platform.node(),
        "took": time.monotonic() - begun,
        "answered": len(right), "failed": [row for row in rows if row not in right],
        "most_late": max(row["late"] for row in rows),
    }
    for start in ("cold", "warm"):
        of_it = [row for row in right if row["start"] == start]
        report[start] = {"first": summary(of_it, "first"), "seconds": summary(of_it, "seconds")}
    report["rows"], report["metrics"] = rows, client.metrics()
    arguments.report.write_text(json.dumps(report, indent=1) + "\n")
    for start in ("cold", "warm"):
        told = report[start]["seconds"]
        if told:
            print(f"{start}: {told['count']} requests, p50 {told['p50'] * 1e3:.0f} ms, p99 {told['p99'] * 1e3:.0f} ms")
    print(f"{len(right)} of {arguments.requests} answered")
    return 0 if len(right) == arguments.requests else 1


if __name__ == "__main__":
    raise SystemExit(main())
