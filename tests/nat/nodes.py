"""The parts of a world: namespaces with interfaces, and routers that hosts are attached to."""

import itertools
import socket

import nat
import namespaces

HOME = "192.168.1"  # the same behind every router that translates, as it is in homes
CARRIER = "100.64.0"  # between homes and their carrier's router
EVERYWHERE = {4: "0.0.0.0/0", 6: "::/0"}
HIDDEN, CARRIED = 1, 2  # the networks of a site behind its router: 26.n.1.0/24, 2d00:n:1::/64


class Node:
    """A namespace with interfaces. Its addresses by family are those of the interface that came up first."""

    def __init__(self, slot, name, families):
        self.name, self.families = name, families
        self.namespace = slot.name(name)
        self.addresses = {}
        self.outside = None  # the router in front of it
        self.site = self.port = self.link = None  # on the core, of a node that hangs there itself
        namespaces.ip([f"netns add {self.namespace}"])
        # Addresses work at once, instead of after the second in which duplicates are looked for.
        namespaces.set_kernel(self.namespace, {"net.ipv6.conf.default.accept_dad": 0, "net.ipv6.conf.default.accept_ra": 0,
                                               "net.ipv4.conf.all.send_redirects": 0,
                                               "net.ipv4.conf.default.send_redirects": 0})
        self.ip(["link set lo up"])

    @property
    def edge(self):
        """What hangs on the core for this node: itself, or the outermost router in front of it."""
        return self.outside.edge if self.outside else self

    def ip(self, lines):
        """Runs commands of ip(8) in the namespace."""
        namespaces.run("ip", "-n", self.namespace, "-batch", "-", input="\n".join(lines) + "\n")

    def nft(self, rules):
        """Loads nftables rules."""
        namespaces.run(*self.command(["nft", "-f", "-"]), input=rules)

    def command(self, command):
        """The command that runs another one in the namespace."""
        return ["nsenter", f"--net={namespaces.NETNS / self.namespace}", *map(str, command)]

    def up(self, interface, addresses, gateways=None):
        """Sets an interface up, with what of these concerns the families of the node."""
        lines = [f"link set {interface} up"]
        for family in self.families:
            lines.append(f"address add {addresses[family]} dev {interface}")
            self.addresses.setdefault(family, addresses[family].split("/")[0])
            if gateways:
                lines.append(f"route add {EVERYWHERE[family]} via {gateways[family]}")
        self.ip(lines)

    def add_addresses(self, addresses):
        """Adds addresses to bind sockets to; of the node's own site, or they are not reached."""
        self.ip([f"address add {address} dev lo" for address in addresses])

    def inside(self):
        """`with node.inside()`: the calling thread is in the namespace."""
        return namespaces.inside(self.namespace)

    def socket(self, family=socket.AF_INET, kind=socket.SOCK_STREAM):
        """A socket of the namespace in the calling process."""
        return namespaces.open_socket(self.namespace, family, kind)


class Router(Node):
    """Has an interface `wan` to the outside and a bridge `lan` inside, and the rules of a kind between them."""

    def __init__(self, slot, name, kind, families, is_carrier=False):
        super().__init__(slot, name, families)
        self.kind, self.is_carrier = kind, is_carrier
        self._places = itertools.count(10)

    def forward(self):
        namespaces.set_kernel(self.namespace, {"net.ipv4.ip_forward": 1, "net.ipv6.conf.all.forwarding": 1})

    def open(self):
        """Begins to route between `wan`, which is up, and `lan`."""
        site, network = self.edge.site, CARRIED if self.is_carrier else HIDDEN
        private = CARRIER if self.is_carrier else HOME
        self._lan = {4: private if self.kind.translates else f"26.{site}.{network}", 6: f"2d00:{site}:{network}:"}
        self.forward()
        self.ip(["link add lan type bridge"])
        self.up("lan", {4: f"{self._lan[4]}.1/24", 6: f"{self._lan[6]}:1/64"})
        self.nft(nat.rules(self.kind, self.addresses.get(4)))

    def attach(self, node, interface):
        """Gives a node a place in the inner network."""
        place = next(self._places)
        namespaces.ip([f"link add {interface} netns {node.namespace} type veth peer name l{place} netns {self.namespace}"])
        self.ip([f"link set l{place} master lan up"])
        node.outside = self
        node.up(interface, {4: f"{self._lan[4]}.{place}/24", 6: f"{self._lan[6]}:{place}/64"},
                {4: f"{self._lan[4]}.1", 6: f"{self._lan[6]}:1"})
        if isinstance(node, Router) and 6 in node.families:
            self.ip([f"route add 2d00:{self.edge.site}:{HIDDEN}::/64 via {node.addresses[6]}"])


class Host(Node):
    """Where peers run."""

    def __init__(self, world, name, families):
        super().__init__(world.slot, name, families)
        self.world = world

    def outer_address(self, family=4):
        """The address by which the internet sees it."""
        seen, router = self, self.outside
        while family == 4 and router:
            seen = router if router.kind.translates else seen
            router = router.outside
        return seen.addresses[family]

    def start(self, command, **options):
        """Runs a program here, see World.start."""
        return self.world.start(self, command, **options)
