"""Averagers: rounds, states, and what bad input gets."""

import concurrent.futures
import functools
import gc
import math
import signal
import subprocess
import sys
import threading
import time
import types

import pytest

torch = pytest.importorskip("torch", reason="no torch here")

from cohive import (  # noqa: E402
    DHT,
    AllreduceException,
    AveragingStage,
    CompressionBase,
    CompressionInfo,
    DecentralizedAverager,
    Float16Compression,
    GradientAverager,
    NoCompression,
    ProgressTracker,
    SizeAdaptiveCompression,
    TrainingAverager,
    TrainingStateAverager,
    Uniform8BitQuantization,
    _events,
    _msgpack,
    get_dht_time,
)

QUICK = dict(min_matchmaking_time=1.0, request_timeout=0.8, prefix="run", start=True)


@pytest.fixture
def averagers(swarm):
    """averagers(TENSORS OF EACH, **options): one for each, in one swarm."""
    made = []

    def make(*tensors, kind=DecentralizedAverager, **options):
        peers = swarm(len(tensors))
        made.extend(kind(one, dht, **{**QUICK, **options}) for one, dht in zip(tensors, peers))
        return made

    yield make
    for one in made:
        one.shutdown()


def together(*calls):
    """Results of calls that run at once."""
    results = [None] * len(calls)

    def run(at):
        results[at] = calls[at]()

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_tensors_of_any_floating_type_are_averaged_in_place(averagers):
    kinds = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    tensors = [[torch.full((3, 2), float(value)).to(kind) for kind in kinds] for value in (1, 3)]
    tensors[0].append(torch.arange(6.0).reshape(2, 3).T)  # not in a row
    tensors[1].append(torch.zeros(3, 2))
    tensors[0].append(torch.empty(0))
    tensors[1].append(torch.empty(0))
    expected = tensors[0][4] / 2
    first, second = averagers(*tensors)
    gathered = together(lambda: first.step(gather={"a": 1}), lambda: second.step(gather=(2,)))
    assert gathered[0] == gathered[1] == {first.peer_id: {"a": 1}, second.peer_id: (2,)}
    for averager in (first, second):
        with averager.get_tensors() as averaged:
            for tensor, kind in zip(averaged, kinds):
                assert tensor.dtype == kind and torch.equal(tensor, torch.full((3, 2), 2.0, dtype=kind))
            assert torch.allclose(averaged[4], expected)
    assert tensors[0][0] is first._averaged_tensors[0]


class Odd:
    """What its writer can encode, and nobody else decode."""


@pytest.fixture
def odd(monkeypatch):
    monkeypatch.setitem(_msgpack._encoders, Odd, (0x51, lambda value: b"odd"))
    monkeypatch.setitem(_msgpack._decoders, 0x51, lambda data: 1 / 0)
    return Odd()


def test_what_a_member_gives_and_nobody_can_read_costs_no_round(averagers, odd):
    first, second = averagers([torch.zeros(4)], [torch.ones(4)])
    gathered = together(lambda: first.step(gather=1), lambda: second.step(gather=[odd]))
    assert gathered[0] == gathered[1] == {first.peer_id: 1, second.peer_id: None}
    for one in (first, second):
        with one.get_tensors() as tensors:
            assert torch.equal(tensors[0], torch.full((4,), 0.5))


def test_a_state_that_nobody_can_read_is_no_state(swarm, odd, caplog):
    class Shares(DecentralizedAverager):
        def get_current_state(self):
            return {"odd": odd}, [torch.zeros(3)]

    first, second = (Shares([torch.zeros(3)], dht, **QUICK) for dht in swarm(2))
    limit, told = time.monotonic() + 20, "do not decode"
    while told not in caplog.text and time.monotonic() < limit:
        assert second.load_state_from_peers(timeout=math.inf) is None
    assert told in caplog.text
    for one in (first, second):
        one.shutdown()


def test_weights_alpha_and_changes_meanwhile(averagers):
    first, second = averagers([torch.zeros(4)], [torch.full((4,), 4.0)], averaging_alpha=0.5)
    controls = [one.step(wait=False, require_trigger=True) for one in (first, second)]
    controls[0].weight = 3.0
    for control in controls:
        control.allow_allreduce()
    with first.get_tensors() as tensors:
        tensors[0][0] += 10  # after the trigger: kept
    for control in controls:
        control.result(30)
    with first.get_tensors() as tensors:
        assert torch.allclose(tensors[0], torch.tensor([10.5, 0.5, 0.5, 0.5]))
    with second.get_tensors() as tensors:
        assert torch.allclose(tensors[0], torch.full((4,), 2.5))


def test_steps_wait_for_each_other(averagers):
    first, second = averagers([torch.zeros(4)], [torch.ones(4)])
    steps = [[one.step(wait=False) for _ in range(3)] for one in (first, second)]
    for control in steps[0] + steps[1]:
        assert len(control.result(60)) == 2
        assert control.stage == AveragingStage.FINISHED


def test_stages_and_cancelling(averagers):
    first, second = averagers([torch.zeros(4)], [torch.ones(4)])
    controls = [one.step(wait=False, require_trigger=True) for one in (first, second)]
    limit = time.monotonic() + 20
    while controls[0].stage != AveragingStage.AWAITING_TRIGGER and time.monotonic() < limit:
        time.sleep(0.05)
    assert controls[0].stage == AveragingStage.AWAITING_TRIGGER and not controls[0].began_allreduce
    assert controls[0].cancel() and controls[0].cancelled()
    with first.get_tensors() as tensors:
        assert torch.equal(tensors[0], torch.zeros(4))
    controls[1].cancel()
    again = together(lambda: first.step(timeout=30), lambda: second.step(timeout=30))
    assert len(again[0]) == 2


@pytest.mark.parametrize("error", [ValueError("no copy today"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", ["step", "allow_allreduce"])
def test_a_hand_over_that_fails_ends_its_step(averagers, monkeypatch, call, error):
    first, second = averagers([torch.zeros(4)], [torch.ones(4)])
    hand_over, errors = first._hand_over, [error]
    monkeypatch.setattr(first, "_hand_over", lambda step: _raise(errors.pop()) if errors else hand_over(step))
    control = first.step(wait=False, require_trigger=True) if call == "allow_allreduce" else None
    with pytest.raises(type(error)):
        first.step(timeout=30) if control is None else control.allow_allreduce()
    if control is not None:
        assert control.exception(30) is error
    again = together(lambda: first.step(timeout=30), lambda: second.step(timeout=30))
    assert len(again[0]) == 2
    with first.get_tensors() as tensors:
        assert torch.equal(tensors[0], torch.full((4,), 0.5))


def _raise(error):
    raise error


def test_a_tensor_that_cannot_be_handed_over_ends_a_step_that_has_waited(averagers):
    (alone,) = averagers([torch.zeros(4)])
    before = alone.step(wait=False, require_trigger=True)
    waits = alone.step(wait=False)
    with alone.get_tensors() as tensors:
        tensors[0].resize_(5)
    before.cancel()
    with pytest.raises(RuntimeError, match="size"):
        waits.result(30)


def test_a_step_behind_one_that_is_never_triggered_has_a_deadline(averagers):
    (alone,) = averagers([torch.zeros(4)])
    before = alone.step(wait=False, require_trigger=True)
    waits = [alone.step(wait=False, timeout=timeout) for timeout in (60, math.inf, None)]
    begin = time.monotonic()
    with pytest.raises(AllreduceException, match="in an earlier step until the deadline: was that triggered"):
        alone.step(timeout=1.5)
    assert time.monotonic() - begin < 20 and not before.done()
    assert list(alone._steps) == [before, *waits] and [one._timer is None for one in waits] == [False, True, True]
    for control in (before, *waits):
        assert control.cancel() and control._timer is None
    timed_out = alone.step(timeout=1.5, wait=False)  # the next one begins
    with pytest.raises(AllreduceException, match="Averaging step failed"):
        timed_out.result(30)


def test_who_holds_the_tensors_begins_and_cancels_steps(averagers):
    (alone,) = averagers([torch.zeros(4)])
    cancelled = []

    def hold():
        with alone.get_tensors():
            steps = [alone.step(wait=False) for _ in range(2)]
            cancelled.append(steps[0].cancel())
            limit = time.monotonic() + 20
            while steps[1].stage == AveragingStage.IDLE and time.monotonic() < limit:
                time.sleep(0.01)  # the second one begins, and waits for the tensors
            cancelled.append(steps[1].cancel())

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    thread.join(40)
    assert not thread.is_alive() and cancelled == [True, True]


def test_a_result_that_is_being_written_is_not_cancelled(averagers, monkeypatch):
    first, second = averagers([torch.zeros(4)], [torch.ones(4)])
    apply, writes = first._apply, threading.Event()
    monkeypatch.setattr(first, "_apply", lambda before: (writes.set(), apply(before)))
    with first.get_tensors() as tensors:
        controls = [one.step(wait=False, timeout=30) for one in (first, second)]
        assert writes.wait(60) and not controls[0].cancel() and torch.equal(tensors[0], torch.zeros(4))
    assert len(controls[0].result(30)) == len(controls[1].result(30)) == 2
    with first.get_tensors() as tensors:
        assert torch.equal(tensors[0], torch.full((4,), 0.5))


def test_an_averager_that_is_dropped_leaves_nothing(swarm):
    (dht,), before = swarm(1), set(threading.enumerate())
    averager = DecentralizedAverager([torch.zeros(4)], dht, **QUICK)
    works = threading.Event()
    averager._worker.submit(works.set)
    assert works.wait(20)
    (worker,) = [one for one in set(threading.enumerate()) - before if one.name == "cohive-averager"]
    tag, states = averager._tag, _events.hub()._states
    assert tag in states
    del averager
    gc.collect()
    worker.join(20)
    assert tag not in states and not worker.is_alive()


def test_nobody_is_there(averagers):
    (alone,) = averagers([torch.zeros(4)])
    begin = time.monotonic()
    with pytest.raises(AllreduceException, match="Averaging step failed"):
        alone.step(timeout=2.0)
    assert time.monotonic() - begin < 20
    step = alone.step(wait=False, timeout=60)
    alone.shutdown()
    with pytest.raises((AllreduceException, concurrent.futures.CancelledError)):
        step.result(10)
    with pytest.raises(RuntimeError, match="shut down"):
        alone.step()


def test_states_go_from_one_to_the_other(swarm):
    metadata, state = {"x": 123}, (torch.randn(3), torch.randint(0, 5, (3,)), torch.tensor(True))

    class Shares(DecentralizedAverager):
        def get_current_state(self):
            return metadata, state

    dhts = swarm(2)
    first, second = (Shares([torch.zeros(3)], dht, **QUICK) for dht in dhts)
    limit = time.monotonic() + 20
    got = None
    while got is None and time.monotonic() < limit:
        got = second.load_state_from_peers(timeout=10)
    assert got[0] == metadata and all(torch.equal(ours, theirs) for ours, theirs in zip(got[1], state))
    assert [one.dtype for one in got[1]] == [one.dtype for one in state]
    assert second.load_state_from_peers(wait=False).result(20)[0] == metadata
    first.allow_state_sharing = False
    assert second.load_state_from_peers(timeout=5) is None
    for one in (first, second):
        one.shutdown()


def test_a_failing_state_is_no_state(swarm):
    asked = threading.Event()

    class Fails(DecentralizedAverager):
        def get_current_state(self):
            asked.set()
            raise RuntimeError("no state today")

    first, second = (Fails([torch.zeros(3)], dht, **QUICK) for dht in swarm(2))
    limit = time.monotonic() + 20
    while not asked.is_set() and time.monotonic() < limit:
        assert second.load_state_from_peers(timeout=1) is None
    assert asked.is_set()
    for one in (first, second):
        one.shutdown()


def test_group_bits(averagers):
    (alone,) = averagers([torch.zeros(3)], initial_group_bits="01")
    assert alone.get_group_bits() == "01"
    alone.set_group_bits("1101")
    assert alone.get_group_bits() == "1101" and alone.get_group_bits(wait=False).result() == "1101"
    with pytest.raises(ValueError):
        alone.set_group_bits("12")


@pytest.mark.parametrize(
    "options, kind, sentence",
    [
        (dict(prefix="a.b"), ValueError, "prefix"),
        (dict(prefix=""), ValueError, "prefix"),
        (dict(min_group_size=1), ValueError, "min_group_size must be an integer from 2 on"),
        (dict(initial_group_bits="012"), ValueError, "0 and 1"),
        (dict(request_timeout=5.0), ValueError, "request_timeout"),
        (dict(bandwidth=-1.0), ValueError, "bandwidth"),
        (dict(part_size_bytes=0), ValueError, "part_size_bytes"),
        (dict(client_mode=True, auxiliary=True), ValueError, "auxiliary peers"),
        (dict(client_mode=True, allow_state_sharing=True), ValueError, "client mode"),
        (dict(target_group_sise=4), TypeError, "target_group_sise"),
    ],
)
def test_options_that_cannot_be_meant(swarm, options, kind, sentence):
    (dht,) = swarm(1)
    with pytest.raises(kind, match=sentence):
        DecentralizedAverager([torch.zeros(3)], dht, **{**QUICK, **options})


def test_tensors_and_steps_that_cannot_be_meant(averagers, swarm):
    (dht,) = swarm(1)
    with pytest.raises(TypeError, match="int64"):
        DecentralizedAverager([torch.zeros(3, dtype=torch.int64)], dht, **QUICK)
    with pytest.raises(ValueError, match="leaf"):
        DecentralizedAverager([torch.zeros(3, requires_grad=True) * 2], dht, **QUICK)
    with pytest.raises(ValueError, match="needs tensors"):
        DecentralizedAverager([], dht, **QUICK)
    with pytest.raises(TypeError, match="cohive.DHT"):
        DecentralizedAverager([torch.zeros(3)], object(), **QUICK)
    alone = DecentralizedAverager([torch.zeros(3)], dht, **QUICK)
    times = (dict(scheduled_time=get_dht_time() + 9, timeout=5), dict(timeout=math.nan), dict(scheduled_time=math.nan))
    for wrong in (dict(weight=-1), dict(weight=math.nan), *times):
        with pytest.raises(ValueError):
            alone.step(**wrong)
    with pytest.raises(ValueError):
        alone.step(require_trigger=True)
    with pytest.raises(TypeError):
        alone.step(gather=object())
    alone.shutdown()


def test_gradients_weigh_by_their_samples(swarm):
    models = [torch.nn.Linear(2, 1, bias=False) for _ in range(2)]
    averagers = [GradientAverager(model.parameters(), dht=dht, **QUICK) for model, dht in zip(models, swarm(2))]
    for model, averager, samples in zip(models, averagers, (1, 3)):
        for _ in range(2):
            model.zero_grad()
            model(torch.full((1, 2), float(samples))).sum().backward()
            averager.accumulate_grads_(batch_size=samples)
        assert averager.local_samples_accumulated == 2 * samples and averager.local_times_accumulated == 2
    together(*(functools.partial(averager.step, timeout=math.inf) for averager in averagers))
    for model, averager in zip(models, averagers):
        own = model.weight.grad
        with averager.use_averaged_gradients():
            assert torch.allclose(model.weight.grad, torch.full((1, 2), (1 * 2 + 3 * 6) / 8))
        assert model.weight.grad is own and averager.local_samples_accumulated == 0
        with pytest.raises(ValueError):
            averager.accumulate_grads_(batch_size=0)
        averager.shutdown()


def test_a_training_averager_averages_and_hands_its_state_over(swarm):
    torch.manual_seed(1)
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.1) for model in models]
    options = dict(average_parameters=True, average_gradients=False, average_opt_statistics=["exp_avg"], **QUICK)
    averagers = [TrainingAverager(one, dht=dht, **options) for one, dht in zip(optimizers, swarm(2))]
    mean = (models[0].weight + models[1].weight) / 2
    together(*(averager.step for averager in averagers))
    assert torch.allclose(models[0].weight, mean) and torch.allclose(models[1].weight, mean)
    optimizers[0].param_groups[0]["lr"] = 0.5
    averagers[0].local_step = 7
    with torch.no_grad():
        models[0].weight.fill_(4.0)
    averagers[0].state_sharing_priority = 5
    assert averagers[1].load_state_from_peers(timeout=20) is not None
    assert averagers[1].local_step == 7 and torch.equal(models[1].weight, models[0].weight)
    assert optimizers[1].param_groups[0]["lr"] == 0.5
    for averager in averagers:
        averager.shutdown()


@pytest.fixture
def state_averager(swarm):
    """state_averager(PARAMETERS, **options): a TrainingStateAverager alone."""
    made = []

    def make(parameters, **options):
        made.append(TrainingStateAverager(dht=swarm(1)[0], params=parameters, **{**QUICK, **options}))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def test_a_step_waits_for_its_own_end(state_averager, monkeypatch):
    taken_over = threading.Event()

    class Slow(torch.optim.SGD):
        """Its second step gives whoever does not wait for it the time to go on."""

        counted = 0

        def step(self, closure=None):
            self.counted += 1
            if self.counted == 2:
                taken_over.wait(0.5)
            super().step(closure)

    weight = torch.nn.Parameter(torch.zeros(2))
    averager = state_averager([weight], optimizer=lambda of: Slow(of, lr=1.0), offload_optimizer=True)
    averager.optimizer.counted = 0

    def last_until_another_waits(control, timeout):
        limit = time.monotonic() + 20
        while len(averager.pending_updates) < 2 and time.monotonic() < limit:
            time.sleep(0.01)
        control.cancel()

    monkeypatch.setattr(averager, "_run_round", last_until_another_waits)
    weight.grad = torch.ones(2)
    averager.step(optimizer_step=True, averaging_round=True, delay_averaging=True)
    assert torch.equal(weight, torch.full((2,), -1.0))
    take_over = averager._apply_optimizer_parameters_
    monkeypatch.setattr(averager, "_apply_optimizer_parameters_", lambda: (take_over(), taken_over.set()))
    averager.step(optimizer_step=True, apply_delayed_updates=False)
    assert torch.equal(weight, torch.full((2,), -2.0))


def test_a_state_is_none_of_the_middle_of_a_step(state_averager):
    half_done, goes_on = threading.Event(), threading.Event()

    class InHalves(torch.optim.SGD):
        def step(self, closure=None):
            weights = self.param_groups[0]["params"]
            weights[0].data.add_(1)
            half_done.set()
            assert goes_on.wait(20)
            weights[1].data.add_(1)

    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    averager = state_averager(weights, optimizer=InHalves(weights, lr=1.0), initialize_optimizer=False)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        step = pool.submit(averager.step, optimizer_step=True)
        assert half_done.wait(20)
        state = pool.submit(averager.get_current_state)
        with pytest.raises(concurrent.futures.TimeoutError):
            state.result(0.2)
        goes_on.set()
        step.result(20)
        assert [float(tensor) for tensor in state.result(20)[1][:2]] == [1, 1]


ENDS_IN_A_ROUND = """
import cohive, sys, torch
optimizer, options = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0), dict(prefix="run", start=True)
if sys.argv[1] == "TrainingStateAverager":
    averager = cohive.TrainingStateAverager(dht=cohive.DHT(start=True), optimizer=optimizer, **options)
    averager.step(averaging_round=True, delay_averaging=True)
else:
    averager = cohive.TrainingAverager(
        optimizer, average_parameters=True, average_gradients=False, dht=cohive.DHT(start=True), **options)
    averager.step(wait=False)
averager.load_state_from_peers(wait=False)
print("ends", flush=True)
"""


@pytest.mark.parametrize("kind", ["TrainingStateAverager", "TrainingAverager"])
def test_a_script_ends_while_a_round_goes_on_in_the_background(kind):
    with subprocess.Popen([sys.executable, "-c", ENDS_IN_A_ROUND, kind], stdout=subprocess.PIPE, text=True) as script:
        try:
            assert script.stdout.readline() == "ends\n"
            assert script.wait(20) == 0
        finally:
            script.kill()


def test_a_state_averager_that_was_shut_down_refuses_steps(state_averager):
    averager = state_averager([torch.nn.Parameter(torch.zeros(2))], optimizer=functools.partial(torch.optim.SGD, lr=1))
    averager.step(optimizer_step=True)
    averager.shutdown()
    assert not any(thread.name == "cohive-state-averager" for thread in threading.enumerate())
    for call in (lambda: averager.step(optimizer_step=True), lambda: averager.load_state_from_peers(wait=False)):
        with pytest.raises(RuntimeError, match="shut down"):
            call()


def test_the_end_of_an_update_is_told_once(state_averager):
    class Counted(threading.Event):
        times = 0

        def set(self):
            self.times += 1
            super().set()

    averager = state_averager(
        [torch.nn.Parameter(torch.zeros(2))], optimizer=functools.partial(torch.optim.SGD, lr=1.0)
    )
    averager.finished_optimizer_step, averager.finished_averaging_round = Counted(), Counted()
    averager.step(optimizer_step=True)
    averager.step(averaging_round=True, averaging_opts=dict(timeout=1.5))
    assert (averager.finished_optimizer_step.times, averager.finished_averaging_round.times) == (1, 1)


@pytest.mark.parametrize("loads", ["the user", "from peers"])
def test_a_state_that_is_loaded_is_that_which_is_averaged(state_averager, monkeypatch, loads):
    weight = torch.nn.Parameter(torch.zeros(2))
    adam = functools.partial(torch.optim.Adam, lr=1.0)
    options = dict(optimizer=adam, offload_optimizer=True, average_opt_statistics=["exp_avg"])
    averager = state_averager([weight], **options)
    other = state_averager([torch.nn.Parameter(torch.ones(2))], prefix="other", **options)
    other._opt_parameters()[0].grad.fill_(2.0)
    other.optimizer.step()
    if loads == "the user":
        averager.optimizer.load_state_dict(other.optimizer.state_dict())
    else:
        metadata, tensors, _ = other.get_current_state()
        monkeypatch.setattr(DecentralizedAverager, "load_state_from_peers", lambda self, timeout: (metadata, tensors))
        assert averager.load_state_from_peers() is not None
    statistic = averager.optimizer.state[averager._opt_parameters()[0]]["exp_avg"].clone()
    assert not torch.equal(statistic, torch.zeros(2))

    def one_round(timeout):
        with averager.get_tensors() as averaged, torch.no_grad():
            assert torch.equal(averaged[1], statistic)
            averaged[1].add_(1)
        return {}

    control = types.SimpleNamespace(allow_allreduce=lambda: None, result=one_round)
    averager._run_round(control, None)
    assert torch.equal(averager.optimizer.state[averager._opt_parameters()[0]]["exp_avg"], statistic + 1)


@pytest.mark.parametrize("delta", [False, True])
def test_a_round_that_cannot_begin_changes_nothing(state_averager, caplog, delta):
    weight = torch.nn.Parameter(torch.zeros(2))
    averager = state_averager(
        [weight], optimizer=functools.partial(torch.optim.SGD, lr=1.0), delta_rule_averaging=delta
    )
    with torch.no_grad():
        weight.fill_(3.0)
    with pytest.raises(ValueError, match="does not fit within timeout"):
        averager.step(averaging_round=True, averaging_opts=dict(timeout=0.5))
    assert torch.equal(weight, torch.full((2,), 3.0))
    averager.step(averaging_round=True, delay_averaging=True, averaging_opts=dict(timeout=0.5))
    assert averager.finished_averaging_round.wait(20)
    averager.step()
    assert torch.equal(weight, torch.full((2,), 3.0)) and "an update of the training state failed" in caplog.text
    averager.step(averaging_round=True, averaging_opts=dict(timeout=1.5))  # nobody comes
    assert torch.equal(weight, torch.full((2,), 3.0))


def test_what_an_optimizer_raises_comes_out_of_a_step_that_is_waited_for(state_averager):
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ArithmeticError("no step today")

    weight = torch.nn.Parameter(torch.zeros(2))
    averager = state_averager([weight], optimizer=Failing([weight], lr=1.0), initialize_optimizer=False)
    with pytest.raises(ArithmeticError, match="no step today"):
        averager.step(optimizer_step=True)


def test_what_a_state_averager_cannot_step_with_gets_a_sentence(state_averager):
    weight = torch.nn.Parameter(torch.zeros(2))
    averager = state_averager([weight], optimizer=functools.partial(torch.optim.SGD, lr=1.0))
    with pytest.raises(ValueError, match="takes no grad_scaler: let scaler.step"):
        averager.step(optimizer_step=True, grad_scaler=torch.amp.GradScaler("cpu"))


def test_a_state_averager_follows_schedules_that_are_made_of_others(state_averager):
    def schedule(optimizer):
        parts = [torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma) for gamma in (0.25, 2.0)]
        return torch.optim.lr_scheduler.ChainedScheduler(parts)

    weight = torch.nn.Parameter(torch.zeros(2))
    averager = state_averager([weight], optimizer=functools.partial(torch.optim.SGD, lr=1.0), scheduler=schedule)
    averager.step(increment_epoch=True)
    averager.step(increment_epoch=True)
    assert averager.optimizer.param_groups[0]["lr"] == pytest.approx(0.25)


@pytest.mark.parametrize("rate", ["fast", math.nan, math.inf])
def test_a_rate_that_is_none_is_not_taken_over(state_averager, monkeypatch, rate):
    weight = torch.nn.Parameter(torch.zeros(2))
    averager = state_averager([weight], optimizer=functools.partial(torch.optim.SGD, lr=1.0))
    metadata, tensors, _ = averager.get_current_state()
    told = [dict(leaf, value=rate) if leaf.get("value") == 1.0 else leaf for leaf in metadata["optimizer_metadata"]]
    state = (dict(metadata, optimizer_metadata=told), tensors)
    monkeypatch.setattr(DecentralizedAverager, "load_state_from_peers", lambda self, timeout: state)
    assert averager.load_state_from_peers() is None and averager.optimizer.param_groups[0]["lr"] == 1.0


@pytest.mark.parametrize("reuse", [False, True])
def test_averages_below_zero_are_no_squares(state_averager, reuse):
    weight = torch.nn.Parameter(torch.zeros(2))
    adam = functools.partial(torch.optim.Adam, lr=1.0)
    options = dict(offload_optimizer=True, reuse_tensors=reuse, average_opt_statistics=["exp_avg_sq"])
    averager = state_averager([weight], optimizer=adam, **options)

    def one_round(timeout):
        with averager.get_tensors() as averaged, torch.no_grad():
            averaged[1].copy_(torch.tensor([-1.0, 4.0]))
        return {}

    averager.optimizer.state[averager._opt_parameters()[0]]["exp_avg"].fill_(1.0)
    averager._run_round(types.SimpleNamespace(allow_allreduce=lambda: None, result=one_round), None)
    averager._apply_round()
    kept = averager.optimizer.state[averager._opt_parameters()[0]]
    assert kept["exp_avg_sq"].tolist() == [0.0, 4.0] and kept["exp_avg"].tolist() == [0.0, 1.0]


NO_EPOCHS = [2**62, 2**48 + 1, -1, True, 7.0, "7", None]


@pytest.mark.parametrize("claimed", NO_EPOCHS)
def test_an_epoch_that_none_can_be_is_not_taken_over(state_averager, monkeypatch, claimed):
    weight = torch.nn.Parameter(torch.zeros(2))
    schedule = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    averager = state_averager(
        [weight],
        optimizer=functools.partial(torch.optim.SGD, lr=1.0),
        scheduler=schedule,
        sync_epoch_when_averaging=True,
    )
    gathered = {"a stranger": claimed, "a peer": 3}
    control = types.SimpleNamespace(allow_allreduce=lambda: None, result=lambda timeout: gathered)
    averager._run_round(control, None)
    assert averager.local_epoch == 3 and averager.optimizer.param_groups[0]["lr"] == 0.5**3
    metadata, tensors, _ = averager.get_current_state()
    told = (dict(metadata, epoch=claimed), [torch.full_like(one, 9.0) for one in tensors])
    monkeypatch.setattr(DecentralizedAverager, "load_state_from_peers", lambda self, timeout: told)
    assert averager.load_state_from_peers() is None
    assert averager.local_epoch == 3 and torch.equal(weight, torch.zeros(2))


OTHER_STATES = {
    "a statistic of another shape": lambda at, one: torch.zeros(3) if at == 1 else one,
    "a negative number of steps": lambda at, one: torch.full_like(one, -1.0) if one.dim() == 0 else one,
    "a statistic that is not finite": lambda at, one: torch.full_like(one, math.nan) if at == 1 else one,
    "a parameter that is not finite": lambda at, one: torch.full_like(one, math.inf) if at == 0 else one,
    "too many steps": lambda at, one: torch.full_like(one, 2e15) if one.dim() == 0 else one,
}


@pytest.mark.parametrize("case", OTHER_STATES)
def test_a_state_of_another_optimizer_is_not_taken_over(state_averager, monkeypatch, case):
    weight = torch.nn.Parameter(torch.zeros(2))
    averager = state_averager([weight], optimizer=functools.partial(torch.optim.Adam, lr=1.0))
    metadata, tensors, _ = averager.get_current_state()
    other = [OTHER_STATES[case](at, one) for at, one in enumerate([torch.ones(2), *tensors[1:]])]
    monkeypatch.setattr(DecentralizedAverager, "load_state_from_peers", lambda self, timeout: (metadata, other))
    assert averager.load_state_from_peers() is None and torch.equal(weight, torch.zeros(2))
    assert averager.optimizer.state[weight]["step"] == 1 and averager.optimizer.state[weight]["exp_avg"].shape == (2,)
    monkeypatch.setattr(
        DecentralizedAverager, "load_state_from_peers", lambda self, timeout: (metadata, [torch.ones(2), *tensors[1:]])
    )
    assert averager.load_state_from_peers() is not None and torch.equal(weight, torch.ones(2))


def test_a_training_averager_takes_no_state_without_a_number_of_steps(swarm, monkeypatch):
    weight = torch.nn.Parameter(torch.zeros(2))
    options = dict(average_parameters=True, average_gradients=False, **QUICK)
    averager = TrainingAverager(torch.optim.Adam([weight]), dht=swarm(1)[0], **options)
    metadata, tensors, _ = averager.get_current_state()
    for told in (None, {}, *(dict(metadata, step=claimed) for claimed in NO_EPOCHS)):
        state = (told, [torch.full_like(one, 9.0) for one in tensors])
        monkeypatch.setattr(DecentralizedAverager, "load_state_from_peers", lambda self, timeout, state=state: state)
        with pytest.raises(ValueError, match="no number of steps"):
            averager.load_state_from_peers()
    assert averager.local_step == 0 and torch.equal(weight, torch.zeros(2))
    averager.shutdown()


def test_compressions_choose_by_size():
    choice = SizeAdaptiveCompression(10, less=Float16Compression(), greater_equal=Uniform8BitQuantization())
    small, large = (CompressionInfo.from_tensor(torch.zeros(size)) for size in (9, 10))
    assert choice.codec(small).name == "FLOAT16" and choice.codec(large).name == "UNIFORM_8BIT"
    assert choice.estimate_compression_ratio(small) == 0.5 and choice.estimate_compression_ratio(large) == 0.25


@pytest.mark.parametrize("base, name", [(CompressionBase, "compress"), (Float16Compression, "extract")])
def test_a_compression_that_nothing_would_call_is_refused(base, name):
    own = type("Own", (base,), {name: lambda self, *given: None})
    with pytest.raises(TypeError, match="Own has a compress.. or extract.. of its own"):
        own()
    kind = type("Chooses", (Float16Compression,), {"codec": lambda self, info: NoCompression().codec(info)})
    assert kind().codec(CompressionInfo.from_tensor(torch.zeros(2))).name == "NONE"


def test_a_client_averages_with_a_server(swarm):
    (server,) = swarm(1)
    client = DHT(server.get_visible_maddrs(), start=True, client_mode=True)
    first = DecentralizedAverager([torch.zeros(4)], server, **QUICK)
    second = DecentralizedAverager([torch.ones(4)], client, **QUICK)
    assert second.client_mode and not second.allow_state_sharing
    together(first.step, second.step)
    with second.get_tensors() as tensors:
        assert torch.allclose(tensors[0], torch.full((4,), 0.5))
    with pytest.raises(ValueError):
        second.allow_state_sharing = True
    for one in (first, second, client):
        one.shutdown()


def test_a_run_that_several_trainers_fill(swarm):
    options = dict(min_refresh_period=0.1, default_refresh_period=0.2, max_refresh_period=0.5, start=True)
    trackers = [ProgressTracker(dht, "run", 100, **options) for dht in swarm(2)]
    assert not trackers[0].ready_to_update_epoch and trackers[0].global_epoch == 0
    for samples in range(10, 60, 10):
        for tracker in trackers:
            tracker.report_local_progress(0, samples)
        time.sleep(0.1)
    limit = time.monotonic() + 20
    while not all(tracker.ready_to_update_epoch for tracker in trackers) and time.monotonic() < limit:
        time.sleep(0.1)
    seen = trackers[1].global_progress
    assert seen.num_peers == 2 and seen.num_clients == 0 and seen.samples_accumulated >= 50
    assert trackers[0].local_progress.samples_accumulated == 50 and trackers[0].performance_ema.samples_per_second > 1
    for tracker in trackers:
        with tracker.pause_updates():
            assert tracker.update_epoch() == 1
    assert trackers[0].local_progress.samples_accumulated == 0 and trackers[0].local_progress.epoch == 1
    for tracker in trackers:
        tracker.shutdown()
        assert not tracker.is_alive()


@pytest.mark.parametrize("options", [dict(prefix="a.b"), dict(target_batch_size=0), dict(performance_ema_alpha=0)])
def test_trackers_that_cannot_be_meant(swarm, options):
    (dht,) = swarm(1)
    with pytest.raises(ValueError):
        ProgressTracker(dht, start=True, **{**dict(prefix="run", target_batch_size=10), **options})


@pytest.mark.parametrize("call", ["averager.step()", "while True: averager.load_state_from_peers()"])
def test_ctrl_c_ends_what_goes_on(call):
    # The other peer shares a state, and takes its time.
    code = f"""
import os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import cohive, torch

sent = []

def interrupt():
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

class Slow(cohive.DecentralizedAverager):
    def get_current_state(self):
        threading.Timer(0.5, interrupt).start()
        time.sleep(5)
        return super().get_current_state()

options = dict(prefix="run", min_matchmaking_time=5.0, start=True)
first = cohive.DHT(start=True)
second = cohive.DHT(first.get_visible_maddrs(), start=True)
donor = Slow([torch.zeros(3)], first, **options)
averager = Slow([torch.ones(3)], second, **options)
time.sleep(0.5)
if "step" in {call!r}:
    threading.Timer(1.0, interrupt).start()
try:
    {call}
    print("not interrupted")
except KeyboardInterrupt:
    assert time.monotonic() - sent[0] < 1, time.monotonic() - sent[0]
    assert torch.equal(averager._averaged_tensors[0], torch.ones(3))
    print("interrupted", flush=True)
    raise
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout == "interrupted\n", result.stderr
    assert result.returncode == -signal.SIGINT and result.stderr.count("Traceback") == 1, result.stderr
