"""Every kind of host is what it is called, and two of them meet exactly where such kinds do."""

import asyncio
import contextlib

import pytest

import nat
import probe
from lab import KINDS

# mapping, filtering, hairpin: of IPv4, for TCP and UDP alike
PROMISED = {
    "full-cone": (nat.ANYBODY, nat.ANYBODY, True),
    "restricted": (nat.ANYBODY, nat.CONTACTED_HOSTS, False),
    "port-restricted": (nat.ANYBODY, nat.CONTACTED_PORTS, False),
    "symmetric": (nat.CONTACTED_PORTS, nat.CONTACTED_PORTS, False),
    "double": (nat.ANYBODY, nat.CONTACTED_PORTS, False),
    "upnp": (nat.ANYBODY, nat.CONTACTED_PORTS, False),
    "firewall": ("none", nat.CONTACTED_PORTS, True),
    "open": ("none", "none", None),
}
PROTOCOLS = {"tcp": probe.TCP, "udp": probe.UDP}
# A symmetric router shows each destination another port, so the other side waits for the wrong one: they meet only
# where that side's router lets in any port of an address it knows.
LET_IN_A_SYMMETRIC_ONE = {"open", "full-cone", "restricted"}


def meets(left, right):
    if "symmetric" in (left, right):
        return bool({left, right} & LET_IN_A_SYMMETRIC_ONE)
    return True


@contextlib.asynccontextmanager
async def observers(world, family=4):
    hosts = [world.host(f"seer{number}") for number in range(2)]
    async with probe.Observer(hosts[0], family) as first, probe.Observer(hosts[1], family) as second:
        yield first, second


async def gathered(tasks):
    """The results of coroutines by name, all run at once."""
    return dict(zip(tasks, await asyncio.gather(*tasks.values())))


def test_routers_translate_and_filter_as_they_are_called(world):
    async def found(host, neighbour, first, second, kind):
        return (await probe.mapping(host, first, second, kind), await probe.filtering(host, first, second, kind),
                await probe.hairpin(host, neighbour, first, kind) if neighbour else None)

    async def all_found():
        hosts = {name: world.host(f"h{number}", name) for number, name in enumerate(KINDS)}
        neighbours = {name: world.host(f"n-{host.name}", behind=host) for name, host in hosts.items() if host.outside}
        async with observers(world) as (first, second):
            return await gathered({(name, protocol): found(host, neighbours.get(name), first, second, kind)
                                   for name, host in hosts.items() for protocol, kind in PROTOCOLS.items()})

    assert asyncio.run(all_found()) == {(name, protocol): PROMISED[name] for name in KINDS for protocol in PROTOCOLS}


def test_ipv6_is_filtered_and_never_translated(world):
    async def found(host, first, second, kind):
        return await probe.mapping(host, first, second, kind), await probe.filtering(host, first, second, kind)

    async def all_found():
        async with observers(world, 6) as (first, second):
            hosts = {"open": world.host("open", families=(6,)), "firewall": world.host("firewall", "firewall", families=(6,)),
                     "home": world.host("home", "symmetric")}
            return await gathered({(name, protocol): found(host, first, second, kind)
                                   for name, host in hosts.items() for protocol, kind in PROTOCOLS.items()})

    hidden = ("none", nat.CONTACTED_PORTS)
    promised = {"open": ("none", "none"), "firewall": hidden, "home": hidden}
    assert asyncio.run(all_found()) == {(name, protocol): promised[name] for name in promised for protocol in PROTOCOLS}


def test_a_carrier_decides_what_a_home_behind_it_looks_like(world):
    async def found():
        async with observers(world) as (first, second):
            open_carrier = world.host("one", "double", carrier="full-cone")
            symmetric = world.host("two", "double", carrier="symmetric")
            return (await probe.filtering(open_carrier, first, second, probe.TCP),
                    await probe.mapping(symmetric, first, second, probe.TCP))

    # The stricter of the two filters, and the less predictable of the two mappings.
    assert asyncio.run(found()) == (nat.CONTACTED_PORTS, nat.CONTACTED_PORTS)


@pytest.mark.parametrize("family", [4, 6])
def test_two_hosts_meet_where_their_kinds_allow_it(world, family):
    kinds = KINDS if family == 4 else ("open", "firewall")

    async def all_met():
        async with observers(world, family) as (first, _):
            left, right = ({kind: world.host(f"{side}{number}", kind) for number, kind in enumerate(kinds)} for side in "lr")
            return await gathered({(one, other): probe.meet(left[one], right[other], first)
                                   for one in kinds for other in kinds})

    met = asyncio.run(all_met())
    assert met == {pair: meets(*pair) for pair in met}
