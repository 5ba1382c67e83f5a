"""Optimizer and GradScaler: what a trainer sees alone, with a peer, and with bad input."""

import contextlib
import copy
import functools
import gc
import logging
import math
import re
import signal
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="no torch here")

from conftest import QUICK  # noqa: E402

import cohive  # noqa: E402
from cohive import GradScaler, Optimizer  # noqa: E402

PATIENCE = 60
SGD = functools.partial(torch.optim.SGD, lr=0.1)
DEVICE = "cpu"  # of models; test_gpu.py has another one


@pytest.fixture
def trainer(trainer_alone):
    return functools.partial(trainer_alone, target_batch_size=16)


def model_of(value=0.5, dtype=torch.float32):
    parameter = torch.full((6,), value, dtype=dtype, device=DEVICE)
    return torch.nn.Parameter(parameter)


def samples_of(size):
    return torch.randn(size, 6, generator=torch.Generator().manual_seed(size)).to(DEVICE)


def statistics_of(optimizer):
    """Those of its only parameter."""
    return next(iter(optimizer.state.values()))


SIZES = (1, 7, 3, 5)


def loss_of(weight, size):
    return samples_of(size).to(weight.dtype).matmul(weight).pow(2).mean()


def stepped_by_torch(make, epochs=3, value=0.5):
    """The parameter after epochs of 16 samples in one batch. An optimizer that has no tensors yet makes them by a step
    without gradients, as hivemind's does."""
    weight = model_of(value)
    optimizer = make([weight])
    if not optimizer.state:
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        with torch.no_grad():
            weight.fill_(value)
    for _ in range(epochs):
        optimizer.zero_grad()
        torch.cat([samples_of(size) for size in SIZES]).matmul(weight).pow(2).mean().backward()
        optimizer.step()
    return weight.detach()


def train_alone(optimizer, weight, epochs=3, zero=True):
    for _ in range(epochs):
        for size in SIZES:
            loss_of(weight, size).backward()
            optimizer.step(batch_size=size)
            if zero:
                optimizer.zero_grad()
    assert optimizer.local_epoch == epochs


class OwnAdam(torch.optim.Adam):
    """One whose step the library does not know."""


KINDS = {
    "sgd": SGD,
    "momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": functools.partial(torch.optim.Adam, lr=0.1),
    "amsgrad": functools.partial(torch.optim.Adam, lr=0.1, amsgrad=True, weight_decay=0.1),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.1),
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=0.1, momentum=0.5, centered=True),
    "centered": functools.partial(torch.optim.RMSprop, lr=0.1, centered=True),
    "adagrad": functools.partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1),
    "a class of the user's": functools.partial(OwnAdam, lr=0.1),
    "adamax": functools.partial(torch.optim.Adamax, lr=0.1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_is_a_step_with_the_mean_over_its_samples(trainer, kind):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS[kind])
    train_alone(optimizer, weight)
    assert torch.allclose(weight, stepped_by_torch(KINDS[kind]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["adam", "a class of the user's"])
def test_an_optimizer_that_exists_steps_the_same(trainer, kind):
    weight = model_of()
    optimizer = trainer(optimizer=KINDS[kind]([weight]))
    train_alone(optimizer, weight)
    assert torch.allclose(weight, stepped_by_torch(KINDS[kind]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-5), (torch.bfloat16, 5e-2), (torch.float16, 1e-2)])
@pytest.mark.parametrize("offload", [True, False])
def test_models_of_other_types_are_trained(trainer, dtype, tolerance, offload):
    weight = model_of(dtype=dtype)
    optimizer = trainer(params=[weight], optimizer=SGD, offload_optimizer=offload)
    train_alone(optimizer, weight)
    assert torch.allclose(weight.float(), stepped_by_torch(SGD), rtol=tolerance, atol=tolerance)


def test_gradients_add_up_in_reused_buffers(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD, reuse_grad_buffers=True)
    for _ in range(2):
        for _ in range(4):  # batches of one size weigh the same
            loss_of(weight, 4).backward()
            optimizer.step(batch_size=4)
        assert torch.equal(weight.grad, torch.zeros_like(weight)), "a new epoch begins with none"
    other = model_of()
    for _ in range(2):
        gradient = torch.autograd.grad(loss_of(other, 4), other)[0]
        with torch.no_grad():
            other -= 0.1 * gradient
    assert torch.allclose(weight, other, atol=1e-6)
    with pytest.raises(ValueError, match="never call zero_grad"):
        optimizer.zero_grad()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_that_leaves_nothing_in_reused_buffers_does_not_count(trainer, dtype):
    weight, other = model_of(dtype=dtype), model_of(dtype=dtype)
    optimizer = trainer(params=[weight], optimizer=SGD, reuse_grad_buffers=True, batch_size_per_step=4)
    for batch in range(4):
        loss_of(weight, 4).backward()
        optimizer.step()
        if batch < 3:
            for _ in range(2):
                optimizer.step()
            assert optimizer.local_epoch == 0
    loss_of(other, 4).backward()
    assert optimizer.local_epoch == 1 and torch.allclose(weight, other - 0.1 * other.grad, rtol=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_begin_anew_where_a_state_is_loaded_in_the_middle_of_an_epoch(trainer, dtype, tmp_path):
    weight = model_of(dtype=dtype)
    optimizer = trainer(params=[weight], optimizer=SGD, reuse_grad_buffers=True, batch_size_per_step=4)
    state, file = copy.deepcopy(optimizer.state_dict()), tmp_path / "state.safetensors"
    optimizer.save_checkpoint(file)
    for load in (lambda: optimizer.load_state_dict(state), lambda: optimizer.load_checkpoint(file)):
        (100 * loss_of(weight, 4)).backward()
        optimizer.step()
        load()
        assert torch.equal(weight.grad, torch.zeros_like(weight)) and torch.equal(weight, model_of(dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clear", [lambda weight: None, torch.zeros_like], ids=["cleared", "replaced"])
def test_sums_that_are_lost_get_a_sentence(trainer, clear, dtype):
    weight, late = model_of(dtype=dtype), model_of()
    optimizer = trainer(params=[weight, late], optimizer=SGD, reuse_grad_buffers=True, batch_size_per_step=4)
    for _ in range(2):
        weight.grad = None  # there is no sum yet
        for batch in range(4):
            loss_of(weight, 4).backward()
            if batch == 2:  # a parameter of which no batch has had a gradient loses nothing
                loss_of(late, 4).backward()
            optimizer.step()
    assert optimizer.local_epoch == 2
    loss_of(weight, 4).backward()
    optimizer.step()
    weight.grad = clear(weight)
    with pytest.raises(RuntimeError, match="gradient of parameter 0 was set to None or replaced before the epoch"):
        optimizer.step()


def test_a_sum_of_all_parameters_that_is_lost_gets_a_sentence(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD, reuse_grad_buffers=True, batch_size_per_step=4)
    loss_of(weight, 4).backward()
    optimizer.step()
    weight.grad = None
    with pytest.raises(RuntimeError, match="gradient of parameter 0 was set to None"):
        optimizer.step()


def test_batches_in_a_row_that_leave_no_gradient_are_told_of_once(trainer, caplog):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=4)
    for _ in range(25):
        loss_of(weight, 4).backward()
        optimizer.zero_grad()
        optimizer.step()
    assert caplog.text.count("batches in a row have left no gradient") == 1


def test_an_optimizer_may_keep_gradients(trainer):
    class Keeping(torch.optim.SGD):
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["before"] = [parameter.grad.view(-1)]
            return super().step(closure)

    weight = torch.nn.Parameter(torch.ones(1 << 21))  # whose gradients are mapped memory, which goes at once
    optimizer = trainer(params=[weight], optimizer=functools.partial(Keeping, lr=0.1), batch_size_per_step=16)
    for epoch in range(3):
        (weight * (epoch + 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(
            optimizer.opt.state[optimizer._model.stepped[0]]["before"][0], torch.full_like(weight, epoch + 1.0)
        )
        assert optimizer.state_dict()["local_epoch"] == epoch + 1


def test_a_parameter_without_gradients_stays(trainer):
    used, unused = model_of(), model_of()
    optimizer = trainer(params=[used, unused], optimizer=functools.partial(torch.optim.AdamW, lr=0.1))
    train_alone(optimizer, used)
    assert torch.equal(unused, model_of()) and not torch.equal(used, unused)


def test_schedules_follow_epochs_and_groups_can_be_written(trainer):
    weight = model_of()
    schedule = functools.partial(torch.optim.lr_scheduler.StepLR, gamma=0.5, step_size=1)
    optimizer = trainer(params=[weight], optimizer=SGD, scheduler=schedule)
    train_alone(optimizer, weight, epochs=2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)
    before = weight.detach().clone()
    optimizer.param_groups[0]["lr"] = 0.0
    loss_of(weight, 16).backward()
    optimizer.step(batch_size=16)
    assert torch.equal(weight, before), "a rate of 0 is a step of 0"


@pytest.mark.parametrize("offload", [True, False])
def test_a_default_type_of_torch_is_not_that_of_the_library(trainer, offload):
    """Float32 copies of parameters, and the numbers of steps, which torch makes of its default type."""
    dtype = torch.bfloat16 if offload else torch.float32
    weights = [model_of(dtype=dtype), model_of(dtype=torch.float32)]
    torch.set_default_dtype(torch.float64)
    try:
        optimizer = trainer(params=weights[:1], optimizer=KINDS["adam"], batch_size_per_step=16)
        saved = copy.deepcopy(optimizer.state_dict())
        saved["state"][0]["step"] = saved["state"][0]["step"].double()  # as torch saves it
        optimizer.load_state_dict(saved)
        other = torch.optim.Adam(weights[1:], lr=0.1)
        for count in range(4):
            for weight in weights:
                weight.grad = torch.full_like(weight, float(count))  # zero at first, as the optimizer begins
            other.step()
            if count > 0:
                optimizer.step()
    finally:
        torch.set_default_dtype(torch.float32)
    assert statistics_of(optimizer)["step"].item() == 4
    assert torch.allclose(weights[0].float(), weights[1], atol=1e-2 if offload else 1e-5)


def test_copies_are_in_host_memory_whatever_the_default_device():
    with torch.device("meta"):
        copies = [*cohive._model.masters_of([model_of()], None), *cohive._gpu._in_a_row([(6,)], torch.float32, False)]
    assert [one.device.type for one in copies] == ["cpu", "cpu"]


@pytest.mark.parametrize("kind", ["adam", "a class of the user's"])
def test_a_parameter_without_values_is_none_to_step(trainer, kind):
    weight, empty = model_of(), torch.nn.Parameter(torch.empty(0))
    optimizer = trainer(params=[empty, weight], optimizer=KINDS[kind])
    for _ in range(3):
        (loss_of(weight, 16) + empty.sum()).backward()
        optimizer.step(batch_size=16)
        optimizer.zero_grad()
    assert optimizer.local_epoch == 3 and optimizer.state_dict()["state"][1]["step"] == 4
    assert not torch.equal(weight, model_of()) and empty.numel() == 0


def test_delayed_steps_arrive(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"], delay_optimizer_step=True, delay_state_averaging=True)
    train_alone(optimizer, weight)
    optimizer.state_dict()  # waits for what is under way
    assert optimizer.last_report is not None and not torch.equal(weight, model_of())


def delayed(trainer, dtype=torch.float32, **options):
    """A weight and its optimizer, which owes it a step."""
    weight = model_of(dtype=dtype)
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"], delay_optimizer_step=True, **options)
    loss_of(weight, 16).backward()
    optimizer.step(batch_size=16)
    assert torch.equal(weight, model_of(dtype=dtype))
    return weight, optimizer


def trains_on_from_sevens(weight, optimizer):
    before = weight.detach().clone()
    assert torch.equal(before.float(), model_of(7.0))
    loss_of(weight, 16).backward()
    optimizer.step(batch_size=16)
    optimizer.state_dict()
    assert torch.allclose(weight.float(), model_of(7.0), atol=0.5) and not torch.equal(weight, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_delayed_step_is_none_of_a_model_that_was_loaded(trainer, dtype):
    beside = torch.zeros(3)
    weight, optimizer = delayed(trainer, dtype, extra_tensors=[beside])
    _, other = delayed(trainer, dtype, extra_tensors=[torch.zeros(3)])
    state = copy.deepcopy(other.state_dict())
    state.pop("masters", None)
    with torch.no_grad():
        weight.fill_(7.0)
        beside.fill_(8.0)
    optimizer.load_state_dict(state)
    assert torch.equal(weight, model_of(7.0, dtype)) and torch.equal(beside, torch.full((3,), 8.0))
    assert torch.equal(optimizer._model.live[0], model_of(7.0))
    trains_on_from_sevens(weight, optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offload", [True, False])
def test_weights_that_are_loaded_when_the_optimizer_is_there_are_trained(trainer, dtype, offload):
    weight = model_of(dtype=dtype)
    optimizer = trainer(params=[weight], optimizer=SGD, offload_optimizer=offload)
    with torch.no_grad():
        weight.fill_(7.0)
    loss_of(weight, 16).backward()
    other = model_of(7.0, dtype)
    loss_of(other, 16).backward()
    optimizer.step(batch_size=16)
    assert torch.allclose(weight.float(), 7.0 - 0.1 * other.grad.float(), rtol=1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_delayed_step_is_none_of_weights_that_are_loaded_before_the_next_batch(trainer, dtype):
    weight, optimizer = delayed(trainer, dtype)
    with torch.no_grad():
        weight.fill_(7.0)
    trains_on_from_sevens(weight, optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_delayed_step_arrives_where_averages_of_weights_were_looked_at_meanwhile(trainer, dtype):
    weight, optimizer = delayed(trainer, dtype)
    own = weight.detach().clone()
    for values in (torch.full_like(own, 3.0), own):
        with torch.no_grad():
            weight.copy_(values)
    optimizer.state_dict()
    assert ((weight - own).abs() > 0.05).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_was_loaded_before_the_optimizer_is_saved_stays(trainer, dtype):
    beside = torch.zeros(3)
    weight, optimizer = delayed(trainer, dtype, extra_tensors=[beside])
    with torch.no_grad():
        weight.fill_(7.0)
        beside.fill_(8.0)
    for _ in range(2):
        state = optimizer.state_dict()
        assert state["local_epoch"] == 1 and state["state"][0]["step"] == 2, "it has waited for the step"
        assert torch.equal(weight, model_of(7.0, dtype)) and torch.equal(beside, torch.full((3,), 8.0))
        assert torch.equal(optimizer._model.live[0], model_of(7.0))
    trains_on_from_sevens(weight, optimizer)


def test_copies_keep_what_a_model_that_is_as_it_was_does_not_have(trainer):
    weight = model_of(dtype=torch.bfloat16)
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"])
    train_alone(optimizer, weight)
    (before,) = optimizer.state_dict()["masters"]
    with torch.no_grad():  # as an evaluation with averages does, which puts the weights back
        weight.copy_(weight.clone())
    (after,) = optimizer.state_dict()["masters"]
    assert torch.equal(before, after) and not torch.equal(after, weight.float())


@pytest.mark.parametrize("changes", [False, True])
def test_a_delayed_step_is_none_of_a_model_that_was_loaded_for_the_end(trainer, caplog, changes):
    weight, optimizer = delayed(trainer)
    if changes:
        with torch.no_grad():
            weight.fill_(7.0)
    optimizer.shutdown()
    assert torch.equal(weight, model_of(7.0)) if changes else not torch.equal(weight, model_of())
    assert ("the model was changed since the last step" in caplog.text) == changes


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_told(trainer, monkeypatch, loss):
    optimizer, told = trainer(params=[model_of()], optimizer=SGD), []
    optimizer.report_loss(loss)  # the library takes it
    monkeypatch.setattr(optimizer._run, "call", lambda function, *arguments: told.append(arguments))
    optimizer.report_loss(loss)
    assert str(told) == str([(loss,)])


def test_an_optimizer_is_one_of_torch(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"])
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups[0]["params"][0] is weight and optimizer.defaults["lr"] == 0.1
    assert torch.equal(optimizer.state[weight]["exp_avg"], torch.zeros(6))
    assert optimizer.state["local_epoch"] == 0
    train_alone(optimizer, weight, epochs=1)  # what was looked up there is nothing of the optimizer's
    assert optimizer.state["local_epoch"] == 1 and optimizer.state[weight]["step"] == 2
    with pytest.raises(TypeError, match="belongs to its process"):
        __import__("pickle").dumps(optimizer)
    with pytest.raises(ValueError, match="after creation"):
        optimizer.add_param_group({"params": [model_of()]})


def test_its_parts_have_what_scripts_ask_of_hivemind(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"], scheduler=chained, matchmaking_time=1.5)
    assert (optimizer.averaging_timeout, optimizer.allreduce_timeout, optimizer.next_chunk_timeout) == (10.0, 10.0, 1.5)
    assert optimizer.shutdown_timeout == 5 and optimizer.status_loglevel == logging.DEBUG
    part = optimizer.state_averager
    assert part.main_parameters[0] is weight and part.optimizer is optimizer.opt and part.local_epoch == 0
    metadata, tensors, infos = part.get_current_state()
    assert metadata["epoch"] == 0 and len(tensors) == len(infos) == 4 and torch.equal(tensors[0], weight.detach().cpu())
    assert part.load_state_from_peers(wait=True) is False
    for loads in (part.load_state_from_peers, optimizer.load_state_from_peers):
        with pytest.raises(ValueError, match="always waits"):
            loads(wait=False)
        with pytest.raises(TypeError, match="timeuot"):
            loads(timeuot=5)
    with optimizer.tracker.pause_updates():
        train_alone(optimizer, weight, epochs=1)
    assert torch.equal(tensors[0], model_of().detach().cpu()) and part.get_current_state()[0]["epoch"] == 1
    for one in (part, optimizer.grad_averager):
        with pytest.raises(AttributeError, match="allow_state_sharing cannot be set here"):
            one.allow_state_sharing = False


def test_a_trainer_that_shares_no_state_tells_the_library(swarm, monkeypatch):
    (dht,), given = swarm(1), []
    text = cohive._native.options_text
    monkeypatch.setattr(cohive._native, "options_text", lambda options: (given.append(dict(options)), text({}))[1])
    options = dict(run_id="run", params=[model_of()], optimizer=SGD, target_batch_size=16)
    for share in (False, True, None):
        with pytest.raises(ValueError):  # without options the library makes no trainer
            Optimizer(dht=dht, averager_opts=dict(allow_state_sharing=share), **options)
    assert [options.get("share_state") for options in given] == [False, None, None]


def test_wrappers_may_copy_its_attributes(trainer):
    """As Lightning's do, which inherit from the optimizer's class as well."""
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=16)
    wrapper = object.__new__(type("Wrapper", (type(optimizer),), {}))
    wrapper.__dict__.update(optimizer.__dict__)
    loss_of(weight, 16).backward()
    wrapper.step()
    del wrapper
    gc.collect()
    loss_of(weight, 16).backward()
    optimizer.step()
    assert optimizer.local_epoch == 2


def test_what_was_saved_goes_on(trainer, tmp_path):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"])
    train_alone(optimizer, weight)
    optimizer.save_checkpoint(tmp_path / "state.safetensors")
    saved, values = copy.deepcopy(optimizer.state_dict()), weight.detach().clone()
    assert saved["local_epoch"] == 3 and saved["state"][0]["step"] == 4
    other = model_of(value=9.0)
    again = trainer(params=[other], optimizer=KINDS["adam"])
    with torch.no_grad():
        other.copy_(values)
    again.load_state_dict(copy.deepcopy(saved))
    assert again.local_epoch == 3
    from_file = model_of(value=9.0)
    third = trainer(params=[from_file], optimizer=KINDS["adam"])
    assert third.load_checkpoint(tmp_path / "state.safetensors") == 3
    for one, model in ((again, other), (third, from_file)):
        assert torch.equal(model, values)
        assert torch.equal(statistics_of(one)["exp_avg"], saved["state"][0]["exp_avg"])
        for size in SIZES:
            loss_of(model, size).backward()
            one.step(batch_size=size)
            one.zero_grad()
        assert one.local_epoch == 4
    assert torch.equal(other, from_file) and not torch.equal(other, values)


def checkpoints_in(folder):
    return sorted(one.name for one in folder.glob("*.safetensors"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpoints_are_written_by_themselves_and_gone_on_from(trainer, tmp_path, dtype):
    options = dict(optimizer=KINDS["adam"], scheduler=SCHEDULES[0], checkpoint_dir=tmp_path, checkpoint_keep=2)
    weight = model_of(dtype=dtype)
    optimizer = trainer(params=[weight], checkpoint_every=0.001, resume=True, **options)  # from nothing
    end, newest = time.monotonic() + PATIENCE, None
    # Where one is still being written when an epoch ends, the next epoch writes one.
    while checkpoints_in(tmp_path)[-1:] != [newest] or len(checkpoints_in(tmp_path)) != 2:
        assert time.monotonic() < end, checkpoints_in(tmp_path)
        loss_of(weight, 16).backward()
        optimizer.step(batch_size=16)
        optimizer.zero_grad()
        newest, soon = f"epoch-{optimizer.local_epoch:08}.safetensors", time.monotonic() + 1
        while checkpoints_in(tmp_path)[-1:] != [newest] and time.monotonic() < soon:
            time.sleep(0.01)
    epochs = optimizer.local_epoch
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.shutdown()
    with pytest.raises(RuntimeError, match="resume from them, or name another folder"):
        trainer(params=[model_of(9.0, dtype)], **options)
    again = model_of(9.0, dtype)
    optimizer = trainer(params=[again], resume=True, **options)
    assert torch.equal(again, weight) and optimizer.local_epoch == epochs
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**epochs)
    state = optimizer.state_dict()
    assert state["state"][0]["step"] == epochs + 1
    for name in ("exp_avg", "exp_avg_sq"):
        assert torch.equal(state["state"][0][name], saved["state"][0][name])
    if dtype != torch.float32:
        assert torch.equal(state["masters"][0], saved["masters"][0])


class Nested(torch.optim.SGD):
    """One that keeps tensors in lists and dicts, as SOAP and PSGD do."""

    many = 3

    def step(self, closure=None):
        loss = super().step(closure)
        for one in self.param_groups[0]["params"]:
            kept = self.state[one]
            if "GG" not in kept:
                kept.update(GG=[{"Q": torch.zeros(1)}, *(torch.zeros(1) for _ in range(self.many - 1))], rank=[1, 2])
            for at, tensor in enumerate([kept["GG"][0]["Q"], *kept["GG"][1:]]):
                tensor += at + 1
        return loss


class Long(Nested):
    many = 12


@pytest.mark.parametrize("kind", [Nested, Long])
def test_tensors_in_lists_of_an_optimizer_are_saved(trainer, tmp_path, kind):
    make, path = functools.partial(kind, lr=0.1, momentum=0.9), tmp_path / "state.safetensors"
    weight, other = model_of(), model_of()
    optimizer = trainer(params=[weight], optimizer=make)
    if kind is Nested:
        names = [one.decode() for one in optimizer._model.names()]
        assert names == [
            "parameter.0",
            *(f"optimizer.0.GG.{at}" for at in ("0.Q", 1, 2)),
            "optimizer.0.momentum_buffer",
        ]
    train_alone(optimizer, weight)
    optimizer.save_checkpoint(path)
    again = trainer(params=[other], optimizer=make)
    assert again.load_checkpoint(path) == 3 and torch.equal(other, weight)
    kept, loaded = statistics_of(optimizer), statistics_of(again)
    assert torch.equal(loaded["momentum_buffer"], kept["momentum_buffer"])
    assert [one.item() for one in loaded["GG"][1:]] == [4.0 * (at + 1) for at in range(1, kind.many)]
    assert loaded["GG"][0]["Q"] == kept["GG"][0]["Q"] == 4


def test_statistics_of_another_optimizer_are_not_taken_for_those_of_ours(trainer, tmp_path, caplog):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=functools.partial(torch.optim.RMSprop, lr=0.1, momentum=0.5))
    train_alone(optimizer, weight, epochs=1)
    optimizer.save_checkpoint(tmp_path / "state.safetensors")
    other = trainer(params=[model_of()], optimizer=KINDS["adam"])
    with pytest.raises(RuntimeError, match="another model or optimizer"):
        other.load_checkpoint(tmp_path / "state.safetensors")
    assert "it is of another optimizer" in caplog.text and other.local_epoch == 0


def test_loaded_statistics_are_those_that_are_averaged(trainer):
    weight = model_of(dtype=torch.bfloat16)
    options = dict(offload_optimizer=False, average_opt_statistics=("exp_avg",))
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"], **options)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0]["exp_avg"].fill_(3.0)
    optimizer.load_state_dict(state)
    optimizer.state_dict()
    assert torch.equal(statistics_of(optimizer)["exp_avg"], torch.full_like(weight, 3.0))


def test_an_optimizer_that_was_used_gets_what_it_lacks(trainer):
    weights = [model_of(), model_of()]
    used = torch.optim.Adam(weights, lr=0.1)
    loss_of(weights[0], 4).backward()
    used.step()
    used.zero_grad()
    assert weights[1] not in used.state
    before, kept = weights[0].detach().clone(), copy.deepcopy(used.state[weights[0]])
    optimizer = trainer(optimizer=used)
    assert torch.equal(weights[0], before) and torch.equal(weights[1], model_of())
    assert all(torch.equal(used.state[weights[0]][name], value) for name, value in kept.items())
    assert torch.equal(used.state[weights[1]]["exp_avg"], torch.zeros_like(before))
    (loss_of(weights[0], 16) + loss_of(weights[1], 16)).backward()
    optimizer.step(batch_size=16)
    assert optimizer.local_epoch == 1 and not torch.equal(weights[1], model_of())


@pytest.mark.parametrize("kind", [torch.optim.Adam, OwnAdam], ids=["of the library", "of the user's"])
def test_a_state_that_lacks_a_parameter_begins_it_with_zeros(trainer, kind):
    others, weights = [model_of(), model_of()], [model_of(), model_of()]
    other = torch.optim.Adam(others, lr=0.1)
    loss_of(others[0], 4).backward()
    other.step()
    other.zero_grad()
    optimizer = trainer(params=weights, optimizer=functools.partial(kind, lr=0.1))
    with torch.no_grad():
        weights[0].copy_(others[0])
    optimizer.load_state_dict(copy.deepcopy(other.state_dict()))
    for models, one, told in ((others, other, {}), (weights, optimizer, dict(batch_size=16))):
        (loss_of(models[0], 16) + loss_of(models[1], 16)).backward()
        one.step(**told)
    assert optimizer.local_epoch == 1 and optimizer.opt.state[optimizer._model.stepped[1]]["step"] == 1
    for one, model in zip(weights, others):
        assert torch.allclose(one, model, atol=1e-6)


def of_sizes(*sizes, dtype=torch.float32):
    return [torch.nn.Parameter(torch.full((size,), 0.5, dtype=dtype, device=DEVICE)) for size in sizes]


def stepped(optimizer):
    """An optimizer of torch, after a step by gradients of ones."""
    for group in optimizer.param_groups:
        for one in group["params"]:
            one.grad = torch.ones_like(one)
    optimizer.step()
    return optimizer


def unchanged(optimizer, weights, before):
    """Whether a model of halves, and its optimizer, are as they were."""
    now = optimizer.state_dict()
    same = [
        torch.equal(torch.as_tensor(now["state"][at][name]), torch.as_tensor(value))
        for at, kept in before["state"].items()
        for name, value in kept.items()
    ]
    return (
        all(same)
        and now["param_groups"] == before["param_groups"]
        and all(torch.equal(one, torch.full_like(one, 0.5)) for one in weights)
    )


@pytest.mark.parametrize("kind", ["momentum", "amsgrad", "adamw", "rmsprop", "adagrad"])
def test_a_state_of_another_shape_is_refused(trainer, kind):
    weights = of_sizes(4, 4096)
    optimizer = trainer(params=weights, optimizer=KINDS[kind])
    before = copy.deepcopy(optimizer.state_dict())
    other = stepped(KINDS[kind](of_sizes(4096, 4)))
    with pytest.raises(ValueError, match=r"of parameter 0 has the shape \(4096,\), and ours \(4,\)"):
        optimizer.load_state_dict(other.state_dict())
    assert unchanged(optimizer, weights, before)


def test_a_statistic_of_another_shape_that_settings_bring_is_refused(trainer):
    weights = of_sizes(4)
    optimizer = trainer(params=weights, optimizer=SGD)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="momentum_buffer of parameter 0"):
        optimizer.load_state_dict(stepped(KINDS["momentum"](of_sizes(3))).state_dict())
    assert unchanged(optimizer, weights, before)


def test_averaged_statistics_of_another_shape_are_refused(trainer):
    weights = of_sizes(4)
    optimizer = trainer(params=weights, optimizer=KINDS["adamax"], average_opt_statistics=("exp_avg",))
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="exp_avg of parameter 0"):
        optimizer.load_state_dict(stepped(KINDS["adamax"](of_sizes(1))).state_dict())
    assert unchanged(optimizer, weights, before)


def test_copies_of_parameters_of_another_shape_are_refused(trainer):
    weights = of_sizes(4, dtype=torch.bfloat16)
    optimizer = trainer(params=weights, optimizer=KINDS["adam"])
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match="masters are of another model"):
        optimizer.load_state_dict({**copy.deepcopy(before), "masters": [torch.zeros(1)]})
    assert unchanged(optimizer, weights, before)


def test_an_optimizer_whose_statistics_have_another_shape_steps_by_itself(trainer):
    used = stepped(KINDS["adam"]([model_of()]))
    statistics_of(used)["exp_avg"] = torch.zeros(3, device=DEVICE)
    optimizer = trainer(optimizer=used)
    loss_of(used.param_groups[0]["params"][0], 16).backward()
    with pytest.raises(RuntimeError, match="size"):
        optimizer.step(batch_size=16)


NO_COUNTS = [-1.0, 2e15, float("nan"), float("inf")]


@pytest.mark.parametrize("steps", NO_COUNTS)
@pytest.mark.parametrize("kind", ["adam", "a class of the user's"])
def test_a_number_of_steps_that_is_none_is_refused(trainer, kind, steps):
    """Of a donor, or a file, which the library hands over; and of the user."""
    weight = of_sizes(6)
    optimizer = trainer(params=weight, optimizer=KINDS[kind])
    before = copy.deepcopy(optimizer.state_dict())
    metadata, tensors, _ = optimizer._current_state()
    tensors = [torch.full_like(one, steps if one.dim() == 0 else 9.0, device="cpu") for one in tensors]
    given = [cohive._model._described(one, "NONE") for one in tensors]
    assert re.search("how often|not finite", optimizer._model.load(metadata, [one.tensor for one in given]))
    state = copy.deepcopy(before)
    state["state"][0]["step"].fill_(steps)
    with pytest.raises(ValueError, match="no number of steps for parameter 0"):
        optimizer.load_state_dict(state)
    assert unchanged(optimizer, weight, before)


REFUSED_LATER = {
    "maximize": (dict(maximize=True), "adam", "the setting maximize"),
    "differentiable": (dict(differentiable=True), "momentum", "the setting differentiable"),
    "Adam as AdamW": (dict(decoupled_weight_decay=True), "adam", "the setting decoupled_weight_decay"),
    "AdamW as Adam": (dict(decoupled_weight_decay=False), "adamw", "the setting decoupled_weight_decay"),
    "momentum that has begun without": (dict(momentum=0.9), "sgd", "momentum_buffer of parameter 0"),
}


@pytest.mark.parametrize("case", REFUSED_LATER)
def test_a_setting_that_the_librarys_steps_do_not_have_is_refused_later(trainer, case):
    change, kind, sentence = REFUSED_LATER[case]
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS[kind])
    loss_of(weight, 16).backward()
    before = {name: optimizer.param_groups[0].get(name) for name in change}
    optimizer.param_groups[0].update(change)
    with pytest.raises(RuntimeError, match=f"{sentence} as it is now: set it when the optimizer is made"):
        optimizer.step(batch_size=16)
    assert torch.equal(weight, model_of()) and optimizer.local_epoch == 0
    optimizer.param_groups[0].update(before)
    optimizer.step(batch_size=16)
    assert optimizer.local_epoch == 1 and not torch.equal(weight, model_of())


def test_a_state_with_such_a_setting_changes_nothing(trainer):
    weights = of_sizes(4)
    optimizer = trainer(params=weights, optimizer=KINDS["adam"])
    before = copy.deepcopy(optimizer.state_dict())
    other = stepped(torch.optim.Adam(of_sizes(4), lr=0.3, maximize=True)).state_dict()
    with pytest.raises(RuntimeError, match="the setting maximize as it is now: set it when the optimizer is made"):
        optimizer.load_state_dict(other)
    assert unchanged(optimizer, weights, before)


@pytest.mark.parametrize("kind, makes", [(torch.optim.Adam, torch.optim.AdamW), (torch.optim.AdamW, torch.optim.Adam)])
def test_a_state_of_adam_is_one_for_adamw(trainer, kind, makes):
    optimizer = trainer(params=of_sizes(4), optimizer=functools.partial(kind, lr=0.1))
    other = stepped(makes(of_sizes(4), lr=0.3)).state_dict()
    if kind is torch.optim.Adam and "decoupled_weight_decay" in other["param_groups"][0]:
        with pytest.raises(RuntimeError, match="the setting decoupled_weight_decay"):
            optimizer.load_state_dict(other)
    else:
        optimizer.load_state_dict(other)
        assert statistics_of(optimizer)["step"] == 1 and optimizer.param_groups[0]["lr"] == 0.3


@pytest.mark.parametrize("kind", ["adam", "a class of the user's"])
@pytest.mark.parametrize("when", ["pre", "post"])
def test_a_hook_that_comes_later_is_called_or_refused(trainer, kind, when):
    weight, called = model_of(), []
    optimizer = trainer(params=[weight], optimizer=KINDS[kind])
    hook = getattr(optimizer.opt, f"register_step_{when}_hook")(lambda *_: called.append(when))
    loss_of(weight, 16).backward()
    if kind == "adam":
        with pytest.raises(RuntimeError, match="the list of its hooks as it is now: set it when the optimizer is made"):
            optimizer.step(batch_size=16)
        hook.remove()
    optimizer.step(batch_size=16)
    assert optimizer.local_epoch == 1 and called == ([] if kind == "adam" else [when])


def test_a_statistic_that_is_replaced_by_one_of_another_shape_is_refused(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"])
    for name, value in (
        ("exp_avg", torch.zeros(3)),
        ("step", torch.zeros(0)),
        ("step", torch.zeros((), dtype=torch.int64)),
    ):
        before = statistics_of(optimizer.opt)[name]
        statistics_of(optimizer.opt)[name] = value
        with pytest.raises(RuntimeError, match=f"{name} of parameter 0 as it is now"):
            optimizer._describe()
        statistics_of(optimizer.opt)[name] = before
    optimizer._describe()


ENDS_A_STATISTIC = {
    "momentum of RMSprop": (functools.partial(torch.optim.RMSprop, momentum=0.9, centered=True), dict(momentum=0)),
    "centering of RMSprop": (functools.partial(torch.optim.RMSprop, momentum=0.9, centered=True), dict(centered=False)),
    "momentum of SGD": (functools.partial(torch.optim.SGD, momentum=0.9), dict(momentum=0)),
    "amsgrad of Adam": (functools.partial(torch.optim.Adam, amsgrad=True), dict(amsgrad=False)),
}


@pytest.mark.parametrize("case", ENDS_A_STATISTIC)
def test_a_setting_may_end_the_use_of_a_statistic(trainer, case):
    kind, change = ENDS_A_STATISTIC[case]
    make = functools.partial(kind, lr=0.01)
    weights = [model_of(), model_of()]
    optimizer, other = trainer(params=weights[:1], optimizer=make), make(weights[1:])
    weights[1].grad = torch.zeros_like(weights[1])
    other.step()  # makes its tensors, as the other one has
    for epoch in range(5):
        if epoch == 2:
            optimizer.param_groups[0].update(change)
            other.param_groups[0].update(change)
        for one, weight, told in ((optimizer, weights[0], dict(batch_size=16)), (other, weights[1], {})):
            one.zero_grad()
            loss_of(weight, 16).backward()
            one.step(**told)
    assert optimizer.local_epoch == 5 and torch.allclose(*weights, rtol=1e-4, atol=1e-5)
    ours, theirs = statistics_of(optimizer.opt), statistics_of(other)
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, rtol=1e-4, atol=1e-5), name


def sequential(optimizer):
    parts = [lambda epoch: 0.5**epoch, lambda epoch: 0.5 ** (epoch + 2)]
    parts = [torch.optim.lr_scheduler.LambdaLR(optimizer, one) for one in parts]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])


def chained(optimizer):
    parts = [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma) for gamma in (0.25, 2.0)]
    return torch.optim.lr_scheduler.ChainedScheduler(parts)


#: that halve the rate in each epoch
SCHEDULES = [
    sequential,
    chained,
    functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5),
    functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 0.5**epoch),
    functools.partial(torch.optim.lr_scheduler.MultiStepLR, milestones=[1, 2, 3, 4, 5], gamma=0.5),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_goes_on_from_a_saved_state(trainer, schedule):
    weights = [model_of(), model_of()]
    saved, again = (trainer(params=[one], optimizer=KINDS["adam"], scheduler=schedule) for one in weights)
    train_alone(saved, weights[0], epochs=3)
    assert saved.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)
    state = copy.deepcopy(saved.state_dict())
    again.load_state_dict(state)
    assert again.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)
    for size in SIZES:
        loss_of(weights[1], size).backward()
        again.step(batch_size=size)
        again.zero_grad()
    assert again.local_epoch == 4 and again.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**4)
    again.load_state_dict(state)  # of an epoch that it has left
    assert again.scheduler.last_epoch == 3 and again.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)
    again.scheduler.step()
    assert again.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**4)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_goes_back_to_the_epoch_of_a_file(trainer, schedule, tmp_path):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"], scheduler=schedule)
    train_alone(optimizer, weight, epochs=1)
    optimizer.save_checkpoint(tmp_path / "state.safetensors")
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5)
    for epoch in (2, 3, 4):
        loss_of(weight, 16).backward()
        optimizer.step(batch_size=16)
        assert optimizer.local_epoch == epoch
    for _ in range(2):
        assert optimizer.load_checkpoint(tmp_path / "state.safetensors") == 1
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5)
        for epoch in (2, 3):
            loss_of(weight, 16).backward()
            optimizer.step(batch_size=16)
            assert optimizer.local_epoch == epoch
            assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**epoch)


def test_a_schedule_with_restarts_has_the_rates_that_torch_gives_it(trainer):
    schedule = functools.partial(torch.optim.lr_scheduler.CosineAnnealingWarmRestarts, T_0=2, T_mult=2)
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD, scheduler=schedule)
    plain = SGD([model_of()])
    expected = schedule(plain)
    for epoch in range(5):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(plain.param_groups[0]["lr"]), epoch
        loss_of(weight, 16).backward()
        optimizer.step(batch_size=16)
        optimizer.zero_grad()
        expected.step()


def test_a_step_that_is_delayed_has_the_rate_of_its_epoch(trainer):
    weight = model_of()
    schedule = functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda epoch: float(epoch == 0))
    delays = dict(delay_grad_averaging=True, delay_optimizer_step=True, delay_state_averaging=True)
    optimizer = trainer(params=[weight], optimizer=SGD, scheduler=schedule, **delays)
    loss_of(weight, 16).backward()
    optimizer.step(batch_size=16)
    optimizer.state_dict()
    other = model_of()
    loss_of(other, 16).backward()
    assert torch.allclose(weight, other - 0.1 * other.grad, atol=1e-6) and optimizer.local_epoch == 1


def test_a_state_that_the_inner_optimizer_has_loaded_is_stepped_with(trainer):
    weight, source = model_of(), model_of()
    saved = KINDS["adam"]([source])
    for _ in range(3):
        saved.zero_grad()
        loss_of(source, 16).backward()
        saved.step()
    inner = KINDS["adam"]([weight])
    optimizer = trainer(optimizer=inner)
    with torch.no_grad():
        weight.copy_(source)
    inner.load_state_dict(copy.deepcopy(saved.state_dict()))
    for one, of, told in ((optimizer, weight, dict(batch_size=16)), (saved, source, {})):
        one.zero_grad()
        loss_of(of, 16).backward()
        one.step(**told)
    assert torch.allclose(weight, source, atol=1e-6) and statistics_of(inner)["step"] == 4
    assert torch.allclose(statistics_of(inner)["exp_avg"], statistics_of(saved)["exp_avg"], atol=1e-6)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_is_at_once_in_an_epoch_that_no_run_has_come_to(schedule):
    optimizer = SGD([model_of()])
    scheduler, begin = schedule(optimizer), time.monotonic()
    optimizer.step()
    for epoch in (2**47, 2**47 + 1):
        cohive.optim.follow_epoch(scheduler, epoch)
        assert scheduler._step_count == epoch + 1
    assert time.monotonic() - begin < 5 and 0 <= optimizer.param_groups[0]["lr"] <= 0.1


# ---- With a peer


def run_both(*works):
    failures = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures and not any(thread.is_alive() for thread in threads), failures


MODES = {
    "synchronous": dict(delay_state_averaging=False),
    "state delayed": dict(),
    "step delayed": dict(delay_optimizer_step=True),
    "all delayed": dict(delay_optimizer_step=True, delay_grad_averaging=True),
    "reused": dict(reuse_grad_buffers=True, delay_state_averaging=False),
    "power sgd": dict(grad_averager_factory=functools.partial(cohive.PowerSGDGradientAverager, averager_rank=1)),
    "8 bits": dict(grad_compression=cohive.Uniform8BitQuantization()),
    "parameters as differences": dict(full_state_every=3),
    "a class of the user's": dict(optimizer=functools.partial(OwnAdam, lr=0.05), delay_state_averaging=False),
    "local steps": dict(use_local_updates=True, outer_lr=0.7, outer_momentum=0.5, delay_state_averaging=False),
    "local steps in the background": dict(use_local_updates=True, outer_lr=0.7, outer_momentum=0.5),
    "local steps that fit the links": dict(use_local_updates=True, outer_lr=0.7, outer_momentum=0.5, fit_my_link=True),
    "local steps with few differences": dict(
        use_local_updates=True, outer_lr=0.7, outer_codec="sparse2", outer_aggregation="mean-of-senders"
    ),
    "local steps of the user's": dict(
        use_local_updates=True, outer_lr=1.0, outer_nesterov=False, optimizer=functools.partial(OwnAdam, lr=0.05)
    ),
}


@pytest.mark.parametrize("mode", MODES)
def test_peers_step_together(swarm, mode):
    peers, epochs, groups = swarm(2), 4, [[], []]
    models = [model_of(), model_of()]
    made = [
        Optimizer(
            dht=dht,
            **{
                **QUICK,
                "target_batch_size": 64,
                "batch_size_per_step": 4,
                "params": [model],
                "optimizer": functools.partial(torch.optim.Adam, lr=0.05),
                "delay_state_averaging": True,
                **MODES[mode],
            },
        )
        for dht, model in zip(peers, models)
    ]

    def train(at):
        optimizer, model = made[at], models[at]
        optimizer.load_state_from_peers()
        while optimizer.local_epoch < epochs:
            loss_of(model, 4 + at).backward()
            optimizer.step()
            if not optimizer.reuse_grad_buffers:
                optimizer.zero_grad()
            report = optimizer.last_report
            groups[at].append(max(report.grad_group, report.state_group))
            time.sleep(0.02)
        optimizer.finish()

    run_both(lambda: train(0), lambda: train(1))
    assert max(groups[0]) == max(groups[1]) == 2, groups
    assert torch.allclose(models[0], models[1], atol=1e-5)
    assert not torch.allclose(models[0], model_of(), atol=1e-2)
    for one in made:
        one.shutdown()
        assert not one.is_alive() and not one.tracker.is_alive() and one.local_epoch >= epochs


def test_rounds_that_fit_the_links_begin_with_five_hundred_batches(swarm):
    model = model_of()
    options = dict(QUICK, optimizer=KINDS["adam"], use_local_updates=True, outer_lr=0.7, fit_my_link=True)
    alone = Optimizer(dht=swarm(1)[0], params=[model], batch_size_per_step=4, **options)
    model.grad = torch.ones_like(model)
    alone.step()
    assert alone.tracker.global_progress.target_batch_size == 500 * 4
    alone.shutdown()


def test_a_newcomer_takes_the_state_of_local_steps(swarm):
    peers = swarm(2)
    options = dict(QUICK, target_batch_size=16, optimizer=KINDS["adam"], use_local_updates=True, outer_lr=0.7)
    old, new = model_of(), model_of(7.0)
    first = Optimizer(dht=peers[0], params=[old], **options)
    train_alone(first, old)
    second = Optimizer(dht=peers[1], params=[new], **options)
    end = time.monotonic() + PATIENCE
    while second.local_epoch < 3 and time.monotonic() < end:
        second.load_state_from_peers()
        time.sleep(0.1)
    assert second.local_epoch == 3 and torch.allclose(new, old)
    assert torch.equal(statistics_of(second)["exp_avg_sq"], statistics_of(first)["exp_avg_sq"])
    first.shutdown()
    second.shutdown()


def test_who_shares_no_state_is_asked_for_none(swarm, caplog):
    peers = swarm(2)
    options = dict(QUICK, target_batch_size=16, optimizer=SGD, delay_state_averaging=False)
    alone = dict(QUICK["averager_opts"], allow_state_sharing=False)
    old, new = model_of(), model_of(7.0)
    first = Optimizer(dht=peers[0], params=[old], **{**options, "averager_opts": alone})
    train_alone(first, old)
    second = Optimizer(dht=peers[1], params=[new], **options)
    end, told = time.monotonic() + PATIENCE, "others report for run run, and none of them shares a state"
    while told not in caplog.text and time.monotonic() < end:
        assert second.load_state_from_peers() is False
        time.sleep(0.1)
    assert told in caplog.text, "the run is known"
    assert second.local_epoch == 0 and torch.equal(new, model_of(7.0))
    first.shutdown()
    second.shutdown()


class Counting(torch.optim.SGD):
    """One that keeps a number of Python beside its tensors, as Adafactor of transformers does."""

    number = "taken"

    def step(self, closure=None):
        loss = super().step(closure)
        for one in self.param_groups[0]["params"]:
            self.state[one][self.number] = self.state[one].get(self.number, 0) + 1
        return loss


class CountingSteps(Counting):
    number = "step"


def test_a_newcomer_takes_the_numbers_that_an_optimizer_keeps(swarm):
    make = functools.partial(Counting, lr=0.1, momentum=0.9)
    options = dict(QUICK, target_batch_size=16, optimizer=make, delay_state_averaging=False)
    old, new = model_of(), model_of(7.0)
    peers = swarm(2)
    first = Optimizer(dht=peers[0], params=[old], **options)
    train_alone(first, old)
    second = Optimizer(dht=peers[1], params=[new], **options)
    end = time.monotonic() + PATIENCE
    while second.local_epoch < 3 and time.monotonic() < end:
        second.load_state_from_peers()
        time.sleep(0.1)
    assert second.local_epoch == 3 and torch.equal(new, old)
    assert statistics_of(second)["taken"] == statistics_of(first)["taken"] == 4
    first.shutdown()
    second.shutdown()


def test_numbers_of_another_state_are_not_taken(trainer):
    optimizer = trainer(params=[model_of()], optimizer=functools.partial(Counting, lr=0.1, momentum=0.9))
    *settings, buffer, taken = optimizer._current_state()[0]["optimizer_metadata"]
    assert (buffer["type"], taken) == ("tensor", dict(type="value", value=1))
    wrong = [None, 5, "state", {}, [], [taken], [taken, buffer], [None, taken], [buffer, dict(type="value")]]
    values = (float("nan"), float("inf"), 2.5, True, None, "2", b"", [2], {"a": 2}, (2,))
    for told in [*wrong, *([*settings, buffer, dict(taken, value=value)] for value in values)]:
        optimizer._model._load_numbers(told)
        assert statistics_of(optimizer)["taken"] == 1, told
    for value, told in ((7, settings), (8, settings[1:])):  # settings depend on the release of torch
        optimizer._model._load_numbers([*told, buffer, dict(taken, value=value)])
        assert statistics_of(optimizer)["taken"] == value


def test_a_number_of_steps_beside_the_tensors_is_one(trainer):
    optimizer = trainer(params=[model_of()], optimizer=functools.partial(CountingSteps, lr=0.1, momentum=0.9))
    *settings, buffer, step = optimizer._current_state()[0]["optimizer_metadata"]
    for value, taken in ((-1, 1), (2**60, 1), (7, 7)):
        optimizer._model._load_numbers([*settings, buffer, dict(step, value=value)])
        assert statistics_of(optimizer)["step"] == taken


def test_a_newcomer_takes_the_state(swarm):
    peers = swarm(2)
    options = dict(QUICK, target_batch_size=16, optimizer=KINDS["adam"], delay_state_averaging=False)
    schedule = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    old, new = model_of(), model_of(7.0)
    extras = [torch.full((3,), 5.0, device=DEVICE), torch.zeros(3, device=DEVICE)]
    first = Optimizer(dht=peers[0], params=[old], extra_tensors=extras[:1], scheduler=schedule, **options)
    train_alone(first, old)
    second = Optimizer(dht=peers[1], params=[new], extra_tensors=extras[1:], scheduler=schedule, **options)
    end = time.monotonic() + PATIENCE
    while second.local_epoch < 3 and time.monotonic() < end:
        second.load_state_from_peers()
        time.sleep(0.1)
    assert second.local_epoch == 3 and torch.equal(new, old) and torch.equal(extras[1], extras[0])
    assert torch.equal(statistics_of(second)["exp_avg_sq"], statistics_of(first)["exp_avg_sq"])
    assert statistics_of(second)["step"] == statistics_of(first)["step"] == 4
    assert second.param_groups[0]["lr"] == pytest.approx(0.0125)
    first.shutdown()
    second.shutdown()


HALVES = cohive.Float16Compression()


@contextlib.contextmanager
def donor_and_newcomer(swarm, compression, value, gradient):
    """Two optimizers with Adam, of which the second has the state that the first has come to in three steps."""
    peers = swarm(2)
    options = dict(QUICK, target_batch_size=4, optimizer=KINDS["adam"], delay_state_averaging=False)
    options.update(load_state_compression=compression)
    old = model_of(value)
    first = Optimizer(dht=peers[0], params=[old], **options)
    for _ in range(3):
        old.grad = torch.full_like(old, gradient)
        first.step(batch_size=4)
    second = Optimizer(dht=peers[1], params=[model_of(7.0)], **options)
    end = time.monotonic() + PATIENCE
    while second.local_epoch < 3 and time.monotonic() < end:
        second.load_state_from_peers()
        time.sleep(0.1)
    assert second.local_epoch == 3
    yield first, second
    first.shutdown()
    second.shutdown()


def test_statistics_come_to_a_newcomer_as_they_are(swarm):
    """In halves squares of small gradients are nothing, and a step that is divided by their root is far too long."""
    with donor_and_newcomer(swarm, HALVES, 0.5, 1e-5) as (first, second):
        (old,), (new,) = (one.param_groups[0]["params"] for one in (first, second))
        assert torch.equal(new, old.half().float())
        for name in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(statistics_of(second)[name], statistics_of(first)[name])
        assert statistics_of(second)["exp_avg_sq"].min() > 0


def test_statistics_that_a_rule_names_travel_in_its_codec(swarm):
    rule = cohive.RoleAdaptiveCompression(optimizer=HALVES)
    with donor_and_newcomer(swarm, rule, 1 / 3, 1 / 3) as (first, second):
        (old,), (new,) = (one.param_groups[0]["params"] for one in (first, second))
        assert torch.equal(new, old), "of parameters the rule says nothing"
        for name in ("exp_avg", "exp_avg_sq"):
            sent = statistics_of(first)[name]
            halves = sent.half().float()
            assert torch.equal(statistics_of(second)[name], halves) and not torch.equal(sent, halves)


RULES = {
    "one for all": (HALVES, False),
    "by size": (cohive.SizeAdaptiveCompression(1, HALVES, HALVES), False),
    "of another role": (cohive.RoleAdaptiveCompression(parameter=HALVES), False),
    "of what is left": (cohive.RoleAdaptiveCompression(parameter=HALVES, default=HALVES), False),
    "by role": (cohive.RoleAdaptiveCompression(optimizer=HALVES, default=HALVES), True),
    "by role and size": (
        cohive.RoleAdaptiveCompression(optimizer=cohive.SizeAdaptiveCompression(1, HALVES, HALVES)),
        True,
    ),
    "by key": (cohive.PerTensorCompression([HALVES]), True),
    "by key and size": (cohive.SizeAdaptiveCompression(1, HALVES, cohive.PerTensorCompression([HALVES])), True),
}


@pytest.mark.parametrize("rule", RULES)
def test_statistics_travel_as_they_are_unless_a_rule_names_them(rule):
    compression, names = RULES[rule]
    statistic = dict(key=0, role=cohive.compression.TensorRole.OPTIMIZER)
    info = cohive.compression.CompressionInfo.from_tensor(torch.zeros(6), **statistic)
    assert cohive.compression.codec_of_state(compression, info).name == ("FLOAT16" if names else "NONE")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_statistics_are_made_usable(dtype):
    weight = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
    adam = stepped(torch.optim.Adam([weight]))
    kept = adam.state[weight]
    kept["exp_avg"], kept["exp_avg_sq"] = torch.ones(3, dtype=dtype), torch.tensor([-1.0, 1e-9, 4.0], dtype=dtype)
    cohive.optim.make_usable(adam)
    assert torch.equal(kept["exp_avg"], torch.tensor([0.0, 0.0, 1.0], dtype=dtype))
    assert torch.equal(kept["exp_avg_sq"], torch.tensor([0.0, 1e-9, 4.0], dtype=dtype))


def test_averages_below_zero_take_the_place_of_no_squares(swarm):
    models = [model_of(), model_of()]
    options = dict(QUICK, optimizer=KINDS["adam"], average_opt_statistics=("exp_avg_sq",), target_batch_size=1000)
    made = [Optimizer(dht=dht, params=[model], **options) for dht, model in zip(swarm(2), models)]
    for optimizer, value in zip(made, (4.0, -100.0)):
        statistics_of(optimizer)["exp_avg"].fill_(1.0)
        statistics_of(optimizer)["exp_avg_sq"].fill_(value)
    groups = [0, 0]

    def average(at):
        groups[at] = made[at].average_parameters()

    run_both(lambda: average(0), lambda: average(1))
    assert groups == [2, 2]
    assert torch.equal(statistics_of(made[0])["exp_avg_sq"], torch.full_like(models[0], 4.0))
    assert torch.equal(statistics_of(made[0])["exp_avg"], torch.ones_like(models[0]))
    assert torch.equal(statistics_of(made[1])["exp_avg_sq"], torch.zeros_like(models[1]))
    for one in made:
        one.shutdown()


def test_extra_tensors_and_statistics_are_averaged(swarm):
    peers = swarm(2)
    models, extras = [model_of(), model_of()], [torch.full((3,), value, device=DEVICE) for value in (1.0, 3.0)]
    made = [
        Optimizer(
            dht=dht,
            params=[model],
            optimizer=KINDS["adam"],
            extra_tensors=[extra],
            average_opt_statistics=("exp_avg",),
            target_batch_size=1000,
            **QUICK,
        )
        for dht, model, extra in zip(peers, models, extras)
    ]
    for optimizer, value in zip(made, (2.0, 6.0)):
        statistics_of(optimizer)["exp_avg"].fill_(value)
        statistics_of(optimizer)["exp_avg_sq"].fill_(value**2)
    groups = [0, 0]

    def average(at):
        groups[at] = made[at].average_parameters()

    run_both(lambda: average(0), lambda: average(1))
    assert groups == [2, 2]
    for optimizer, extra in zip(made, extras):
        assert torch.allclose(extra, torch.full_like(extra, 2.0))
        assert torch.allclose(statistics_of(optimizer)["exp_avg"].cpu(), torch.full((6,), 4.0))
        optimizer.shutdown()


def test_integers_beside_the_model_are_averaged_and_taken_over(swarm):
    peers, models = swarm(3), [model_of(), model_of(), model_of()]
    counters = [torch.tensor(value, device=DEVICE) for value in (3, 6, 0)]
    options = dict(QUICK, optimizer=SGD, target_batch_size=1000)
    made = [
        Optimizer(dht=dht, params=[model], extra_tensors=[counter], **options)
        for dht, model, counter in zip(peers[:2], models, counters)
    ]
    run_both(made[0].average_parameters, made[1].average_parameters)
    assert counters[0].dtype == torch.int64 and counters[0] == counters[1] and counters[0] in (4, 5)
    saved = counters[0].fill_(2**24 + 1).clone()  # what float32 does not hold
    made[1].shutdown()
    for _ in range(2):
        loss_of(models[0], 500).backward()
        made[0].step(batch_size=500)
    assert made[0].local_epoch == 1
    new = Optimizer(dht=peers[2], params=[models[2]], extra_tensors=[counters[2]], **options)
    end = time.monotonic() + PATIENCE
    while new.local_epoch < 1 and time.monotonic() < end:
        new.load_state_from_peers()
        time.sleep(0.1)
    assert torch.equal(counters[2], saved) and torch.equal(counters[0], saved)
    for one in (made[0], new):
        one.shutdown()


@pytest.mark.parametrize("dtype, offload", [(torch.float32, None), (torch.bfloat16, False), (torch.bfloat16, True)])
def test_local_updates_step_in_every_batch(trainer, dtype, offload):
    weight = model_of(dtype=dtype)
    options = dict(use_local_updates=True, target_batch_size=8, offload_optimizer=offload)
    optimizer = trainer(params=[weight], optimizer=SGD, **options)
    other = model_of()
    local = SGD([other])
    for _ in range(4):
        for one, model in ((optimizer, weight), (local, other)):
            one.zero_grad()
            loss_of(model, 4).backward()
        optimizer.step(batch_size=4)
        local.step()
        assert torch.allclose(weight.float(), other, rtol=1e-5 if dtype == torch.float32 else 2e-2)
    assert optimizer.local_epoch == 2 and optimizer.grad_averager is None


def test_a_batch_that_is_not_finite_takes_no_local_step(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD, use_local_updates=True, target_batch_size=8)
    before = weight.detach().clone()
    (weight * math.nan).sum().backward()
    optimizer.step(batch_size=4)
    assert torch.equal(weight, before)
    for epoch in (0, 1):
        optimizer.zero_grad()
        loss_of(weight, 4).backward()
        optimizer.step(batch_size=4)
        assert optimizer.local_epoch == epoch, "the first batch does not count"
    assert not torch.equal(weight, before) and bool(torch.isfinite(weight).all())


# ---- Scaled losses


def test_a_scaled_loss_makes_the_same_step(trainer):
    for reuse in (False, True):
        weight, scaler = model_of(), GradScaler(DEVICE, init_scale=1024.0)
        optimizer = trainer(params=[weight], optimizer=SGD, reuse_grad_buffers=reuse, batch_size_per_step=4)
        for _ in range(4):
            scaler.scale(loss_of(weight, 4)).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            if not reuse:
                optimizer.zero_grad()
        other = model_of()
        loss_of(other, 4).backward()
        assert torch.allclose(weight, other - 0.1 * other.grad, atol=1e-6)


def test_a_batch_that_overflows_does_not_count(trainer):
    weight, scaler = model_of(), GradScaler(DEVICE, init_scale=1024.0)
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=4)
    (weight * float("inf")).sum().backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0 and optimizer.local_progress.samples_accumulated == 0
    assert torch.equal(weight, model_of())


def test_sums_begin_anew_after_a_batch_that_overflows(trainer):
    weight, scaler = model_of(), GradScaler(DEVICE, init_scale=1024.0)
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=4, reuse_grad_buffers=True)
    for factor in (100.0, float("inf"), 1.0, 1.0, 1.0, 1.0):
        scaler.scale(factor * loss_of(weight, 4)).backward()
        scaler.step(optimizer)
        scaler.update()
    other = model_of()
    loss_of(other, 4).backward()
    assert optimizer.local_epoch == 1 and torch.allclose(weight, other - 0.1 * other.grad, atol=1e-6)


def test_without_a_scaler_a_batch_that_overflows_costs_the_epoch(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=4)
    for batch in range(4):
        loss_of(weight, 4).mul(float("inf") if batch == 1 else 1.0).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.local_epoch == 1 and torch.equal(weight, model_of())
    loss_of(weight, 4).backward()
    optimizer.step(batch_size=16)
    assert optimizer.local_epoch == 2 and not torch.equal(weight, model_of())


def test_the_scaler_of_torch_is_taken(trainer):
    weight, scaler = model_of(), torch.amp.GradScaler(DEVICE, init_scale=64.0)
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=16)
    scaler.scale(loss_of(weight, 16)).backward()
    scaler.step(optimizer)
    scaler.update()
    other = model_of()
    loss_of(other, 16).backward()
    assert torch.allclose(weight, other - 0.1 * other.grad, atol=1e-6)


def test_the_scaler_of_torch_is_heard_behind_a_wrapper(trainer):
    """As that of accelerate, which hides that step() takes a scaler: torch sets grad_scale and found_inf then."""
    weight, scaler = model_of(), torch.amp.GradScaler(DEVICE, init_scale=64.0)
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=16)
    step = optimizer.step
    optimizer.step = lambda *given, **named: step(*given, **named)
    (weight * float("inf")).sum().mul(scaler.scale(torch.ones((), device=DEVICE))).backward()
    scaler.step(optimizer, None)
    scaler.update()
    assert scaler.get_scale() == 32.0 and optimizer.local_progress.samples_accumulated == 0
    other = model_of()
    for unscale in (False, True):
        optimizer.zero_grad()
        scaler.scale(loss_of(weight, 16)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer, None)
        scaler.update()
        (gradient,) = torch.autograd.grad(loss_of(other, 16), other)
        with torch.no_grad():
            other -= 0.1 * gradient
        assert torch.allclose(weight, other, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gradients_are_clipped_without_their_scale(trainer, dtype):
    weight, scaler = model_of(dtype=dtype), GradScaler(DEVICE, init_scale=1024.0)
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=8)
    for unscale in (True, False):  # both in one epoch
        scaler.scale(loss_of(weight, 8)).backward()
        if unscale:
            assert scaler.unscale_(optimizer) is True
            assert torch.nn.utils.clip_grad_norm_([weight], 0.5) > 0.5
            with pytest.raises(RuntimeError, match="already been called"):
                scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    (gradient,) = torch.autograd.grad(loss_of(other := model_of(), 8), other)
    mean = (gradient * (0.5 / gradient.norm()) + gradient) / 2
    assert torch.allclose(weight.float(), other - 0.1 * mean, atol=1e-6 if dtype == torch.float32 else 1e-2)


def test_sums_of_batches_keep_their_scale(trainer):
    weight, scaler = model_of(), GradScaler(DEVICE, init_scale=1024.0)
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=4, reuse_grad_buffers=True)
    scaler.scale(loss_of(weight, 4)).backward()
    before = weight.grad.clone()
    assert scaler.unscale_(optimizer) is False and torch.equal(weight.grad, before)


def test_an_optimizer_of_torch_has_the_same_scaler(trainer):
    weight, beside, scaler = model_of(), model_of(), GradScaler(DEVICE, init_scale=1024.0)
    optimizer, plain = trainer(params=[weight], optimizer=SGD, batch_size_per_step=4), SGD([beside])
    for batch in range(3):
        factor = float("inf") if batch == 1 else 1.0
        scaler.scale(loss_of(weight, 4) + factor * loss_of(beside, 4)).backward()
        for one in (optimizer, plain):
            scaler.step(one)
        scaler.update()
        for one in (optimizer, plain):
            one.zero_grad()
    assert scaler.get_scale() == 512.0
    other = model_of()
    for _ in range(2):
        (gradient,) = torch.autograd.grad(loss_of(other, 4), other)
        with torch.no_grad():
            other -= 0.1 * gradient
    assert torch.allclose(beside, other, atol=1e-6)


def test_a_batch_without_gradients_is_none_to_a_scaler(trainer):
    weight, scaler = model_of(), torch.amp.GradScaler(DEVICE, init_scale=64.0)
    optimizer = trainer(params=[weight], optimizer=SGD)
    scaler.scale(loss_of(weight, 16))
    optimizer.step(batch_size=16, grad_scaler=scaler)
    assert optimizer.local_epoch == 0 and torch.equal(weight, model_of())


@pytest.mark.parametrize("reuse", [False, True])
def test_a_batch_without_gradients_does_not_count(trainer, reuse):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD, reuse_grad_buffers=reuse)
    optimizer.step(batch_size=8)
    assert optimizer.local_progress.samples_accumulated == 0 and optimizer.local_epoch == 0
    loss_of(weight, 8).backward()
    optimizer.step(batch_size=16)
    other = model_of()
    loss_of(other, 8).backward()
    assert optimizer.local_epoch == 1 and torch.allclose(weight, other - 0.1 * other.grad, atol=1e-6)


# ---- Faults


def test_what_an_optimizer_raises_comes_out_of_step(trainer):
    class Failing(torch.optim.SGD):
        fails = False

        def step(self, closure=None):
            if self.fails:
                raise ArithmeticError("no step today")
            return super().step(closure)

    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=functools.partial(Failing, lr=0.1))
    optimizer.opt.fails = True
    loss_of(weight, 16).backward()
    with pytest.raises(ArithmeticError, match="no step today"):
        optimizer.step(batch_size=16)
    optimizer.opt.fails = False
    for _ in range(3):
        optimizer.step(batch_size=16)
    assert optimizer.local_epoch >= 2 and not torch.equal(weight, model_of())


INTERRUPTED = """
import sys, torch, cohive
dht = cohive.DHT(sys.argv[1:], start=True)
weight = torch.nn.Parameter(torch.zeros(3))
optimizer = cohive.Optimizer(dht=dht, run_id="run", target_batch_size=10**6, params=[weight],
                             optimizer=torch.optim.Adam, matchmaking_time=60, averaging_timeout=120,
                             batch_size_per_step=1)
print("waits", flush=True)
try:
    optimizer.average_parameters()
except KeyboardInterrupt:
    print("interrupted", flush=True)
optimizer.shutdown()
dht.shutdown()
"""


def test_ctrl_c_ends_a_wait(swarm, interrupt):
    interrupt(INTERRUPTED, str(swarm(1)[0].get_visible_maddrs()[0]), after=1, within=1)


def end(*_):
    sys.exit("told to end")


def give_up(*_):
    raise ArithmeticError("late")


@pytest.mark.parametrize(
    "number, handler, kind",
    [(signal.SIGTERM, end, SystemExit), (signal.SIGALRM, give_up, ArithmeticError)],
    ids=["SIGTERM", "SIGALRM"],
)
def test_what_a_handler_of_a_signal_raises_ends_a_wait(trainer, signalled, number, handler, kind):
    optimizer = trainer(params=[model_of()], optimizer=SGD, matchmaking_time=30, averaging_timeout=60)
    sent = signalled(number, handler)
    with pytest.raises(kind):
        optimizer.average_parameters()
    assert time.monotonic() - sent < 10
    assert signal.getsignal(number) is handler


def test_a_wait_goes_on_after_a_handler_that_returns(trainer, signalled):
    optimizer, called = trainer(params=[model_of()], optimizer=SGD, matchmaking_time=3), []

    def once(number, _):
        called.append(time.monotonic())
        signal.signal(number, signal.SIG_IGN)  # as programs do that end by themselves, unless one insists

    signalled(signal.SIGINT, once)
    assert optimizer.average_parameters() == 0, "nobody else is there"
    assert len(called) == 1 and time.monotonic() - called[0] > 1
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_handler_of_a_signal_leaves_the_call_that_it_has_interrupted_alone(trainer, signalled, tmp_path):
    optimizer = trainer(params=[model_of()], optimizer=SGD, matchmaking_time=3)
    path, refused = tmp_path / "state.safetensors", []

    def save_and_end(*_):
        calls = (optimizer.save_checkpoint, optimizer.step, optimizer.average_parameters)
        for call in (*calls, optimizer.state_dict, optimizer.shutdown):
            with pytest.raises(RuntimeError, match="a handler of a signal raises, as by sys.exit"):
                call(*([path] if call == optimizer.save_checkpoint else []))
            refused.append(call)
        sys.exit("told to end")

    signalled(signal.SIGTERM, save_and_end)
    with pytest.raises(SystemExit):
        optimizer.average_parameters()
    assert len(refused) == 5 and optimizer.is_alive() and not path.exists()
    optimizer.save_checkpoint(path)
    optimizer.shutdown()
    assert path.exists() and not optimizer.is_alive()


def test_a_signal_when_an_epoch_has_just_ended_leaves_no_half_of_it(trainer, monkeypatch):
    weight = model_of(dtype=torch.bfloat16)
    optimizer = trainer(params=[weight], optimizer=SGD, offload_optimizer=True, reuse_grad_buffers=True)
    call = optimizer._run.call

    def interrupted(function, *arguments):
        call(function, *arguments)
        if function is cohive._native.lib.cohive_trainer_step:
            raise KeyboardInterrupt

    monkeypatch.setattr(optimizer._run, "call", interrupted)
    loss_of(weight, 16).backward()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step(batch_size=16)
    assert optimizer.local_epoch == 1 and torch.equal(weight.grad, torch.zeros_like(weight))
    assert torch.equal(weight, optimizer._model.live[0].to(weight.dtype)) and not torch.equal(weight, model_of())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wait_that_is_interrupted_loses_no_sum_of_batches(trainer, signalled, dtype):
    weight, other = model_of(dtype=dtype), model_of(dtype=dtype)
    options = dict(reuse_grad_buffers=True, batch_size_per_step=4, matchmaking_time=3)
    optimizer = trainer(params=[weight], optimizer=SGD, **options)
    for batch in range(4):
        loss_of(weight, 4).backward()
        optimizer.step()
        if batch == 1:
            signalled(signal.SIGALRM, give_up)
            with pytest.raises(ArithmeticError):
                optimizer.average_parameters()
            assert torch.equal(weight.grad, torch.zeros_like(weight)), "the library has taken the sums"
    loss_of(other, 4).backward()
    assert optimizer.local_epoch == 1 and torch.equal(weight.grad, torch.zeros_like(weight))
    assert torch.allclose(weight, other - 0.1 * other.grad, rtol=1e-6 if dtype == torch.float32 else 1e-2)


def test_a_signal_in_the_step_of_an_epoch_costs_no_batch(trainer):
    class Signalling(torch.optim.SGD):
        is_told = False

        def step(self, closure=None):
            if self.is_told:
                signal.raise_signal(signal.SIGINT)
            return super().step(closure)

    weight = model_of(dtype=torch.bfloat16)
    options = dict(offload_optimizer=True, reuse_grad_buffers=True, batch_size_per_step=16)
    optimizer = trainer(params=[weight], optimizer=functools.partial(Signalling, lr=0.1), **options)
    optimizer.opt.is_told = True
    loss_of(weight, 16).backward()
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    optimizer.opt.is_told = False
    assert torch.equal(weight.grad, torch.zeros_like(weight)), "the epoch has ended, or its wait was interrupted"
    loss_of(weight, 16).backward()
    optimizer.step()
    assert optimizer.local_epoch == 2 and torch.equal(weight.grad, torch.zeros_like(weight))
    before = weight.detach().clone()
    assert torch.equal(before, optimizer._model.live[0].to(weight.dtype)) and not torch.equal(before, model_of())
    loss_of(weight, 16).backward()
    other = torch.nn.Parameter(before)
    loss_of(other, 16).backward()
    optimizer.step()
    assert torch.allclose(weight, other - 0.1 * other.grad, rtol=1e-2)


BAD = {
    "unknown in averager_opts": (dict(averager_opts=dict(request_timeot=1.0)), "did you mean request_timeout"),
    "delays": (dict(delay_grad_averaging=True, delay_optimizer_step=False), "delay_grad_averaging requires"),
    "target": (dict(target_batch_size=0), "at least 1"),
    "target that is no number": (dict(target_batch_size="4k"), "at least 1"),
    "local and reused": (dict(use_local_updates=True, reuse_grad_buffers=True), "reuse_grad_buffers"),
    "full states of outer steps": (
        dict(use_local_updates=True, outer_lr=0.7, full_state_every=4),
        "leave full_state_every out",
    ),
    "outer fragments alone": (dict(use_local_updates=True, outer_fragments=2), "go with outer_lr"),
    "more fragments than parameters": (dict(use_local_updates=True, outer_lr=0.7, outer_fragments=50), "fragments"),
    "outer momentum alone": (dict(use_local_updates=True, outer_momentum=0.5), "go with outer_lr"),
    "open_diloco alone": (dict(use_local_updates=True, open_diloco=True), "go with outer_lr"),
    "open_diloco and fragments": (
        dict(use_local_updates=True, outer_lr=0.7, open_diloco=True, outer_fragments=2),
        "OpenDiLoCo's trainers average the whole model",
    ),
    "open_diloco and links": (
        dict(use_local_updates=True, outer_lr=0.7, open_diloco=True, fit_my_link=True),
        "OpenDiLoCo's trainers agree on nothing",
    ),
    "outer codec alone": (dict(use_local_updates=True, outer_codec="sparse2"), "go with outer_lr"),
    "outer codec and momentum": (
        dict(use_local_updates=True, outer_lr=0.7, outer_momentum=0.5, outer_codec="sparse2"),
        "outer_optimizer.momentum to 0",
    ),
    "links without outer steps": (dict(use_local_updates=True, fit_my_link=True), "set outer_lr"),
    "nothing to fit": (
        dict(use_local_updates=True, outer_lr=0.7, fit_my_link=True, grad_compression=cohive.Uniform8BitQuantization()),
        "nothing to fit",
    ),
    "outer steps without local ones": (dict(outer_lr=0.7), "set use_local_updates"),
    "outer rate": (dict(use_local_updates=True, outer_lr=float("inf")), "outer_lr"),
    "outer steps and statistics": (
        dict(use_local_updates=True, outer_lr=0.7, average_opt_statistics=("exp_avg",)),
        "leave average_opt_statistics out",
    ),
    "resuming from nowhere": (dict(resume=True), "resume goes on from the newest checkpoint in checkpoint_dir"),
    "no checkpoint to keep": (dict(checkpoint_dir="/nowhere", checkpoint_keep=0), "checkpoint_keep"),
    "auxiliary with batches": (dict(auxiliary=True, batch_size_per_step=1), "Auxiliary"),
    "client and auxiliary": (dict(auxiliary=True, client_mode=True), "client_mode"),
    "matchmaking": (dict(matchmaking_time=0), "matchmaking_time"),
    "matchmaking without a limit": (dict(matchmaking_time=None), "matchmaking_time=None: a round has a limit"),
    "rounds without a limit": (dict(averaging_timeout=None), "averaging_timeout=None: a round has a limit"),
    "name": (dict(run_id="a/b\n"), "run_id"),
    "factory": (dict(grad_averager_factory=lambda **_: None), "PowerSGDGradientAverager"),
    "factory without rank": (dict(grad_averager_factory=cohive.PowerSGDGradientAverager), "averager_rank"),
    "no optimizer": (dict(optimizer=5), "two ways"),
    "duplicates": (dict(params="twice"), "duplicate"),
    "no parameters": (dict(params=[]), "empty parameter list"),
    "statistic": (dict(average_opt_statistics=("exp_avgg",)), "exp_avgg"),
    "statistic twice": (dict(average_opt_statistics=("exp_avg", "exp_avg")), "a name twice"),
    "plateau": (dict(scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau), "ReduceLROnPlateau"),
    "not a number": (dict(matchmaking_time=float("nan")), "matchmaking_time must be a finite number"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["reordered", "the model's own"])
def test_an_optimizer_of_other_parameters_gets_a_sentence(swarm, kind, dtype):
    weights = [model_of(dtype=dtype), model_of(dtype=dtype)]

    def regrouped(groups):
        own = weights if kind == "the model's own" else groups[0]["params"]
        own = own if kind == "the model's own" and dtype != torch.float32 else own[::-1]
        return SGD([dict(params=[one]) for one in own])

    options = dict(QUICK, params=weights, target_batch_size=16)
    with pytest.raises(ValueError, match="other parameters than its factory was given, or in another order"):
        Optimizer(dht=swarm(1)[0], optimizer=regrouped, **options)


@pytest.mark.parametrize("case", BAD)
def test_bad_options_get_a_sentence(swarm, case):
    given, sentence = BAD[case]
    weight = model_of()
    if given.get("params") == "twice":
        given = dict(given, params=[weight, weight])
    options = dict(QUICK, params=[weight], optimizer=torch.optim.Adam, target_batch_size=16)
    with pytest.raises(ValueError, match=sentence) as raised:
        Optimizer(dht=swarm(1)[0], **{**options, **given})
    assert str(raised.value).strip()
    assert torch.equal(weight, model_of()) and weight.grad is None


@pytest.mark.parametrize("keyword", ["averager_opts", "tracker_opts"])
def test_what_the_optimizer_takes_itself_is_given_once(swarm, keyword):
    options = dict(QUICK, params=[model_of()], optimizer=SGD, target_batch_size=16, bandwidth=1.0, dht=swarm(1)[0])
    for name in ("matchmaking_time", "target_batch_size", "outer_lr", "native_steps", "bandwidth"):
        with pytest.raises(TypeError, match=f"{keyword} got {name}, which Optimizer takes itself"):
            Optimizer(**{**options, keyword: {name: 5}})


def test_a_trainer_that_cannot_be_described_leaves_the_run(swarm, monkeypatch):
    ended, shutdown = [], Optimizer.shutdown
    monkeypatch.setattr(Optimizer, "shutdown", lambda self: (shutdown(self), ended.append(self)))
    groups = [dict(params=[model_of()], note={"no", "value"})]
    with pytest.raises(TypeError, match="'set'"):
        Optimizer(dht=swarm(1)[0], params=groups, optimizer=SGD, target_batch_size=16, **QUICK)
    assert len(ended) == 1 and not ended[0].is_alive()


def test_bad_calls_get_a_sentence(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD)
    with pytest.raises(ValueError, match="batch_size_per_step"):
        optimizer.step()
    for size in (0, -1, 1.5, "4"):
        with pytest.raises(ValueError, match="number of samples"):
            optimizer.step(batch_size=size)
    for epoch in (-1, 2**62, True, 1.0):
        with pytest.raises(ValueError, match="local_epoch"):
            optimizer.load_state_dict({**optimizer.opt.state_dict(), "local_epoch": epoch})
    optimizer.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        optimizer.step(batch_size=1)
    optimizer.shutdown()


def test_numbers_of_numpy_are_numbers(trainer_alone):
    numpy = pytest.importorskip("numpy", reason="no numpy here")
    weight = model_of()
    optimizer = trainer_alone(params=[weight], optimizer=SGD, target_batch_size=numpy.int64(16))
    loss_of(weight, 16).backward()
    optimizer.step(batch_size=numpy.int64(16))
    assert optimizer.local_epoch == 1 and type(optimizer.target_batch_size) is int


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["sgd", "a class of the user's"])
def test_rates_of_numpy_are_rates(trainer, kind, name):
    numpy = pytest.importorskip("numpy", reason="no numpy here")
    number = getattr(numpy, name)
    schedule = functools.partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda epoch: number(0.5) ** epoch)
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS[kind], scheduler=schedule)
    optimizer.param_groups[0]["lr"] = number(0.1)
    train_alone(optimizer, weight, epochs=2)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.025)


def test_a_parameter_is_no_extra_tensor(trainer):
    weight = model_of()
    with pytest.raises(ValueError, match="extra tensor 1 is a parameter"):
        trainer(params=[weight], optimizer=SGD, extra_tensors=[torch.zeros(2), weight])


@pytest.mark.parametrize("kind", [torch.bool, torch.complex64])
def test_extra_tensors_are_numbers(trainer, kind):
    with pytest.raises(TypeError, match="floating-point values or integers"):
        trainer(params=[model_of()], optimizer=SGD, extra_tensors=[torch.zeros(2, dtype=kind)])


def test_a_dht_that_is_left_ends_its_trainers(swarm):
    dht = swarm(1)[0]
    weight = model_of()
    optimizer = Optimizer(dht=dht, params=[weight], optimizer=SGD, target_batch_size=16, **QUICK)
    dht.shutdown()
    loss_of(weight, 4).backward()
    with pytest.raises(RuntimeError, match="shut down|left"):
        optimizer.step(batch_size=4)
    optimizer.shutdown()
