"""The package in a process of no session, and its schedules with a daemon that this test plays."""
import json
import subprocess
import sys
import types
import warnings

import fermata
from fermata import _daemon, _schedule, _session

# Outside of a session: nothing happens, and that is said once.
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    handle = fermata.checkpoint(mode="cow", wait=True)
    assert (handle.state, handle.path, handle.done(), handle.restored) == ("outside", None, True, False)
    assert not fermata.ready() and not fermata.in_session() and fermata.session_name() is None
    fermata.on_restore(lambda: None)
    hook = fermata.torch.Checkpointer(every=1)
    assert hook.step() is None
assert len(said) == 1 and "fermata run" in str(said[0].message), [str(it.message) for it in said]
assert "fermata.app" not in sys.modules, "the application library was loaded"
for wrong in (lambda: fermata.checkpoint("fast"), lambda: fermata.torch.Checkpointer(every=0),
              lambda: fermata.optimal_interval(-1), lambda: fermata.optimal_interval(1, 0)):
    try:
        wrong()
        raise SystemExit("a wrong argument was taken")
    except ValueError:
        pass
# Appendix A.1: one failure an hour, 5 s each; eight GPUs fail eight times as often.
assert abs(fermata.optimal_interval(5, 3600) - 36000 ** 0.5) < 1e-9
assert abs(fermata.optimal_interval(5, 3600, gpus=8) - 4500 ** 0.5) < 1e-9
assert fermata.optimal_interval(0, 3600, shortest=2) == 2


class Played:
    """The daemon: what it is asked, and what it answers next."""

    def __init__(self):
        self.asked, self.answers, self.life = [], [], "one"

    def ask(self, question, limit=60.0):
        self.asked.append(question.split()[0])
        return self.answers.pop(0)


played = Played()
_daemon.ask, _daemon.generation = played.ask, lambda: played.life
_daemon.in_session = _session.in_session = _schedule.in_session = lambda: True

# A handle: taken, failed, forgotten by the daemon, restored.
played.answers = [["taking"], ["taking"], ["taken", "/images/x-1"]]
handle = fermata.checkpoint()
assert not handle.done() and handle.wait().state == "taken" and handle.path == "/images/x-1"
assert played.asked == ["checkpoint", "status", "status"], played.asked
for answer, words in ((["failed", "why", "hint"], "why"), (["unknown"], "ended"), (["refused", "no"], "no")):
    played.answers = [answer]
    handle = fermata.checkpoint()
    try:
        handle.wait()
        raise SystemExit("it failed")
    except fermata.CheckpointError as error:
        assert words in str(error) and handle.state == "failed"
played.answers = [["taking"], ["session", "x", "/images/x-1"]]
handle = fermata.checkpoint()
played.life = "two"
assert handle.wait().restored and handle.path == "/images/x-1"

# Every third step; one that is still being taken is not waited for, and none begins beside it.
now = 0.0
hook = fermata.torch.Checkpointer(every=3, clock=lambda: now)
played.asked, played.answers = [], [["taking"], ["taking"], ["taking"], ["taking"], ["taken", "/x"], ["taking"]]
begun = [step for step in range(1, 10) if hook.step()]
assert begun == [3, 9], begun

# By time: one second until a checkpoint was measured, then sqrt(2 C M) of what the steps lost.
hook = fermata.torch.Checkpointer(between_failures=200.0, clock=lambda: now)
assert hook.interval == 20.0, hook.interval
played.answers = [["taking"], ["taken", "/x"]]
times = [1.0] * 20 + [5.0]
for length in times:
    now += length
    hook.step()
assert played.answers == [] and hook._cost == 4.0, (played.answers, hook._cost)
assert hook.interval == 40.0, hook.interval

# Of several ranks the first asks; where each is a session of its own, all do.
RANK = """
import json, os, subprocess, sys
levels = json.loads(sys.argv[1])
if levels:
    words = [sys.executable, "-c", sys.argv[2], json.dumps(levels[1:]), sys.argv[2]]
    sys.exit(subprocess.run(words, env={**os.environ, **levels[0]}).returncode)
from fermata._rank import is_first
sys.exit(10 + is_first())
"""
run = {"FERMATA_SESSION_TOKEN": "token"}
for first, *levels in ((True, run), (True, run, {"RANK": "0", "LOCAL_RANK": "0"}), (False, run, {"RANK": "1", "LOCAL_RANK": "1"}),
                       (True, run, {"RANK": "8", "LOCAL_RANK": "0"}), (False, run, {"OMPI_COMM_WORLD_LOCAL_RANK": "1"}),
                       (False, run, {"PMI_RANK": "2"}), (True, {"PMI_RANK": "2"}, run), (True, {**run, "RANK": "1"}),
                       (True, {"PMI_RANK": "2"}, run, {"LOCAL_RANK": "0"}),
                       (False, {"PMI_RANK": "2"}, run, {"LOCAL_RANK": "1"})):
    ended = subprocess.run([sys.executable, "-c", RANK, json.dumps(levels), RANK], check=False).returncode
    assert ended == 10 + first, (levels, ended)
played.asked, _schedule.is_first = [], lambda: False
assert fermata.torch.Checkpointer(every=1).step() is None and played.asked == []
_schedule.is_first = lambda: True


class Training(Played):
    """A loop of steps of one second. A checkpoint takes three, for one of which the program stands still."""

    def __init__(self, long_steps, long_checkpoints):
        super().__init__()
        self.long_steps, self.long_checkpoints = long_steps, long_checkpoints
        self.now = self.until = self.stopped = 0.0
        self.begun = 0

    def ask(self, question, limit=60.0):
        if question.startswith("checkpoint"):
            self.begun += 1
            self.until = self.now + 3
            self.stopped = 1.0 + 600 * (self.begun in self.long_checkpoints)
        return ["taking"] if self.now < self.until else ["taken", "/x"]

    def train(self, seconds):
        """How many checkpoints were taken."""
        hook, step = fermata.torch.Checkpointer(between_failures=3600.0, clock=lambda: self.now), 0
        while self.now < seconds:
            step += 1
            self.now += 1.0 + self.stopped + 600 * (step in self.long_steps)
            self.stopped = 0.0
            hook.step()
        return self.begun


# Four hours at sqrt(2 * 1 s * 3600 s) = 85 s, although evaluations lie before the first checkpoint, between two, and within.
for long_steps, long_checkpoints in (((), ()), ((50,), ()), ((2, 3), ()), ((50, 3000), (2, 40))):
    training = Training(long_steps, long_checkpoints)
    _daemon.ask = training.ask
    taken = training.train(4 * 3600)
    assert 135 <= taken <= 170, (long_steps, long_checkpoints, taken)
_daemon.ask = played.ask

# Frameworks are imported when they are asked for, and only then.
assert "fermata.lightning" not in sys.modules and "fermata.transformers" not in sys.modules
pytorch, callbacks = types.ModuleType("lightning.pytorch"), types.ModuleType("lightning.pytorch.callbacks")
callbacks.Callback = object
transformers = types.ModuleType("transformers")
transformers.TrainerCallback = object
sys.modules.update({"lightning": types.ModuleType("lightning"), "lightning.pytorch": pytorch,
                    "lightning.pytorch.callbacks": callbacks, "transformers": transformers})
played.asked, played.answers = [], [["taking"], ["taken", "/x"], ["taking"], ["taken", "/x"]]
callback = fermata.lightning.Callback(every=1)
trainer = types.SimpleNamespace(global_step=1)
callback.on_train_batch_end(trainer, None, None, None, 0)
callback.on_train_batch_end(trainer, None, None, None, 1)
assert played.asked == ["checkpoint"], "gradients were only accumulated"
fermata.transformers.Callback(every=1).on_step_end(None, None, None, model=None)
assert played.asked == ["checkpoint", "checkpoint"], played.asked
print("fine")
