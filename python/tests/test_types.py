"""PeerID, Multiaddr, ValueWithExpiration, msgpack."""

import pickle
import random

import pytest

from cohive import DHTID, Multiaddr, PeerID, ValueWithExpiration, _msgpack

ID = "QmdaK4LUeQaKhqSFPRu9N7MvXUEWDxWwtCvPrS444tCgd1"


def test_peer_ids():
    peer = PeerID.from_base58(ID)
    assert str(peer) == peer.to_base58() == peer.pretty() == ID and len(peer.to_bytes()) == 34
    assert peer == PeerID(peer.to_bytes()) == pickle.loads(pickle.dumps(peer)) and hash(peer) == hash(
        PeerID(peer.to_bytes())
    )
    assert peer == ID and peer == peer.to_bytes() and peer != "else" and peer != 5
    assert sorted([PeerID(b"\2\2"), PeerID(b"\1\1")])[0] == PeerID(b"\1\1")
    assert PeerID.from_base58(PeerID(b"\0\0\1").to_base58()).to_bytes() == b"\0\0\1"
    with pytest.raises(ValueError):
        PeerID.from_base58("0OIl")
    with pytest.raises(TypeError):
        PeerID(ID)
    with pytest.raises(TypeError):
        sorted([peer, 5])


def test_addresses():
    address = Multiaddr(f"/ip4/127.0.0.1/tcp/31337/p2p/{ID}/")
    assert str(address) == f"/ip4/127.0.0.1/tcp/31337/p2p/{ID}"
    assert (
        address["tcp"] == "31337"
        and "p2p" in address
        and "udp" not in address
        and list(address) == ["ip4", "tcp", "p2p"]
    )
    assert address == pickle.loads(pickle.dumps(address)) and {address: 1}[Multiaddr(address)] == 1
    assert address.decapsulate("/p2p/" + ID) == Multiaddr("/ip4/127.0.0.1/tcp/31337")
    assert Multiaddr("/dns4/a.example/tcp/1").encapsulate("/p2p/" + ID)["p2p"] == ID
    assert str(Multiaddr(f"/ipfs/{ID}")) == f"/p2p/{ID}"
    assert Multiaddr(f"/ip6/::1/tcp/1/p2p/{ID}/p2p-circuit/p2p/{ID}")["ip6"] == "::1"
    for wrong in (
        "",
        "ip4",
        "/ip4",
        "/ip4/1.2.3/tcp/1",
        "/ip4/1.2.3.4/tcp/65536",
        "/ip4/1.2.3.4/tcp/-1",
        "/tcp/\u0661",
        "/what/1",
        "/p2p/0",
    ):
        with pytest.raises(ValueError, match="no multiaddr"):
            Multiaddr(wrong)
    with pytest.raises(KeyError):
        address["udp"]
    with pytest.raises(TypeError):
        Multiaddr(5)


def test_pairs_with_names():
    pair = ValueWithExpiration("value", 5.0)
    assert (
        pair == ("value", 5.0)
        and pair[0] == "value"
        and pair["expiration_time"] == 5.0
        and tuple(pair) == ("value", 5.0)
    )
    assert pickle.loads(pickle.dumps(pair)) == pair and pair != ValueWithExpiration("value", 6.0) and pair != "value"
    with pytest.raises(AttributeError):
        pair.value = 1


def test_keys_have_the_places_that_hivemind_gives_them():
    assert DHTID.generate(source="key").to_bytes().hex() == __import__("hashlib").sha1(b"\xa3key").hexdigest()
    assert DHTID.generate(source=b"key").to_bytes().hex() == __import__("hashlib").sha1(b"key").hexdigest()
    place = DHTID.generate()
    assert (
        DHTID.from_bytes(bytes(place)) == place
        and place.xor_distance(place) == 0
        and place.xor_distance([place]) == [0]
    )
    with pytest.raises(ValueError):
        DHTID(1 << 160)


def test_msgpack_there_and_back():
    generator = random.Random(7)

    def value(depth=0):
        kinds = 8 if depth > 3 else 11
        kind = generator.randrange(kinds)
        size = generator.choice((0, 1, 5, 31, 32, 300))
        return [
            lambda: None, lambda: generator.random() < 0.5,
            lambda: generator.randrange(-(2**63), 2**64), lambda: generator.random(),
            lambda: generator.randrange(-200, 200), lambda: "\u00e9" * size, lambda: b"b" * size, lambda: 2.0**500,
            lambda: [value(depth + 1) for _ in range(size % 20)],
            lambda: tuple(value(depth + 1) for _ in range(size % 17)),
            lambda: {f"{number}": value(depth + 1) for number in range(size % 18)},
        ][kind]()  # fmt: skip

    for _ in range(300):
        one = value()
        assert _msgpack.loads(_msgpack.dumps(one)) == one


NO_MSGPACK = [b"", b"\xc1", b"\x91", b"\xa5abc", b"\xc0\xc0", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"]
NO_MSGPACK += [b"\x81\x01\x02", b"\xa1\xff", b"\x91" * 100 + b"\xc0", b"\xc7\x01\x40\xc0"]


@pytest.mark.parametrize("data", NO_MSGPACK)
def test_msgpack_that_is_none(data):
    with pytest.raises(ValueError):
        _msgpack.loads(data)


def nested(levels, kind=list):
    value = kind()
    for _ in range(levels - 1):
        value = kind([value])
    return value


@pytest.mark.parametrize("kind", [list, tuple])
def test_msgpack_is_as_deep_as_the_library_has_it_in_answers(kind):
    levels = 64 if kind is list else 32  # a tuple is an extension, with an array in it
    inner = _msgpack.dumps(nested(levels, kind))
    assert _msgpack.loads(b"\x91" * 4 + inner) == [[[[nested(levels, kind)]]]]
    with pytest.raises(ValueError, match="nested more than 64 times"):
        _msgpack.loads(b"\x91" * 12 + inner)
    with pytest.raises(ValueError, match="nested more than 64 times"):
        _msgpack.dumps(nested(levels + 2, kind))
    with pytest.raises(ValueError, match="nested more than 64 times"):
        _msgpack.loads(endless_tuple())


def endless_tuple():
    """Tuples in tuples, as no writer of ours makes them: each is an extension of 32-bit size around an array."""
    data = b"\x90"
    for _ in range(2000):
        data = b"\x91\xc9" + len(data).to_bytes(4, "big") + b"\x40" + data
    return data


def refuse(data):
    raise ZeroDivisionError("a decoder of the user's")


def test_what_does_not_decode_spoils_nothing_else(monkeypatch):
    monkeypatch.setitem(_msgpack._decoders, 0x51, refuse)
    good, wrong, extension = b"\xa4good", b"\xa1\xff", b"\xd4\x51\x00"
    odd = [wrong, extension, b"\x91" + wrong, b"\x82" + wrong + b"\x01" + good + extension, b"\xc7\x03\x40\x91" + wrong]
    for data in odd:
        with pytest.raises(ValueError):
            _msgpack.loads(data)
        kept, spoilt = _msgpack.loads(b"\x92" + good + data, lenient=True)
        assert kept == "good" and _msgpack.is_readable(kept) and not _msgpack.is_readable(spoilt)
    assert _msgpack.is_readable([1, ("a", {"b": [None]})])
    with pytest.raises(ValueError, match="ends too early"):
        _msgpack.loads(b"\x92" + good, lenient=True)


def test_a_subclass_is_no_value_of_msgpack():
    class Text(str):
        pass

    for wrong in (Text("x"), object(), {1, 2}, 1j):
        with pytest.raises(TypeError, match="can not serialize"):
            _msgpack.dumps(wrong)
    with pytest.raises(ValueError):
        _msgpack.dumps("\ud800")
