"""The package with a daemon that does not answer, without a free descriptor, and in forked children. Where it waits for an
answer, the clock is this test's."""
import array
import os
import queue
import resource
import socket
import sys
import threading
import types

import fermata
from fermata import _daemon, _session


class Clock:
    """Waits take no time."""

    def __init__(self):
        self.now, self.polls = 0.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    def register(self, *_):
        pass

    def poll(self, milliseconds):
        """What the test says, else nothing within the time."""
        if self.polls:
            return self.polls.pop(0)()
        self.now += milliseconds / 1000
        return []


folder = sys.argv[1]
os.chmod(folder, 0o700)
daemon = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
daemon.bind(folder + "/program.sock")
os.chmod(folder + "/program.sock", 0o600)
os.environ["FERMATA_AGENT_SOCKET"] = folder + "/agents.sock"

clock = Clock()
real = _daemon.time, _daemon.select, _session.time
_daemon.time = _session.time = clock
_daemon.select = types.SimpleNamespace(poll=lambda: clock, POLLIN=1)

# A question ends, and a wait does not last longer for it.
handle = fermata.checkpoint()
assert handle.state == "failed" and clock.now < 31, clock.now
handle = _session.Handle("a", _daemon.generation())
clock.now = 0.0
try:
    handle.wait(timeout=5)
    raise SystemExit("it was not taken")
except TimeoutError:
    assert clock.now < 6.5, clock.now
assert handle._state == "taking"


def receive(text):
    """Answers the last question."""
    daemon.setblocking(False)
    rights = array.array("i")
    try:
        while True:
            _, found, _, _ = daemon.recvmsg(4096, socket.CMSG_SPACE(4))
            for end in rights:
                os.close(end)
            rights = array.array("i", found[0][2])
    except BlockingIOError:
        os.write(rights[0], text)
        os.close(rights[0])
    return [(0, 1)]


def stop():
    """The program is stopped for an hour while it waits, and nothing has come."""
    clock.now += 3600
    return []


# What was asked while the program was stopped is asked again.
clock.polls = [stop, lambda: receive(b"session\nx\n\n"), lambda: [(0, 1)]]
assert fermata.session_name() == "x" and clock.polls == []
_daemon.time, _daemon.select, _session.time = real

# A child is no restored process. Several, because a start is told by hundredths of a second.
handle = _session.Handle("b", _daemon.generation(), "taken")
for _ in range(50):
    child = os.fork()
    if child == 0:
        os._exit(handle.state != "taken")
    assert os.waitpid(child, 0)[1] == 0, "a child takes itself for restored"

# Without a free descriptor a checkpoint fails, and nothing else does.
generation, looks, life = _daemon.generation, queue.Queue(), [""]


def look():
    found = generation()
    looks.put(found)
    return found and found + life[0]


_daemon.generation, _session.image = look, lambda: None
again = threading.Event()
fermata.on_restore(again.set)
before = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
assert handle.state == "taken" and fermata.checkpoint().state == "failed"
asked = _session.Handle("c", "")
asked._take("status c")
assert asked._state == "taking", "the next look asks again"
asked._take("checkpoint c auto\n")
assert asked._state == "failed" and "Too many open files" in str(asked._error), asked._error
while not looks.empty():
    looks.get()
assert looks.get(timeout=60) is None and not again.is_set()
resource.setrlimit(resource.RLIMIT_NOFILE, before)
while looks.get(timeout=60) is None:
    pass
assert handle.state == "taken"
life[0] = " another"
assert again.wait(60), "the thread has ended"
assert handle.restored
print("fine")
