"""A cohive DHT and one of Python hivemind 1.1.12 in one swarm."""

import pytest

hivemind = pytest.importorskip("hivemind", reason="no Python hivemind here")

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
    from functools import partial

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
