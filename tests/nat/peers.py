"""Peers of different makes on the hosts of a world, all used in the same way. A make that is to take part in the
measurements is one class here."""

import array
import asyncio
import contextlib
import os
import queue

import interpreter  # noqa: F401  (finds interop_peer)
from interop_peer import Peer as InteropPeer, PeerError
from link import programs

PROTOCOL = "lab.echo"
STARTING = 30  # seconds
CIRCUIT = "/p2p-circuit"


class CallError(RuntimeError):
    """A call between peers failed; with the reason that the caller was given."""


class Peer:
    """A peer that serves an echo under its id.

    `id` and `addresses` are known from the start; all waiting methods are coroutines.
    """

    make = None  # its name on command lines

    @staticmethod
    def prepare():
        """Loads once what takes long to load, before processes fork; raises ImportError when it is not there."""

    @classmethod
    async def start(cls, host, initial=(), *, public=False):
        """Starts a peer on a host and joins the swarm.

        :param initial: addresses of peers of the swarm
        :param public: it is a bootstrap node and relay; else it does what it can to be reached, with the options that
            users behind routers choose
        """
        raise NotImplementedError

    async def call(self, peer_id, payload, timeout):
        """Sends the payload to a peer of any make and waits for the same; raises CallError."""
        raise NotImplementedError

    async def connections(self, peer_id):
        """The remote addresses of its connections to a peer; relayed ones contain CIRCUIT."""
        raise NotImplementedError

    async def join_dht(self, initial=()):
        """Becomes a DHT node; for peers that average."""
        raise NotImplementedError

    async def average(self, values, timeout):
        """Averages a list of numbers with another peer that does the same; returns what became of it."""
        raise NotImplementedError

    async def close(self):
        raise NotImplementedError

    async def kill(self):
        """Ends it without a farewell."""
        raise NotImplementedError


def listening(host):
    """Addresses to listen on, one for each family of the host."""
    return [{4: "/ip4/0.0.0.0/tcp/0", 6: "/ip6/::/tcp/0"}[family] for family in host.families]


def reachable(addresses, host):
    """Those of a peer's own addresses by which others may know its host."""
    return [address for address in addresses if any(f"/{own}/" in address for own in host.addresses.values())]


def message(payload):
    """The payload as the field `buffer` of hivemind's protobuf message Tensor, which p2pd's peers exchange."""
    size, length = bytearray(), len(payload)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return b"\x0a" + bytes([*size, length]) + payload


class P2pd(Peer):
    """The p2pd of Python hivemind, started and driven by hivemind itself in this process."""

    make = "p2pd"
    LOGGERS = "error,p2p-holepunch=debug,autorelay=debug,autonat=debug,nat=debug,p2p-circuit=debug"
    options = {}  # of hivemind.p2p.P2P.create, beside what a user behind a router gives
    trusts_initial = False  # names its initial peers as relays, too

    @staticmethod
    def prepare():
        import hivemind.p2p  # noqa: F401

    @classmethod
    async def start(cls, host, initial=(), *, public=False):
        self = cls()
        os.environ.setdefault("GOLOG_LOG_LEVEL", cls.LOGGERS)
        options = {} if public else {"use_auto_relay": True, **cls.options}
        if cls.trusts_initial and not public:
            options["trusted_relays"] = list(initial)
        self._log = (host.world.logs / f"{host.name}.p2pd.log").open("a")
        self._p2p = await self._in(host).create(list(initial), host_maddrs=listening(host), startup_timeout=STARTING,
                                                **options)
        self.id = self._p2p.peer_id.to_base58()
        self.addresses = reachable(map(str, await self._p2p.get_visible_maddrs()), host)
        from hivemind.proto.runtime_pb2 import Tensor

        self._message = Tensor
        await self._p2p.add_protobuf_handler(PROTOCOL, self._echo, Tensor)
        return self

    def _in(self, host):
        """hivemind's class, but its daemon runs on the host and logs to a file."""
        from hivemind.p2p import P2P

        log = self._log

        class P2PInHost(P2P):
            @staticmethod
            def _make_process_args(*arguments, **options):
                return host.command(P2P._make_process_args(*arguments, **options))

            @staticmethod
            def _log_p2pd_message(line):
                print(line, file=log, flush=True)

        return P2PInHost

    @staticmethod
    async def _echo(request, _):
        return request

    async def call(self, peer_id, payload, timeout):
        from hivemind.p2p import P2PDaemonError, P2PHandlerError, PeerID

        request = self._message(buffer=payload)
        try:
            async with asyncio.timeout(timeout):
                reply = await self._p2p.call_protobuf_handler(PeerID.from_base58(peer_id), PROTOCOL, request, self._message)
        except TimeoutError:
            raise CallError(f"no reply within {timeout} s") from None
        except (P2PDaemonError, P2PHandlerError) as error:
            raise CallError(str(error)) from None
        if reply.buffer != payload:
            raise CallError("the reply is another payload")

    async def connections(self, peer_id):
        return [str(info.addrs[0]) for info in await self._p2p.list_peers() if info.peer_id.to_base58() == peer_id]

    async def close(self):
        await self._p2p.shutdown()
        self._log.close()

    async def kill(self):
        self._p2p._child.kill()


class Cohive(Peer):
    """cohive-interop-peer."""

    make = "cohive"
    LOGGED = os.environ.get("COHIVE_LOG_LEVEL", "info,p2p=debug,relay=debug")

    @classmethod
    async def start(cls, host, initial=(), *, public=False):
        self = cls()
        self._log = (host.world.logs / f"{host.name}.cohive.log").open("a")
        command = host.command(["env", f"COHIVE_LOG_LEVEL={cls.LOGGED}", programs() / "cohive-interop-peer"])
        self._peer = await asyncio.to_thread(InteropPeer, command, log=self._log, listen=listening(host), relay=public)
        self.id, self.addresses = self._peer.peer_id, reachable(self._peer.addresses, host)
        await self._do("rpc_serve", protocol=PROTOCOL, does="echo")
        if initial:
            await self._do("host_bootstrap", peers=list(initial))
        return self

    async def _do(self, command, patience=STARTING, **fields):
        return await asyncio.to_thread(self._peer.start(command, **fields), patience)

    async def call(self, peer_id, payload, timeout):
        request = message(payload).hex()
        try:
            reply = await self._do("rpc_call", timeout, peer=peer_id, protocol=PROTOCOL, request=request)
        except queue.Empty:
            raise CallError(f"no reply within {timeout} s") from None
        except PeerError as error:
            raise CallError(str(error)) from None
        if reply != request:
            raise CallError("the reply is another payload")

    async def connections(self, peer_id):
        return [peer["remote"] for peer in await self._do("host_peers") if peer["id"] == peer_id and peer["remote"]]

    async def join_dht(self, initial=()):
        await self._do("dht_start", initial_peers=list(initial))

    async def average(self, values, timeout):
        data = array.array("f", values).tobytes().hex()
        try:
            await self._do("averager_start", prefix="lab", tensors=[{"shape": [len(values)], "data": data}],
                           target_group_size=2)
            done = await self._do("averager_step", timeout + STARTING, timeout=timeout)
            tensor, = await self._do("averager_tensors")
        except (PeerError, queue.Empty) as error:
            raise CallError(f"all-reduce: {error}") from None
        if done["parts_failed"]:
            raise CallError(f"all-reduce: {done['parts_failed']} of {done['parts_total']} parts failed")
        return list(array.array("f", bytes.fromhex(tensor["data"])))

    async def close(self):
        with contextlib.suppress(Exception):  # the world ends it anyhow
            await asyncio.to_thread(self._peer.close)
        self._log.close()

    async def kill(self):
        await asyncio.to_thread(self._peer.kill)


MAKES = {peer.make: peer for peer in (P2pd, Cohive)}
