"""Circuits through relays of both kinds, between peers of both kinds: hivemind's p2pd and cohive."""

import asyncio
import contextlib
import json
import re
import subprocess
import types
import urllib.request

import pytest

hivemind = pytest.importorskip("hivemind")

from hivemind.p2p import P2P  # noqa: E402
from hivemind.proto.runtime_pb2 import Tensor  # noqa: E402

from interop_peer import PeerError  # noqa: E402
from test_p2pd import message, packed, swarm, unpacked, until, within  # noqa: E402, F401


def through(relay, target):
    """The address of `target` behind `relay`."""
    return f"{relay.addresses[0]}/p2p-circuit/p2p/{target.peer_id.to_base58()}"


async def hidden_cohive(swarm, relay):
    peer = await swarm.cohive(trusted_relays=[relay.addresses[0]], listen=["/ip4/127.0.0.1/tcp/0"])

    async def reserved():
        return (await peer.call("host_relays"))["relays"]

    relays = await until(reserved)
    return peer, relays[0]


class EagerP2P(P2P):
    """Reserves with its trusted relays at once: p2pd would wait for four candidates, or three minutes."""

    @staticmethod
    def _make_process_args(*arguments, **options):
        return P2P._make_process_args(*arguments, relayDiscovery=0, **options)


@contextlib.asynccontextmanager
async def python(initial_peers=(), make=P2P, **options):
    peer = await within(make.create(list(initial_peers), nat_port_map=False, auto_nat=False, **options))
    try:
        yield peer
    finally:
        await peer.shutdown()


@contextlib.asynccontextmanager
async def hidden_python(relay):
    """A p2pd without any listener, which only the relay can call."""
    async with python(make=EagerP2P, use_auto_relay=True, trusted_relays=relay.addresses[:1], no_listen=True,
                      force_reachability="private") as peer:
        await peer.add_protobuf_handler("echo", echo, Tensor)
        yield peer


async def echo(request, context):
    return request


async def connects(dialler, address):
    """The reservation of the other end may take a moment: dials until it works."""

    async def dial():
        try:
            await dialler.call("host_connect", address=address)
            return True
        except PeerError:
            await asyncio.sleep(0.5)
            return False

    return await until(dial)


async def test_a_cohive_peer_is_reached_through_a_p2pd(swarm):  # noqa: F811
    relay = await swarm.python()
    hidden, granted = await hidden_cohive(swarm, relay)
    assert (granted["bytes"], granted["seconds"]) == (131072, 120)
    assert any("p2p-circuit" in address for address in (await hidden.call("host_relays"))["addresses"])
    await hidden.serve("echo", "echo")
    dialler = await swarm.cohive()
    await connects(dialler, through(relay, hidden))
    reply = await dialler.unary(hidden.peer_id, "echo", packed(b"hello"))
    assert unpacked(reply) == b"hello"
    with pytest.raises(PeerError, match="does not carry"):  # what would not fit is not begun
        await dialler.unary(hidden.peer_id, "echo", packed(bytes(200_000)))
    assert unpacked(await dialler.unary(hidden.peer_id, "echo", packed(b"again"))) == b"again"


async def test_python_calls_a_cohive_peer_through_a_p2pd(swarm):  # noqa: F811
    relay = await swarm.python()
    hidden, _ = await hidden_cohive(swarm, relay)
    await hidden.serve("echo", "echo")
    async with python([through(relay, hidden)]) as caller:
        reply = await within(caller.call_protobuf_handler(hidden.peer_id, "echo", message(b"hello"), Tensor))
        assert reply.buffer == b"hello"


@pytest.mark.parametrize("kind, size", [("cohive", 200_000), ("python", 5)])
async def test_cohive_calls_python_through_either_relay(swarm, kind, size):  # noqa: F811
    relay = await (swarm.cohive(relay=True) if kind == "cohive" else swarm.python())
    async with hidden_python(relay) as hidden:
        caller = await swarm.cohive()
        await connects(caller, through(relay, hidden))
        assert unpacked(await caller.unary(hidden.peer_id, "echo", packed(bytes(size)))) == bytes(size)


@contextlib.contextmanager
def bootstrap_relay(program):
    """A cohive-bootstrap that relays: its addresses and metrics."""
    command = [program("cohive-bootstrap"), "--relay", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--json",
               "--metrics-address", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = json.loads(process.stdout.readline())
            yield types.SimpleNamespace(addresses=line["initial_peers"], metrics=line["metrics"])
        finally:
            process.terminate()


def metric(relay, name):
    with urllib.request.urlopen(relay.metrics, timeout=10) as answer:
        return float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.M)[1])


async def test_python_calls_python_through_a_bootstrap_node_of_cohive(program):
    with bootstrap_relay(program) as relay:
        async with hidden_python(relay) as hidden:

            async def reserved():
                return metric(relay, "cohive_p2p_relay_reservations") == 1

            await until(reserved)
            async with python([through(relay, hidden)]) as caller:
                for size in (5, 1_000_000):  # the second is more than a p2pd would carry
                    request = message(bytes(size))
                    reply = await within(caller.call_protobuf_handler(hidden.peer_id, "echo", request, Tensor))
                    assert reply.buffer == bytes(size)
                assert metric(relay, "cohive_p2p_relay_circuits") == 1
                assert metric(relay, "cohive_p2p_relay_bytes_total") > 2_000_000
