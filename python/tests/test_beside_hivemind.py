"""A cohive DHT and one of Python hivemind 1.1.12 in one swarm."""

import importlib
import threading
import time
from functools import partial

import pytest

hivemind = pytest.importorskip("hivemind", reason="no Python hivemind here")

hivemind_compression = importlib.import_module("hivemind.compression")
from pydantic.v1 import BaseModel, StrictInt  # noqa: E402

import cohive  # noqa: E402
from cohive import get_dht_time  # noqa: E402


class Schema(BaseModel):
    """Of both; hivemind pickles it."""

    number: StrictInt


VALUES = [None, True, 5, -(2**40), 2.5, "text", b"bytes", [1, [2]], (1, "two", (3,)), {"a": [1], "b": ()}]


@pytest.fixture(params=["cohive first", "hivemind first"])
def pair(request):
    """One DHT of each, the second joined through the first."""
    if request.param == "cohive first":
        ours = cohive.DHT(start=True)
        theirs = hivemind.DHT(initial_peers=[str(one) for one in ours.get_visible_maddrs()], start=True)
    else:
        theirs = hivemind.DHT(start=True)
        ours = cohive.DHT([str(one) for one in theirs.get_visible_maddrs()], start=True)
    yield ours, theirs
    theirs.shutdown()
    ours.shutdown()


def test_each_finds_what_the_other_stores(pair):
    ours, theirs = pair
    for number, value in enumerate(VALUES):
        assert ours.store(f"ours {number}", value, get_dht_time() + 60)
        found = theirs.get(f"ours {number}", latest=True).value
        assert found == value and type(found) is type(value)
        assert theirs.store(f"theirs {number}", value, get_dht_time() + 60)
        found = ours.get(f"theirs {number}", latest=True).value
        assert found == value and type(found) is type(value)
    for key in (b"raw", 5, ("a", 1)):
        assert theirs.store(key, 1, get_dht_time() + 60) and ours.get(key, latest=True).value == 1


def test_subkeys_of_both_are_one_dictionary(pair):
    ours, theirs = pair
    end = get_dht_time() + 60
    assert ours.store("dict", 1, end, subkey="ours") and theirs.store("dict", 2, end + 1, subkey=b"theirs")
    for found in (ours.get("dict", latest=True), theirs.get("dict", latest=True)):
        assert {subkey: (one.value, one.expiration_time) for subkey, one in found.value.items()} == {
            "ours": (1, end),
            b"theirs": (2, end + 1),
        }
        assert found.expiration_time == end + 1


def test_ids_are_the_same(pair):
    ours, theirs = pair
    assert str(ours.peer_id) in {str(one).split("/p2p/")[1] for one in ours.get_visible_maddrs()}
    assert cohive.PeerID(theirs.peer_id.to_bytes()).to_base58() == theirs.peer_id.to_base58()
    assert int(cohive.DHTID.generate(source="key")) == int(hivemind.dht.DHTID.generate(source="key"))
    for value in VALUES:
        assert cohive._msgpack.dumps(value) == hivemind.utils.MSGPackSerializer.dumps(value)


def test_owners_are_respected_on_both_sides(pair):
    from hivemind.dht.crypto import RSASignatureValidator as Theirs

    ours, theirs = pair
    our_validator, their_validator = cohive.RSASignatureValidator(), Theirs()
    ours.add_validators([our_validator])
    theirs.add_validators([their_validator])
    end = get_dht_time() + 60
    assert ours.store("owned", b"ours", end, subkey=our_validator.local_public_key)
    assert theirs.store("owned", b"theirs", end, subkey=their_validator.local_public_key)
    for found in (ours.get("owned", latest=True), theirs.get("owned", latest=True)):
        assert sorted(one.value for one in found.value.values()) == [b"ours", b"theirs"]
    assert not theirs.store("owned", b"stolen", end + 5, subkey=our_validator.local_public_key)
    assert not ours.store("owned", b"stolen", end + 5, subkey=their_validator.local_public_key)


def test_schemas_hold_on_both_sides(pair):
    from hivemind.dht.schema import SchemaValidator as Theirs

    ours, theirs = pair
    ours.add_validators([cohive.SchemaValidator(Schema)])
    theirs.add_validators([Theirs(Schema)])
    for peer in (ours, theirs):
        assert peer.store("number", 5, get_dht_time() + 60) and not peer.store("number", "five", get_dht_time() + 90)
    assert ours.get("number", latest=True).value == theirs.get("number", latest=True).value == 5


# ---- Averaging

torch = pytest.importorskip("torch")
QUICK = dict(prefix="run", target_group_size=2, min_matchmaking_time=3.0, request_timeout=2.0, start=True)


def together(ours, theirs):
    """What two controls bring."""
    return ours.result(60), theirs.result(60)


def codecs():
    from hivemind import compression as theirs

    yield "none", cohive.NoCompression(), theirs.NoCompression(), 1e-6
    yield "float16", cohive.Float16Compression(), theirs.Float16Compression(), 1e-2
    yield "uniform8", cohive.Uniform8BitQuantization(), theirs.Uniform8BitQuantization(), 0.2
    yield (
        "by size",
        cohive.SizeAdaptiveCompression(100, cohive.NoCompression(), cohive.Float16Compression()),
        theirs.SizeAdaptiveCompression(100, theirs.NoCompression(), theirs.Float16Compression()),
        1e-2,
    )


@pytest.mark.parametrize("ours_by, theirs_by, tolerance", [pytest.param(*one, id=name) for name, *one in codecs()])
def test_both_average_in_one_group(pair, ours_by, theirs_by, tolerance):
    ours_dht, theirs_dht = pair
    torch.manual_seed(3)
    values = [[torch.randn(300), torch.randn(5, 2)] for _ in range(2)]
    mean = [(one + other) / 2 for one, other in zip(*values)]
    ours = cohive.DecentralizedAverager(values[0], ours_dht, compression=ours_by, **QUICK)
    theirs = hivemind.DecentralizedAverager(values[1], theirs_dht, compression=theirs_by, **QUICK)
    our_step, their_step = ours.step(gather={"who": "ours"}, wait=False), theirs.step(gather=("theirs", 1), wait=False)
    told = together(our_step, their_step)
    expected = {str(ours.peer_id): {"who": "ours"}, str(theirs.peer_id): ("theirs", 1)}
    for gathered in told:
        assert {str(peer): value for peer, value in gathered.items()} == expected
    for averager in (ours, theirs):
        with averager.get_tensors() as tensors:
            for tensor, wanted in zip(tensors, mean):
                assert torch.allclose(tensor, wanted, atol=tolerance)
    assert ours.schema_hash == theirs.schema_hash
    theirs.shutdown()
    ours.shutdown()


@pytest.mark.parametrize("rank", [None, 1])
def test_gradients_of_both_are_averaged(pair, rank):
    from hivemind.optim.grad_averager import GradientAverager
    from hivemind.optim.power_sgd_averager import PowerSGDGradientAverager

    ours_dht, theirs_dht = pair
    models = [torch.nn.Linear(16, 12, bias=False) for _ in range(2)]
    ours_kind = cohive.GradientAverager if rank is None else cohive.PowerSGDGradientAverager
    theirs_kind = GradientAverager if rank is None else PowerSGDGradientAverager
    more = {} if rank is None else dict(averager_rank=rank)
    ours = ours_kind(models[0].parameters(), dht=ours_dht, **more, **QUICK)
    theirs = theirs_kind(models[1].parameters(), dht=theirs_dht, **more, **QUICK)
    # Of rank one: what factors can carry.
    gradients = [torch.outer(torch.arange(12.0), torch.ones(16)) * number for number in (1, 3)]
    for model, averager, gradient, samples in zip(models, (ours, theirs), gradients, (1, 3)):
        model.weight.grad = gradient.clone()
        averager.accumulate_grads_(batch_size=samples)
    together(ours.step(wait=False), theirs.step(wait=False))
    for model, averager in zip(models, (ours, theirs)):
        with averager.use_averaged_gradients():
            assert torch.allclose(model.weight.grad, (gradients[0] + 3 * gradients[1]) / 4, atol=1e-3)
    theirs.shutdown()
    ours.shutdown()


def test_states_go_both_ways(pair):
    from hivemind.optim.state_averager import TrainingStateAverager

    ours_dht, theirs_dht = pair
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    options = dict(optimizer=partial(torch.optim.Adam, lr=0.1), average_opt_statistics=("exp_avg",), **QUICK)
    ours = cohive.TrainingStateAverager(dht=ours_dht, params=models[0].parameters(), **options)
    theirs = TrainingStateAverager(dht=theirs_dht, params=models[1].parameters(), **options)

    def load(averager, epoch):
        for _ in range(20):
            averager.load_state_from_peers()
            if averager.local_epoch == epoch:
                return

    theirs.local_epoch = 5
    theirs.state_sharing_priority = 5
    with torch.no_grad():
        models[1].weight.fill_(4.0)
    load(ours, 5)
    assert ours.local_epoch == 5 and torch.equal(models[0].weight, models[1].weight)
    ours.local_epoch = 9
    ours.state_sharing_priority = 9
    with torch.no_grad():
        models[0].weight.fill_(7.0)
    load(theirs, 9)
    assert theirs.local_epoch == 9 and torch.equal(models[1].weight, models[0].weight)
    theirs.shutdown()
    ours.shutdown()


# ---- Training

SCHEDULE = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.9)
KINDS = {
    "sgd": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.02, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.05),
    "adamw": partial(torch.optim.AdamW, lr=0.05),
}


def optimizers_of(pair, models, **options):
    """A collaborative optimizer of each, in one run."""
    ours_dht, theirs_dht = pair
    options = dict(
        run_id="mixed",
        target_batch_size=64,
        batch_size_per_step=4,
        matchmaking_time=2.0,
        averaging_timeout=15.0,
        averager_opts=dict(request_timeout=1.0),
        tracker_opts=dict(max_refresh_period=1.0),
        delay_state_averaging=False,
        **options,
    )
    ours = cohive.Optimizer(dht=ours_dht, params=models[0].parameters(), **_ours(options))
    theirs = hivemind.Optimizer(dht=theirs_dht, params=models[1].parameters(), **options)
    return ours, theirs


def _ours(options):
    """The options with cohive's classes in the place of hivemind's."""
    return {name: OURS.get(type(value), lambda one: one)(value) for name, value in options.items()}


OURS = {
    hivemind_compression.Float16Compression: lambda _: cohive.Float16Compression(),
    hivemind_compression.Uniform8BitQuantization: lambda _: cohive.Uniform8BitQuantization(),
}


def train_both(optimizers, models, epochs, together):
    """Trains at a time like a person's, until both have averaged as often as is asked; returns the sizes of our groups.

    A busy machine delays hivemind's processes by seconds, and the epochs that one of the two ends alone by then are
    no fault: only that they do not come together is one.
    """
    groups, failures, last_epoch = [], [], [float("inf")]

    def train(at):
        try:
            optimizer, model = optimizers[at], models[at]
            generator = torch.Generator().manual_seed(at)
            give_up = time.monotonic() + 120
            while optimizer.local_epoch < last_epoch[0] and time.monotonic() < give_up:
                inputs = torch.randn(4, 3, generator=generator)
                optimizer.zero_grad()
                (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean().backward()
                optimizer.step()
                if at == 0 and optimizer.last_report.epoch_changed:
                    groups.append(optimizer.last_report.grad_group)
                    if groups.count(2) == together:
                        last_epoch[0] = max(epochs, optimizer.local_epoch)
                time.sleep(0.05)
            assert optimizer.local_epoch >= epochs, "the epochs do not end"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert groups.count(2) >= together, groups
    return groups


@pytest.mark.parametrize(
    "kind, more",
    [
        ("sgd", {}),
        ("adam", dict(scheduler=SCHEDULE)),
        ("adamw", dict(grad_compression=hivemind_compression.Float16Compression())),
        ("momentum", dict(grad_compression=hivemind_compression.Uniform8BitQuantization(), offload_optimizer=False)),
    ],
)
def test_both_train_one_model(pair, kind, more):
    torch.manual_seed(5)
    models = [torch.nn.Linear(3, 1) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = optimizers_of(pair, models, optimizer=KINDS[kind], **more)
    try:
        train_both(optimizers, models, epochs=8, together=4)
    finally:
        for optimizer in optimizers:
            optimizer.shutdown()
    for one, other in zip(models[0].parameters(), models[1].parameters()):
        assert torch.allclose(one, other, atol=0.15), "they have trained apart"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheduler", [None, SCHEDULE], ids=["no schedule", "schedule"])
def test_a_newcomer_takes_the_state_of_the_other(kind, scheduler):
    """Both ways, one after the other: who has trained gives, and the other one loads."""
    for founder in (0, 1):
        ours_dht = cohive.DHT(start=True)
        theirs_dht = hivemind.DHT(initial_peers=[str(one) for one in ours_dht.get_visible_maddrs()], start=True)
        models = [torch.nn.Linear(3, 1) for _ in range(2)]
        more = dict(optimizer=KINDS[kind], **({} if scheduler is None else dict(scheduler=scheduler)))
        options = dict(run_id="state", target_batch_size=8, batch_size_per_step=8, matchmaking_time=1.0, **more)
        options.update(averaging_timeout=5.0, averager_opts=dict(request_timeout=0.5), delay_state_averaging=False)
        kinds, dhts = (cohive.Optimizer, hivemind.Optimizer), (ours_dht, theirs_dht)
        first = kinds[founder](dht=dhts[founder], params=models[founder].parameters(), **options)
        while first.local_epoch < 3:
            first.zero_grad()
            models[founder](torch.ones(8, 3)).sum().backward()
            first.step()
        newcomer = 1 - founder
        second = kinds[newcomer](dht=dhts[newcomer], params=models[newcomer].parameters(), **options)
        give_up = time.monotonic() + 60
        while second.local_epoch < 3 and time.monotonic() < give_up:
            second.load_state_from_peers()
            time.sleep(0.2)
        assert second.local_epoch == 3, ("cohive" if newcomer == 0 else "hivemind") + " does not load"
        for one, other in zip(models[0].parameters(), models[1].parameters()):
            assert torch.allclose(one, other, atol=1e-6)
        states = [
            [leaf for leaf in flat_leaves(optimizer.opt.state_dict()["state"]) if isinstance(leaf, torch.Tensor)]
            for optimizer in ((first, second) if founder == 0 else (second, first))
        ]
        assert len(states[0]) == len(states[1])
        for one, other in zip(*states):
            assert torch.allclose(one, other, atol=1e-6)
        for thing in (second, first, theirs_dht, ours_dht):
            thing.shutdown()


def flat_leaves(structure):
    from cohive.optim import nested_flatten

    return list(nested_flatten(structure))


# ---- Progress


def test_a_run_in_shards_and_a_hivemind_tracker_see_all_samples():
    """Twelve trainers of cohive report in shards, one of hivemind in the record, where it finds their sum."""
    from hivemind.optim.progress_tracker import ProgressTracker

    target, rate, batch = 1_000_000, 20.0, 10
    first = cohive.DHT(start=True)
    peers = [str(one) for one in first.get_visible_maddrs()]
    dhts = [first, *(cohive.DHT(peers, start=True) for _ in range(11))]
    theirs_dht = hivemind.DHT(initial_peers=peers, start=True)
    ours = [cohive.ProgressTracker(dht, "large", target, sharded_above=6, start=True) for dht in dhts]
    theirs = ProgressTracker(theirs_dht, "large", target, start=True)
    trackers = [*ours, theirs]
    done, speed = 0, rate * len(trackers)
    start = get_dht_time()

    def reckoned(tracker):
        """What it takes the samples of the run for, by the time at which it expects the epoch's end."""
        return target - (tracker.global_progress.eta_next_epoch - get_dht_time()) * speed

    def sees_all(tracker, known):
        samples = len(trackers) * rate * (get_dht_time() - start)
        return abs(reckoned(tracker) - samples) < 0.05 * samples and tracker.global_progress.num_peers == known

    seen = 0
    while seen < 5 and done < 180 * rate:
        time.sleep(max(0.0, start + (done + batch) / rate - get_dht_time()))
        done += batch
        for tracker in trackers:
            tracker.report_local_progress(0, done)
        all_seen = sees_all(theirs, 2) and all(sees_all(tracker, len(trackers)) for tracker in ours)
        seen = seen + 1 if all_seen else 0  # for two and a half seconds
    told = [(tracker.global_progress.num_peers, reckoned(tracker) / len(trackers)) for tracker in trackers]
    theirs.shutdown(1)
    theirs_dht.shutdown()
    for tracker in ours:
        tracker.shutdown()
    for dht in dhts:
        dht.shutdown()
    assert seen == 5, f"{done} samples of each; peers and samples that they see: {told}"
