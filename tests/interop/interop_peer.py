"""Drives cohive-interop-peer, see peer/peer.hpp: one JSON object per line each way."""

import itertools
import json
import queue
import subprocess
import threading


class PeerError(RuntimeError):
    """What the peer answered instead of a result."""


class Peer:
    """A cohive peer in its own process.

    :param command: its program, or the command that runs it elsewhere
    :param log: the file that takes its errors; by default they go where ours go
    """

    def __init__(self, command, *, log=None, **host):
        self._process = subprocess.Popen(command if isinstance(command, list) else [command], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=log, text=True)
        self._replies, self._numbers, self._lock, self._ended = {}, itertools.count(), threading.Lock(), False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        started = self.call("host_start", **host)
        self.peer_id, self.addresses = started["peer_id"], started["addresses"]

    def _read(self):
        for line in self._process.stdout:
            reply = json.loads(line)
            self._replies[reply["id"]].put(reply)
        with self._lock:
            self._ended = True
            for waiting in self._replies.values():
                waiting.put({"error": "the peer has ended"})

    def start(self, command, **fields):
        """Sends a command; the returned function waits for its result."""
        number = next(self._numbers)
        with self._lock:
            if self._ended:
                raise PeerError("the peer has ended")
            self._replies[number] = queue.Queue()
            self._process.stdin.write(json.dumps({"id": number, "command": command, **fields}) + "\n")
            self._process.stdin.flush()

        def wait(timeout=60):
            reply = self._replies[number].get(timeout=timeout)
            del self._replies[number]
            if "error" in reply:
                raise PeerError(reply["error"])
            return reply["result"]

        return wait

    def call(self, command, **fields):
        return self.start(command, **fields)()

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=20)

    def kill(self):
        self._process.kill()
        self._process.wait()
