"""Ten Python hivemind nodes and ten cohive nodes in one DHT: what any of them stores, all of them read."""

import asyncio
import json
import os
import signal
import subprocess
import threading
import time

import pytest

hivemind = pytest.importorskip("hivemind")

from hivemind.dht.crypto import RSASignatureValidator  # noqa: E402
from hivemind.dht.node import DHTNode  # noqa: E402
from hivemind.dht.schema import SchemaValidator  # noqa: E402
from hivemind.dht.validation import CompositeValidator  # noqa: E402
from hivemind.optim.progress_tracker import TrainingProgressSchema  # noqa: E402
from hivemind.proto.auth_pb2 import AccessToken  # noqa: E402
from hivemind.utils import MSGPackSerializer, get_dht_time  # noqa: E402
from hivemind.utils.auth import TokenAuthorizerBase  # noqa: E402
from hivemind.utils.crypto import RSAPrivateKey  # noqa: E402

from interop_peer import Peer, PeerError  # noqa: E402

OF_EACH_KIND = 10
LIFETIME = 600


def packed(value):
    return MSGPackSerializer.dumps(value).hex()


def unpacked(text):
    return MSGPackSerializer.loads(bytes.fromhex(text))


def report(epoch):
    """What a trainer tells about itself; the schema of both kinds checks it."""
    return {"peer_id": b"\x12\x20" + b"x" * 32, "epoch": epoch, "samples_accumulated": 8, "samples_per_second": 1.5,
            "time": get_dht_time(), "client_mode": False}


class CohiveNode:
    kind = "cohive"

    def __init__(self, path, initial_peers, **options):
        self.peer = Peer(path)
        try:
            started = self.peer.call("dht_start", initial_peers=initial_peers, signed=True, progress="run", **options)
        except PeerError:
            self.peer.kill()
            raise
        self.addresses, self.owner = self.peer.addresses, bytes.fromhex(started["marker"])

    def store(self, key, value, subkey=None):
        fields = {} if subkey is None else {"subkey": packed(subkey)}
        return self.peer.call("dht_store", key=packed(key), value=packed(value), expiration=get_dht_time() + LIFETIME, **fields)

    def get(self, key):
        found = self.peer.call("dht_get", key=packed(key), latest=True)
        if found is None:
            return None
        if "value" in found:
            return unpacked(found["value"])
        return {unpacked(subkey): unpacked(value) for subkey, value, _ in found["entries"]}

    def stop(self):
        self.peer.kill()


class PythonNode:
    """A node without the process that hivemind.DHT puts around it: 430 MB each."""

    kind = "python"

    def __init__(self, loop, initial_peers, authorizer=None):
        self._loop = loop
        signer = RSASignatureValidator(RSAPrivateKey())
        self.owner = signer.local_public_key
        validators = CompositeValidator([SchemaValidator(TrainingProgressSchema, prefix="run"), signer])
        self._node = self._run(DHTNode.create(initial_peers=initial_peers, record_validator=validators, authorizer=authorizer))
        self.addresses = [str(address) for address in self._run(self._node.get_visible_maddrs())]

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=60)

    def store(self, key, value, subkey=None):
        return self._run(self._node.store(key, value, get_dht_time() + LIFETIME, subkey=subkey))

    def get(self, key):
        found = self._run(self._node.get(key, latest=True))
        if found is None:
            return None
        if isinstance(found.value, dict) and found.value and all(hasattr(v, "expiration_time") for v in found.value.values()):
            return {subkey: entry.value for subkey, entry in found.value.items()}
        return found.value

    def stop(self):
        self._run(self._node.shutdown())


@pytest.fixture
def loop():
    """An event loop on its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop

    async def end_tasks():
        """Nodes leave tasks behind that would complain at the end of the process."""
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end_tasks(), loop).result(timeout=30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(timeout=10)


class Swarm:
    def __init__(self, program, loop):
        self._path, self._loop = program("cohive-interop-peer"), loop
        self.nodes, self.expected = [], {}

    def add(self, kind):
        """Joins through the node that came last, which mostly is of the other kind."""
        initial = self.nodes[-1].addresses if self.nodes else []
        node = CohiveNode(self._path, initial) if kind == "cohive" else PythonNode(self._loop, initial)
        self.nodes.append(node)
        return node

    def write(self, node, name):
        """Four records of this node: plain, in a dictionary, signed, and checked by the schema."""
        self._put(node, f"plain {name}", [name, {"n": 1}])
        self._put(node, "dictionary", name, subkey=f"entry {name}")
        self._put(node, "signed", name, subkey=node.owner)
        self._put(node, "run_progress", report(len(self.expected)), subkey=node.owner)

    def _put(self, node, key, value, subkey=None):
        assert node.store(key, value, subkey), (node.kind, key)
        if subkey is None:
            self.expected[key] = value
        else:
            self.expected.setdefault(key, {})[subkey] = value

    def check(self):
        for node in self.nodes:
            for key, value in self.expected.items():
                assert node.get(key) == value, (node.kind, self.nodes.index(node), key)

    def stop(self):
        for node in self.nodes:
            node.stop()


@pytest.fixture
def swarm(program, loop):
    swarm = Swarm(program, loop)
    yield swarm
    swarm.stop()


def test_everything_stored_by_anyone_is_read_by_everyone_through_restarts(swarm):
    for _ in range(OF_EACH_KIND):
        swarm.add("cohive")
        swarm.add("python")
    for number, node in enumerate(swarm.nodes):
        swarm.write(node, str(number))
    swarm.check()

    # Two of each kind go, the oldest among them, and others come in their place.
    for number in (0, 1, 6, 7):
        swarm.nodes[number].stop()
    swarm.nodes = [node for number, node in enumerate(swarm.nodes) if number not in (0, 1, 6, 7)]
    for number, kind in enumerate(("python", "cohive", "python", "cohive")):
        swarm.write(swarm.add(kind), f"newcomer {number}")
    swarm.check()


class Member(TokenAuthorizerBase):
    """A moderated swarm in which every token that names a member counts."""

    async def get_token(self):
        return AccessToken(username="member", public_key=self.local_public_key.to_bytes(), expiration_time="2100-01-01",
                           signature=b"granted")

    def is_token_valid(self, access_token):
        return access_token.username == "member"

    def does_token_need_refreshing(self, access_token):
        return False


@pytest.mark.parametrize("first", ["cohive", "python"])
def test_a_moderated_swarm_serves_members_of_both_kinds_only(program, loop, first):
    path, nodes = program("cohive-interop-peer"), []
    try:
        for kind in (first, "python" if first == "cohive" else "cohive"):
            initial = nodes[0].addresses if nodes else []
            nodes.append(CohiveNode(path, initial, member="member") if kind == "cohive"
                         else PythonNode(loop, initial, Member(RSAPrivateKey())))
        for writer, reader in (nodes, reversed(nodes)):
            assert writer.store(f"by {writer.kind}", [writer.kind])
            assert writer.store("dictionary", writer.kind, subkey=writer.owner)
            assert reader.get(f"by {writer.kind}") == [writer.kind]
        assert nodes[0].get("dictionary") == nodes[1].get("dictionary") == {node.owner: node.kind for node in nodes}
        for strangers in ({}, {"member": "impostor"}):
            for node in nodes:
                with pytest.raises(PeerError, match="none of the initial peers answered"):
                    CohiveNode(path, node.addresses, **strangers)
    finally:
        for node in nodes:
            node.stop()


def wait_for_writes(path, count):
    """Each write makes a new file."""
    deadline, seen = time.monotonic() + 30, path.stat().st_mtime_ns
    while count > 0:
        assert time.monotonic() < deadline, "the state is not written"
        time.sleep(0.02)
        if path.stat().st_mtime_ns != seen:
            seen, count = path.stat().st_mtime_ns, count - 1


def test_a_bootstrap_node_comes_back_warm_after_a_kill(program, loop, tmp_path):
    def start(*more):
        process = subprocess.Popen(
            [program("cohive-bootstrap"), "--json", "--identity-path", tmp_path / "identity", "--state-path", tmp_path / "state",
             "--state-period", "0.2", *more], stdout=subprocess.PIPE, text=True, env={**os.environ, "INITIAL_PEERS": ""})
        return process, json.loads(process.stdout.readline())["initial_peers"]

    process, addresses = start("--host-maddrs", "/ip4/127.0.0.1/tcp/0")
    try:
        first = PythonNode(loop, addresses)
        assert first.store("kept", "value")
        assert first.store("dictionary", 1, subkey="a")
        wait_for_writes(tmp_path / "state", 2)  # the second began after the stores
        process.send_signal(signal.SIGKILL)
        process.wait()
        first.stop()

        port = addresses[0].split("/")[4]
        process, again = start("--host-maddrs", f"/ip4/127.0.0.1/tcp/{port}")
        assert again == addresses
        late = PythonNode(loop, again)
        assert late.get("kept") == "value"
        assert late.get("dictionary") == {"a": 1}
        late.stop()
    finally:
        process.kill()
        process.wait()
