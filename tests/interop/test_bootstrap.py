"""cohive-bootstrap as the first node of a swarm of Python hivemind and cohive peers, and cohive-monitor beside them."""

import json
import signal
import subprocess
import time

import pytest

hivemind = pytest.importorskip("hivemind")

from hivemind.dht import DHT  # noqa: E402
from hivemind.optim.progress_tracker import ProgressTracker  # noqa: E402
from hivemind.utils import MSGPackSerializer, get_dht_time  # noqa: E402

from interop_peer import Peer  # noqa: E402

PATIENCE = 60


def packed(value):
    return MSGPackSerializer.dumps(value).hex()


@pytest.fixture
def bootstrap(program):
    """The addresses of a running cohive-bootstrap; it must end cleanly."""
    process = subprocess.Popen([program("cohive-bootstrap"), "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--json"],
                               stdout=subprocess.PIPE, text=True)
    yield json.loads(process.stdout.readline())["initial_peers"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


@pytest.fixture
def python_dht(bootstrap):
    dht = DHT(initial_peers=bootstrap, start=True)
    yield dht
    dht.shutdown()


@pytest.fixture
def cohive_peer(program, bootstrap):
    peer = Peer(program("cohive-interop-peer"))
    peer.call("dht_start", initial_peers=bootstrap)
    yield peer
    peer.close()


def test_python_reads_what_cohive_stored(python_dht, cohive_peer):
    expires = get_dht_time() + 60
    assert cohive_peer.call("dht_store", key=packed("plain"), value=packed([1, "two"]), expiration=expires)
    for name in ("a", "b"):
        assert cohive_peer.call("dht_store", key=packed("dictionary"), subkey=packed(name), value=packed(name * 3), expiration=expires)
    assert python_dht.get("plain", latest=True) == ([1, "two"], expires)
    found = python_dht.get("dictionary", latest=True).value
    assert {name: entry.value for name, entry in found.items()} == {"a": "aaa", "b": "bbb"}


def test_cohive_reads_what_python_stored(python_dht, cohive_peer):
    expires = get_dht_time() + 60
    assert python_dht.store("plain", {"x": 1.5}, expires)
    for name in ("a", "b"):
        assert python_dht.store("dictionary", name * 3, expires, subkey=name)
    plain = cohive_peer.call("dht_get", key=packed("plain"), latest=True)
    assert (MSGPackSerializer.loads(bytes.fromhex(plain["value"])), plain["expiration"]) == ({"x": 1.5}, expires)
    found = cohive_peer.call("dht_get", key=packed("dictionary"), latest=True)["entries"]
    entries = {MSGPackSerializer.loads(bytes.fromhex(key)): MSGPackSerializer.loads(bytes.fromhex(value)) for key, value, _ in found}
    assert entries == {"a": "aaa", "b": "bbb"}


def test_what_is_stored_outlives_its_writer(program, bootstrap, python_dht):
    """The bootstrap node alone holds it then."""
    expires = get_dht_time() + 60
    writer = Peer(program("cohive-interop-peer"))
    writer.call("dht_start", initial_peers=bootstrap)
    assert writer.call("dht_store", key=packed("kept"), value=packed("still here"), expiration=expires)
    writer.kill()
    assert python_dht.get("kept", latest=True) == ("still here", expires)


def test_monitor_shows_a_run_of_python_trainers(program, bootstrap, python_dht):
    tracker = ProgressTracker(python_dht, "my_run", target_batch_size=1000, start=True)
    try:
        tracker.report_local_progress(7, 100)
        give_up = time.monotonic() + PATIENCE
        while True:
            output = subprocess.run([program("cohive-monitor"), "--once", "--json", "--run-id", "my_run", "--initial-peers", *bootstrap],
                                    capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
            seen = json.loads(output)
            if seen["peers"] or time.monotonic() > give_up:
                break
        assert (seen["peers"], seen["epoch"], seen["samples_accumulated"]) == (1, 7, 100)
    finally:
        tracker.shutdown()
