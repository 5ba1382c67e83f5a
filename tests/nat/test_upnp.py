"""A real daemon on a router maps ports for the hosts behind it, by UPnP, NAT-PMP and PCP."""

import asyncio
import ipaddress
import secrets
import socket
import struct
import time

import pytest

import probe
import upnp

PATIENCE = 20  # seconds until something that should happen counts as not happening
PORT = 4001
ROUTER = "192.168.1.1"
PCP_PORT, PCP_VERSION, PCP_MAP, TCP = 5351, 2, 1, 6

pytestmark = pytest.mark.skipif(upnp.unavailable() is not None, reason=str(upnp.unavailable()))


def does(host, *command):
    """Runs a program to its end; returns its exit code and what it printed."""
    program = host.start(command)
    return program.wait(PATIENCE), program.output()


class Upnp:
    """upnpc, of miniupnpc."""

    def __init__(self, host):
        self.host = host

    def map(self):
        code, output = does(self.host, "upnpc", "-m", "eth0", "-a", self.host.addresses[4], PORT, PORT, "tcp", 60)
        assert code == 0 and f"external {self.host.outer_address()}:{PORT} TCP is redirected" in output, output

    def unmap(self):
        code, output = does(self.host, "upnpc", "-m", "eth0", "-d", PORT, "tcp")
        assert code == 0, output


class NatPmp:
    """natpmpc, of libnatpmp."""

    def __init__(self, host):
        self.host = host

    def map(self, seconds=60):
        output = self._ask(seconds)
        assert f"Public IP address : {self.host.outer_address()}" in output, output
        assert f"Mapped public port {PORT} protocol TCP to local port {PORT}" in output, output

    def unmap(self):
        assert f"Mapped public port 0 protocol TCP to local port {PORT}" in self._ask(0)

    def _ask(self, seconds):
        code, output = does(self.host, "natpmpc", "-g", ROUTER, "-a", PORT, PORT, "tcp", seconds)
        assert code == 0, output
        return output


class Pcp:
    """The 60 bytes of a MAP request, RFC 6887."""

    def __init__(self, host):
        self.host, self._nonce = host, secrets.token_bytes(12)

    def map(self, seconds=60):
        def mapped(address):
            return ipaddress.IPv6Address(f"::ffff:{address}").packed

        request = struct.pack("!BBHI", PCP_VERSION, PCP_MAP, 0, seconds) + mapped(self.host.addresses[4])
        request += self._nonce + struct.pack("!B3xHH", TCP, PORT, PORT) + mapped("0.0.0.0")
        with self.host.socket(kind=socket.SOCK_DGRAM) as made:
            made.settimeout(PATIENCE)
            made.sendto(request, (ROUTER, PCP_PORT))
            reply = made.recv(1100)
        version, answer, result = struct.unpack("!BBxB", reply[:4])
        assert (version, answer, result) == (PCP_VERSION, PCP_MAP | 0x80, 0)
        assert reply[24:36] == self._nonce and struct.unpack("!H", reply[42:44]) == (PORT,)
        if seconds:
            assert reply[44:60] == mapped(self.host.outer_address())

    def unmap(self):
        self.map(seconds=0)


def reaches(sender, host, address):
    async def tried():
        with probe.bound(host, probe.TCP, PORT) as listener:
            listener.listen(8)
            return await probe.arrives(sender, listener, (address, PORT), probe.TCP)

    return asyncio.run(tried())


@pytest.mark.parametrize("client", [Upnp, NatPmp, Pcp])
def test_a_mapped_port_is_open_to_everybody_until_it_is_unmapped(world, client):
    home, public = world.host("home", "upnp"), world.host("public")
    mapping, address = client(home), home.outer_address()
    assert not reaches(public, home, address)
    mapping.map()
    assert reaches(public, home, address)
    mapping.unmap()
    assert not reaches(public, home, address)


def test_a_mapping_that_is_not_renewed_ends(world):
    home, public = world.host("home", "upnp"), world.host("public")
    NatPmp(home).map(seconds=2)
    assert reaches(public, home, home.outer_address())
    give_up = time.monotonic() + PATIENCE
    while reaches(public, home, home.outer_address()):
        assert time.monotonic() < give_up


def test_nobody_maps_a_port_to_another_host(world):
    home = world.host("home", "upnp")
    neighbour = world.host("neighbour", behind=home)
    _, output = does(home, "upnpc", "-m", "eth0", "-a", neighbour.addresses[4], PORT, PORT, "tcp", 60)
    assert "failed" in output and "is redirected" not in output


def test_other_routers_map_nothing(world):
    home = world.host("home", "port-restricted")
    assert does(home, "upnpc", "-u", f"http://{ROUTER}:{upnp.CONTROL_PORT}/rootDesc.xml", "-s")[0] != 0
    with home.socket(kind=socket.SOCK_DGRAM) as made:
        made.settimeout(0.5)
        made.connect((ROUTER, PCP_PORT))
        made.send(b"\0\0")
        with pytest.raises(OSError):  # refused, as by most home routers
            made.recv(100)

