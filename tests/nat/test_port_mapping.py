"""Programs behind a home router have it forward their port, and peers outside connect there."""

import json
import signal

import pytest

import upnp

PORT = 31337
PATIENCE = 60  # seconds until something that should happen counts as not happening
# What a router refuses that does not have all protocols; PCP and NAT-PMP share a port, and differ in the first byte.
WITHOUT = """
table inet without {{
  chain input {{ type filter hook input priority filter; iifname "lan" udp dport 5351 {} reject; }}
}}"""
REFUSED = {"pcp": None, "nat-pmp": "@th,64,8 2", "upnp": ""}

pytestmark = pytest.mark.skipif(upnp.unavailable() is not None, reason=str(upnp.unavailable()))


def bootstrap(program, host, *options):
    """A running bootstrap node, and its peer id."""
    process = host.start([program("cohive-bootstrap"), "--host-maddrs", f"/ip4/0.0.0.0/tcp/{PORT}", "--json", *options])
    return process, json.loads(process.find(r'^\{"init.*\}$')[0])["peer_id"]


def reaches(program, sender, host, peer_id):
    """Whether a peer elsewhere connects to the port of the host's router."""
    ping = sender.start([program("cohive-dht"), "ping", f"/ip4/{host.outer_address()}/tcp/{PORT}/p2p/{peer_id}"])
    return ping.wait(PATIENCE) == 0


@pytest.mark.parametrize("protocol", REFUSED)
def test_a_port_is_forwarded_as_long_as_the_program_runs(world, program, protocol):
    home, public = world.host("home", "upnp"), world.host("public")
    if REFUSED[protocol] is not None:
        home.outside.nft(WITHOUT.format(REFUSED[protocol]))
    node, peer_id = bootstrap(program, home)
    found = node.find(r"the router forwards (\S+) to this node \((.+)\)", PATIENCE)
    assert found.groups() == (f"/ip4/{home.outer_address()}/tcp/{PORT}", protocol)
    assert reaches(program, public, home, peer_id)
    node.send(signal.SIGTERM)
    assert node.wait(PATIENCE) == 0
    # Another process at the same port, which asks for nothing: the router has forgotten the first one.
    _, other_id = bootstrap(program, home, "--no-nat-port-map")
    assert not reaches(program, public, home, other_id)


def test_the_swarm_is_told_the_address_outside(world, program):
    home, public = world.host("home", "upnp"), world.host("public")
    hub, hub_id = bootstrap(program, public)
    node, peer_id = bootstrap(program, home, "--initial-peers", f"/ip4/{public.addresses[4]}/tcp/{PORT}/p2p/{hub_id}")
    node.find("the router forwards", PATIENCE)
    node.find("peers outside can connect to this node", PATIENCE)
    third = world.host("third")
    found = third.start([program("cohive-dht"), "ping", peer_id, "--initial-peers",
                         f"/ip4/{public.addresses[4]}/tcp/{PORT}/p2p/{hub_id}"])
    assert found.wait(PATIENCE) == 0, found.output()


def test_the_doctor_tells_what_is_in_front_of_a_host(world, program):
    public = [world.host(f"public{number}") for number in range(2)]
    hubs = []
    for host in public:
        _, peer_id = bootstrap(program, host, *(["--initial-peers", *hubs] if hubs else []))
        hubs.append(f"/ip4/{host.addresses[4]}/tcp/{PORT}/p2p/{peer_id}")

    def findings(kind):
        host = world.host(f"at-{kind[:4]}", kind)
        doctor = host.start([program("cohive-dht"), "doctor", "--json", "--initial-peers", *hubs])
        code = doctor.wait(PATIENCE)
        lines = map(json.loads, filter(lambda line: line.startswith("{"), doctor.output().splitlines()))
        return code, {line["step"]: line for line in lines}

    for kind, code, nat, dial_back, mapped in (
        ("open", 0, "none", "ok", "skipped"),
        ("upnp", 0, "endpoint-independent", "ok", "ok"),
        ("full-cone", 0, "endpoint-independent", "ok", "skipped"),
        ("port-restricted", 1, "endpoint-independent", "failed", "skipped"),
        ("symmetric", 1, "symmetric", "failed", "skipped"),
    ):
        ended, found = findings(kind)
        assert (kind, found["nat"]["details"].get("kind")) == (kind, nat)
        assert (kind, found["dial-back"]["status"], found["port-map"]["status"]) == (kind, dial_back, mapped)
        assert ended == code
