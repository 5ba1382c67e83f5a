"""Optimizer and the memory of its model: who may move it, who keeps it, and who may not write to it."""

import functools
import os
import types

import pytest

torch = pytest.importorskip("torch", reason="no torch here")

from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

import cohive  # noqa: E402


@pytest.fixture
def trainer(trainer_alone):
    return functools.partial(trainer_alone, target_batch_size=4, batch_size_per_step=1)


def weight_of(size=6, **more):
    return torch.nn.Parameter(torch.full((size,), 0.5, **more))


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1)


def train(optimizer, weight, batches):
    for _ in range(batches):
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()


MOVES = {
    "other values": lambda weight: torch.zeros(6),
    "smaller": lambda weight: torch.zeros(2),
    "another type": lambda weight: weight.data.to(torch.float64),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_parameter_that_was_moved_is_refused(trainer, move, dtype):
    weight = weight_of(dtype=dtype)
    optimizer = trainer(params=[weight], optimizer=adam)
    train(optimizer, weight, 1)
    before = weight.data
    weight.grad = None
    moved = weight.data = MOVES[move](weight)
    kept = moved.clone()
    weight.grad = torch.ones_like(weight)
    with pytest.raises(RuntimeError, match="parameter 0 .* other memory"):
        optimizer.step()
    assert torch.equal(moved, kept)
    weight.grad = None
    weight.data = before
    train(optimizer, weight, 3)
    assert optimizer.local_epoch == 1 and weight[0] < 0.5


def test_gradients_of_a_batch_are_not_kept(trainer):
    weight = weight_of()
    optimizer = trainer(params=[weight], optimizer=adam, target_batch_size=1000)
    weight.square().sum().backward()
    storage = StorageWeakRef(weight.grad.untyped_storage())
    optimizer.step()
    optimizer.zero_grad()
    assert storage.expired(), "somebody keeps the gradients of the last batch"


def test_a_state_is_loaded_into_the_tensors_that_are_averaged(trainer):
    weight = weight_of()
    optimizer = trainer(params=[weight], optimizer=adam, average_opt_statistics=("exp_avg",))
    train(optimizer, weight, 4)
    saved = optimizer.state_dict()
    saved["state"] = {at: {name: value.clone() for name, value in one.items()} for at, one in saved["state"].items()}
    memory = optimizer.opt.state[weight]["exp_avg"].data_ptr()
    optimizer.load_state_dict(saved)
    loaded = optimizer.opt.state[weight]
    assert loaded["exp_avg"].data_ptr() == memory, "rounds go on averaging tensors that nobody uses"
    assert torch.equal(loaded["exp_avg"], saved["state"][0]["exp_avg"]) and loaded["step"] == saved["state"][0]["step"]
    train(optimizer, weight, 4)
    assert optimizer.local_epoch == 2 and not torch.equal(loaded["exp_avg"], saved["state"][0]["exp_avg"])


class Replacing(torch.optim.Optimizer):
    """One that makes its statistic anew in each step."""

    def __init__(self, parameters):
        super().__init__(parameters, dict(lr=0.1))

    def step(self, closure=None):
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one]["average"] = self.state[one].get("average", 0) * 0.5 + one.grad
                one.data.sub_(group["lr"] * self.state[one]["average"])


def test_statistics_that_are_replaced_are_averaged(trainer):
    weight = weight_of()
    optimizer = trainer(params=[weight], optimizer=Replacing, average_opt_statistics=("average",))
    train(optimizer, weight, 8)
    _, values, _, _ = optimizer._model._beside[0]
    assert optimizer.local_epoch == 2 and torch.equal(values, optimizer.opt.state[weight]["average"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_state_that_is_not_finite_is_refused(trainer, dtype, value):
    weight = weight_of()
    optimizer = trainer(params=[weight], optimizer=torch.optim.SGD)
    sent = torch.full((6,), 1.0, dtype=dtype)
    sent[3] = value
    given = types.SimpleNamespace(
        rank=1, shape=(6,), dtype=str(dtype)[6:].encode(), data=sent.data_ptr(), size=6 * sent.element_size()
    )
    assert "not finite" in optimizer._model.load({"epoch": 3}, [given])
    sent[3] = 1.0
    assert torch.equal(weight, weight_of()) and optimizer._model.load({"epoch": 3}, [given]) is None
    assert torch.equal(optimizer._model.live[0], torch.ones(6))


def test_sparse_gradients_are_taken(trainer):
    table = torch.nn.Embedding(6, 2, sparse=True)
    before = table.weight.detach().clone()
    optimizer = trainer(params=table.parameters(), optimizer=adam)
    for _ in range(4):
        optimizer.zero_grad()
        table(torch.tensor([1, 1, 4])).sum().backward()
        optimizer.step()
    assert optimizer.local_epoch == 1
    changed = (table.weight != before).any(1)
    assert changed.tolist() == [False, True, False, False, True, False]


BAD = {
    "LBFGS": (ValueError, "LBFGS", lambda: dict(params=[weight_of()], optimizer=torch.optim.LBFGS)),
    "an LBFGS": (ValueError, "LBFGS", lambda: dict(optimizer=torch.optim.LBFGS([weight_of()]))),
    "meta": (TypeError, "meta", lambda: dict(params=[weight_of(device="meta")], optimizer=adam)),
    "complex": (TypeError, "floating", lambda: dict(params=[weight_of(dtype=torch.complex64)], optimizer=adam)),
}


@pytest.mark.parametrize("case", BAD)
def test_models_that_cannot_be_trained_get_a_sentence(trainer, case):
    kind, sentence, options = BAD[case]
    with pytest.raises(kind, match=sentence):
        trainer(**options())


INTERRUPTED = """
import sys, threading, time, torch, cohive
dht = cohive.DHT(sys.argv[1:], start=True)
weight = torch.nn.Parameter(torch.zeros(3))
optimizer = cohive.Optimizer(dht=dht, run_id="run", target_batch_size=10**6, params=[weight],
                             optimizer=torch.optim.Adam, matchmaking_time=60, averaging_timeout=120,
                             batch_size_per_step=1)
def beside():
    time.sleep(0.5)
    try:
        optimizer.load_state_from_peers()
    except RuntimeError:
        pass
threading.Thread(target=beside, daemon=True).start()
print("waits", flush=True)
try:
    optimizer.average_parameters()
except KeyboardInterrupt:
    print("interrupted", flush=True)
optimizer.shutdown()
dht.shutdown()
"""


def test_ctrl_c_ends_a_wait_while_another_thread_waits_for_its_turn(interrupt):
    dht = cohive.DHT(start=True)
    interrupt(INTERRUPTED, str(dht.get_visible_maddrs()[0]), after=2, within=1.5)
    dht.shutdown()


def test_workers_of_a_data_loader_have_nothing_of_it(trainer):
    weight = weight_of()
    optimizer = trainer(params=[weight], optimizer=adam)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = []
        calls = (optimizer.step, optimizer.load_state_from_peers, lambda: optimizer.local_epoch, optimizer.shutdown)
        for call in calls:
            try:
                weight.grad = torch.ones_like(weight)
                call()
                told.append("works")
            except RuntimeError as error:
                told.append("refused" if "process" in str(error) else str(error))
        os.write(write, " ".join(told).encode())
        os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(read) as pipe:
        assert pipe.read() == " ".join(["refused"] * 4)
    train(optimizer, weight, 4)
    assert optimizer.local_epoch == 1
