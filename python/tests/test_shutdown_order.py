"""What is left of a training that ends in any order: the last step, the epoch, and no trainer that nobody has."""

import functools
import gc
import signal
import threading
import time
import weakref

import pytest

torch = pytest.importorskip("torch", reason="no torch here")

from conftest import QUICK  # noqa: E402
from test_optimizer import KINDS, SGD, give_up, loss_of, model_of, stepped_by_torch, train_alone  # noqa: E402

from cohive import Optimizer  # noqa: E402
from cohive.local_sgd import DiLoCo, LocalSGD, Manager  # noqa: E402

PATIENCE = 60


@pytest.fixture
def trainer(trainer_alone):
    return functools.partial(trainer_alone, target_batch_size=16)


@pytest.fixture
def owing(swarm):
    """owing(**options): an Optimizer that has ended an epoch, and looks in the background for another one that does
    not come, to make the step."""
    made = []

    def make(**options):
        for dht in swarm(2):
            weight = model_of()
            weight.grad = torch.zeros_like(weight)  # a batch without gradients does not count
            how = dict(target_batch_size=10**6, params=[weight], optimizer=SGD, delay_grad_averaging=True)
            made.append(Optimizer(dht=dht, **{**QUICK, "matchmaking_time": PATIENCE, **how, **options}))
        other, one = made
        limit = time.monotonic() + PATIENCE
        while one.num_peers < 2 and time.monotonic() < limit:
            for trainer in made:
                trainer.step(batch_size=1)
            time.sleep(0.05)
        one.step(batch_size=10**6)
        assert one.num_peers == 2 and one.local_epoch == 1
        return one

    yield make
    for one in made:
        one.shutdown()


@pytest.mark.parametrize("delayed", ["delay_optimizer_step", "delay_grad_averaging"])
def test_the_last_step_is_in_the_model_after_the_end(trainer, delayed):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"], **{delayed: True})
    train_alone(optimizer, weight, epochs=1)
    optimizer.shutdown()
    assert optimizer.state_dict()["local_epoch"] == 1
    assert torch.allclose(weight, stepped_by_torch(KINDS["adam"], epochs=1), rtol=1e-4, atol=1e-5)


def test_the_end_does_not_wait_for_a_step_that_does_not_come(owing):
    optimizer = owing(averaging_timeout=PATIENCE, shutdown_timeout=1)
    begin = time.monotonic()
    optimizer.shutdown()
    assert time.monotonic() - begin < 10 and not optimizer.is_alive()


def test_what_a_handler_of_a_signal_raises_ends_the_wait_for_the_last_step(owing, signalled):
    optimizer = owing(averaging_timeout=PATIENCE, shutdown_timeout=PATIENCE)
    sent = signalled(signal.SIGALRM, give_up)
    with pytest.raises(ArithmeticError):
        optimizer.shutdown()
    assert time.monotonic() - sent < 10 and not optimizer.is_alive()


def test_the_end_does_not_wait_for_the_call_of_another_thread(trainer):
    weight = model_of()
    optimizer = trainer(
        params=[weight], optimizer=SGD, delay_optimizer_step=True, matchmaking_time=PATIENCE, averaging_timeout=PATIENCE
    )
    train_alone(optimizer, weight, epochs=1)
    optimizer.state_dict()
    raised = []

    def average():
        with pytest.raises(RuntimeError) as error:
            optimizer.average_parameters()
        raised.append(error.value)

    thread = threading.Thread(target=average)
    thread.start()
    limit = time.monotonic() + PATIENCE
    while not optimizer._run.inside and time.monotonic() < limit:
        time.sleep(0.01)
    begin = time.monotonic()
    optimizer.shutdown()
    thread.join(PATIENCE)
    assert time.monotonic() - begin < 10 and len(raised) == 1


@pytest.mark.parametrize("also_the_optimizer", [True, False])
def test_the_epoch_outlives_the_dht(trainer, also_the_optimizer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"])
    for _ in range(3):
        loss_of(weight, 16).backward()
        optimizer.step(batch_size=16)
        optimizer.zero_grad()
    optimizer.dht.shutdown()
    if also_the_optimizer:
        optimizer.shutdown()
    state = optimizer.state_dict()
    assert optimizer.local_epoch == state["local_epoch"] == 3 and state["state"][0]["step"] == 4
    with pytest.raises(RuntimeError, match="shut down|left"):
        optimizer.step(batch_size=16)


def test_a_restored_epoch_outlives_the_dht(trainer):
    optimizer = trainer(params=[model_of()], optimizer=SGD)
    optimizer.load_state_dict({**optimizer.opt.state_dict(), "local_epoch": 7})
    optimizer.dht.shutdown()
    optimizer.shutdown()
    assert optimizer.state_dict()["local_epoch"] == 7


@pytest.fixture
def counted():
    """Nothing but references counts."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_an_optimizer_that_nobody_has_is_in_no_run(swarm, counted):
    (dht,), weight = swarm(1), model_of()
    options = dict(dht=dht, params=[weight], optimizer=SGD, target_batch_size=16, batch_size_per_step=16, **QUICK)
    schedule = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    first = Optimizer(scheduler=schedule, delay_optimizer_step=True, **options)
    loss_of(weight, 16).backward()
    first.step()
    assert first.tracker.global_progress.num_peers == 1 and first.state_averager.is_alive()
    seen = weakref.ref(first)
    del first
    assert seen() is None
    second = Optimizer(**options)
    loss_of(weight, 16).backward()
    second.step()
    assert second.local_epoch == 1
    second.shutdown()


def test_a_wrapper_trains_on_with_the_attributes_of_an_optimizer_that_is_gone(swarm, counted):
    (dht,), weight = swarm(1), model_of()
    first = Optimizer(dht=dht, params=[weight], optimizer=KINDS["a class of the user's"], target_batch_size=16, **QUICK)
    wrapper = object.__new__(type("Wrapper", (Optimizer,), {}))
    wrapper.__dict__.update(first.__dict__)
    del first
    loss_of(weight, 16).backward()
    wrapper.step(batch_size=16)
    assert wrapper.tracker.local_progress.epoch == wrapper.state_averager.local_epoch == 1
    assert torch.allclose(weight, stepped_by_torch_in_one(KINDS["a class of the user's"]), rtol=1e-4, atol=1e-5)
    wrapper.shutdown()


def stepped_by_torch_in_one(make):
    """After an epoch that was one batch."""
    weight = model_of()
    optimizer = make([weight])
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    with torch.no_grad():
        weight.fill_(0.5)
    optimizer.zero_grad()
    loss_of(weight, 16).backward()
    optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("kind", ["LocalSGD", "DiLoCo"])
def test_ctrl_c_at_the_beginning_of_local_steps_leaves_the_run(swarm, monkeypatch, kind):
    (dht,), model = swarm(1), torch.nn.Linear(2, 1)
    inner, outer = (torch.optim.SGD(model.parameters(), lr=rate) for rate in (0.1, 0.7))
    manager = Manager(dht, **QUICK)
    local = LocalSGD(manager, model, inner, 10) if kind == "LocalSGD" else DiLoCo(manager, model, inner, outer, 10)
    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "load_state_from_peers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            with local:
                raise AssertionError("it has not begun")
    with local:
        inner.step()
        assert manager.current_step() == 0 and manager._run.is_alive()
    assert not manager._run.is_alive()


def interrupted(*_):
    raise KeyboardInterrupt
