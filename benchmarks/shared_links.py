#!/usr/bin/env python3
"""What two trainers leave to others on their link: to a CUBIC flow, and to pings.

  sudo python3 benchmarks/shared_links.py [--links 100/100:50 20/100:30] [--algorithm cubic] [--millions 16.8]
        [--seconds 30] [--bin DIR] [--json]

A link UP/DOWN:DELAY is the first trainer's line, of so many Mbit/s from and to it and DELAY ms there and back; the
second one's is as fast in both directions as the faster of these. The lines are those of tests/nat (namespaces and
cohive-link-emulator; needs root), with a queue of 100 ms. The trainers average 16-bit gradients and parameters all the
time, by --algorithm and over as many connections as they choose. What goes over the first one's uplink is measured
alone and beside one CUBIC flow of the kernel to the same host, and so are datagrams of 64 bytes there and back, ten a
second.
"""

import argparse
import contextlib
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import threading
import time

from optimizer_vs_hivemind import Peer

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/nat"))
EPOCHS_TO_SETTLE = 4
PATIENCE = 120  # seconds until the first epochs begin to be fast
PING_PERIOD = 0.1
LOST_AFTER = 2.0  # seconds
WITH_HEADERS = 1514 / 1448  # of full packets of a TCP connection, as the interface counts them


class Pings:
    """Datagrams that come back; milliseconds of those that were sent since the last take()."""

    def __init__(self, left, right):
        self._echo, self._socket = (host.socket(kind=socket.SOCK_DGRAM) for host in (right, left))
        self._echo.bind((right.addresses[4], 0))
        self._socket.settimeout(LOST_AFTER)
        self._at, self._times, self._ended = self._echo.getsockname(), [], False
        for work in (self._answer, self._ask):
            threading.Thread(target=work, daemon=True).start()

    def _answer(self):
        with contextlib.suppress(OSError):
            while not self._ended:
                data, sender = self._echo.recvfrom(64)
                self._echo.sendto(data, sender)

    def _ask(self):
        number = 0
        while not self._ended:
            number += 1
            word, sent = number.to_bytes(64, "big"), time.monotonic()
            self._socket.sendto(word, self._at)
            with contextlib.suppress(TimeoutError):
                while self._socket.recv(64) != word:
                    pass
            self._times.append(1000 * (time.monotonic() - sent))
            time.sleep(max(0, sent + PING_PERIOD - time.monotonic()))

    def take(self):
        times, self._times = self._times, []
        return sorted(times)

    def close(self):
        self._ended = True


class Flow:
    """One connection of the kernel that sends by CUBIC, and never stops."""

    def __init__(self, left, right):
        sink = right.socket()
        sink.bind((right.addresses[4], 0))
        sink.listen()
        here = pathlib.Path(__file__)
        address = json.dumps(sink.getsockname())
        self._sender = subprocess.Popen(left.command([sys.executable, here, "--send-to", address]))
        self._taken, _ = sink.accept()
        self.bytes = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with contextlib.suppress(OSError):
            while got := self._taken.recv(1 << 20):
                self.bytes += len(got)

    def close(self):
        self._sender.kill()
        self._sender.wait()
        self._taken.close()


def send_to(address):
    out = socket.socket()
    out.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    out.connect(tuple(address))
    block = bytes(1 << 16)
    with contextlib.suppress(OSError):
        while True:
            out.sendall(block)


def trainer(options, host, initial_peers=(), log=subprocess.DEVNULL):
    """Averages all the time: a batch takes next to nothing, and nothing is in the background."""
    tensors = max(1, round(options.millions * 1e6 / 2048 / 2048))
    command = [pathlib.Path(options.bin, "cohive-bench-trainer"), f"--tensors={tensors}", "--batches=4"]
    command += ["--epochs=1000000", "--work=0.02", f"--listen=/ip4/{host.addresses[4]}/tcp/0", "--fp16"]
    command += ["--matchmaking-time=2", "--delay-state-averaging=false"]
    command += [f"--congestion-control={options.algorithm}"]
    return Peer(host.command([*command, *(["--initial-peers", *initial_peers] if initial_peers else [])]), log)


def end(peer):
    peer.process.kill()  # its epochs have no end
    peer.close()


class Uplink:
    """What the first host sends."""

    def __init__(self, host, peer):
        self._host, self._peer = host, peer.addresses[4]

    def sent(self):
        with self._host.inside():
            counts = pathlib.Path("/proc/net/dev").read_text()
        return int(next(line for line in counts.splitlines() if "eth0:" in line).split(":")[1].split()[8])

    def connections(self):
        """TCP connections with the second one."""
        command = self._host.command(["ss", "-Htn", "state", "established", "dst", self._peer])
        listed = subprocess.run(command, text=True, capture_output=True, check=True)
        return len(listed.stdout.splitlines())


def measured(options, uplink, pings, flow=None):
    """Mbit/s of the flow and of all else, pings in ms, connections at most; after a third of the time, for the rest."""
    time.sleep(options.seconds / 3)
    pings.take()
    sent, of_flow, start = uplink.sent(), flow.bytes if flow else 0, time.monotonic()
    connections = 0
    while time.monotonic() < start + options.seconds:
        time.sleep(1)
        connections = max(connections, uplink.connections() - bool(flow))
    took = time.monotonic() - start
    of_flow = 8e-6 * WITH_HEADERS * ((flow.bytes if flow else 0) - of_flow) / took
    times = pings.take()
    ranks = statistics.quantiles(times, n=10)
    return {
        "flow": of_flow,
        "trainers": max(0.0, 8e-6 * (uplink.sent() - sent) / took - of_flow),
        "ping_p50": ranks[4],
        "ping_p90": ranks[8],
        "connections": connections,
    }


def lines(link):
    """Of both hosts, each with a quarter of the delay each way."""
    import lab

    rates, _, delay = link.partition(":")
    up, down = map(float, rates.split("/"))
    most, quarter = max(up, down), float(delay) / 4
    queue = int(up * 1e6 / 8 * 0.1)
    return lab.Link(rate=down, up=up, delay=quarter, queue=queue), lab.Link(rate=most, delay=quarter)


def measure(options, link):
    import lab

    with lab.World() as world, contextlib.ExitStack() as ends:
        left, right = (world.host(name, link=line) for name, line in zip(("left", "right"), lines(link)))
        uplink, pings = Uplink(left, right), Pings(left, right)
        ends.callback(pings.close)

        def flow():
            running = Flow(left, right)
            ends.callback(running.close)
            return running

        phases = {"nothing": measured(options, uplink, pings)}
        other = flow()
        phases["a CUBIC flow"] = measured(options, uplink, pings, other)
        other.close()
        trainers = []
        for host in (left, right):
            trainers.append(trainer(options, host, trainers[0].initial_peers if trainers else ()))
            ends.callback(end, trainers[-1])
        before = uplink.sent()
        for peer in trainers:
            peer.tell()
        # Gradients and parameters of 16 bits, of which each sends half as values and half as averages.
        epoch = 2 * 2 * options.millions * 1e6
        rate = float(link.split("/")[0]) * 1e6 / 8  # bytes a second, up
        until = time.monotonic() + PATIENCE + 2 * EPOCHS_TO_SETTLE * epoch / rate
        while uplink.sent() < before + EPOCHS_TO_SETTLE * epoch and time.monotonic() < until:
            time.sleep(0.2)
        if uplink.sent() < before + EPOCHS_TO_SETTLE * epoch:
            raise SystemExit(f"{link}: the trainers have not ended {EPOCHS_TO_SETTLE} epochs")
        phases["trainers"] = measured(options, uplink, pings)
        other = flow()
        phases["both"] = measured(options, uplink, pings, other)
        return phases


def show(link, phases):
    both = phases["both"]
    share = both["trainers"] / max(1e-9, both["trainers"] + both["flow"])
    print(f"{link}: trainers take {share:.0%} beside a CUBIC flow")
    for name, row in phases.items():
        print(
            f"  {name:13} flow {row['flow']:6.1f} Mbit/s, trainers {row['trainers']:6.1f} Mbit/s over "
            f"{row['connections']} connections, pings {row['ping_p50']:.0f} ms, p90 {row['ping_p90']:.0f} ms",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--links", nargs="+", default=["100/100:50", "20/100:30"])
    parser.add_argument("--algorithm", default="cubic")
    parser.add_argument("--millions", type=float, default=16.8)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--send-to", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send_to:
        return send_to(json.loads(options.send_to))
    rows = {}
    for link in options.links:
        rows[link] = measure(options, link)
        if not options.json:
            show(link, rows[link])
    if options.json:
        print(json.dumps({"benchmark": "shared_links", "algorithm": options.algorithm, "links": rows}))


if __name__ == "__main__":
    main()
