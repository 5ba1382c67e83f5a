#!/usr/bin/env python3
"""What strangers cost a run: trainers alone, then beside a peer that means harm, which speaks hivemind's protocols by
Python hivemind's own daemon.

    .deps/interop/bin/python benchmarks/attacks.py [--trainers 2] [--seconds 20] [--pause 0.05] [--batches 8]
        [--only ATTACK...] [--bin build/release/bin] [--json]

A batch takes no processor time but a pause, so that all programs find a core. Printed for each attack: epochs per
second without and with it, their ratio, how long a trainer that starts amid the attack takes to its first epoch with
the others; and of the bootstrap node beside it, whose memory budget is 128 MiB: how late its loop runs timers, which is
how long turns take on a machine with a core to spare, and what memory it holds. With --only some of: claims, ghosts,
signatures, crowd, dictionary, finds.
"""

import argparse
import asyncio
import base64
import contextlib
import itertools
import json
import os
import pathlib
import re
import secrets
import signal
import sys
import tempfile
import time

from killed_trainers import Program
from scrapes import lag_at, lag_buckets

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATIENCE = 120  # seconds until all trainers have ended an epoch together
RUN = "bench"  # of cohive-bench-trainer


# ---- What strangers do


class Stranger:
    """An identity of its own, and what it says to all nodes."""

    @classmethod
    async def create(cls, addresses):
        from hivemind.dht.protocol import DHTProtocol
        from hivemind.p2p import P2P, PeerID

        self = cls()
        self.answered = self.failed = 0
        self.p2p = await P2P.create(initial_peers=addresses, dht_mode="client")
        peers = [PeerID.from_base58(address.rsplit("/", 1)[1]) for address in addresses]
        self.nodes = [super(DHTProtocol, DHTProtocol).get_stub(self.p2p, peer) for peer in peers]
        return self

    async def call(self, name, request, nodes=None):
        async def one(node):
            try:
                await getattr(node, name)(request, timeout=10)
                self.answered += 1
            except Exception:
                self.failed += 1

        await asyncio.gather(*map(one, nodes or self.nodes))

    async def store(self, records, nodes=None):
        """Each: key, serialized subkey, value, when it expires."""
        from hivemind.dht.routing import DHTID
        from hivemind.proto import dht_pb2

        keys, subkeys, values, expirations = zip(*records)
        keys = [DHTID.generate(source=key).to_bytes() for key in keys]
        await self.call(
            "rpc_store",
            dht_pb2.StoreRequest(
                keys=keys, subkeys=subkeys, values=values, expiration_time=expirations, in_cache=[False] * len(keys)
            ),
            nodes,
        )

    async def report(self, peer_id, epoch):
        """Stores a record of progress under a key that is new, signed."""
        from hivemind.dht.crypto import RSASignatureValidator
        from hivemind.dht.routing import DHTID
        from hivemind.dht.validation import DHTRecord
        from hivemind.utils.crypto import RSAPrivateKey

        validator = RSASignatureValidator(RSAPrivateKey())
        key, subkey = f"{RUN}_progress", packed(validator.local_public_key)
        value = packed(
            {
                "peer_id": peer_id,
                "epoch": epoch,
                "samples_accumulated": 100,
                "samples_per_second": 1000.0,
                "time": unix_time(),
                "client_mode": False,
            }
        )
        record = DHTRecord(DHTID.generate(source=key).to_bytes(), subkey, value, unix_time() + 60)
        await self.store([(key, subkey, validator.sign_value(record), record.expiration_time)])


def unix_time():
    """What records expire by."""
    return time.time()


def packed(value):
    from hivemind.utils import MSGPackSerializer

    return MSGPackSerializer.dumps(value)


async def claims(stranger):
    """Two fresh keys at a time claim one far epoch."""
    for far in itertools.count(1_000_000, 1000):
        for _ in range(2):
            await stranger.report(stranger.p2p.peer_id.to_bytes(), far)
        await asyncio.sleep(1.5)


async def ghosts(stranger):
    """Reports of peers whose ids do not parse, or that are not there."""
    while True:
        for peer_id in (b"nobody", secrets.token_bytes(34), b"\x12\x20" + secrets.token_bytes(32)):
            await stranger.report(peer_id, 1)
        await asyncio.sleep(5)


async def signatures(stranger):
    """Records of owners of 8,192 bits with signatures that are none, 2.5 MB a second, to one trainer."""

    def owner():
        def part(data):
            return len(data).to_bytes(4, "big") + data

        modulus = b"\x00" + bytes([secrets.randbelow(128) + 128]) + secrets.token_bytes(1022) + b"\x01"
        return b"[owner:ssh-rsa " + base64.b64encode(part(b"ssh-rsa") + part(b"\x01\x00\x01") + part(modulus)) + b"]"

    while True:
        begin = time.monotonic()
        records = [
            (
                "costly" + secrets.token_hex(4),
                packed(owner()),
                b"\x01[signature:" + base64.b64encode(secrets.token_bytes(1024)) + b"]",
                unix_time() + 60,
            )
            for _ in range(64)
        ]
        await stranger.store(records, stranger.nodes[1:2])
        size = sum(len(subkey) + len(value) for _, subkey, value, _ in records)
        await asyncio.sleep(max(0.0, size / 2.5e6 - (time.monotonic() - begin)))


async def crowd(stranger):
    """Ten thousand peers that do not exist look for groups of the run."""
    yes = packed(True)
    while True:
        for of, _ in itertools.product(("grad", "state"), range(20)):
            await stranger.store(
                [
                    (f"{RUN}_{of}_averager.0b", packed(b"\x12\x20" + secrets.token_bytes(32)), yes, unix_time() + 60)
                    for _ in range(250)
                ]
            )
        await asyncio.sleep(5)


async def dictionary(stranger):
    """One dictionary of 10,000 entries, again and again."""
    from hivemind.dht.storage import DictionaryDHTValue

    while True:
        value = DictionaryDHTValue()
        for number in range(10_000):
            value.store(number, b"\x01", unix_time() + 60)
        await stranger.store([("dictionary", b"", packed(value), value.latest_expiration_time)])


async def finds(stranger):
    """One search that names the run's progress 1,024 times, again and again."""
    from hivemind.dht.routing import DHTID
    from hivemind.proto import dht_pb2

    request = dht_pb2.FindRequest(keys=[DHTID.generate(source=f"{RUN}_progress").to_bytes()] * 1024)
    while True:
        await stranger.call("rpc_find", request)
        await asyncio.sleep(0.02)


ATTACKS = {one.__name__: one for one in (claims, ghosts, signatures, crowd, dictionary, finds)}


async def attack(name, addresses):
    stranger = await Stranger.create(addresses)

    async def tell():
        while True:
            print(f"answered {stranger.answered} failed {stranger.failed}", flush=True)
            await asyncio.sleep(0.5)

    await asyncio.gather(ATTACKS[name](stranger), tell())


# ---- What the run makes of it


class Swarm:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.trainers, self.bootstrap = [], None

    def begin(self):
        options, folder = self.options, self.folder
        self.bootstrap = Program(
            folder / "bootstrap",
            options.bin / "cohive-bootstrap",
            "--json",
            *("--host-maddrs", "/ip4/127.0.0.1/tcp/0"),
            *("--metrics-address", "127.0.0.1:0"),
            *("--memory-budget", "128"),
        )
        self.addresses = [self.address_of(self.bootstrap)]
        self.page = self.told(self.bootstrap)["page"]
        for number in range(options.trainers):
            self.trainers.append(self.start(number))
        self.addresses += [self.address_of(trainer) for trainer in self.trainers]

    def start(self, number):
        return Program(
            self.folder / f"trainer{number}",
            self.options.bin / "cohive-bench-trainer",
            "--until-killed",
            "--initial-peers",
            self.addresses[0],
            "--listen",
            "/ip4/127.0.0.1/tcp/0",
            "--tensors",
            1,
            "--rows",
            256,
            "--columns",
            256,
            "--matchmaking-time",
            2,
            "--averaging-timeout",
            15,
            "--work",
            self.options.pause,
            "--batches",
            self.options.batches,
            "--peers",
            self.options.trainers,
        )

    def address_of(self, program):
        return self.told(program)["initial_peers"][0]

    def told(self, program):
        """What a program says of itself when it is there."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and program.process.poll() is None:
            for line in program.log.read_text().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    told = json.loads(line)
                    if told["initial_peers"]:
                        return told
            time.sleep(0.1)
        raise SystemExit(f"a program did not start: {program.log.read_text()[-500:]}")

    def epoch(self):
        return max(trainer.epoch() for trainer in self.trainers)

    def wait(self, what, condition):
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                raise SystemExit(what)
            time.sleep(0.05)

    def pace(self):
        """Epochs per second."""
        first, start = self.epoch(), time.monotonic()
        time.sleep(self.options.seconds)
        return (self.epoch() - first) / (time.monotonic() - start)

    def memory(self):
        """MiB that the bootstrap node has held at most."""
        status = pathlib.Path(f"/proc/{self.bootstrap.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status).group(1)) / 1024

    def close(self):
        for program in filter(None, [*self.trainers, self.bootstrap]):
            program.kill()


def measure(options, name):
    with tempfile.TemporaryDirectory() as folder:
        swarm = Swarm(options, pathlib.Path(folder))
        hostile = None
        try:
            swarm.begin()
            swarm.wait("the trainers did not begin together", lambda: min(one.epoch() for one in swarm.trainers) >= 3)
            calm = swarm.pace()
            log = pathlib.Path(folder, "hostile")
            hostile = Program(
                log, "nice", sys.executable, __file__, "--attack", name, "--peers", json.dumps(swarm.addresses)
            )
            swarm.wait(
                "the attack did not begin", lambda: "answered" in log.read_text() or hostile.process.poll() is not None
            )
            time.sleep(2)
            if hostile.process.poll() is not None:
                raise SystemExit(f"the attack has ended by itself: {log.read_text()[-2000:]}")
            before = lag_buckets(swarm.page)
            attacked = swarm.pace()
            after = lag_buckets(swarm.page)
            newcomer = swarm.start("new")
            swarm.trainers.append(newcomer)
            swarm.wait(f"a newcomer did not get in beside {name}", lambda: newcomer.epoch() > 0)
            answered, failed = re.findall(r"answered (\d+) failed (\d+)", log.read_text())[-1]
            return {
                "attack": name,
                "calm": calm,
                "attacked": attacked,
                "newcomer": newcomer.first_epoch,
                "answered": int(answered),
                "failed": int(failed),
                "lag_p99_ms": 1000 * lag_at(0.99, before, after),
                "lag_most_ms": 1000 * lag_at(1, before, after),
                "memory_mib": swarm.memory(),
            }
        finally:
            if hostile:
                hostile.kill()
            swarm.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds that a batch takes")
    parser.add_argument("--batches", type=int, default=8, help="of each trainer in an epoch")
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--peers", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.attack:
        return asyncio.run(attack(options.attack, json.loads(options.peers)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    rows = [measure(options, name) for name in options.only]
    if options.json:
        return print(json.dumps(rows))
    print(f"{options.trainers} trainers, {os.cpu_count()} cores\n")
    print(
        "| attack | epochs per second without | with it | ratio | a newcomer is in after | answered | refused or late "
        "| the node's timers late, p99 | at most | its memory |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        ratio = row["attacked"] / row["calm"]
        print(
            f"| {row['attack']} | {row['calm']:.2f} | {row['attacked']:.2f} | {ratio:.0%} | "
            f"{row['newcomer']:.1f} s | {row['answered']} | {row['failed']} "
            f"| {row['lag_p99_ms']:g} ms | {row['lag_most_ms']:g} ms | {row['memory_mib']:.0f} MiB |"
        )


if __name__ == "__main__":
    main()
