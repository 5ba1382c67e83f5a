"""Worlds of routers and hosts in network namespaces, on addresses that count as public inside them.

    with World() as world:
        relay = world.host("relay")
        alice = world.host("alice", "symmetric", link=Link(delay=25, loss=0.5))
        bob = world.host("bob", "firewall", families=(6,))
        alice.start(["ping", relay.addresses[4]])

Every host, or the router in front of it, hangs on a core that routes between networks: site number n owns 26.n.0.0/16
and 2d00:n::/32. libp2p's implementations and ours take both for public. No packet leaves the world: its core has no way
to the network of the machine.
"""

import itertools
import pathlib

import namespaces
import nat
import upnp
from link import Emulator, Link  # noqa: F401  (users of worlds import Link from here)
from nodes import Host, Router
from process import Process

SITES = 250
KINDS = tuple(kind for kind in ("open", *nat.KINDS, "double") if kind != "upnp" or not upnp.unavailable())
DUAL = (4, 6)
CUTS = """
table inet lab_cuts {
  set cut { type ifname; }
  chain forward { type filter hook forward priority filter; iifname @cut drop; oifname @cut drop; }
}"""


class World:
    """All that one test needs. It is gone at the end of `with`, or with the process, however that ends.

    :param logs: a folder for what processes print, which stays; by default it goes with the world
    """

    def __init__(self, logs=None):
        self.slot = namespaces.Slot.claim()
        self.logs = pathlib.Path(logs or self.slot.folder)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.hosts, self._processes = {}, []
        self._sites = itertools.count(1)
        self.emulator = None  # of slow links, where there are any
        self.core = Router(self.slot, "core", None, DUAL)
        self.core.forward()
        self.core.nft(CUTS)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        for process in reversed(self._processes):
            process.stop()
        if self.emulator:
            self.emulator.close()
        self.slot.release()

    # ---- Hosts

    def host(self, name, kind="open", *, families=DUAL, link=None, carrier="port-restricted", behind=None):
        """Adds a host.

        :param kind: what is between it and the internet, one of KINDS
        :param families: its kinds of addresses; of a router that translates IPv4, IPv6 is behind a firewall
        :param link: its line to the internet, see Link; by default one without delay
        :param carrier: of kind "double", what the carrier's router is
        :param behind: another host, whose router serves this one too; then the rest means nothing
        """
        if kind not in KINDS:
            raise namespaces.LabError(f"no kind of host is called '{kind}'; there are {', '.join(KINDS)}")
        router = behind.outside if behind else self._router(name, kind, families, link, carrier)
        host = self.hosts[name] = Host(self, name, router.families if router else families)
        if router:
            router.attach(host, "eth0")
        else:
            self._connect(host, "eth0", link)
        return host

    def _router(self, name, kind, families, link, carrier):
        """The router in front of a host, connected to the core; none for a host that is open."""
        if kind == "open":
            return None
        own = nat.KINDS["port-restricted" if kind == "double" else kind]
        router = Router(self.slot, f"{name}-r", own, families)
        if kind == "double":
            outer = Router(self.slot, f"{name}-c", nat.KINDS[carrier], families, is_carrier=True)
            self._connect(outer, "wan", link)
            outer.open()
            outer.attach(router, "wan")
        else:
            self._connect(router, "wan", link)
        router.open()
        if own.maps_ports:
            upnp.start(self, router)
        return router

    def _connect(self, node, interface, link):
        """Hangs a node on the core, and gives it a site."""
        site = next(self._sites)
        if site > SITES:
            raise namespaces.LabError(f"a world has at most {SITES} sites")
        node.site, node.port = site, f"p{site}"
        if link:
            self.emulator = self.emulator or Emulator()
            node.link = self.emulator.connect(node.namespace, interface, self.core.namespace, node.port, link)
        else:
            namespaces.ip([f"link add {interface} netns {node.namespace} type veth "
                           f"peer name {node.port} netns {self.core.namespace}"])
        node.up(interface, {4: f"26.{site}.0.10/24", 6: f"2d00:{site}::10/64"},
                {4: f"26.{site}.0.1", 6: f"2d00:{site}::1"})
        self.core.up(node.port, {4: f"26.{site}.0.1/24", 6: f"2d00:{site}::1/64"})
        self.core.ip([f"route add 26.{site}.0.0/16 via 26.{site}.0.10", f"route add 2d00:{site}::/32 via 2d00:{site}::10"])

    # ---- What happens in it

    def start(self, host, command, **options):
        """Runs a program on a host; it is stopped with the world. For options see Process."""
        log = self.logs / f"{host.name}.{len(self._processes)}.log"
        process = Process(host.command(command), log, **options)
        self._processes.append(process)
        return process

    def cut(self, host):
        """Loses all that goes over the line of a host, without a sign to either end."""
        self.core.nft(f"add element inet lab_cuts cut {{ {host.edge.port} }}")

    def mend(self, host):
        self.core.nft(f"delete element inet lab_cuts cut {{ {host.edge.port} }}")
