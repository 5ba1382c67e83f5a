"""A node under a flood of connections that never become anything lets newcomers in, serves its peers and is watched.

The attacker has 8 or 64 public addresses, each in a network of its own. It holds 400 silent, 300 slow and 30
connections that send garbage, beside 32 slow clients of the metrics page, and opens each again as soon as it is closed
(flooder.py). Another one has a whole IPv6 /48: from each of its subnets comes a connection with a call that is begun and
never asked for whole (crowd.cpp).
"""

import concurrent.futures
import json
import statistics
import sys
import threading
import time
import urllib.request

import pytest

import interpreter  # noqa: F401  (finds interop_peer)
from interop_peer import Peer
from lab import Link
from peers import listening
from probe import some_port

JOINING = 5.0  # seconds that a newcomer may take
WATCHING = 1.0  # seconds until the metrics page is there
SLOWER = 3  # times that honest peers' calls may take, at the 99th percentile
NEWCOMERS, OF_HIVEMIND = 20, 4
CALLS = 300
MEMORY_BUDGET = 128  # MiB that strangers may fill
SUBNETS = 1000  # of the attacker
TABLE = r"8[89]\d"  # connections that the node takes from outside: seven eighths of 1,024
DELAY = 20  # milliseconds one way, of honest peers
METRICS = 9100
FLOODER = interpreter.ROOT / "tests/nat/flooder.py"

# Joins as hivemind does, and says how long that took beside the loading of Python.
HIVEMIND = """
import sys, time
from hivemind import DHT
began = time.monotonic()
dht = DHT(initial_peers=[sys.argv[1]], start=True)
assert dht.get("greeting", latest=True).value == "hello"
print(f"joined in {time.monotonic() - began:.2f} s", flush=True)
dht.shutdown()
"""


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Honest:
    """A peer that was there before the flood, and calls the node."""

    def __init__(self, program, host, initial, node):
        log = (host.world.logs / "honest.log").open("a")
        self._peer = Peer(host.command([program("cohive-interop-peer")]), log=log, listen=listening(host))
        self._peer.call("dht_start", initial_peers=[initial])
        self._node = node
        stored = self._peer.call("dht_store", key=text("greeting"), value=text("hello"), expiration=time.time() + 3600)
        assert stored

    def calls(self, count):
        """Seconds of so many calls, one after the other."""
        took = []
        for _ in range(count):
            began = time.monotonic()
            assert self._peer.call("dht_ping", peer=self._node)
            took.append(time.monotonic() - began)
            time.sleep(0.02)
        return took

    def close(self):
        self._peer.close()


def text(value):
    """A short text as the hexadecimal of its msgpack."""
    return bytes([0xA0 + len(value), *value.encode()]).hex()


class Watcher(threading.Thread):
    """Reads the metrics page again and again, from a host of the world."""

    def __init__(self, host, url):
        super().__init__(daemon=True)
        self._host, self._url, self._over = host, url, threading.Event()
        self.took, self.failed = [], []

    def run(self):
        with self._host.inside():  # of this thread alone
            while not self._over.wait(0.3):
                began = time.monotonic()
                try:
                    with urllib.request.urlopen(self._url, timeout=10) as page:
                        assert b"cohive_" in page.read()
                    self.took.append(time.monotonic() - began)
                except OSError as error:
                    self.failed.append(str(error))

    def stop(self):
        self._over.set()
        self.join()


def join(program, host, initial):
    """A newcomer of ours joins and reads a record; returns the seconds."""
    began = time.monotonic()
    process = host.start([program("cohive-dht"), "--initial-peers", initial, "--json", "get", "greeting"])
    assert process.wait(30) == 0, process.output()
    assert "hello" in process.output(), process.output()
    return time.monotonic() - began


def join_with_hivemind(host, initial):
    process = host.start([sys.executable, "-c", HIVEMIND, initial])
    return float(process.find(r"joined in ([\d.]+) s", 90)[1])


@pytest.mark.timeout(300)
def test_the_subnets_of_one_owner_keep_nobody_out(world, program):
    victim = world.host("victim")
    port = some_port()
    node = victim.start([program("cohive-bootstrap"), "--json", "--host-maddrs", f"/ip4/0.0.0.0/tcp/{port}",
                         f"/ip6/::/tcp/{port}", "--memory-budget", MEMORY_BUDGET])
    peer_id = json.loads(node.find(r'^\{"init.*\}$')[0])["peer_id"]
    at = {4: f"/ip4/{victim.addresses[4]}/tcp/{port}", 6: f"/ip6/{victim.addresses[6]}/tcp/{port}"}
    initial = {family: f"{address}/p2p/{peer_id}" for family, address in at.items()}
    homes = [world.host(f"home{number}") for number in range(3)]
    honest = Honest(program, homes[0], initial[4], peer_id)
    resident, _ = node.resident()

    attacker = world.host("attacker")
    sources = [f"2d00:{attacker.site}:7:{number:x}::1" for number in range(1, SUBNETS + 1)]  # one /48
    attacker.add_addresses(sources)
    crowd = attacker.start([program("cohive-crowd"), at[6], *sources])
    crowd.find(rf"^{TABLE}$", 60)
    took = {family: [join(program, homes[1 + number % 2], initial[family]) for number in range(10)] for family in (4, 6)}
    honest.close()
    _, most = node.resident()
    print(f"\n{crowd.output().split()[-1]} connections of {SUBNETS} subnets; joined within {max(took[4]):.2f} s by IPv4, "
          f"{max(took[6]):.2f} s by IPv6; memory {resident >> 20} MiB, at most {most >> 20} MiB")
    assert max(took[4] + took[6]) <= JOINING
    assert most - resident <= MEMORY_BUDGET << 20


@pytest.mark.timeout(400)
@pytest.mark.parametrize("addresses", [8, 64])
def test_a_flood_keeps_nobody_out(world, program, addresses):
    victim = world.host("victim", families=(4,))
    port = some_port()
    node = victim.start([program("cohive-bootstrap"), "--json", "--host-maddrs", f"/ip4/0.0.0.0/tcp/{port}",
                         "--metrics-address", f"0.0.0.0:{METRICS}", "--memory-budget", MEMORY_BUDGET])
    peer_id = json.loads(node.find(r'^\{"init.*\}$')[0])["peer_id"]
    initial = f"/ip4/{victim.addresses[4]}/tcp/{port}/p2p/{peer_id}"
    homes = [world.host(f"home{number}", families=(4,), link=Link(delay=DELAY)) for number in range(5)]
    honest = Honest(program, homes[0], initial, peer_id)
    watcher = Watcher(world.host("watcher", families=(4,)), f"http://{victim.addresses[4]}:{METRICS}/metrics")
    calm = percentile(honest.calls(CALLS), 0.99)
    resident, _ = node.resident()

    attacker = world.host("attacker", families=(4,))
    sources = [f"26.{attacker.site}.{100 + number}.10" for number in range(addresses)]
    attacker.add_addresses(sources)
    flood = attacker.start([sys.executable, FLOODER, f"{victim.addresses[4]}:{port}", "--from", ",".join(sources),
                            "--http", f"{victim.addresses[4]}:{METRICS}"])
    flood.find(r"(.*\n){3}")
    watcher.start()
    before, began = node.processor_seconds(), time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        calls = pool.submit(honest.calls, CALLS)
        ours = [join(program, homes[1 + number % 4], initial) for number in range(NEWCOMERS - OF_HIVEMIND)]
        theirs = [join_with_hivemind(homes[1 + number], initial) for number in range(OF_HIVEMIND)]
        under_flood = percentile(calls.result(), 0.99)
    share = (node.processor_seconds() - before) / (time.monotonic() - began)
    watcher.stop()
    honest.close()
    _, most = node.resident()
    seconds = [json.loads(line) for line in flood.output().splitlines()[2:]]
    opened = statistics.mean(sum(kind["opened"] for kind in second.values()) for second in seconds)

    print(f"\n{addresses} addresses, {opened:.0f} connections a second; joined within: ours {max(ours):.2f} s, "
          f"hivemind {max(theirs):.2f} s; calls at p99 {1000 * calm:.0f} ms calm, {1000 * under_flood:.0f} ms under the "
          f"flood; /metrics within {max(watcher.took):.2f} s of {len(watcher.took)} times; memory {resident >> 20} MiB, "
          f"at most {most >> 20} MiB; {100 * share:.0f} % of a core")
    assert node.runs() and flood.runs()
    assert opened > 300, "that was no flood"
    assert max(ours + theirs) <= JOINING
    assert not watcher.failed and max(watcher.took) <= WATCHING
    assert under_flood <= SLOWER * calm
    assert most - resident <= MEMORY_BUDGET << 20
