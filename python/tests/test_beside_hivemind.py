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
