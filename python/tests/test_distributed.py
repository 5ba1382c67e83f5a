"""LocalOptimizer: two ranks of torch.distributed, on Gloo, are one peer of a run."""

import os
import signal
import subprocess
import sys
import threading

import pytest

torch = pytest.importorskip("torch", reason="no torch here")
if not torch.distributed.is_available():
    pytest.skip("no torch.distributed here", allow_module_level=True)

from conftest import QUICK  # noqa: E402

import cohive  # noqa: E402

PATIENCE = 120
TARGET = 240

RANK = """
import hashlib, sys, torch
import torch.distributed as dist
import cohive
RANK, SIZE, FOLDER, KIND, PEERS, TIMEOUT, QUICK, TARGET = VALUES
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=SIZE)
torch.manual_seed(RANK)  # what ranks begin with is that of rank 0
model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
wrapped = torch.nn.parallel.DistributedDataParallel(model) if KIND == "ddp" else model
optimizer = cohive.LocalOptimizer(
    wrapped, dht=lambda: cohive.DHT(PEERS, start=True), target_batch_size=TARGET, batch_size_per_step=4,
    optimizer=lambda params: torch.optim.Adam(params, lr=0.01),
    scheduler=lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.9),
    delay_state_averaging=KIND == "ddp", rank_timeout=TIMEOUT, **QUICK)
loaded = optimizer.load_state_from_peers()

def told(word, *more):
    values = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    print(word, optimizer.local_epoch, hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16],
          f"{optimizer.param_groups[0]['lr']:.6f}", *more, flush=True)

told("begins")
for line in sys.stdin:  # "4": train with batches of 4 samples until the epoch has ended; "end"
    if line == "end\\n":
        break
    begin = optimizer.local_epoch
    while optimizer.local_epoch == begin:
        size = int(line) + RANK
        wrapped(torch.randn(size, 6)).square().mean().backward()
        optimizer.step(batch_size=size)
        optimizer.zero_grad()
    report = optimizer.last_report
    told("epoch", report.grad_group, report.loaded_state)
optimizer.shutdown()
print("done", optimizer.is_alive(), flush=True)
"""


def two_ranks(code, folder):
    """Processes that run `code` with (rank, folder, QUICK) for VALUES."""
    how = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    ready = [code.replace("VALUES", repr((rank, str(folder), QUICK))) for rank in range(2)]
    return [subprocess.Popen([sys.executable, "-c", one], **how) for one in ready]


class Ranks:
    """The processes of one peer."""

    def __init__(self, folder, kind, peers=(), timeout=None, count=2):
        how = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        self.processes = []
        for rank in range(count):
            values = (rank, count, str(folder), kind, [str(one) for one in peers], timeout, QUICK, TARGET)
            code = RANK.replace("VALUES", repr(values))
            self.processes.append(subprocess.Popen([sys.executable, "-c", code], **how))

    def lines(self):
        """The next line of each, as words."""
        found = []
        for process in self.processes:
            line = process.stdout.readline()
            assert line, process.communicate(timeout=PATIENCE)
            found.append(line.split())
        return found

    def say(self, line):
        for process in self.processes:
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def epoch(self):
        """(number, parameters, rate, peers of the round) after the next epoch, of each rank."""
        self.say("4")
        return [(int(words[1]), words[2], words[3], int(words[4])) for words in self.lines()]

    def kill(self):
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def ranks(tmp_path):
    """ranks(KIND, PEERS, **options): two ranks that are one peer, ready to train."""
    made = []

    def make(kind, peers=(), **options):
        made.append(Ranks(tmp_path, kind, peers, **options))
        begin = made[-1].lines()
        assert [words[0] for words in begin] == ["begins"] * 2 and begin[0] == begin[1]
        return made[-1]

    yield make
    for one in made:
        one.kill()


class Others:
    """Trainers of the run, a thread each, that train until they are told to end."""

    def __init__(self, dhts):
        self.ended, self.epochs, self.failures = threading.Event(), [0] * len(dhts), []
        self.changed = threading.Condition()
        self.threads = [threading.Thread(target=self.guarded, args=(at, dht)) for at, dht in enumerate(dhts)]
        for thread in self.threads:
            thread.start()

    def guarded(self, at, dht):
        try:
            self.train(at, dht)
        except BaseException as error:
            self.failures.append(error)
            raise

    def train(self, at, dht):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        optimizer = cohive.Optimizer(
            dht=dht, target_batch_size=TARGET, params=model.parameters(),
            optimizer=lambda params: torch.optim.Adam(params, lr=0.01),
            scheduler=lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.9), **QUICK,
        )  # fmt: skip
        while not self.ended.wait(0.02):  # the pace of this trainer
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step(batch_size=4)
            optimizer.zero_grad()
            with self.changed:
                self.epochs[at] = optimizer.local_epoch
                self.changed.notify_all()
        optimizer.shutdown()

    def wait_for(self, more):
        """Until each has trained so many epochs more."""
        with self.changed:
            wanted = [epoch + more for epoch in self.epochs]
            assert self.changed.wait_for(
                lambda: all(epoch >= least for epoch, least in zip(self.epochs, wanted)), PATIENCE
            ), (self.epochs, self.failures)

    def end(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(PATIENCE)


@pytest.fixture
def others(swarm):
    """Two trainers that train, and the addresses of their swarm."""
    dhts = swarm(2)
    trainers = Others(dhts)
    yield trainers, dhts[0].get_visible_maddrs()
    trainers.end()


@pytest.mark.parametrize("kind", ["ddp", "plain"])
def test_two_ranks_are_one_peer_of_three(others, ranks, kind):
    trainers, addresses = others
    peer = ranks(kind, addresses)
    groups = set()
    for _ in range(30):
        first, second = peer.epoch()
        assert first == second, "all ranks hold the same parameters, and know of the same round"
        groups.add(first[3])
        if 3 in groups:
            break
    assert 3 in groups and max(groups) == 3
    assert float(first[2]) == pytest.approx(0.01 * 0.9 ** first[0], abs=1e-6)
    peer.say("end")
    assert peer.lines() == [["done", "False"]] * 2
    assert [process.wait(PATIENCE) for process in peer.processes] == [0, 0]
    trainers.wait_for(2)


@pytest.mark.parametrize("kind", ["ddp", "plain"])
@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_dies_ends_its_peer_and_not_the_run(others, ranks, kind, dies):
    trainers, addresses = others
    peer = ranks(kind, addresses)
    peer.epoch()
    peer.processes[dies].kill()
    peer.processes[dies].wait(PATIENCE)
    survivor = peer.processes[1 - dies]
    _, errors = survivor.communicate("4\n" * 20, timeout=30)
    assert survivor.returncode == 1, errors
    if kind == "plain":  # backward() of DDP notices first, with words of its own
        assert "a rank of this peer is gone, and the peer with it" in errors
    trainers.wait_for(2)
    assert not trainers.failures


def test_a_rank_that_is_silent_is_not_waited_for_for_ever(ranks):
    peer = ranks("plain", timeout=15.0)
    peer.epoch()
    peer.processes[1].send_signal(signal.SIGSTOP)
    _, errors = peer.processes[0].communicate("4\n", timeout=PATIENCE)
    assert peer.processes[0].returncode == 1
    assert "a rank of this peer is gone, and the peer with it" in errors


def test_samples_of_all_ranks_count_and_their_gradients_are_weighted(tmp_path):
    """One epoch of ranks with 1 and 3 samples is a step with the mean over the four."""
    code = """
import torch, torch.distributed as dist, cohive
RANK, FOLDER, QUICK = VALUES
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=2)
model = torch.nn.Linear(2, 1, bias=False)
unused = torch.nn.Parameter(torch.ones(3))
model.unused = unused
torch.nn.init.ones_(model.weight)
optimizer = cohive.LocalOptimizer(model, dht=lambda: cohive.DHT(start=True), target_batch_size=8,
                                  optimizer=lambda params: torch.optim.SGD(params, lr=1.0, weight_decay=0.5), **QUICK)
samples = torch.tensor([[1.0, 2.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
mine = samples[:1] if RANK == 0 else samples[1:]
for _ in range(2):
    model(mine).mean().backward()
    optimizer.step(batch_size=len(mine))
    optimizer.zero_grad()
    print(optimizer.local_epoch, model.weight.tolist(), unused.tolist(), optimizer.last_report.epoch_changed)
try:
    optimizer.step(batch_size=0)
except ValueError as error:
    print(error)
optimizer.shutdown()
"""
    processes = two_ranks(code, tmp_path)
    for process in processes:
        out, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        # The mean of the samples is (1.25, 2.5), and half of the weight decays. No gradient, no step.
        assert out.splitlines() == [
            "0 [[1.0, 1.0]] [1.0, 1.0, 1.0] 0",
            "1 [[-0.75, -2.0]] [1.0, 1.0, 1.0] 1",
            "batch_size is a number of samples, at least 1",
        ]


def test_a_scaler_of_all_ranks_shrinks_when_one_overflows(tmp_path):
    code = """
import torch, torch.distributed as dist, cohive
RANK, FOLDER, QUICK = VALUES
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=2)
model = torch.nn.Linear(2, 1)
optimizer = cohive.LocalOptimizer(model, dht=lambda: cohive.DHT(start=True), target_batch_size=8, batch_size_per_step=2,
                                  optimizer=lambda params: torch.optim.SGD(params, lr=0.1), **QUICK)
scaler = cohive.GradScaler("cpu", init_scale=64.0)
for batch in range(4):
    loss = model(torch.ones(2, 2)).mean() * (float("inf") if RANK == 1 and batch == 1 else 1.0)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
print(optimizer.local_epoch, scaler.get_scale(), model.weight.tolist())
optimizer.shutdown()
"""
    processes = two_ranks(code, tmp_path)
    told = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert told[0][0] == told[1][0] and told[0][0].startswith("1 32.0 "), told


@pytest.mark.parametrize("destroyed", [False, True])
def test_no_thread_of_gloo_is_left_to_abort_an_ending_process(tmp_path, destroyed):
    """A thread of Gloo that lets go of the last tensor while the interpreter ends aborts the process."""
    code = """
import pathlib, torch, torch.distributed as dist, cohive
RANK, FOLDER, QUICK = VALUES
def threads():
    names = [one.read_text() for one in pathlib.Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=2)
model = torch.nn.Linear(2, 1)
optimizer = cohive.LocalOptimizer(model, dht=lambda: cohive.DHT(start=True), target_batch_size=8, batch_size_per_step=4,
                                  optimizer=lambda params: torch.optim.SGD(params, lr=0.1), **QUICK)
while optimizer.local_epoch == 0:
    model(torch.ones(4, 2)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if DESTROYED:
    dist.destroy_process_group()
before = threads()
optimizer.shutdown()
print(before > threads())
"""
    processes = two_ranks(code.replace("DESTROYED", repr(destroyed)), tmp_path)
    told = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert [out for out, _ in told] == ["True\n"] * 2, told


SHARE = """
import torch
import torch.distributed as dist
from cohive.distributed import share_tensors
RANK, FOLDER, _ = VALUES
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=2)
full = [
    torch.tensor([1, -2, 3], dtype=torch.int16), torch.tensor(True), torch.tensor(2.5, dtype=torch.float64),
    torch.tensor([1 + 2j]), torch.ones(2, 0), torch.ones(3, dtype=torch.bfloat16), torch.arange(6.0).reshape(2, 3).t(),
    torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
    torch.tensor([65535], dtype=torch.uint16),
]
mine = [one.clone() if RANK == 0 else torch.zeros_like(one) for one in full]
share_tensors(mine)
assert all(one.tolist() == other.tolist() and one.stride() == other.stride() for one, other in zip(mine, full)), mine
dist.destroy_process_group()
"""


def test_values_of_every_type_are_shared(tmp_path):
    for process in two_ranks(SHARE, tmp_path):
        assert process.communicate(timeout=PATIENCE) == ("", "") and process.returncode == 0


def test_ranks_tell_why_their_peer_has_ended():
    class Left(cohive.LocalOptimizer):
        """One whose constructor did not run."""

        _closed, _of_swarm, _control, _given = False, None, None, None

    one = Left.__new__(Left)
    with pytest.raises(RuntimeError, match=r"start all of its ranks again \(of this cause\)"), one._together():
        raise RuntimeError("of this cause")
    assert not one.is_alive()
    one = Left.__new__(Left)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="^no memory$"), one._together():
        raise torch.cuda.OutOfMemoryError("no memory")
    assert not one.is_alive()


def test_what_ranks_cannot_train_is_refused(tmp_path, monkeypatch):
    model = torch.nn.Linear(2, 1)
    options = dict(dht=None, target_batch_size=8, optimizer=torch.optim.SGD, **QUICK)
    with pytest.raises(RuntimeError, match="init_process_group"):
        cohive.LocalOptimizer(model, **options)
    with pytest.raises(ValueError, match="without reuse_grad_buffers"):
        cohive.LocalOptimizer(model, reuse_grad_buffers=True, **options)
    with pytest.raises(TypeError, match="'max_upload': it is one of DHT.., and belongs there"):
        cohive.LocalOptimizer(model, max_upload=1000, **options)
    with pytest.raises(TypeError, match="takes the model"):
        cohive.LocalOptimizer(list(model.parameters()), **options)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="rank 0 needs a DHT"):
            cohive.LocalOptimizer(model, **options)

        from torch.distributed.fsdp import FullyShardedDataParallel

        whole = object.__new__(FullyShardedDataParallel)  # FSDP itself wants a GPU
        torch.nn.Module.__init__(whole)
        sharded = torch.nn.Sequential(model, whole)
        with pytest.raises(TypeError, match="not with FSDP or DTensor"):
            cohive.LocalOptimizer(sharded, **options)

        from torch.distributed.tensor import DeviceMesh, distribute_tensor

        mesh = DeviceMesh("cpu", [0])
        parts = torch.nn.Linear(2, 1)
        parts.weight = torch.nn.Parameter(distribute_tensor(parts.weight.detach(), mesh))
        with pytest.raises(TypeError, match="not with FSDP or DTensor"):
            cohive.LocalOptimizer(parts, **options)
    finally:
        torch.distributed.destroy_process_group()


def test_other_models_are_found_out(tmp_path):
    code = """
import torch, torch.distributed as dist, cohive
RANK, FOLDER = VALUES
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=2)
model = torch.nn.Linear(2 + RANK, 1)
cohive.LocalOptimizer(model, dht=None, target_batch_size=8, optimizer=torch.optim.SGD, run_id="r")
"""
    processes = []
    for rank in range(2):
        ready = code.replace("VALUES", repr((rank, str(tmp_path))))
        processes.append(subprocess.Popen([sys.executable, "-c", ready], stderr=subprocess.PIPE, text=True))
    for process in processes:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1 and "the ranks of a peer have different models" in errors


def test_all_ranks_learn_that_rank_0_cannot_join(tmp_path):
    code = """
import torch, torch.distributed as dist, cohive
RANK, FOLDER, QUICK = VALUES
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/meeting", rank=RANK, world_size=2)
cohive.LocalOptimizer(torch.nn.Linear(2, 1), dht=lambda: cohive.DHT(["nonsense"], start=True), target_batch_size=8,
                      optimizer=lambda params: torch.optim.SGD(params, lr=0.1), **QUICK)
"""
    processes = []
    for rank in range(2):
        ready = code.replace("VALUES", repr((rank, str(tmp_path), QUICK)))
        processes.append(subprocess.Popen([sys.executable, "-c", ready], stderr=subprocess.PIPE, text=True))
    told = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1] and all("nonsense" in errors for errors in told)
    assert "rank 0 of this peer has failed: " in told[1]
