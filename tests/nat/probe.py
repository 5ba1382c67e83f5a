"""Finds out what is between a host and the internet, from outside of it, as STUN does: for TCP and for UDP.

All sockets belong to this process, each in the namespace of its host, so a probe costs milliseconds.
"""

import asyncio
import contextlib
import secrets
import socket

import nat

PORTS = (7001, 7002)  # of an observer
ANSWER = 1.0  # seconds within which what is not filtered arrives; a lost SYN comes again after one
PUNCHING = 4.0  # seconds for both sides to meet: three SYNs of each
TCP, UDP = socket.SOCK_STREAM, socket.SOCK_DGRAM


def family_of(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def bound(host, kind, port=0, family=socket.AF_INET):
    """A socket of the host whose port others may share."""
    made = host.socket(family, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.setblocking(False)
    made.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
    return made


def some_port():
    """A port that is neither used by others here nor chosen by the kernel."""
    return 20000 + secrets.randbelow(10000)


async def connect(host, address, *, port=0, timeout=ANSWER):
    """A TCP connection from a host; None when there is none in time."""
    made = bound(host, TCP, port, family_of(address[0]))
    try:
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().sock_connect(made, address)
        return made
    except OSError:  # TimeoutError is one
        made.close()
        return None


class Observer:
    """A public host that tells everybody by which address it sees them, on two ports."""

    def __init__(self, host, family=4):
        self.host, self.address = host, host.addresses[family]
        self._sockets, self._tasks = [], []
        self._family = family_of(self.address)

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        for port in PORTS:
            for kind, serve in ((TCP, self._accept), (UDP, self._reply)):
                made = bound(self.host, kind, port, self._family)
                if kind == TCP:
                    made.listen(64)
                self._sockets.append(made)
                self._tasks.append(loop.create_task(serve(made)))
        return self

    async def __aexit__(self, *error):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for made in self._sockets:
            made.close()

    async def _accept(self, listener):
        loop = asyncio.get_running_loop()
        while True:
            made, seen = await loop.sock_accept(listener)
            self._sockets.append(made)
            await loop.sock_sendall(made, f"{seen[0]} {seen[1]}\n".encode())

    async def _reply(self, made):
        loop = asyncio.get_running_loop()
        while True:
            _, seen = await loop.sock_recvfrom(made, 100)
            await loop.sock_sendto(made, f"{seen[0]} {seen[1]}\n".encode(), seen)


async def observed(host, observer, observers_port, port, kind):
    """The address by which an observer sees a port of the host, and the socket that keeps it so."""
    loop, target = asyncio.get_running_loop(), (observer.address, observers_port)
    if kind == TCP:
        made = await connect(host, target, port=port, timeout=5)
        if made is None:
            raise TimeoutError(f"{host.name} does not reach {target}")
    else:
        made = bound(host, UDP, port, family_of(observer.address))
        await loop.sock_connect(made, target)
        await loop.sock_sendall(made, b"?")
    async with asyncio.timeout(5):
        address, seen = (await loop.sock_recv(made, 100)).split()
    return (address.decode(), int(seen)), made


async def mapping(host, first, second, kind):
    """How the outer address of an inner port depends on who is sent to: the terms of RFC 4787."""
    port, family = some_port(), 6 if ":" in first.address else 4
    seen = []
    with contextlib.ExitStack() as kept:
        for observer, observers_port in ((first, PORTS[0]), (first, PORTS[1]), (second, PORTS[0])):
            address, made = await observed(host, observer, observers_port, port, kind)
            kept.enter_context(made)
            seen.append(address)
    if seen[0] == (host.addresses[family], port):
        return "none"
    if seen[0] == seen[1] == seen[2]:
        return nat.ANYBODY
    return nat.CONTACTED_HOSTS if seen[0] == seen[1] else nat.CONTACTED_PORTS


async def filtering(host, first, second, kind):
    """Who gets through to a port from which the host has sent to one other: the terms of RFC 4787, or "none" when it
    needs not even to have sent."""
    port = some_port()
    with contextlib.ExitStack() as kept:
        listener = kept.enter_context(bound(host, kind, port, family_of(first.address)))
        if kind == TCP:
            listener.listen(8)
        if ":" in first.address or host.outside is None or not host.outside.kind.translates:
            address = (host.addresses[6 if ":" in first.address else 4], port)
            if await arrives(second.host, listener, address, kind):
                return "none"
        address, made = await observed(host, first, PORTS[0], port, kind)
        kept.enter_context(made)
        if await arrives(second.host, listener, address, kind):
            return nat.ANYBODY
        if await arrives(first.host, listener, address, kind):
            return nat.CONTACTED_HOSTS
        return nat.CONTACTED_PORTS


async def hairpin(host, neighbour, observer, kind):
    """Whether a host behind the same router gets through to a port by its outer address."""
    port = some_port()
    with contextlib.ExitStack() as kept:
        listener = kept.enter_context(bound(host, kind, port))
        if kind == TCP:
            listener.listen(8)
        address, made = await observed(host, observer, PORTS[0], port, kind)
        kept.enter_context(made)
        return await arrives(neighbour, listener, address, kind)


async def arrives(sender, listener, address, kind):
    """Whether a new port of the sender gets something through to the listener, by that outer address."""
    loop = asyncio.get_running_loop()
    if kind == TCP:
        made = await connect(sender, address)
        if made:
            made.close()
        return made is not None
    token = secrets.token_bytes(8)
    with bound(sender, UDP, 0, family_of(address[0])) as made:
        await loop.sock_sendto(made, token, address)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER):
                while await loop.sock_recv(listener, 100) != token:
                    pass
                return True
    return False


# ---- Both sides at once


async def meet(left, right, observer):
    """Whether two hosts get a TCP connection, when both know by which address an observer sees the other and try at the
    same time, from the port seen and accepting on it."""
    ports = (some_port(), some_port())
    with contextlib.ExitStack() as kept:
        seen = []
        for host, port in zip((left, right), ports):
            address, made = await observed(host, observer, PORTS[0], port, TCP)
            kept.enter_context(made)
            seen.append(address)
        sides = [Side(left, ports[0], seen[1], b"left"), Side(right, ports[1], seen[0], b"right")]
        try:
            async with asyncio.timeout(PUNCHING):
                return all(await asyncio.gather(sides[0].met(b"right"), sides[1].met(b"left")))
        except TimeoutError:
            return False
        finally:
            for side in sides:
                side.close()


class Side:
    """One of two hosts that meet: every connection it gets says its name and waits for the other's."""

    def __init__(self, host, port, target, name):
        self._host, self._port, self._target, self._name = host, port, target, name
        self._listener = bound(host, TCP, port, family_of(target[0]))
        self._listener.listen(8)
        self._tasks, self._names = [], asyncio.Queue()

    async def met(self, name):
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._accept()), loop.create_task(self._dial())]
        while await self._names.get() != name:
            pass
        return True

    async def _accept(self):
        while True:
            made, _ = await asyncio.get_running_loop().sock_accept(self._listener)
            self._tasks.append(asyncio.get_running_loop().create_task(self._greet(made)))

    async def _dial(self):
        while True:
            if made := await connect(self._host, self._target, port=self._port, timeout=PUNCHING):
                return await self._greet(made)
            await asyncio.sleep(0.05)  # refused: the other side has not begun

    async def _greet(self, made):
        with made, contextlib.suppress(OSError):
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(made, self._name)
            self._names.put_nowait(await loop.sock_recv(made, 100))
            await asyncio.sleep(PUNCHING)  # stays open for the other side

    def close(self):
        for task in self._tasks:
            task.cancel()
        self._listener.close()
