"""The state of a run goes from cohive to Python hivemind and back: every optimizer, schedulers, groups, frozen parameters.

One process of cohive and one DHT of hivemind do all cases, each in a run of its own. COHIVE_ALL_CASES=1 tries all
combinations.
"""

import itertools
import json
import os
import queue
import signal
import subprocess
import threading
import time

import pytest

hivemind = pytest.importorskip("hivemind")

from hivemind.dht import DHT  # noqa: E402
from training_cases import OPTIMIZERS, RATE, Model, state_of  # noqa: E402

PATIENCE = 60
BATCH, EPOCHS = 8, 3


class DhtEnded(Exception):
    pass


class CohiveStates:
    def __init__(self, path):
        self._process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._events, self.log, self._written = queue.Queue(), [], threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_log, daemon=True).start()
        self.initial_peers = self._events.get(timeout=PATIENCE)["initial_peers"]

    def _read(self):
        for line in self._process.stdout:
            self._events.put(json.loads(line))

    def _read_log(self):
        for line in self._process.stderr:
            with self._written:
                self.log.append(line)
                self._written.notify_all()

    def wait_for_line(self, *words):
        with self._written:
            assert self._written.wait_for(lambda: any(all(word in line for word in words) for line in self.log), PATIENCE), words

    def share(self, run_id, **case):
        self._process.stdin.write(json.dumps({"run_id": run_id, **case}) + "\n")
        self._process.stdin.flush()
        event = self._events.get(timeout=PATIENCE)
        assert event["event"] == "shared", "".join(self.log[-30:])
        return event

    def close(self):
        self._process.stdin.close()
        assert self._process.wait(PATIENCE) == 0


class PythonRun:
    def __init__(self, dht, run_id, found=False, **case):
        self._dht, self._run_id = dht, run_id
        self.model = Model(**case)
        self.optimizer = hivemind.Optimizer(
            dht=dht, run_id=run_id, target_batch_size=4 * BATCH if found else 100000, batch_size_per_step=BATCH,
            optimizer=self.model.make_optimizer, params=self.model.parameters, scheduler=self.model.make_scheduler,
            matchmaking_time=1, averaging_timeout=10, load_state_timeout=10)

    def train(self):
        give_up = time.monotonic() + PATIENCE
        while self.optimizer.local_epoch < EPOCHS:
            assert time.monotonic() < give_up, "the epochs do not end"
            self.optimizer.zero_grad()
            self.model.backward(1, self.optimizer.local_epoch)
            self.optimizer.step()
        while not self._reports():  # which its tracker does in its own time
            assert time.monotonic() < give_up, "hivemind does not report its epoch"
            time.sleep(0.1)

    def _reports(self):
        found = self._dht.get(f"{self._run_id}_progress", latest=True)
        return found is not None and any(entry.value["epoch"] == EPOCHS for entry in found.value.values())

    def state(self):
        return state_of(self.model, self.optimizer)

    def close(self):
        if self.optimizer is not None:
            self.optimizer.shutdown()
            self.optimizer = None


@pytest.fixture(scope="module")
def cohive(bin_dir):
    path = bin_dir / "cohive-interop-states"
    if not path.exists():
        pytest.skip("cohive-interop-states is not built")
    states = CohiveStates(path)
    yield states
    states.close()


class PythonDht:
    """hivemind's DHT process ends when the handing over of a future fails (EOFError). Who waits for it waits for
    ever."""

    def __init__(self, initial_peers):
        self._initial_peers = initial_peers
        self._start()

    def _start(self):
        self._node = DHT(initial_peers=self._initial_peers, start=True)

    def start_run(self, run_id, **case):
        previous = signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, 1, 1)
        try:
            return PythonRun(self._node, run_id, **case)
        except DhtEnded:
            print("hivemind's DHT has ended by itself: once more with a new one")
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        self._start()
        return PythonRun(self._node, run_id, **case)

    def _look(self, *_):
        if not self._node.is_alive():
            raise DhtEnded

    @property
    def peer_id(self):
        return self._node.peer_id

    def close(self):
        self._node.shutdown()


@pytest.fixture(scope="module")
def dht(cohive):
    dht = PythonDht(cohive.initial_peers)
    yield dht
    dht.close()


@pytest.fixture
def python(dht):
    runs = []

    def start(run_id, **case):
        runs.append(dht.start_run(run_id, **case))
        return runs[-1]

    yield start
    for run in runs:
        run.close()


def same(values):
    return pytest.approx(values, rel=1e-5, abs=1e-6)


def expect_same_state(donor, newcomer, rates=True):
    """A newcomer keeps zeros of what the donor has not stepped."""
    assert newcomer["epoch"] == donor["epoch"] == EPOCHS
    assert newcomer["weight"] == same(donor["weight"])
    assert newcomer["bias"] == same(donor["bias"])
    if rates:
        assert newcomer["rates"] == same(donor["rates"])
    for name, values in newcomer["statistics"].items():
        assert values == same(donor["statistics"].get(name, [0.0] * len(values))), name
    assert set(donor["statistics"]) <= set(newcomer["statistics"])


def name_of(case):
    return "-".join(str(value).replace(" ", "") for value in case.values() if value)


ALGORITHMS = [name for name in OPTIMIZERS if name != "adamw-2.6"]  # of this PyTorch
if os.environ.get("COHIVE_ALL_CASES"):
    CASES = [dict(algorithm=algorithm, schedule=schedule, groups=groups, frozen=frozen)
             for algorithm, schedule, groups, frozen in itertools.product(ALGORITHMS, (None, "half", "one-cycle", "step"), (1, 2),
                                                                          (None, "before", "middle"))]
else:
    CASES = [
        dict(algorithm="sgd", schedule="half", groups=2, frozen=None),
        dict(algorithm="sgd", schedule=None, groups=1, frozen="middle"),
        dict(algorithm="sgd-plain", schedule="step", groups=1, frozen="before"),
        dict(algorithm="adam", schedule="half", groups=1, frozen=None),
        dict(algorithm="adam", schedule="one-cycle", groups=2, frozen="before"),
        dict(algorithm="amsgrad", schedule=None, groups=2, frozen="middle"),
        dict(algorithm="adamw", schedule="half", groups=2, frozen="before"),
        dict(algorithm="adamw", schedule="one-cycle", groups=1, frozen="middle"),
        dict(algorithm="rmsprop", schedule=None, groups=2, frozen="before"),
        dict(algorithm="rmsprop-centered", schedule="half", groups=1, frozen="before"),
        dict(algorithm="adagrad", schedule="half", groups=2, frozen="before"),
    ]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_python_takes_the_state_of_cohive(cohive, python, case):
    run_id = "cohive_" + name_of(case)
    ours = cohive.share(run_id, found=True, **{key: value for key, value in case.items() if value})
    newcomer = python(run_id, **case)
    newcomer.optimizer.load_state_from_peers()
    expect_same_state(ours, newcomer.state())


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_cohive_takes_the_state_of_python(cohive, python, case):
    run_id = "python_" + name_of(case)
    founder = python(run_id, found=True, **case)
    founder.train()
    expect_same_state(founder.state(), cohive.share(run_id, **{key: value for key, value in case.items() if value}))


@pytest.mark.parametrize("algorithm", ["adamw", "sgd", "sgd-plain"])
def test_python_with_a_scheduler_joins_cohive_without_one(cohive, python, algorithm):
    """hivemind refuses what cohive sends at first and asks again, which cohive sees."""
    run_id = "only_python_" + algorithm
    ours = cohive.share(run_id, found=True, algorithm=algorithm)
    newcomer = python(run_id, algorithm=algorithm, schedule="half")
    for _ in range(4):
        newcomer.optimizer.load_state_from_peers()
        if newcomer.optimizer.local_epoch == EPOCHS:
            break
    theirs = newcomer.state()
    expect_same_state(ours, theirs, rates=False)
    assert theirs["rates"] == [RATE / 8]
    peer = str(newcomer.optimizer.dht.peer_id)
    cohive.wait_for_line(peer, "has taken the whole state 2 times", "a scheduler on both sides or on none")
    cohive.wait_for_line(peer, "refuses our state: it is given that of a trainer with a scheduler")


@pytest.mark.parametrize("algorithm", ["adamw", "sgd"])
def test_python_without_a_scheduler_joins_cohive_with_one(cohive, python, algorithm):
    """It would misread a state with a scheduler without noticing, so cohive has to be told."""
    run_id = "only_cohive_" + algorithm
    ours = cohive.share(run_id, found=True, algorithm=algorithm, schedule="half", python_scheduler=False)
    newcomer = python(run_id, algorithm=algorithm)
    newcomer.optimizer.load_state_from_peers()
    expect_same_state(ours, newcomer.state())


@pytest.mark.parametrize("schedule", [None, "half"])
def test_python_of_an_older_pytorch_joins_cohive_that_was_told(cohive, python, schedule):
    run_id = f"older_{schedule}"
    ours = cohive.share(run_id, found=True, algorithm="adamw", python_torch="2.6", **({"schedule": schedule} if schedule else {}))
    newcomer = python(run_id, algorithm="adamw-2.6", schedule=schedule)
    newcomer.optimizer.load_state_from_peers()
    expect_same_state(ours, newcomer.state())


def test_cohive_passes_on_the_state_of_an_older_pytorch(cohive, dht, python):
    founder = python("older", found=True, algorithm="adamw-2.6", schedule="half")
    founder.train()
    expected = founder.state()
    expect_same_state(expected, cohive.share("older", algorithm="adamw", schedule="half"))
    cohive.wait_for_line(str(dht.peer_id), "it is of PyTorch 2.6 or earlier")
    founder.close()
    last = python("older", algorithm="adamw-2.6", schedule="half")
    last.optimizer.load_state_from_peers()
    expect_same_state(expected, last.state())


@pytest.mark.parametrize("ours,theirs,said", [(None, "half", "it has a scheduler and this trainer has none"),
                                              ("half", None, "it has no scheduler and this trainer has one")])
def test_cohive_joins_python_with_another_scheduler_and_passes_the_state_on(cohive, dht, python, ours, theirs, said):
    """cohive keeps its own learning rate and says what differs. The next Python trainer gets what Python trainers have."""
    run_id = f"other_{ours}_{theirs}"
    founder = python(run_id, found=True, algorithm="adam", schedule=theirs)
    founder.train()
    newcomer = cohive.share(run_id, algorithm="adam", **({"schedule": ours} if ours else {}))
    expect_same_state(founder.state(), newcomer, rates=False)
    assert newcomer["rates"] == [RATE / 8 if ours else RATE]
    cohive.wait_for_line(str(dht.peer_id), said)
    expected = founder.state()
    founder.close()
    last = python(run_id, algorithm="adam", schedule=theirs)
    last.optimizer.load_state_from_peers()
    # Without a scheduler of its own it takes the learning rate that the donor has.
    expect_same_state(expected, last.state(), rates=theirs is not None)


def test_cohive_says_that_python_trains_with_another_optimizer(cohive, dht, python):
    founder = python("another", found=True, algorithm="rmsprop-centered")
    founder.train()
    newcomer = cohive.share("another", algorithm="amsgrad")
    assert newcomer["epoch"] == EPOCHS and newcomer["statistics"] == {}
    cohive.wait_for_line(str(dht.peer_id), "was taken, but not the statistics of its optimizer: it has 8 and ours keeps 8",
                         "it is RMSprop")


def test_cohive_says_which_settings_of_python_are_others(cohive, python):
    founder = python("settings", found=True, algorithm="adam", groups=2)
    founder.train()
    cohive.share("settings", algorithm="adamw", groups=2)
    cohive.wait_for_line("its optimizer is not set up as ours: decoupled_weight_decay of group 0 is false there and true here",
                         "weight_decay of group 1 is 0 there and 0.01 here")
