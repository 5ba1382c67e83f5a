"""Averaging groups of cohive and Python hivemind: one mean everywhere, and state that flows both ways."""

import functools

import pytest

hivemind = pytest.importorskip("hivemind")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from hivemind.averaging import DecentralizedAverager  # noqa: E402
from hivemind.compression import (Float16Compression, NoCompression, Quantile8BitQuantization,  # noqa: E402
                                  ScaledFloat16Compression, SizeAdaptiveCompression, Uniform8BitQuantization)
from hivemind.dht import DHT  # noqa: E402
from hivemind.utils import MSGPackSerializer, get_dht_time  # noqa: E402

from interop_peer import Peer, PeerError  # noqa: E402

SHAPES = [(37, 53), (1,), (3, 5, 7), (0,), (2048,), ()]  # with parts of 512 values: cut, whole, empty and scalar ones
PART_BYTES = 2048
# class, wire number, tolerance, parts
CODECS = {"none": (NoCompression, 0, 2e-6, 12), "float16": (Float16Compression, 2, 4e-3, 8),
          "meanstd16": (ScaledFloat16Compression, 1, 4e-3, 8), "uniform8": (Uniform8BitQuantization, 4, 1.0, 5),
          "quantile8": (Quantile8BitQuantization, 3, 1.5, 5)}
LIMIT = 60  # seconds for anything that waits for another peer
DTYPES = {"float32": np.float32, "int64": np.int64, "float16": np.float16, "bool": np.bool_}


def packed(value):
    return MSGPackSerializer.dumps(value).hex()


def unpacked(text):
    return MSGPackSerializer.loads(bytes.fromhex(text))


def tensors_of(seed, shapes=SHAPES):
    random = np.random.default_rng(seed)
    return [np.asarray(random.normal(size=shape), dtype=np.float32).reshape(shape) for shape in shapes]


def to_wire(array):
    return {"shape": list(array.shape), "dtype": str(array.dtype), "data": array.tobytes().hex()}


def from_wire(tensor):
    return np.frombuffer(bytes.fromhex(tensor["data"]), dtype=DTYPES[tensor.get("dtype", "float32")]).reshape(tensor["shape"])


class CohiveAverager:
    def __init__(self, peer, tensors, options):
        self.peer, self.name = peer, peer.peer_id
        self.call = peer.call
        peer.call("averager_start", tensors=[to_wire(tensor) for tensor in tensors], **options)

    def start_step(self, **step):
        """The returned function waits for {peer: gathered data} of the group."""
        if "gather" in step:
            step["gather"] = packed(step["gather"])
        wait = self.peer.start("averager_step", timeout=LIMIT, **step)

        def result():
            self.round = wait(LIMIT + 10)
            assert self.round["parts_failed"] == 0
            return {member["peer"]: unpacked(member["data"]) for member in self.round["group"]}

        return result

    def tensors(self):
        return [from_wire(tensor) for tensor in self.peer.call("averager_tensors")]


class PythonAverager:
    def __init__(self, averager):
        self.averager, self.name = averager, averager.peer_id.to_base58()

    def start_step(self, scheduled_in=None, **step):
        scheduled = None if scheduled_in is None else get_dht_time() + scheduled_in
        control = self.averager.step(wait=False, timeout=LIMIT, scheduled_time=scheduled, **step)
        return lambda: {peer.to_base58(): data for peer, data in control.result(timeout=LIMIT + 10).items()}

    def tensors(self):
        with self.averager.get_tensors() as tensors:
            return [tensor.numpy().copy() for tensor in tensors]


@pytest.fixture
def swarm(program):
    """Starts averagers of both kinds and stops them all."""
    started, addresses = [], []

    class Swarm:
        def cohive(self, tensors, client=False, **options):
            peer = Peer(program("cohive-interop-peer"), client=client, **({"listen": []} if client else {}))
            started.append(peer.close)
            peer.call("dht_start", initial_peers=addresses, client=client)
            addresses.extend(peer.addresses)
            mode = {"mode": 1} if client else {}
            return CohiveAverager(peer, tensors, {"prefix": "mixed", "part_size_bytes": PART_BYTES, **mode, **options})

        def python(self, tensors, client=False, **options):
            dht = DHT(initial_peers=list(addresses), start=True, client_mode=client)
            started.append(dht.shutdown)
            if not client:
                addresses.extend(str(address) for address in dht.get_visible_maddrs())
            averager = DecentralizedAverager(
                [torch.tensor(tensor) for tensor in tensors], dht, prefix="mixed", start=True,
                **{"part_size_bytes": PART_BYTES, "request_timeout": 1.0, "next_chunk_timeout": 20.0, **options})
            started.append(averager.shutdown)
            return PythonAverager(averager)

    yield Swarm()
    for stop in reversed(started):
        stop()


def average(averagers, weights=None, gather=None, steps=None):
    """One round of all; returns the gathered data of each."""
    weights = weights or [1.0] * len(averagers)
    steps = steps or [{}] * len(averagers)
    waits = []
    for number, averager in enumerate(averagers):
        waits.append(averager.start_step(weight=weights[number], gather=gather[number] if gather else None, **steps[number]))
    return [wait() for wait in waits]


def mean_of(inputs, weights):
    total = sum(weights)
    return [sum(weight * tensor.astype(np.float64) for weight, tensor in zip(weights, column)) / total for column in zip(*inputs)]


def assert_all_hold(averagers, expected, tolerance):
    for averager in averagers:
        found = averager.tensors()
        assert [tensor.shape for tensor in found] == [tensor.shape for tensor in expected]
        for tensor, wanted in zip(found, expected):
            np.testing.assert_allclose(tensor, wanted, rtol=0, atol=tolerance)
            if tensor.size:  # the outermost of 256 bins are wide; most values are near
                assert np.abs(tensor - wanted).mean() < 0.02


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("leader", ["cohive", "python"])
def test_two_python_peers_and_a_cohive_peer_agree_on_the_weighted_mean(swarm, codec, leader):
    compression, number, tolerance, parts = CODECS[codec]
    shapes = [shape for shape in SHAPES if number < 3 or 0 not in shape]  # hivemind cannot cut nothing into bins
    inputs, weights = [tensors_of(seed, shapes) for seed in range(3)], [1.0, 2.5, 0.25]
    cohive = swarm.cohive(inputs[0], codec=number, target_group_size=3, request_timeout=1.0)
    python = [swarm.python(tensors, compression=compression(), target_group_size=3) for tensors in inputs[1:]]
    averagers = [cohive, *python]

    # Whose declaration expires first leads.
    first, later = {"scheduled_in": 8.0}, {"scheduled_in": 16.0}
    steps = [first, later, later] if leader == "cohive" else [later, first, later]
    gathered = average(averagers, weights, gather=[{"from": "cohive"}, b"python", [2, None]], steps=steps)

    expected = {cohive.name: {"from": "cohive"}, python[0].name: b"python", python[1].name: [2, None]}
    assert gathered == [expected] * 3
    assert cohive.round["leader"] == (cohive.name if leader == "cohive" else python[0].name)
    assert cohive.round["parts_total"] == parts
    assert_all_hold(averagers, mean_of(inputs, weights), tolerance)


def test_a_codec_for_each_size(swarm):
    inputs = [tensors_of(seed) for seed in range(2)]
    compression = SizeAdaptiveCompression(threshold=1000, less=NoCompression(), greater_equal=Float16Compression())
    options = {"target_group_size": 2, "request_timeout": 1.0}
    averagers = [swarm.cohive(inputs[0], size_adaptive=[1000, 0, 2], **options), swarm.python(inputs[1], compression=compression, **options)]
    average(averagers)
    assert_all_hold(averagers, mean_of(inputs, [1.0, 1.0]), 4e-3)
    assert averagers[0].round["parts_total"] == 8
    for small, wanted in zip(averagers[0].tensors(), mean_of(inputs, [1.0, 1.0])):
        if small.size < 1000:
            np.testing.assert_allclose(small, wanted, rtol=0, atol=2e-6)


BLOCK4 = 64


@pytest.mark.parametrize("leader", ["cohive", "python"])
def test_a_python_member_means_the_ordinary_codec(swarm, leader):
    inputs, weights = [tensors_of(seed) for seed in range(3)], [1.0, 2.0, 3.0]
    options = {"target_group_size": 3, "request_timeout": 1.0}
    kinds = [functools.partial(swarm.cohive, agreed_codec=BLOCK4)] * 2 + [swarm.python]
    averagers = [kind(tensors, **options) for kind, tensors in zip(kinds, inputs)]
    first, later = {"scheduled_in": 8.0}, {"scheduled_in": 16.0}
    average(averagers, weights, steps=[first, later, later] if leader == "cohive" else [later, later, first])
    assert averagers[0].round["leader"] == (averagers[0].name if leader == "cohive" else averagers[2].name)
    assert [averager.round["agreed_codecs"] for averager in averagers[:2]] == ["", ""]
    assert_all_hold(averagers, mean_of(inputs, weights), 2e-6)


def test_without_one_two_cohive_peers_use_four_bits(swarm):
    inputs = [tensors_of(seed, [(64, 64)]) for seed in range(2)]
    averagers = [swarm.cohive(tensors, agreed_codec=BLOCK4, target_group_size=2, request_timeout=1.0) for tensors in inputs]
    average(averagers)
    assert [averager.round["agreed_codecs"] for averager in averagers] == ["block4"] * 2
    (first,), (second,) = (averager.tensors() for averager in averagers)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, (inputs[0][0] + inputs[1][0]) / 2, rtol=0, atol=0.3)


def test_a_cohive_reducer_holds_off_a_python_sender_that_lies(swarm):
    inputs = [tensors_of(seed) for seed in range(3)] + [[np.full_like(tensor, 1e20) for tensor in tensors_of(3)]]
    options = {"target_group_size": 4, "request_timeout": 1.0, "min_matchmaking_time": 6.0}
    averagers = [swarm.cohive(inputs[0], trimmed=0.25, **options)]
    averagers += [swarm.python(tensors, client=True, **options) for tensors in inputs[1:]]
    average(averagers)
    middle = [np.sort(np.stack(column), axis=0)[1:3].mean(axis=0) for column in zip(*inputs)]
    assert_all_hold(averagers[:3], middle, 2e-6)


def test_a_pair_averages_again_and_again(swarm):
    inputs = [tensors_of(1), tensors_of(2)]
    options = {"target_group_size": 2, "min_matchmaking_time": 2.0, "request_timeout": 1.0}
    averagers = [swarm.cohive(inputs[0], **options), swarm.python(inputs[1], **options)]
    for _ in range(3):
        average(averagers, [1.0, 3.0])
        assert_all_hold(averagers, mean_of(inputs, [1.0, 3.0]), 2e-6)
        inputs = [averager.tensors() for averager in averagers]


@pytest.mark.parametrize("client", ["cohive", "python"])
def test_a_client_mode_peer_takes_part(swarm, client):
    inputs, weights = [tensors_of(seed) for seed in range(3)], [1.0, 1.0, 4.0]
    options = {"target_group_size": 3, "request_timeout": 1.0, "min_matchmaking_time": 4.0}
    kinds = [swarm.cohive, swarm.cohive, swarm.python] if client == "python" else [swarm.python, swarm.python, swarm.cohive]
    averagers = [kind(tensors, client=number == 2, **options) for number, (kind, tensors) in enumerate(zip(kinds, inputs))]
    for group in average(averagers, weights):
        assert set(group) == {averager.name for averager in averagers}
    assert_all_hold(averagers, mean_of(inputs, weights), 2e-6)


@pytest.mark.parametrize("auxiliary", ["cohive", "python"])
def test_an_auxiliary_peer_helps_without_a_say(swarm, auxiliary):
    inputs = [tensors_of(seed) for seed in range(3)]
    options = {"target_group_size": 3, "request_timeout": 1.0, "min_matchmaking_time": 4.0}
    if auxiliary == "cohive":
        averagers = [swarm.cohive(inputs[0], mode=2, **options), swarm.python(inputs[1], **options), swarm.python(inputs[2], **options)]
    else:
        averagers = [swarm.python(inputs[0], auxiliary=True, **options), swarm.cohive(inputs[1], **options), swarm.cohive(inputs[2], **options)]
    average(averagers, weights=[0.0 if auxiliary == "cohive" else None, 1.0, 3.0])
    assert_all_hold(averagers, mean_of(inputs[1:], [1.0, 3.0]), 2e-6)


def test_bandwidths_divide_the_work_alike_on_both_sides(swarm):
    inputs = [tensors_of(seed, [(20000,), (333,)]) for seed in range(4)]
    options = {"target_group_size": 4, "request_timeout": 1.0, "min_matchmaking_time": 6.0}
    bandwidths = [100.0, 300.0, None, 50.0]
    kinds = [swarm.cohive, swarm.python, swarm.cohive, swarm.python]
    averagers = []
    for kind, tensors, bandwidth in zip(kinds, inputs, bandwidths):
        averagers.append(kind(tensors, **options, **({} if bandwidth is None else {"bandwidth": bandwidth})))
    average(averagers)
    assert_all_hold(averagers, mean_of(inputs, [1.0] * 4), 2e-6)


def test_the_others_go_on_without_a_python_member_that_stalls(swarm):
    inputs = [tensors_of(seed, [(6000,)]) for seed in range(3)]
    options = {"target_group_size": 3, "request_timeout": 1.0, "min_matchmaking_time": 4.0}
    limits = {"sender_timeout": 2.0, "reducer_timeout": 5.0}
    cohive = [swarm.cohive(tensors, **options, **limits) for tensors in inputs[:2]]
    python = swarm.python(inputs[2], **options)
    stalled = python.averager.step(wait=False, timeout=LIMIT, require_trigger=True)  # finds the group, never sends
    waits = [averager.peer.start("averager_step", timeout=LIMIT, allow_retries=False) for averager in cohive]
    rounds = [wait(LIMIT) for wait in waits]
    stalled.cancel()
    for found in rounds:
        assert len(found["group"]) == 3
        assert 0 < found["parts_failed"] < found["parts_total"]
    (first,), (second,) = (averager.tensors() for averager in cohive)
    mean = (inputs[0][0] + inputs[1][0]) / 2
    averaged = np.isclose(first, mean, rtol=0, atol=2e-6)
    assert 3000 < averaged.sum() < 5000, "two of three reducers did their part"
    np.testing.assert_allclose(second[averaged], mean[averaged], rtol=0, atol=2e-6)
    np.testing.assert_array_equal(first[~averaged], inputs[0][0][~averaged])


def test_groups_need_the_same_tensors(swarm):
    options = {"min_matchmaking_time": 1.5, "request_timeout": 1.0}
    cohive = swarm.cohive(tensors_of(0, [(4, 5)]), **options)
    python = swarm.python(tensors_of(0, [(5, 4)]), **options)
    waiting = cohive.peer.start("averager_step", timeout=5, allow_retries=False)
    control = python.averager.step(wait=False, timeout=5, allow_retries=False)
    with pytest.raises(PeerError, match="no averaging group was formed in time"):
        waiting()
    with pytest.raises(Exception, match="could not find a group"):
        control.result(timeout=LIMIT)


STATE = [np.arange(70_000, dtype=np.float32).reshape(7, 10_000) / 7, np.array(2**40, dtype=np.int64), np.zeros((0, 3), np.float32),
         np.array([True, False, True]), np.array([[1.5, -2.25]], dtype=np.float16)]


def same_state(found, wanted, tolerance=0.0):
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in wanted]
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in wanted]
    for tensor, original in zip(found, wanted):
        np.testing.assert_allclose(tensor.astype(np.float64), original.astype(np.float64), rtol=tolerance, atol=0)


class PythonDonor(DecentralizedAverager):
    def get_current_state(self):
        return {"epoch": 7, "name": "donor"}, [torch.tensor(array) for array in STATE], None


# Both sides put the class's name into the names of their calls.
PythonDonor.__name__ = PythonDonor.__qualname__ = "DecentralizedAverager"


def test_a_python_peer_downloads_the_state_of_a_cohive_peer(swarm):
    donor = swarm.cohive(tensors_of(0, [(3,)]))
    metadata = {"epoch": 5, "nested": {"list": [1, 2.5, None], "bytes": b"\0\xff"}}
    donor.call("averager_share", metadata=packed(metadata), tensors=[to_wire(array) for array in STATE], priority=3.0)
    python = swarm.python(tensors_of(0, [(3,)]))
    found, tensors = retry(functools.partial(python.averager.load_state_from_peers, timeout=LIMIT))
    assert found == metadata
    same_state([tensor.numpy() for tensor in tensors], STATE)


def test_a_cohive_peer_downloads_the_state_of_a_python_peer(swarm, monkeypatch):
    monkeypatch.setattr(DecentralizedAverager, "get_current_state", PythonDonor.get_current_state)
    donor = swarm.python(tensors_of(0, [(3,)]))
    cohive = swarm.cohive(tensors_of(0, [(3,)]))
    state = retry(lambda: cohive.call("averager_download"))
    assert state["donor"] == donor.name
    assert unpacked(state["metadata"]) == {"epoch": 7, "name": "donor"}
    same_state([from_wire(tensor) for tensor in state["tensors"]], STATE)


@pytest.mark.parametrize("donor", ["cohive", "python"])
def test_state_in_half_precision(swarm, monkeypatch, donor):
    floats = [STATE[0] + 1, STATE[2]]
    if donor == "cohive":
        cohive = swarm.cohive(tensors_of(0, [(3,)]), state_codec=2)
        cohive.call("averager_share", metadata=packed({"epoch": 1}), tensors=[to_wire(array) for array in floats])
        python = swarm.python(tensors_of(0, [(3,)]))
        tensors = retry(functools.partial(python.averager.load_state_from_peers, timeout=LIMIT))[1]
        same_state([tensor.numpy() for tensor in tensors], floats, 1e-3)
    else:
        monkeypatch.setattr(DecentralizedAverager, "get_current_state",
                            lambda self: ({"epoch": 1}, [torch.tensor(array) for array in floats], None))
        swarm.python(tensors_of(0, [(3,)]), state_compression=Float16Compression())
        cohive = swarm.cohive(tensors_of(0, [(3,)]))
        same_state([from_wire(tensor) for tensor in retry(lambda: cohive.call("averager_download"))["tensors"]], floats, 1e-3)


def test_the_best_donor_of_either_kind_is_asked_first(swarm):
    cohive = swarm.cohive(tensors_of(0, [(3,)]))
    cohive.call("averager_share", metadata=packed({"epoch": 5}), tensors=[to_wire(STATE[1])], priority=5.0)
    python = swarm.python(tensors_of(0, [(3,)]))
    python.averager.state_sharing_priority = 9
    late = swarm.cohive(tensors_of(0, [(3,)]))
    retry(lambda: late.call("averager_download")["donor"] == python.name)
    python.averager.allow_state_sharing = False
    retry(lambda: late.call("averager_download")["donor"] == cohive.name)


def retry(attempt):
    """The first truthy result: a donor's announcement takes a moment to spread."""
    end = get_dht_time() + LIMIT
    while True:
        try:
            result = attempt()
        except PeerError:
            result = None
        if result or get_dht_time() > end:
            assert result, "nobody gave its state in time"
            return result
