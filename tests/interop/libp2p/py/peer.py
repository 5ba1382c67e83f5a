"""A py-libp2p peer for tests: TCP, Noise or TLS, yamux, identify, ping, circuit relay v2, and an echo of its own.

It takes the commands that ../README.md lists.
"""

import json
import secrets
import sys

import trio
from libp2p import new_host
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
from libp2p.host.ping import PingService
from libp2p.identity.identify import ID as IDENTIFY
from libp2p.identity.identify.pb.identify_pb2 import Identify
from libp2p.network.stream.exceptions import StreamEOF
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.relay.circuit_v2.config import RelayConfig, RelayRole
from libp2p.relay.circuit_v2.protocol import PROTOCOL_ID, CircuitV2Protocol
from libp2p.relay.circuit_v2.transport import CircuitV2Transport
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE
from libp2p.security.noise.transport import Transport as NoiseTransport
from libp2p.security.tls.transport import PROTOCOL_ID as TLS
from libp2p.security.tls.transport import TLSTransport
from libp2p.tools.anyio_service import background_trio_service
from libp2p.utils.varint import read_length_prefixed_protobuf
from multiaddr import Multiaddr

ECHO = "/interop/echo/1.0.0"
PATIENCE = 30
CHUNK = 65536


def security(name, key_pair):
    if name == "tls":
        return {TLS: TLSTransport(key_pair)}
    return {NOISE: NoiseTransport(key_pair, noise_privkey=create_noise_key_pair().private_key)}


async def chunks(stream):
    """What arrives until the other end has closed its direction."""
    try:
        while True:
            yield await stream.read(CHUNK)
    except StreamEOF:
        pass


async def serve_echo(stream):
    async for data in chunks(stream):
        await stream.write(data)
    await stream.close()


class Peer:
    def __init__(self, nursery):
        self._nursery = nursery

    async def host_start(self, security, trusted_relays=(), **_):
        """Answers when the host runs and every relay has granted a reservation; stops with the nursery."""
        return await self._nursery.start(self._run, security[0], trusted_relays)

    async def _run(self, security_name, trusted_relays, task_status):
        key_pair = create_new_key_pair(secrets.token_bytes(32))
        self.host = new_host(key_pair=key_pair, sec_opt=security(security_name, key_pair), muxer_preference="YAMUX")
        self.host.set_stream_handler(ECHO, serve_echo)
        config = RelayConfig(roles=RelayRole.STOP)
        protocol = CircuitV2Protocol(self.host)
        self.circuits = CircuitV2Transport(self.host, protocol, config)
        async with self.host.run([Multiaddr("/ip4/127.0.0.1/tcp/0")]), background_trio_service(protocol):
            await protocol.event_started.wait()
            addresses = [str(address) for address in self.host.get_addrs()]
            for address in trusted_relays:
                await self._reserve(address)
                addresses.append(f"{address}/p2p-circuit/p2p/{self.host.get_id()}")
            task_status.started({"peer_id": str(self.host.get_id()), "addresses": addresses})
            await trio.sleep_forever()

    async def _reserve(self, address):
        relay = info_from_p2p_addr(Multiaddr(address))
        await self.host.connect(relay)
        stream = await self.host.new_stream(relay.peer_id, [PROTOCOL_ID])
        if not await self.circuits.reserve(stream, relay.peer_id, self._nursery):
            raise RuntimeError(f"{relay.peer_id} grants no reservation")
        await stream.close()

    async def host_connect(self, address):
        if "/p2p-circuit/" in address:
            relay = info_from_p2p_addr(Multiaddr(address.partition("/p2p-circuit")[0]))
            await self.host.connect(relay)
            await self.circuits.dial(Multiaddr(address))
            return address.rpartition("/")[2]
        info = info_from_p2p_addr(Multiaddr(address))
        await self.host.connect(info)
        return str(info.peer_id)

    async def host_ping(self, peer):
        (milliseconds,) = await PingService(self.host).ping(ID.from_string(peer), 1)
        return milliseconds / 1000

    async def host_peers(self):
        """The library keeps only a part of what peers say of themselves: asks again."""
        return [await self._identify(peer) for peer in self.host.get_connected_peers()]

    async def _identify(self, peer):
        stream = await self.host.new_stream(peer, [IDENTIFY])
        said = Identify.FromString(await read_length_prefixed_protobuf(stream, use_varint_format=True))
        await stream.close()
        return {"id": str(peer), "agent": said.agent_version, "protocols": list(said.protocols),
                "addresses": [str(Multiaddr(address)) for address in said.listen_addrs]}

    async def echo_call(self, peer, bytes):
        stream = await self.host.new_stream(ID.from_string(peer), [ECHO])
        sent, received = secrets.token_bytes(bytes), bytearray()

        async def write():
            for at in range(0, bytes, CHUNK):
                await stream.write(sent[at:at + CHUNK])
            await stream.close_write()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            async for data in chunks(stream):
                received += data
        if received != sent:
            raise RuntimeError(f"{len(received)} bytes came back otherwise")
        return len(received)


async def answer(peer, request):
    number, command = request.pop("id"), request.pop("command")
    try:
        with trio.fail_after(PATIENCE):
            reply = {"id": number, "result": await getattr(peer, command)(**request)}
    except Exception as error:
        reply = {"id": number, "error": repr(error)}
    print(json.dumps(reply), flush=True)


async def main():
    async with trio.open_nursery() as nursery:
        peer = Peer(nursery)
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            nursery.start_soon(answer, peer, json.loads(line))
        nursery.cancel_scope.cancel()


trio.run(main)
