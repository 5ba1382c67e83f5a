"""A router's UPnP, NAT-PMP and PCP daemon: Debian's miniupnpd, unpacked and not installed, which would start a service."""

import pathlib

import namespaces

ROOT = pathlib.Path(__file__).resolve().parents[2]
DAEMON = ROOT / ".deps/miniupnpd/usr/sbin/miniupnpd"  # put there by tools/install-deps.sh --nat
CONTROL_PORT = 5000

# Where the daemon writes what it maps; the router's own rules let translated packets in.
TABLES = """
table inet filter {
  chain miniupnpd { }
  chain forward { type filter hook forward priority filter + 1; jump miniupnpd; }
}
table inet nat {
  chain prerouting_miniupnpd { }
  chain postrouting_miniupnpd { }
  chain prerouting { type nat hook prerouting priority dstnat + 1; jump prerouting_miniupnpd; }
  chain postrouting { type nat hook postrouting priority srcnat + 1; jump postrouting_miniupnpd; }
}"""

CONFIGURATION = """
ext_ifname=wan
listening_ip=lan
http_port={port}
enable_upnp=yes
enable_natpmp=yes
secure_mode=yes
system_uptime=yes
uuid=00000000-0000-0000-0000-{number:012x}
upnp_table_name=filter
upnp_nat_table_name=nat
upnp_forward_chain=miniupnpd
upnp_nat_chain=prerouting_miniupnpd
upnp_nat_postrouting_chain=postrouting_miniupnpd
allow 1024-65535 0.0.0.0/0 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""


def unavailable():
    """Says why there can be no such router, or nothing when there can."""
    return None if DAEMON.exists() else "no miniupnpd in .deps (tools/install-deps.sh --nat)"


def start(world, router):
    """Starts the daemon on a router that is open."""
    if reason := unavailable():
        raise namespaces.LabError(reason)
    router.nft(TABLES)
    folder = world.logs / router.name
    folder.mkdir(exist_ok=True)
    configuration = folder / "miniupnpd.conf"
    configuration.write_text(CONFIGURATION.format(port=CONTROL_PORT, number=router.site))
    daemon = world.start(router, [DAEMON, "-d", "-f", configuration, "-P", folder / "pid"])
    daemon.find("[Ll]istening")
    return daemon
