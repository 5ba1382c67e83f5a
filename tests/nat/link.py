"""Links with delay, jitter, loss and a rate, carried by cohive-link-emulator."""

import dataclasses
import os
import pathlib
import subprocess

import namespaces
from process import processor_seconds

ROOT = pathlib.Path(__file__).resolve().parents[2]
EMULATOR = "cohive-link-emulator"
NEAR, FAR = 0, 1  # the ends: the host's and the internet's
MIN_QUEUE = 64 * 1500


@dataclasses.dataclass(frozen=True)
class Link:
    """How a line is, the same in both directions but for `up`."""

    delay: float = 0  # milliseconds, one way
    jitter: float = 0  # milliseconds around the delay; packets keep their order
    loss: float = 0  # percent
    rate: float = 0  # Mbit/s, 0 for no limit
    up: float = 0  # Mbit/s from the host, where it differs from the rate to it
    queue: int = 0  # bytes that wait for the rate; 0 for what fills the link and all behind it for 100 ms, or twice its delay

    def words(self, end):
        """The fields of the emulator's command `set` for one direction."""
        rate = 1e6 * (self.up if end == NEAR and self.up else self.rate)
        queue = self.queue or max(MIN_QUEUE, rate / 8 * max(100, 2 * self.delay) / 1000)
        return f"{self.delay * 1000:.0f} {self.jitter * 1000:.0f} {self.loss / 100} {rate} {queue}"


def programs():
    """The folder of the built programs."""
    return pathlib.Path(os.environ.get("COHIVE_BIN_DIR", ROOT / "build/release/bin"))


class Emulator:
    """The process that carries the frames of all links of a world."""

    def __init__(self):
        path = programs() / EMULATOR
        if not path.exists():
            raise namespaces.LabError(f"{path} is not built")
        self._process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         start_new_session=True)

    def connect(self, near, near_interface, far, far_interface, link):
        """Makes both interfaces, in their namespaces; returns the link, to be changed while it is used."""
        number = int(self.tell(f"link {near} {near_interface} {far} {far_interface}"))
        return EmulatedLink(self, number, link)

    def tell(self, command):
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        word, _, rest = self._process.stdout.readline().strip().partition(" ")
        if word != "ok":
            raise namespaces.LabError(f"{EMULATOR}: {rest or 'it ended'} ({command})")
        return rest

    def processor_seconds(self):
        return processor_seconds(self._process.pid)

    def close(self):
        self._process.communicate()


class EmulatedLink:
    def __init__(self, emulator, number, link):
        self._emulator, self._number = emulator, number
        self.become(link)

    def become(self, link):
        """Changes how the line is, from the next packet on."""
        for end in (NEAR, FAR):
            self._emulator.tell(f"set {self._number} {end} {link.words(end)}")

    def packets(self, end):
        """What an end has sent: how many packets arrived, were lost, and found the queue full."""
        return tuple(map(int, self._emulator.tell(f"count {self._number} {end}").split()))
