"""One DHT of cohive and Python hivemind nodes: each joins through the other, and both read what either wrote."""

import math
import time

import pytest

hivemind = pytest.importorskip("hivemind")

from hivemind.dht import DHT  # noqa: E402
from hivemind.dht.crypto import RSASignatureValidator  # noqa: E402
from hivemind.dht.routing import DHTID  # noqa: E402
from hivemind.dht.schema import SchemaValidator  # noqa: E402
from hivemind.optim.progress_tracker import TrainingProgressSchema  # noqa: E402
from hivemind.utils import MSGPackSerializer, get_dht_time  # noqa: E402
from hivemind.utils.crypto import RSAPrivateKey  # noqa: E402

from interop_peer import Peer, PeerError  # noqa: E402

ODD = [None, True, False, 0, 1, -1, 2**40, -(2**40), 1.5, math.inf, "", "text", "é" * 100, b"", b"\0" * 300, [], [1, "a", [2.5]],
       (), (1, ("nested", b"x")), {"a": 1, "b": [True, None]}]


def packed(value):
    return MSGPackSerializer.dumps(value).hex()


def unpacked(text):
    return MSGPackSerializer.loads(bytes.fromhex(text))


def store(peer, key, value, expiration, **subkey):
    fields = {"subkey": packed(subkey["subkey"])} if subkey else {}
    return peer.call("dht_store", key=packed(key), value=packed(value), expiration=expiration, **fields)


def get(peer, key, latest=True):
    """As DHT.get returns it."""
    found = peer.call("dht_get", key=packed(key), latest=latest)
    if found is None:
        return None
    if "value" in found:
        return unpacked(found["value"]), found["expiration"]
    entries = {unpacked(subkey): (unpacked(value), expiration) for subkey, value, expiration in found["entries"]}
    return entries, found["expiration"]


def python_get(dht, key):
    found = dht.get(key, latest=True)
    if found is None:
        return None
    if isinstance(found.value, dict) and found.value and all(hasattr(entry, "expiration_time") for entry in found.value.values()):
        return {subkey: (entry.value, entry.expiration_time) for subkey, entry in found.value.items()}, found.expiration_time
    return found.value, found.expiration_time


# Run inside the Python node's process.
async def known_nodes(_dht, node):
    return [uid.to_bytes().hex() for uid in node.protocol.routing_table.uid_to_peer_id]


async def stored_keys(_dht, node):
    return sorted(key.to_bytes().hex() for key in node.protocol.storage.data)


@pytest.fixture
def swarm(program):
    """Starts peers of both kinds and stops them all."""
    started = []

    class Swarm:
        def cohive(self, initial_peers=(), **options):
            peer = Peer(program("cohive-interop-peer"), client=options.get("client", False),
                        **({"listen": []} if options.get("client") else {}))
            started.append(peer.close)
            peer.dht = peer.call("dht_start", initial_peers=list(initial_peers), **options)
            return peer

        def python(self, initial_peers=(), **options):
            dht = DHT(initial_peers=list(initial_peers), start=True, **options)
            started.append(dht.shutdown)
            dht.addresses = [str(address) for address in dht.get_visible_maddrs()]
            return dht

    yield Swarm()
    for stop in reversed(started):
        stop()


@pytest.fixture(params=["cohive first", "python first"])
def pair(swarm, request):
    """One node of each kind; one joins through the other."""
    if request.param == "cohive first":
        peer = swarm.cohive()
        return peer, swarm.python(peer.addresses)
    dht = swarm.python()
    return swarm.cohive(dht.addresses), dht


def test_each_finds_the_other_in_its_table(pair):
    peer, dht = pair
    nodes = peer.call("dht_info")["nodes"]
    assert [node[1] for node in nodes] == [dht.peer_id.to_base58()]
    node_id = peer.call("dht_ping", peer=dht.peer_id.to_base58())
    assert node_id == nodes[0][0]
    assert dht.run_coroutine(known_nodes) == [peer.dht["node_id"]]


def test_plain_values_of_every_type_in_both_directions(pair):
    peer, dht = pair
    expiration = get_dht_time() + 60.25
    for number, value in enumerate(ODD):
        assert store(peer, f"from cohive {number}", value, expiration)
        assert dht.store(f"from python {number}", value, expiration)
        assert python_get(dht, f"from cohive {number}") == (value, expiration)
        assert get(peer, f"from python {number}") == (value, expiration)
        assert type(get(peer, f"from python {number}")[0]) is type(value)


def test_keys_of_every_hashable_type_name_the_same_records(pair):
    peer, dht = pair
    expiration = get_dht_time() + 60
    for key in (0, "", False, True, b"raw", (1, "a"), 1.5, "run_progress"):
        assert store(peer, key, repr(key), expiration)
        assert python_get(dht, key) == (repr(key), expiration)


def test_dictionaries_grow_from_both_sides(pair):
    peer, dht = pair
    now = get_dht_time()
    subkeys = ["text", b"bytes", 7, (1, "tuple"), 2.5, False]
    for number, subkey in enumerate(subkeys):
        expiration = now + 60 + number
        if number % 2:
            assert store(peer, "dict", {"n": number}, expiration, subkey=subkey)
        else:
            assert dht.store("dict", {"n": number}, expiration, subkey=subkey)
    expected = {subkey: ({"n": number}, now + 60 + number) for number, subkey in enumerate(subkeys)}
    assert get(peer, "dict") == (expected, now + 65)
    assert python_get(dht, "dict") == (expected, now + 65)
    # The rules of replacement hold on both sides.
    assert not store(peer, "dict", "older", now + 30, subkey="text")
    assert not dht.store("dict", "older", now + 31, subkey=b"bytes")  # equal times break Python's heap on mixed types
    assert not store(peer, "dict", "plain", now + 64)
    assert store(peer, "dict", "newer", now + 100, subkey="text")
    assert python_get(dht, "dict")[0]["text"] == ("newer", now + 100)


def test_newer_records_win_and_expired_ones_vanish(pair):
    peer, dht = pair
    now = get_dht_time()
    assert dht.store("key", "new", now + 50)
    assert not store(peer, "key", "old", now + 40)
    assert get(peer, "key") == ("new", now + 50)
    assert store(peer, "short", 1, get_dht_time() + 1)
    time.sleep(1.5)
    assert python_get(dht, "short") is None
    assert get(peer, "short") is None
    assert get(peer, "never stored") is None


def test_many_records_at_once(pair):
    peer, dht = pair
    expiration = get_dht_time() + 120
    items = [{"key": packed(f"many {n}"), "value": packed(n), "expiration": expiration} for n in range(200)]
    assert all(peer.call("dht_store_many", items=items))
    assert [python_get(dht, f"many {n}")[0] for n in range(0, 200, 20)] == list(range(0, 200, 20))


def test_signed_records_are_read_and_defended_on_both_sides(swarm):
    peer = swarm.cohive(signed=True)
    owner = RSASignatureValidator(RSAPrivateKey())
    dht = swarm.python(peer.addresses, record_validators=[owner])
    now = get_dht_time()
    ours, theirs = bytes.fromhex(peer.dht["marker"]), owner.local_public_key
    assert store(peer, "signed", 42, now + 60, subkey=ours)
    assert dht.store("signed", 43, now + 61, subkey=theirs)
    expected = {ours: (42, now + 60), theirs: (43, now + 61)}
    assert get(peer, "signed")[0] == expected
    assert python_get(dht, "signed")[0] == expected
    # Neither can write for the other.
    assert not store(peer, "signed", 0, now + 70, subkey=theirs)
    assert not dht.store("signed", 0, now + 70, subkey=ours)
    assert python_get(dht, "signed")[0] == expected
    assert get(peer, "signed")[0] == expected


def test_progress_records_pass_the_schema_of_the_other_side(swarm):
    peer = swarm.cohive(signed=True, progress="run")
    owner = RSASignatureValidator(RSAPrivateKey())
    validators = [SchemaValidator(TrainingProgressSchema, prefix="run"), owner]
    dht = swarm.python(peer.addresses, record_validators=validators)
    now = get_dht_time()
    report = {"peer_id": b"\x12\x20" + b"x" * 32, "epoch": 3, "samples_accumulated": 0, "samples_per_second": 1e-20, "time": now,
              "client_mode": False}
    ours = bytes.fromhex(peer.dht["marker"])
    assert store(peer, "run_progress", report, now + 60, subkey=ours)
    assert dht.store("run_progress", report, now + 60, subkey=owner.local_public_key)
    for found in (get(peer, "run_progress")[0], python_get(dht, "run_progress")[0]):
        assert found == {ours: (report, now + 60), owner.local_public_key: (report, now + 60)}
    assert not store(peer, "run_progress", {**report, "epoch": 3.0}, now + 61, subkey=ours)
    assert not store(peer, "run_progress", {**report, "samples_per_second": 0}, now + 61, subkey=ours)
    assert store(peer, "run_progress", None, now + 61, subkey=ours), "the goodbye"
    assert python_get(dht, "run_progress")[0][ours] == (None, now + 61)


def test_a_bad_entry_of_an_unvalidating_node_does_not_hide_the_others(swarm):
    bootstrap = swarm.python()
    owner = RSASignatureValidator(RSAPrivateKey())
    peer = swarm.cohive(bootstrap.addresses, signed=True)
    now = get_dht_time()
    bootstrap.store("mixed", "unsigned", now + 60, subkey=owner.local_public_key)
    assert store(peer, "mixed", "signed", now + 60, subkey=bytes.fromhex(peer.dht["marker"]))
    assert list(get(peer, "mixed")[0].values()) == [("signed", now + 60)]


@pytest.mark.parametrize("client", ["cohive", "python"])
def test_clients_of_either_kind(swarm, client):
    if client == "cohive":
        server = swarm.python()
        peer = swarm.cohive(server.addresses, client=True)
        dht = server
    else:
        peer = swarm.cohive()
        dht = swarm.python(peer.addresses, client_mode=True)
        assert peer.call("dht_info")["nodes"] == []
    now = get_dht_time()
    assert store(peer, "from cohive", 1, now + 60)
    assert python_get(dht, "from cohive") == (1, now + 60)
    assert dht.store("from python", 2, now + 60)
    assert get(peer, "from python") == (2, now + 60)


def test_a_larger_mixed_swarm_keeps_every_record_on_five_nodes(swarm):
    first = swarm.python()
    cohive = [swarm.cohive(first.addresses, cache=False) for _ in range(5)]
    python = [swarm.python(cohive[n].addresses, cache_locally=False, cache_on_store=False, cache_nearest=0) for n in range(3)]
    now = get_dht_time()
    for number in range(10):
        writer = cohive[number % 5] if number % 2 else python[number % 3]
        key, value = f"key {number}", [number] * 10
        assert store(writer, key, value, now + 90) if isinstance(writer, Peer) else writer.store(key, value, now + 90)

    for number in range(10):
        for peer in cohive:
            assert get(peer, f"key {number}") == ([number] * 10, now + 90)
        for dht in python:
            assert python_get(dht, f"key {number}") == ([number] * 10, now + 90)

    copies = sum(peer.call("dht_info")["stored"] for peer in cohive) + sum(len(dht.run_coroutine(stored_keys)) for dht in [first, *python])
    assert copies == 50
    # Some go; the records stay.
    python[0].shutdown()
    cohive[1].kill()
    for number in range(10):
        assert get(cohive[4], f"key {number}") == ([number] * 10, now + 90)
        assert python_get(python[2], f"key {number}") == ([number] * 10, now + 90)


def test_records_move_to_a_newcomer_of_the_other_kind(pair):
    peer, dht = pair
    now = get_dht_time()
    assert store(peer, "kept", 5, now + 100)
    assert store(peer, "kept too", 6, now + 100, subkey="a")
    assert peer.call("dht_info")["stored"] == 2
    assert dht.run_coroutine(stored_keys) == sorted(DHTID.generate(key).to_bytes().hex() for key in ("kept", "kept too"))


def test_an_unreachable_swarm_is_one_clear_sentence(program):
    peer = Peer(program("cohive-interop-peer"))
    nobody = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
    with pytest.raises(PeerError, match="none of the initial peers answered"):
        peer.call("dht_start", initial_peers=[nobody])
    peer.close()

