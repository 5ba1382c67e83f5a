"""Optimizer and the memory of its model: who may move it, who keeps it, and who may not write to it."""

import functools
import os
import threading
import time
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


def large(value):
    return torch.nn.Parameter(torch.full((6 << 20,), value))


def test_a_newcomer_gets_the_state_of_one_moment_of_a_trainer_that_goes_on(swarm):
    """The gradient is the same everywhere, and so are the values of each epoch."""
    options = dict(run_id="run", target_batch_size=1, batch_size_per_step=1, optimizer=adam, matchmaking_time=0.5)
    options.update(averaging_timeout=10.0, averager_opts=dict(request_timeout=0.4), delay_state_averaging=False)
    dht, other = swarm(2)
    old, new = large(1.0), large(9.0)
    first = cohive.Optimizer(dht=dht, params=[old], **options)
    epochs, ended = {}, threading.Event()

    def values_of(optimizer, weight):
        kept = optimizer.opt.state[weight]
        return [tensor[at].item() for tensor in (weight, kept["exp_avg"], kept["exp_avg_sq"]) for at in (0, -1)]

    def go_on():
        while not ended.is_set():
            first.zero_grad()
            old.grad = torch.full_like(old, 1.0 + first.local_epoch)
            first.step()
            epochs[first.local_epoch] = values_of(first, old)
            time.sleep(
                0.5
            )  # a donor keeps nothing of a state that is gone before the newcomer asks for its first parts

    trains = threading.Thread(target=go_on)
    trains.start()
    second = cohive.Optimizer(dht=other, params=[new], **options)
    try:
        end = time.monotonic() + 60
        while not second.load_state_from_peers() and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        ended.set()
        trains.join()
    kept = second.opt.state[new]
    assert second.local_epoch > 0 and values_of(second, new) == epochs[second.local_epoch]
    for tensor in (new, kept["exp_avg"], kept["exp_avg_sq"]):
        assert torch.equal(tensor, tensor[:1].expand_as(tensor)), "it is of several moments"
    for one in (first, second):
        one.shutdown()


def calls_of(optimizer):
    """The names of the functions of the library that it calls from now on."""
    call, names = optimizer._run.call, []

    def note(function, *arguments):
        names.append(function.__name__)
        return call(function, *arguments)

    optimizer._run.call = note
    return names


def test_the_library_hears_of_values_that_were_changed_beside_it(trainer):
    weight = weight_of()
    optimizer = trainer(params=[weight], optimizer=adam)
    names = calls_of(optimizer)
    train(optimizer, weight, 9)
    assert optimizer.local_epoch == 2 and "cohive_trainer_changes" not in names
    with torch.no_grad():
        weight.clamp_(-0.1, 0.1)
    train(optimizer, weight, 4)
    assert names.count("cohive_trainer_changes") == 1, "it is told once for each change"
    optimizer.opt.state[weight]["exp_avg"].zero_()
    train(optimizer, weight, 1)
    assert names.count("cohive_trainer_changes") == 2
    saved = optimizer.state_dict()
    names.clear()
    optimizer.load_state_dict(saved)
    train(optimizer, weight, 2)
    assert names.count("cohive_trainer_changes") == 1, "before it is loaded, and not after that"


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, Replacing])
def test_the_tensors_that_an_optimizer_makes_are_made_of_the_values_that_it_has(trainer, kind):
    """However many parameters there are, and whichever have statistics already."""
    weights = [torch.nn.Parameter(torch.arange(1.0, 1.0 + size)) for size in (3, 300_000, 5, 300_000, 300_000, 0, 7)]
    made = functools.partial(kind, lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {}))
    optimizer = trainer(params=weights, optimizer=made if kind is not Replacing else Replacing)
    for weight in weights:
        assert torch.equal(weight, torch.arange(1.0, 1.0 + weight.numel())) and weight.grad is None
        kept = [one for one in optimizer.opt.state[weight].values() if torch.is_tensor(one) and one.numel() != 1]
        assert all(one.shape == weight.shape and not one.any() for one in kept)
        assert kept or weight.numel() == 1


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
