"""One training run of cohive and Python hivemind trainers: the same steps everywhere, and state that flows both ways.

Every trainer's gradient is a constant, so the parameters after each epoch are known.
"""

import json
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time

import pytest

hivemind = pytest.importorskip("hivemind")

import torch  # noqa: E402
from hivemind.dht import DHT  # noqa: E402
from training_cases import Model, state_of  # noqa: E402

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python"
PATIENCE = 120
BATCH, PAUSE = 8, 0.05
RATE, MOMENTUM = 0.1, 0.9


class Program:
    """A program that tells its events as lines of JSON."""

    def __init__(self, *command, **how):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **how)
        self.events = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.ready = self.wait_for("ready")

    def _read(self):
        for line in self._process.stdout:
            self.events.put(json.loads(line))

    def wait_for(self, event):
        while True:
            found = self.events.get(timeout=PATIENCE)
            if found["event"] == event:
                return found


class CohiveTrainer(Program):
    def __init__(self, path, gradient, **options):
        arguments = [f"--gradient={gradient}"]
        for name, value in options.items():
            arguments += ["--" + name.replace("_", "-"), *(value if isinstance(value, list) else [str(value)])]
        super().__init__(path, *arguments)
        self.initial_peers = self.ready["initial_peers"]

    def begin(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0


class PackageTrainer(Program):
    """A trainer of the Python package, which ends when it is told to."""

    def __init__(self, code, *arguments):
        super().__init__(sys.executable, "-c", code, *arguments, env=dict(os.environ, PYTHONPATH=str(PACKAGE)))

    def close(self):
        self._process.terminate()
        self._process.wait(PATIENCE)


class PythonTrainer:
    def __init__(self, initial_peers, gradient, mean=None, count=None, algorithm="sgd", schedule=None, groups=1, frozen=None,
                 **options):
        self.dht = DHT(initial_peers=initial_peers, start=True)
        self.initial_peers = [str(address) for address in self.dht.get_visible_maddrs()]
        self.model = Model(algorithm, schedule, groups, frozen)
        self.weight, self.bias = self.model.weight, self.model.bias
        self.mean = self.count = None  # extra tensors, if a test wants some
        if mean is not None:
            self.mean = torch.full((3,), float(mean))
        if count is not None:
            self.count = torch.tensor(count)
        extras = [tensor for tensor in (self.mean, self.count) if tensor is not None]
        self.gradient = gradient
        self.held = []  # parameters after each step
        self.optimizer = hivemind.Optimizer(
            dht=self.dht, optimizer=self.model.make_optimizer, params=self.model.parameters, scheduler=self.model.make_scheduler,
            batch_size_per_step=BATCH, matchmaking_time=2, averaging_timeout=30, load_state_timeout=30, verbose=True,
            extra_tensors=extras, **options)

    def step(self):
        self.optimizer.zero_grad()
        self.model.backward(self.gradient, self.optimizer.local_epoch)
        self.optimizer.step()
        self.held.append(self.weight.detach().flatten().tolist())
        time.sleep(PAUSE)  # what a batch takes

    def run_epoch(self):
        before, give_up = self.optimizer.local_epoch, time.monotonic() + PATIENCE
        while self.optimizer.local_epoch == before:
            assert time.monotonic() < give_up, "the epoch does not end"
            self.step()

    def close(self):
        if self.dht.is_alive():
            self.optimizer.shutdown()
            self.dht.shutdown()


@pytest.fixture
def trainers(program):
    started = []

    class Trainers:
        def cohive(self, gradient, **options):
            trainer = CohiveTrainer(program("cohive-interop-trainer"), gradient, batch_size=BATCH, **options)
            started.append(trainer)
            return trainer

        def python(self, initial_peers, gradient, **options):
            trainer = PythonTrainer(initial_peers, gradient, **options)
            started.append(trainer)
            return trainer

    yield Trainers()
    for trainer in reversed(started):
        trainer.close()


def same(tensor, values):
    return tensor.detach().double().flatten().tolist() == pytest.approx(values, abs=1e-5)


def test_both_take_the_step_of_the_averaged_gradient(trainers):
    """Gradients 1 and 3: wherever between them the mean lies, both trainers took the same steps."""
    common = {"run_id": "mixed", "target_batch_size": 2000}
    cohive = trainers.cohive(1.0, **common)
    python = trainers.python(cohive.initial_peers, 3.0, **common)
    cohive.begin()
    for epoch in (1, 2, 3):
        python.run_epoch()
        ours = cohive.wait_for("epoch")
        assert (ours["epoch"], python.optimizer.local_epoch) == (epoch, epoch)
        assert ours["group"] == 2
        assert same(python.weight, ours["weight"]) and same(python.bias, ours["bias"])
        if epoch == 1:
            mean = -ours["weight"][0] / RATE
            assert 1 < mean < 3
            assert ours["bias"] == pytest.approx([-2 * mean * RATE] * 2)


def expect_same_course(python, cohive, epochs=2):
    """Both enter these epochs together, with the same parameters and learning rates. Parameters are averaged in each."""
    for _ in range(epochs):
        python.run_epoch()
        theirs = state_of(python.model, python.optimizer)
        while (ours := cohive.wait_for("epoch"))["epoch"] < theirs["epoch"]:
            pass
        assert (ours["epoch"], ours["group"], ours["state_group"]) == (theirs["epoch"], 2, 2)
        for key in ("weight", "bias", "rates"):
            assert theirs[key] == pytest.approx(ours[key], rel=1e-4, abs=1e-5), key


def test_python_joins_a_run_of_cohive_and_both_follow_its_schedule(trainers):
    common = {"algorithm": "adamw", "schedule": "half", "groups": 2, "run_id": "course", "target_batch_size": 2000}
    cohive = trainers.cohive(1.0, **common)
    cohive.begin()
    cohive.wait_for("epoch")
    python = trainers.python(cohive.initial_peers, 3.0, delay_state_averaging=False, **common)
    python.run_epoch()  # the download
    assert python.optimizer.local_epoch >= 1
    python.run_epoch()
    expect_same_course(python, cohive)


def test_cohive_joins_a_run_of_python_and_both_follow_its_schedule(trainers):
    common = {"algorithm": "sgd", "schedule": "one-cycle", "frozen": "before", "run_id": "course", "target_batch_size": 2000}
    python = trainers.python([], 3.0, delay_state_averaging=False, **common)
    python.run_epoch()
    cohive = trainers.cohive(1.0, initial_peers=python.initial_peers, **common)
    cohive.begin()
    assert cohive.wait_for("downloaded")["epoch"] >= 1
    python.run_epoch()
    expect_same_course(python, cohive)


DELAYS = {"delay_state_averaging": True, "delay_optimizer_step": True, "delay_grad_averaging": True, "offload_optimizer": True}


@pytest.mark.parametrize("algorithm", ["sgd", "adam"])
def test_trainers_that_delay_all_that_can_be_delayed_hold_the_same_parameters(trainers, algorithm):
    """Steps arrive some batches late, on each side at another moment: what cohive holds is what Python held before or holds later."""
    common = {"algorithm": algorithm, "run_id": "delays", "target_batch_size": 2000}
    cohive = trainers.cohive(1.0, max_epochs=4, **common, **{name: [] for name in DELAYS})
    python = trainers.python(cohive.initial_peers, 3.0, **common, **DELAYS)
    cohive.begin()
    give_up = time.monotonic() + PATIENCE
    while python.optimizer.local_epoch < 4:
        assert time.monotonic() < give_up, "the epochs do not end"
        python.step()
    ours = [cohive.wait_for("epoch")]
    while ours[-1]["epoch"] < 4:
        ours.append(cohive.wait_for("epoch"))
    assert len(ours) > 1, "they go on together"
    for _ in range(40):
        python.step()  # the last delayed work arrives
    assert ours[-1]["weight"][0] < -RATE / 2, "steps arrive"
    for event in ours:
        assert any(held == pytest.approx(event["weight"], rel=1e-3, abs=1e-4) for held in python.held), event


def statistics(optimizer):
    """All tensors of a torch optimizer's state, by parameter and name."""
    return {(number, name): value for number, entry in optimizer.state_dict()["state"].items() for name, value in entry.items()}


@pytest.mark.parametrize("algorithm", ["sgd", "adam"])
def test_python_takes_over_the_state_of_a_cohive_trainer(trainers, algorithm):
    cohive = trainers.cohive(1.0, algorithm=algorithm, run_id="takeover", target_batch_size=4 * BATCH, max_epochs=3)
    cohive.begin()
    while (ours := cohive.wait_for("epoch"))["epoch"] < 3:
        pass
    python = trainers.python(cohive.initial_peers, 1.0, algorithm=algorithm, run_id="takeover", target_batch_size=100000)
    python.optimizer.load_state_from_peers()
    assert python.optimizer.local_epoch == 3
    assert same(python.weight, ours["weight"]) and same(python.bias, ours["bias"])
    # What Python computes itself from three gradients of 1 (2 for the bias).
    parameters = [torch.zeros(3, 2, requires_grad=True), torch.zeros(2, requires_grad=True)]
    alone = torch.optim.Adam(parameters, RATE) if algorithm == "adam" else torch.optim.SGD(parameters, RATE, MOMENTUM)
    for _ in range(3):
        for scale, parameter in enumerate(parameters, 1):
            parameter.grad = torch.full_like(parameter, float(scale))
        alone.step()
    expected, found = statistics(alone), statistics(python.optimizer.state_averager.optimizer)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.allclose(torch.as_tensor(found[name]).double(), torch.as_tensor(value).double(), atol=1e-5), name


@pytest.mark.parametrize("algorithm", ["sgd", "adam"])
def test_cohive_takes_over_the_state_of_a_python_trainer(trainers, algorithm):
    python = trainers.python([], 1.0, algorithm=algorithm, run_id="takeover", target_batch_size=4 * BATCH)
    for _ in range(3):
        python.run_epoch()
    cohive = trainers.cohive(1.0, algorithm=algorithm, initial_peers=python.initial_peers, run_id="takeover",
                             target_batch_size=16 * BATCH)
    cohive.begin()
    taken = cohive.wait_for("downloaded")
    assert taken["epoch"] == 3
    assert same(python.weight, taken["weight"]) and same(python.bias, taken["bias"])
    # Its optimizer goes on where Python's was: three gradients of 1 have been seen before this one.
    python.close()
    ours = cohive.wait_for("epoch")
    weight = torch.zeros(6, requires_grad=True)
    alone = torch.optim.Adam([weight], RATE) if algorithm == "adam" else torch.optim.SGD([weight], RATE, MOMENTUM)
    # hivemind makes the optimizer's state by a step without gradient, which Adam counts.
    for gradient in (0, 1, 1, 1, 1):
        weight.grad = torch.full((6,), float(gradient))
        alone.step()
    assert same(weight, ours["weight"])
