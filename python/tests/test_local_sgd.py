"""cohive.local_sgd: peers that step by themselves come to one model, under the names of torchft."""

import copy
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="no torch here")

from conftest import QUICK  # noqa: E402

from cohive.local_sgd import DiLoCo, LocalSGD, Manager  # noqa: E402

PATIENCE = 120
ROUNDS = 30
TRUTH = torch.tensor([[1.0, -2.0, 3.0, -4.0]])


def sgd(model, **settings):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.7, **settings})


class Halves(torch.nn.Module):
    """A linear model in two modules."""

    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(2, 1, bias=False) for _ in range(2))

    def forward(self, x):
        return sum(part(half) for part, half in zip(self.parts, x.split(2, dim=1)))

    @property
    def weight(self):
        return torch.cat([part.weight for part in self.parts], dim=1)


def local(kind, manager, model, inner):
    if kind == "LocalSGD":
        return LocalSGD(manager, model, inner, sync_every=10)
    if kind == "DiLoCo in fragments":
        return DiLoCo(manager, list(model.parts), inner, sgd(model, momentum=0.5, nesterov=True), 20)
    delay = 5 if kind == "DiLoCo in the background" else 0
    return DiLoCo(manager, [model], inner, sgd(model, momentum=0.5, nesterov=True), 10, fragment_sync_delay=delay)


def learn(kind, dht, part, rounds, model, told):
    """Trains on samples of two of the four inputs: the other two can be learnt from the other peer alone."""
    torch.manual_seed(part)
    inner = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0)
    manager = Manager(dht, **QUICK)
    with local(kind, manager, model, inner):
        while manager.current_step() < rounds:
            x = torch.zeros(8, 4)
            x[:, 2 * part : 2 * part + 2] = torch.randn(8, 2)
            inner.zero_grad()
            (model(x) - x @ TRUTH.T).square().mean().backward()
            inner.step()
            told.append((manager.current_step(), manager.num_participants()))
            time.sleep(0.01)  # the pace of this peer
    steps = len(told)
    inner.step()
    assert len(told) == steps and manager.current_step() >= rounds, "outside of `with` the optimizer is torch's own"


@pytest.mark.parametrize("kind", ["LocalSGD", "DiLoCo", "DiLoCo in the background", "DiLoCo in fragments"])
def test_two_peers_learn_one_model(swarm, kind):
    # They begin at different places.
    models = [Halves() if kind == "DiLoCo in fragments" else torch.nn.Linear(4, 1, bias=False) for _ in range(2)]
    told, failures = [[], []], []

    def guarded(part, dht):
        try:
            learn(kind, dht, part, ROUNDS, models[part], told[part])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(part, dht)) for part, dht in enumerate(swarm(2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures and not any(thread.is_alive() for thread in threads), failures
    for model, steps in zip(models, told):
        assert max(group for _, group in steps) == 2
        # Two inputs of the four were never in this peer's batches.
        assert torch.allclose(model.weight, TRUTH, atol=0.5), (model.weight, len(steps))
        # Each steps ten times between two rounds, whether there are one or two of them.
        assert 5 * ROUNDS < len(steps) < 20 * ROUNDS


@pytest.mark.parametrize("kind", ["LocalSGD", "DiLoCo in the background"])
def test_participants_are_one_again_where_the_others_have_left(swarm, kind):
    left, told, failures = threading.Event(), [[], []], []

    def train(part, dht, ends):
        try:
            model = torch.nn.Linear(4, 1, bias=False)
            inner, manager, limit = sgd(model, lr=0.01), Manager(dht, **QUICK), time.monotonic() + PATIENCE
            with local(kind, manager, model, inner):
                while not ends(told[part]) and time.monotonic() < limit:
                    model.weight.grad = torch.ones_like(model.weight)
                    inner.step()
                    told[part].append(manager.num_participants())
                    time.sleep(0.01)
        except BaseException as error:
            failures.append(error)
        left.set()

    ends = [lambda told: 2 in told, lambda told: left.is_set() and 2 in told and told[-1] == 1]
    threads = [threading.Thread(target=train, args=(part, dht, ends[part])) for part, dht in enumerate(swarm(2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failures and 2 in told[0] and told[1][-1] == 1, (failures, told)


MODELS = {
    "float32": lambda: torch.nn.Linear(3, 2, bias=False),
    "bfloat16": lambda: torch.nn.Linear(3, 2, bias=False, dtype=torch.bfloat16),
    "float64": lambda: torch.nn.Linear(3, 2, bias=False, dtype=torch.float64),
    "channels last": lambda: torch.nn.Conv2d(2, 2, 2, bias=False).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("way", ["LocalSGD", "DiLoCo", "DiLoCo in the background"])
def test_local_steps_stay(swarm, way, kind):
    """Alone, and with an outer optimizer of rate 1, rounds change nothing."""
    model, manager = MODELS[kind](), Manager(swarm(1)[0], **QUICK)
    inner, outer = sgd(model, lr=0.125, momentum=0.5), sgd(model, lr=1.0)
    other = copy.deepcopy(model)
    alone = sgd(other, lr=0.125, momentum=0.5)
    if way == "LocalSGD":
        averaged = LocalSGD(manager, model, inner, sync_every=2)
    else:
        averaged = DiLoCo(manager, model, inner, outer, 2, fragment_sync_delay=int(way == "DiLoCo in the background"))
    with averaged:
        while manager.current_step() < 2:
            for weight, optimizer in ((model.weight, inner), (other.weight, alone)):
                weight.grad = torch.ones_like(weight)
                optimizer.step()
            tolerance = 2e-2 if kind == "bfloat16" else 1e-5
            assert torch.allclose(model.weight, other.weight, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", MODELS)
def test_sync_averages_now(swarm, kind):
    models = [MODELS[kind]() for _ in range(2)]
    inners = [sgd(model, momentum=0.5) for model in models]
    options = dict(QUICK, average_opt_statistics=("momentum_buffer",))
    groups, ready = [0, 0], threading.Barrier(2)

    def sync(part, dht):
        model, inner = models[part], inners[part]
        with LocalSGD(Manager(dht, **options), model, inner, sync_every=10**6) as averaged:
            model.weight.grad = torch.full_like(model.weight, float(part))
            with torch.no_grad():
                model.weight.zero_()
            inner.step()
            ready.wait(PATIENCE)
            groups[part] = averaged.sync()

    threads = [threading.Thread(target=sync, args=(part, dht)) for part, dht in enumerate(swarm(2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert groups == [2, 2]
    for model, inner in zip(models, inners):
        buffer = inner.state[model.weight]["momentum_buffer"]
        assert torch.allclose(buffer, torch.full_like(buffer, 0.5), atol=1e-6)
        assert torch.allclose(model.weight, torch.full_like(buffer, -0.35), atol=2e-3 if kind == "bfloat16" else 1e-6)
    assert torch.equal(models[0].weight, models[1].weight)


MODEL = torch.nn.Linear(2, 1)
OTHER = torch.nn.Linear(2, 1)
WRONG = {
    "no steps": (dict(sync_every=0), ValueError, "at least 1"),
    "half a step": (dict(sync_every=2.5), ValueError, "at least 1"),
    "no manager": (dict(manager=None), TypeError, "local_sgd.Manager"),
    "no model": (dict(model_fragments=[]), TypeError, "torch.nn.Module"),
    "a factory": (dict(inner_optimizer=torch.optim.SGD), TypeError, "made already"),
    "an optimizer of another model": (dict(inner_optimizer=sgd(OTHER)), ValueError, "other parameters"),
    "an outer Adam": (dict(outer_optimizer=torch.optim.Adam(MODEL.parameters())), TypeError, "torch.optim.SGD"),
    "weight decay": (dict(outer_optimizer=sgd(MODEL, weight_decay=0.1)), ValueError, "no weight_decay"),
    "no rate": (dict(outer_optimizer=sgd(MODEL, lr=0.0)), ValueError, "above 0"),
    "two outer optimizers": (dict(outer_optimizer=[sgd(MODEL), sgd(MODEL)]), ValueError, "for each fragment"),
    "outer optimizers that differ": (
        dict(
            model_fragments=[MODEL, OTHER],
            inner_optimizer=torch.optim.SGD([*MODEL.parameters(), *OTHER.parameters()], lr=0.1),
            outer_optimizer=[sgd(MODEL), sgd(OTHER, lr=0.1)],
        ),
        ValueError,
        "the same settings",
    ),
    "fragments that do not divide the round": (
        dict(
            model_fragments=[MODEL, OTHER],
            inner_optimizer=torch.optim.SGD([*MODEL.parameters(), *OTHER.parameters()], lr=0.1),
            sync_every=9,
        ),
        ValueError,
        "a multiple of the number of fragments",
    ),
    "a delay beyond the round": (dict(fragment_sync_delay=10), ValueError, "below sync_every"),
    "a mixture": (dict(fragment_update_alpha=0.5), ValueError, "fragment_update_alpha is 0"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_meant_is_refused_by_a_sentence(what):
    given, error, words = WRONG[what]
    fine = dict(manager=Manager(None), model_fragments=[MODEL], inner_optimizer=sgd(MODEL))
    with pytest.raises(error, match=words):
        DiLoCo(**{**fine, "outer_optimizer": sgd(MODEL), "sync_every": 10, **given})


def test_a_manager_serves_one_and_is_not_told_what_is_set_here(swarm):
    with pytest.raises(TypeError, match="set outer_lr themselves"):
        Manager(None, outer_lr=0.7)
    with pytest.raises(TypeError, match="Manager.. got .*'averaging_timout'; did you mean 'averaging_timeout'"):
        Manager(None, averaging_timout=1.0)
    with pytest.raises(TypeError, match="'initial_peers': it is one of DHT.., and belongs there"):
        Manager(None, initial_peers=[])
    model, manager = torch.nn.Linear(2, 1), Manager(swarm(1)[0], **QUICK)
    averaged = LocalSGD(manager, model, sgd(model), 10)
    assert manager.current_step() == 0 and manager.num_participants() == 1
    with pytest.raises(RuntimeError, match="inside of"):
        averaged.sync()
    with averaged, pytest.raises(RuntimeError, match="make another one"):
        with averaged:
            pass
    manager.shutdown()
