"""The p2pd of Python hivemind and a cohive host: connections, identify, ping, calls, and finding peers by their id."""

import asyncio
import os
import socket

import pytest

hivemind = pytest.importorskip("hivemind")

from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: E402
from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError, PeerID  # noqa: E402
from hivemind.proto import crypto_pb2  # noqa: E402
from hivemind.proto.runtime_pb2 import Tensor  # noqa: E402
from hivemind.utils.multiaddr import Multiaddr  # noqa: E402

from interop_peer import Peer, PeerError  # noqa: E402

PATIENCE = 30  # seconds until something that should happen counts as not happening
UNARY_LIMIT = 4 * 1024 * 1024  # of a whole request or reply frame


def message(payload):
    """What the calls of these tests carry: a protobuf with one field of bytes."""
    return Tensor(buffer=payload)


def packed(payload):
    return message(payload).SerializeToString().hex()


def unpacked(text):
    return Tensor.FromString(bytes.fromhex(text)).buffer


async def messages(payloads):
    for payload in payloads:
        yield message(payload)


def within(awaitable):
    return asyncio.wait_for(awaitable, PATIENCE)


async def until(condition):
    """Asks again and again until the answer of `condition` is a yes; returns it."""

    async def ask():
        while not (answer := await condition()):
            await asyncio.sleep(0.02)
        return answer

    return await within(ask())


async def no(answer):
    return not await answer


class Cohive:
    """A cohive peer whose commands are awaited, so that Python's handlers run meanwhile."""

    def __init__(self, path, **host):
        self._peer = Peer(path, **host)
        self.peer_id, self.addresses = PeerID.from_base58(self._peer.peer_id), self._peer.addresses
        self.close = self._peer.close

    def start(self, command, **fields):
        wait = self._peer.start(command, **fields)
        return asyncio.ensure_future(asyncio.to_thread(wait, PATIENCE))

    async def call(self, command, **fields):
        return await self.start(command, **fields)

    async def serve(self, protocol, does, **options):
        await self.call("rpc_serve", protocol=protocol, does=does, **options)

    async def served(self, protocol):
        return await self.call("rpc_served", protocol=protocol)

    async def peer(self, peer_id):
        """What it knows of a connected peer, once that one has identified itself."""
        peers = {peer["id"]: peer for peer in await self.call("host_peers")}
        found = peers.get(peer_id.to_base58())
        return found if found and found["agent"] else None

    def unary(self, peer_id, protocol, request, **options):
        return self.start("rpc_call", peer=peer_id.to_base58(), protocol=protocol, request=request, **options)

    def stream(self, peer_id, protocol, payloads, **options):
        return self.start("rpc_stream", peer=peer_id.to_base58(), protocol=protocol,
                          requests=[packed(payload) for payload in payloads], **options)


@pytest.fixture
async def swarm(program):
    """Starts peers of both kinds and stops them all."""
    cohive, python = [], []

    class Swarm:
        async def cohive(self, hub=None, **host):
            peer = await asyncio.to_thread(Cohive, program("cohive-interop-peer"), **host)
            cohive.append(peer)
            if hub:
                await peer.call("host_bootstrap", peers=hub.addresses)
                await self.known(peer, hub)
            return peer

        async def python(self, hub=None, **options):
            initial_peers = hub.addresses if hub else ()
            p2p = await within(P2P.create(list(initial_peers), nat_port_map=False, auto_nat=False, **options))
            python.append(p2p)
            p2p.addresses = [str(address) for address in await p2p.get_visible_maddrs()]
            if hub:
                await self.known(p2p, hub)
            return p2p

        async def known(self, peer, hub):
            """Waits until the hub knows where a peer listens."""
            await until(lambda: hub.peer(peer.peer_id) if isinstance(hub, Cohive) else lists(hub, peer.peer_id))

    yield Swarm()
    for p2p in python:
        await within(p2p.shutdown())
    for peer in cohive:
        await asyncio.to_thread(peer.close)


@pytest.fixture
async def pair(swarm):
    """One peer of each kind; Python dialled."""
    peer = await swarm.cohive()
    return peer, await swarm.python(peer)


async def connect(p2p, address):
    transport, _, peer_id = address.partition("/p2p/")
    await within(p2p._client.connect(PeerID.from_base58(peer_id), [Multiaddr(transport)]))


async def lists(p2p, peer_id):
    return [peer for peer in await p2p.list_peers() if peer.peer_id == peer_id]


# ---- Connections


@pytest.mark.parametrize("key", ["ed25519", "rsa"])
@pytest.mark.parametrize("dialler", ["cohive", "python"])
async def test_they_connect_and_identify(swarm, key, dialler):
    peer, p2p = await swarm.cohive(key=key), await swarm.python()
    assert str(peer.peer_id).startswith("Qm" if key == "rsa" else "12D3Koo")
    if dialler == "cohive":
        assert await peer.call("host_connect", address=p2p.addresses[0]) == p2p.peer_id.to_base58()
    else:
        await connect(p2p, peer.addresses[0])

    seen = await until(lambda: peer.peer(p2p.peer_id))
    assert seen["agent"] == "p2pd/0.1"
    assert {"/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0", "/ipfs/kad/1.0.0", "/ipfs/ping/1.0.0"} <= set(seen["protocols"])
    assert seen["outbound"] == (dialler == "cohive")
    assert [f"{address}/p2p/{p2p.peer_id}" for address in seen["addresses"]] == p2p.addresses
    assert await until(lambda: lists(p2p, peer.peer_id))


@pytest.mark.parametrize("security, agreed", [("noise", "/noise"), ("tls", "/tls/1.0.0")])
@pytest.mark.parametrize("key", ["ed25519", "rsa"])
@pytest.mark.parametrize("dialler", ["cohive", "python"])
async def test_they_agree_on_what_cohive_offers(swarm, security, agreed, key, dialler):
    peer, p2p = await swarm.cohive(security=[security], key=key), await swarm.python()
    if dialler == "cohive":
        await peer.call("host_connect", address=p2p.addresses[0])
    else:
        await connect(p2p, peer.addresses[0])
    assert (await until(lambda: peer.peer(p2p.peer_id)))["security"] == agreed
    assert 0 < await peer.call("host_ping", peer=str(p2p.peer_id)) < PATIENCE


@pytest.mark.parametrize("family", ["/ip4/", "/ip6/"])
@pytest.mark.parametrize("dialler", ["cohive", "python"])
async def test_both_families_of_addresses(swarm, family, dialler):
    both = ["/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"]
    peer, p2p = await swarm.cohive(listen=both), await swarm.python(host_maddrs=both)
    ours, theirs = (next(one for one in addresses if one.startswith(family))
                    for addresses in (peer.addresses, p2p.addresses))
    if dialler == "cohive":
        await peer.call("host_connect", address=theirs)
    else:
        await connect(p2p, ours)
    assert (await until(lambda: peer.peer(p2p.peer_id)))["outbound"] == (dialler == "cohive")
    assert 0 < await peer.call("host_ping", peer=str(p2p.peer_id)) < PATIENCE


def new_identity():
    """A serialised Ed25519 private key, as identity files hold it."""
    key = ed25519.Ed25519PrivateKey.generate()
    raw = serialization.Encoding.Raw
    data = key.private_bytes(raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    data += key.public_key().public_bytes(raw, serialization.PublicFormat.Raw)
    return crypto_pb2.PrivateKey(key_type=crypto_pb2.KeyType.Ed25519, data=data).SerializeToString()


async def test_a_p2pd_with_an_ed25519_key_is_known_by_its_id(swarm, tmp_path):
    (tmp_path / "identity").write_bytes(new_identity())
    p2p = await swarm.python(identity_path=str(tmp_path / "identity"))
    assert str(p2p.peer_id).startswith("12D3Koo")
    peer = await swarm.cohive(p2p)
    assert await until(lambda: peer.peer(p2p.peer_id))


async def test_the_wrong_peer_at_an_address_is_refused_by_both(swarm):
    peer, other, p2p = await swarm.cohive(), await swarm.cohive(), await swarm.python()
    pretended = p2p.addresses[0].replace(str(p2p.peer_id), str(other.peer_id))
    with pytest.raises(PeerError, match=str(p2p.peer_id)):
        await peer.call("host_connect", address=pretended)
    with pytest.raises(Exception, match="peer id mismatch"):
        await connect(p2p, peer.addresses[0].replace(str(peer.peer_id), str(other.peer_id)))


async def test_each_answers_the_pings_of_the_other(pair):
    peer, p2p = pair
    assert 0 < await peer.call("host_ping", peer=str(p2p.peer_id)) < PATIENCE
    _, reader, writer = await within(p2p.call_binary_stream_handler(peer.peer_id, "/ipfs/ping/1.0.0"))
    for _ in range(3):
        sent = os.urandom(32)
        writer.write(sent)
        assert await within(reader.readexactly(32)) == sent
    writer.close()


async def test_a_connection_that_ends_is_noticed_and_made_again(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_echo", "echo")
    for _ in range(3):
        await until(lambda: lists(p2p, peer.peer_id))
        await peer.call("host_disconnect", peer=str(p2p.peer_id))
        await until(lambda: no(lists(p2p, peer.peer_id)))
        reply = await within(p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_echo", message(b"again"), Tensor))
        assert reply.buffer == b"again"


async def test_simultaneous_dials_leave_a_link_that_works_both_ways(swarm):
    peer, p2p = await swarm.cohive(), await swarm.python()
    await peer.serve("Test.rpc_echo", "echo")
    await p2p.add_protobuf_handler("Test.rpc_back", python_echo, Tensor)
    await asyncio.gather(connect(p2p, peer.addresses[0]), peer.call("host_connect", address=p2p.addresses[0]))
    reply = await within(p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_echo", message(b"there"), Tensor))
    assert reply.buffer == b"there"
    assert unpacked(await peer.unary(p2p.peer_id, "Test.rpc_back", packed(b"back"))) == b"back"


# ---- Unary calls


async def python_echo(request, context):
    return request


SIZES = [0, 1, 100, 4096, 65536, 300_000, 2 * 1024 * 1024, UNARY_LIMIT - 200]


async def test_cohive_serves_unary_calls_of_every_size(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_echo", "echo")
    for size in SIZES:
        sent = message(os.urandom(size))
        reply = await within(p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_echo", sent, Tensor))
        assert reply == sent


async def test_python_serves_unary_calls_of_every_size(pair):
    peer, p2p = pair
    callers = set()

    async def handler(request, context):
        callers.add(context.remote_id)
        return request

    await p2p.add_protobuf_handler("Test.rpc_echo", handler, Tensor)
    for size in SIZES:
        sent = packed(os.urandom(size))
        assert await peer.unary(p2p.peer_id, "Test.rpc_echo", sent) == sent
    assert callers == {peer.peer_id}


async def test_the_caller_is_who_the_handshake_proved(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_who", "name the caller")
    assert await within(p2p._client.call_unary_handler(peer.peer_id, "Test.rpc_who", b"")) == p2p.peer_id.to_bytes()


async def test_a_request_over_the_limit_is_refused_before_it_is_sent(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_echo", "echo")
    await p2p.add_protobuf_handler("Test.rpc_back", python_echo, Tensor)
    with pytest.raises(P2PDaemonError, match="limit"):
        await within(p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_echo", message(bytes(UNARY_LIMIT)), Tensor))
    with pytest.raises(PeerError, match="larger than the protocol allows"):
        await peer.unary(p2p.peer_id, "Test.rpc_back", packed(bytes(UNARY_LIMIT)))
    assert (await peer.served("Test.rpc_echo"))["requests"] == 0
    # and the connection goes on
    assert unpacked(await peer.unary(p2p.peer_id, "Test.rpc_back", packed(b"small"))) == b"small"


async def test_the_error_of_a_unary_handler_reaches_the_caller_as_text(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_fail", "fail", text="the cohive peer is out of luck")

    async def handler(request, context):
        raise ValueError("the python peer is out of luck")

    await p2p.add_protobuf_handler("Test.rpc_raise", handler, Tensor)
    with pytest.raises(P2PHandlerError, match="the cohive peer is out of luck"):
        await within(p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_fail", message(b""), Tensor))
    with pytest.raises(PeerError, match="ValueError.*the python peer is out of luck"):
        await peer.unary(p2p.peer_id, "Test.rpc_raise", packed(b""))


async def test_a_method_that_nobody_serves_is_an_error_at_once(pair):
    peer, p2p = pair
    with pytest.raises(P2PDaemonError, match="protocols not supported"):
        await within(p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_none", message(b""), Tensor))
    with pytest.raises(PeerError):
        await peer.unary(p2p.peer_id, "Test.rpc_none", packed(b""))


async def test_methods_may_come_after_the_connection(pair):
    peer, p2p = pair
    await until(lambda: peer.peer(p2p.peer_id))
    await p2p.add_protobuf_handler("Test.rpc_late", python_echo, Tensor)

    async def pushed():
        return "Test.rpc_late" in (await peer.peer(p2p.peer_id))["protocols"]

    await until(pushed)
    assert unpacked(await peer.unary(p2p.peer_id, "Test.rpc_late", packed(b"late"))) == b"late"


async def test_a_unary_call_that_python_cancels_drops_the_handler(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_wait", "wait")
    call = asyncio.create_task(p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_wait", message(b""), Tensor))
    assert await until(lambda: has(peer, "Test.rpc_wait", running=1))
    call.cancel()
    assert await until(lambda: has(peer, "Test.rpc_wait", running=0, dropped=1))


async def has(peer, protocol, **expected):
    counts = await peer.served(protocol)
    return counts if expected.items() <= counts.items() else None


class Waiting:
    """Python handlers that wait until they are cancelled."""

    def __init__(self):
        self.entered, self.cancelled = asyncio.Event(), asyncio.Event()

    async def _wait(self):
        self.entered.set()
        try:
            await asyncio.Future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def unary(self, request, context):
        await self._wait()

    async def stream(self, requests, context):
        async for request in requests:
            yield request
            await self._wait()


async def test_a_unary_call_that_cohive_drops_cancels_the_handler(pair):
    peer, p2p = pair
    waiting = Waiting()
    await p2p.add_protobuf_handler("Test.rpc_wait", waiting.unary, Tensor)
    call = peer.unary(p2p.peer_id, "Test.rpc_wait", packed(b""), name="call")
    await within(waiting.entered.wait())
    await peer.call("rpc_drop", name="call")
    await within(waiting.cancelled.wait())
    with pytest.raises(PeerError, match="dropped"):
        await call


async def test_many_unary_calls_run_at_once_in_both_directions(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_echo", "echo")
    all_here = asyncio.Event()
    running = 0

    async def handler(request, context):
        nonlocal running
        running += 1
        if running == 64:
            all_here.set()
        await all_here.wait()  # none is answered before all have arrived
        return request

    await p2p.add_protobuf_handler("Test.rpc_back", handler, Tensor)
    payloads = [os.urandom(1000 + number) for number in range(64)]
    # commands are sent at once; their replies are collected one by one
    waits = [peer._peer.start("rpc_call", peer=str(p2p.peer_id), protocol="Test.rpc_back", request=packed(payload))
             for payload in payloads]
    there = [p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_echo", message(payload), Tensor) for payload in payloads]
    replies = await within(asyncio.gather(*there))
    assert [reply.buffer for reply in replies] == payloads
    back = await asyncio.to_thread(lambda: [wait(PATIENCE) for wait in waits])
    assert [unpacked(reply) for reply in back] == payloads


# ---- Streaming calls


async def collect(replies):
    return [reply.buffer async for reply in replies]


async def test_cohive_streams_back_what_python_streams(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_echo", "echo", streaming=True)
    payloads = [os.urandom(size) for size in (1, 0, 100, 65536, 1_000_000, 3)] + [b"%d" % n for n in range(500)]
    replies = await p2p.iterate_protobuf_handler(peer.peer_id, "Test.rpc_echo", messages(payloads), Tensor)
    assert await within(collect(replies)) == payloads


async def python_stream_echo(requests, context):
    async for request in requests:
        yield request


async def test_python_streams_back_what_cohive_streams(pair):
    peer, p2p = pair
    await p2p.add_protobuf_handler("Test.rpc_echo", python_stream_echo, Tensor, stream_input=True, stream_output=True)
    payloads = [os.urandom(size) for size in (1, 0, 100, 65536, 1_000_000, 3)] + [b"%d" % n for n in range(500)]
    result = await peer.stream(p2p.peer_id, "Test.rpc_echo", payloads)
    assert "error" not in result
    assert [unpacked(reply) for reply in result["replies"]] == payloads


async def test_one_request_and_many_replies(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_repeat", "repeat", times=300, streaming=True)
    replies = await p2p.iterate_protobuf_handler(peer.peer_id, "Test.rpc_repeat", message(b"reply"), Tensor)
    assert await within(collect(replies)) == [b"reply"] * 300

    async def repeat(request, context):
        for number in range(300):
            yield message(b"%d %s" % (number, request.buffer))

    await p2p.add_protobuf_handler("Test.rpc_count", repeat, Tensor, stream_output=True)
    result = await peer.stream(p2p.peer_id, "Test.rpc_count", [b"sheep"])
    assert [unpacked(reply) for reply in result["replies"]] == [b"%d sheep" % number for number in range(300)]


async def test_many_requests_and_one_reply(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_collect", "collect", streaming=True)
    payloads = [b"%d" % number for number in range(300)]
    reply = await within(p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_collect", messages(payloads), Tensor))
    assert reply.buffer == b"299"
    assert (await peer.served("Test.rpc_collect"))["requests"] == 300

    async def total(requests, context):
        return message(b"".join([request.buffer async for request in requests]))

    await p2p.add_protobuf_handler("Test.rpc_join", total, Tensor, stream_input=True)
    result = await peer.stream(p2p.peer_id, "Test.rpc_join", payloads)
    assert [unpacked(reply) for reply in result["replies"]] == [b"".join(payloads)]


async def test_sixty_four_mebibytes_in_each_direction(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_collect", "collect", streaming=True)
    part, parts = bytes(1024 * 1024), 64
    reply = await within(
        p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_collect", messages([part] * parts), Tensor))
    assert reply.buffer == part
    assert (await peer.served("Test.rpc_collect"))["requests"] == parts

    await p2p.add_protobuf_handler("Test.rpc_echo", python_stream_echo, Tensor, stream_input=True, stream_output=True)
    result = await peer.stream(p2p.peer_id, "Test.rpc_echo", [part], times=parts, only_count=True)
    assert result["count"] == parts and "error" not in result


async def test_the_error_of_a_streaming_handler_reaches_the_caller_as_text(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_fail", "fail", text="the cohive stream broke", streaming=True)

    async def handler(requests, context):
        read = [request async for request in requests]  # what is left unread can cost p2pd what it has to send
        yield read[0]
        raise ValueError("the python stream broke")

    await p2p.add_protobuf_handler("Test.rpc_raise", handler, Tensor, stream_input=True, stream_output=True)
    with pytest.raises(P2PHandlerError, match="the cohive stream broke"):
        replies = await p2p.iterate_protobuf_handler(peer.peer_id, "Test.rpc_fail", message(b""), Tensor)
        await within(collect(replies))
    result = await peer.stream(p2p.peer_id, "Test.rpc_raise", [b"first", b"second"])
    assert [unpacked(reply) for reply in result["replies"]] == [b"first"]
    assert "the python stream broke" in result["error"]


async def test_a_caller_who_is_still_writing_gets_the_error_of_the_handler(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_fail", "fail", text="the cohive stream broke", streaming=True)
    await peer.serve("Test.rpc_echo", "echo")
    written = asyncio.Event()

    async def requests():
        yield Tensor(buffer=b"the first one")
        assert await until(lambda: has(peer, "Test.rpc_fail", finished=1))
        await p2p.call_protobuf_handler(peer.peer_id, "Test.rpc_echo", message(b""), Tensor)  # it comes after the error
        for _ in range(100):
            yield Tensor(buffer=b"one more")
        written.set()

    replies = await p2p.iterate_protobuf_handler(peer.peer_id, "Test.rpc_fail", requests(), Tensor)
    await within(written.wait())
    with pytest.raises(P2PHandlerError, match="the cohive stream broke"):
        await within(collect(replies))


async def test_a_stream_that_python_leaves_drops_the_handler(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_wait", "wait", streaming=True)
    replies = await p2p.iterate_protobuf_handler(peer.peer_id, "Test.rpc_wait", message(b""), Tensor)
    reading = asyncio.create_task(collect(replies))
    assert await until(lambda: has(peer, "Test.rpc_wait", running=1, requests=1))
    reading.cancel()
    assert await until(lambda: has(peer, "Test.rpc_wait", running=0, dropped=1))


async def test_a_stream_that_cohive_drops_cancels_the_handler(pair):
    peer, p2p = pair
    waiting = Waiting()
    await p2p.add_protobuf_handler("Test.rpc_wait", waiting.stream, Tensor, stream_input=True, stream_output=True)
    call = peer.stream(p2p.peer_id, "Test.rpc_wait", [b"", b""], name="call")
    await within(waiting.entered.wait())
    await peer.call("rpc_drop", name="call")
    await within(waiting.cancelled.wait())
    with pytest.raises(PeerError, match="dropped"):
        await call


async def test_several_streams_at_once_do_not_mix(pair):
    peer, p2p = pair
    await peer.serve("Test.rpc_echo", "echo", streaming=True)
    await p2p.add_protobuf_handler("Test.rpc_back", python_stream_echo, Tensor, stream_input=True, stream_output=True)

    async def there(number):
        payloads = [b"%d %d" % (number, index) for index in range(50)]
        replies = await p2p.iterate_protobuf_handler(peer.peer_id, "Test.rpc_echo", messages(payloads), Tensor)
        return await collect(replies) == payloads

    async def back(number):
        payloads = [b"%d %d" % (number, index) for index in range(50)]
        result = await peer.stream(p2p.peer_id, "Test.rpc_back", payloads)
        return [unpacked(reply) for reply in result["replies"]] == payloads

    assert all(await within(asyncio.gather(*map(there, range(20)), *map(back, range(4)))))


# ---- Peer routing


async def find(peer, peer_id):
    """Its addresses; None while nobody knows them, as just after it came."""
    try:
        return await peer.call("host_find", peer=str(peer_id))
    except PeerError as error:
        assert "no address of the peer" in str(error)


async def echoes(p2p, peer_id):
    """Calls the peer by its id; p2pd fills its routing table only some time after it started."""

    async def called():
        try:
            return await p2p.call_protobuf_handler(peer_id, "Test.rpc_echo", message(b"found"), Tensor)
        except P2PDaemonError:
            return None

    return (await until(called)).buffer == b"found"


async def test_python_finds_python_through_a_cohive_bootstrap(swarm):
    hub = await swarm.cohive()
    callee, caller = await swarm.python(hub), await swarm.python(hub)
    await callee.add_protobuf_handler("Test.rpc_echo", python_echo, Tensor)
    assert await echoes(caller, callee.peer_id)


@pytest.mark.parametrize("client", [False, True])
async def test_python_finds_cohive_through_a_python_bootstrap(swarm, client):
    hub = await swarm.python()
    callee = await swarm.cohive(hub, client=client)
    await callee.serve("Test.rpc_echo", "echo")
    caller = await swarm.python(hub)
    assert await echoes(caller, callee.peer_id)


@pytest.mark.parametrize("dht_mode", ["server", "client"])
async def test_cohive_finds_python_through_a_cohive_bootstrap(swarm, dht_mode):
    hub = await swarm.cohive()
    callee = await swarm.python(hub, dht_mode=dht_mode)
    await callee.add_protobuf_handler("Test.rpc_echo", python_echo, Tensor)
    caller = await swarm.cohive(hub, client=True, listen=[])
    found = await until(lambda: find(caller, callee.peer_id))
    assert [f"{address}/p2p/{callee.peer_id}" for address in found] == callee.addresses
    assert unpacked(await caller.unary(callee.peer_id, "Test.rpc_echo", packed(b"found"))) == b"found"


async def test_cohive_finds_cohive_through_a_python_bootstrap(swarm):
    hub = await swarm.python()
    callee, caller = await swarm.cohive(hub), await swarm.cohive(hub)
    await callee.serve("Test.rpc_echo", "echo")
    assert await until(lambda: find(caller, callee.peer_id)) == [a.partition("/p2p/")[0] for a in callee.addresses]
    assert unpacked(await caller.unary(callee.peer_id, "Test.rpc_echo", packed(b"found"))) == b"found"


async def test_a_chain_of_both_kinds_is_walked_from_end_to_end(swarm):
    """Each peer knows only the one before; the first is asked for by the last and the reverse."""
    first = await swarm.cohive()
    second = await swarm.python(first)
    third = await swarm.cohive(second)
    fourth = await swarm.python(third)
    await first.serve("Test.rpc_echo", "echo")
    await fourth.add_protobuf_handler("Test.rpc_echo", python_echo, Tensor)
    assert await echoes(fourth, first.peer_id)
    assert unpacked(await first.unary(fourth.peer_id, "Test.rpc_echo", packed(b"found"))) == b"found"


async def test_in_a_mixed_swarm_everyone_finds_everyone(swarm):
    peers = [await swarm.cohive(), await swarm.python()]
    await connect(peers[1], peers[0].addresses[0])
    for number in range(4):
        peers.append(await swarm.python(peers[-2 + number % 2]))
        peers.append(await swarm.cohive(peers[-2 + number % 2]))
    for peer in peers:
        if isinstance(peer, Cohive):
            await peer.serve("Test.rpc_echo", "echo")
        else:
            await peer.add_protobuf_handler("Test.rpc_echo", python_echo, Tensor)

    async def calls_all(caller):
        for callee in peers:
            if callee is caller:
                continue
            if isinstance(caller, Cohive):
                assert unpacked(await caller.unary(callee.peer_id, "Test.rpc_echo", packed(b"found"))) == b"found"
            else:
                assert await echoes(caller, callee.peer_id)

    for peer in peers:
        await calls_all(peer)


async def test_a_peer_that_nobody_knows_is_not_found_by_either(pair):
    peer, p2p = pair
    unknown = PeerID.from_base58("12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp")
    with pytest.raises(PeerError, match="no address of the peer"):
        await peer.call("host_find", peer=str(unknown))
    with pytest.raises(P2PDaemonError):
        await within(p2p.call_protobuf_handler(unknown, "Test.rpc_echo", message(b""), Tensor))


async def test_cohive_finds_a_python_peer_that_came_back_at_another_address(swarm, tmp_path):
    hub = await swarm.python()
    (tmp_path / "identity").write_bytes(new_identity())
    options = {"identity_path": str(tmp_path / "identity"), "check_if_identity_free": False}
    callee = await swarm.python(hub, **options)
    await callee.add_protobuf_handler("Test.rpc_echo", python_echo, Tensor)
    caller = await swarm.cohive(hub)
    assert unpacked(await caller.unary(callee.peer_id, "Test.rpc_echo", packed(b"found"))) == b"found"
    await within(callee.shutdown())
    await until(lambda: no(caller.peer(callee.peer_id)))
    await until(lambda: no(lists(hub, callee.peer_id)))
    back = await swarm.python(hub, **options)
    assert back.peer_id == callee.peer_id and back.addresses != callee.addresses
    await back.add_protobuf_handler("Test.rpc_echo", python_echo, Tensor)

    async def reached():
        try:
            return unpacked(await caller.unary(callee.peer_id, "Test.rpc_echo", packed(b"found"))) == b"found"
        except PeerError:
            return False  # the hub has not heard yet where it is now

    assert await until(reached)


async def test_a_peer_that_comes_back_at_another_address_is_found_there(swarm):
    hub, identity = await swarm.cohive(), new_identity().hex()
    callee = await swarm.cohive(hub, identity=identity)
    await callee.serve("Test.rpc_echo", "echo")
    caller = await swarm.python(hub)
    assert await echoes(caller, callee.peer_id)
    await asyncio.to_thread(callee.close)
    await until(lambda: no(hub.peer(callee.peer_id)))

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    back = await swarm.cohive(hub, identity=identity, listen=[f"/ip4/127.0.0.1/tcp/{port}"])
    assert back.peer_id == callee.peer_id
    await back.serve("Test.rpc_echo", "echo")
    assert await echoes(caller, callee.peer_id)
