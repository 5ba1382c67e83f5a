#!/usr/bin/env python3
"""How long a newcomer waits for the state over an emulated link.

  sudo python3 benchmarks/newcomer_links.py [--rate 200] [--delay 50] [--loss 0.01] [--algorithm cubic]
        [--millions 33.5] [--runs 3] [--bin DIR] [--json]

The link is that of tests/nat (namespaces and cohive-link-emulator; needs root): --rate Mbit/s, --delay ms there and
back, --loss percent of the packets in each direction. One trainer trains; a second one is started, and downloads the
state, 12 bytes for each parameter, over as many connections as it chooses. Seconds from its first batch until then.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import tempfile
import time

from shared_links import ROOT, end, trainer

PATIENCE = 600  # seconds
HEAD_START = 6  # of the first trainer
DONE = "downloaded the state of epoch"


def seconds(options):
    import lab

    with lab.World() as world, contextlib.ExitStack() as ends:
        line = {"rate": options.rate, "delay": options.delay / 4}
        left = world.host("left", link=lab.Link(**line, loss=options.loss))
        right = world.host("right", link=lab.Link(**line))
        log = ends.enter_context(tempfile.NamedTemporaryFile("r"))
        first = trainer(options, left)
        ends.callback(end, first)
        first.tell()
        time.sleep(HEAD_START)
        with open(log.name, "w") as written:
            newcomer = trainer(options, right, first.initial_peers, written)
        ends.callback(end, newcomer)
        newcomer.tell()
        begin = time.monotonic()
        while time.monotonic() < begin + PATIENCE:
            log.seek(0)
            if DONE in log.read():
                return time.monotonic() - begin
            time.sleep(0.1)
    raise SystemExit(f"no state within {PATIENCE} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--delay", type=float, default=50)
    parser.add_argument("--loss", type=float, default=0.01)
    parser.add_argument("--algorithm", default="cubic")
    parser.add_argument("--millions", type=float, default=33.5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = [seconds(options) for _ in range(options.runs)]
    if options.json:
        print(json.dumps({"benchmark": "newcomer_links", "algorithm": options.algorithm, "seconds": runs}))
        return
    needs = 12 * options.millions * 8 / options.rate
    print(f"{statistics.median(runs):.1f} s ({min(runs):.1f} to {max(runs):.1f}), of which the bytes need {needs:.1f}")


if __name__ == "__main__":
    sys.exit(main())
