"""What the examples beside this file share: their flags, how they join a swarm, and when they end."""

import argparse
import sys
import time
from typing import Any, NoReturn, Optional

import cohive


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Says in one line what is wrong, without the usage."""
        self.exit(2, f"{self.prog}: {message}\n")


def count(text: str) -> int:
    """The type of a flag whose value is a number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def name(text: str) -> str:
    """The type of a flag whose value names a run."""
    if not text or "." in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a run, which has no dots")
    return text


def parse_flags(description: str, **more: Any) -> argparse.Namespace:
    """The flags that each example has, and `more` of them: a default for each name."""
    parser = _Parser(description=description, allow_abbrev=False)
    add = parser.add_argument
    add("--initial-peers", nargs="*", default=[], metavar="ADDRESS", help="of a swarm; default: $INITIAL_PEERS")
    add("--host-maddrs", nargs="*", default=["/ip4/0.0.0.0/tcp/0"], metavar="ADDRESS", help="to listen on")
    add("--announce-maddrs", nargs="*", default=[], metavar="ADDRESS", help="to tell others instead of these")
    add("--run-id", type=name, default="example", help="the same on all peers of a run")
    add("--target-batch-size", type=count, default=512, help="samples of an epoch, of all peers together")
    add("--batch-size", type=count, default=16, help="samples of a batch of this peer")
    add("--epochs", type=count, default=10, help="to train for, once --peers have met")
    add("--peers", type=count, default=1, help="to train together with, this one included")
    for option, default in more.items():
        add("--" + option.replace("_", "-"), type=type(default), default=default, help="default: %(default)s")
    return parser.parse_args()


def join(flags: argparse.Namespace) -> cohive.DHT:
    """Joins the swarm of --initial-peers or $INITIAL_PEERS, or begins one, and says how others join."""
    try:
        dht = cohive.DHT(
            flags.initial_peers,
            start=True,
            host_maddrs=flags.host_maddrs,
            announce_maddrs=flags.announce_maddrs,
            peers_from_environment=True,
        )
    except (ValueError, RuntimeError) as error:  # a wrong address; nobody who answers
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ValueError) else 1)
    but = ", without --announce-maddrs or with an address of their own" if flags.announce_maddrs else ""
    print(f"Others join by{but}:\n{cohive.join_line(dht)}", flush=True)
    return dht


class Goal:
    """Reached --epochs epochs after --peers peers have averaged together for the first time. It prints each epoch."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags, self.most_peers = flags, 1
        self._last_epoch: Optional[int] = None
        self._until: Optional[int] = None
        self._begin = time.monotonic()

    def is_reached(self, optimizer: cohive.Optimizer, loss: float) -> bool:
        """Called after each batch, or each epoch."""
        epoch, report = optimizer.local_epoch, optimizer.last_report
        peers = max(report.grad_group, report.state_group, 1)  # of the round of this epoch
        self.most_peers = max(self.most_peers, peers)
        if epoch != self._last_epoch:
            self._last_epoch = epoch
            print(f"epoch {epoch}: peers {peers}, loss {loss:.4f}", flush=True)
        if self._until is None and peers >= self.flags.peers:
            self._until = epoch + self.flags.epochs
        return self._until is not None and epoch >= self._until

    def summary(self) -> str:
        """The last line of an example."""
        seconds = time.monotonic() - self._begin
        return f"done: epoch {self._last_epoch}, peers {self.most_peers}, {seconds:.0f} s"
