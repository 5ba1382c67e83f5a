"""What routers do to the packets that cross them, as nftables rules (the terms are those of RFC 4787 and RFC 5382).

A router has an interface `wan` and an interface `lan`. IPv4 is translated as its kind says; IPv6 never is: as at home
and in the clouds, hosts have addresses of their own, and only what they asked for comes in.
"""

import dataclasses

# Who may send to a mapped port from outside.
ANYBODY = "endpoint-independent"
CONTACTED_HOSTS = "address-dependent"
CONTACTED_PORTS = "address-and-port-dependent"

PROTOCOLS = ("tcp", "udp")
MEMORY = "10m"  # after the last packet out; longer than any test


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of router."""

    translates: bool  # else hosts have public addresses
    per_connection: bool = False  # each connection gets a port of its own, else one outer port belongs to one inner
    filtering: str = CONTACTED_PORTS
    hairpin: bool = False  # hosts inside reach one another by their outer addresses
    maps_ports: bool = False  # on request of a host, see upnp.py

    @property
    def mapping(self):
        if not self.translates:
            return "none"
        return CONTACTED_PORTS if self.per_connection else ANYBODY


KINDS = {
    "full-cone": Kind(True, filtering=ANYBODY, hairpin=True),
    "restricted": Kind(True, filtering=CONTACTED_HOSTS),
    "port-restricted": Kind(True),
    "symmetric": Kind(True, per_connection=True),
    "firewall": Kind(False),
    "upnp": Kind(True, maps_ports=True),
}


def rules(kind, outer_address):
    """The whole rule set of a router.

    Ports stay what they are inside (what Linux does where it can), so one inner port has one outer one. Where a
    stranger may send to it, `mapped` remembers the owner, and `contacted` the hosts that the owner has sent to.
    """
    forwards_translated = kind.maps_ports or kind.filtering != CONTACTED_PORTS
    tables = [_filter("ip", forwards_translated), _filter("ip6", False)]
    if kind.translates:
        tables.append(_translation(kind, outer_address))
    return "\n".join(tables)


def _filter(family, forwards_translated):
    """Lets out what comes from inside, and in what answers it."""
    return f"""
table {family} lab_filter {{
  chain forward {{
    type filter hook forward priority filter; policy drop;
    iifname "lan" accept
    ct state established,related accept
    {'ct status dnat accept' if forwards_translated else ''}
    {'icmpv6 type echo-request accept' if family == 'ip6' else ''}
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    # Dropped, not refused: a connection tracked here would take the port from the one that a host is about to open.
    iifname "wan" meta l4proto {{ tcp, udp }} ct state {{ new, invalid }} drop
  }}
}}"""


def _translation(kind, outer_address):
    newline = "\n    "
    return f"""
table ip lab_nat {{
  chain leakage {{
    type filter hook forward priority filter
    oifname "wan" ct state invalid drop  # it would go out untranslated
  }}
  {"".join(_memory(protocol) for protocol in PROTOCOLS)}
  chain postrouting {{
    type nat hook postrouting priority srcnat
    oifname "wan" masquerade {'fully-random' if kind.per_connection else ''}
    iifname "lan" oifname "lan" ct status dnat snat to {outer_address}
  }}
  chain remember {{
    type filter hook postrouting priority srcnat + 1
    {newline.join(line for protocol in PROTOCOLS for line in _remembering(kind, protocol))}
  }}
  chain prerouting {{
    type nat hook prerouting priority dstnat
    {newline.join(line for protocol in PROTOCOLS for line in _accepting(kind, protocol, outer_address))}
  }}
}}"""


def _memory(protocol):
    return f"""
  map {protocol}_mapped {{
    type inet_service : ipv4_addr . inet_service
    flags dynamic, timeout; size 65535; timeout {MEMORY}
  }}
  set {protocol}_contacted {{
    type inet_service . ipv4_addr
    flags dynamic, timeout; size 65535; timeout {MEMORY}
  }}"""


def _remembering(kind, protocol):
    if kind.filtering != CONTACTED_PORTS:
        inner = "ct original ip saddr . ct original proto-src"
        yield f'oifname "wan" update @{protocol}_mapped {{ {protocol} sport : {inner} }}'
        yield f'oifname "wan" update @{protocol}_contacted {{ {protocol} sport . ip daddr }}'


def _accepting(kind, protocol, outer_address):
    to_its_owner = f"dnat ip to {protocol} dport map @{protocol}_mapped"
    if kind.filtering == ANYBODY:
        yield f'iifname "wan" {to_its_owner}'
    elif kind.filtering == CONTACTED_HOSTS:
        yield f'iifname "wan" {protocol} dport . ip saddr @{protocol}_contacted {to_its_owner}'
    if kind.hairpin:
        yield f'iifname "lan" ip daddr {outer_address} {to_its_owner}'
