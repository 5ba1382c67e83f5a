#!/usr/bin/env python3
"""Epochs of two trainers over an emulated link, by congestion control, connections and how many packets get lost.

  sudo python3 benchmarks/thin_links.py [--rate 200] [--delay 50] [--loss 0 0.001 0.01 0.1] [--algorithms cubic bbr]
        [--connections 1 16] [--millions 16.8] [--epochs 8] [--json]

The link is that of optimizer_vs_hivemind.py (namespaces and cohive-link-emulator of tests/nat; needs root): --rate
Mbit/s, --delay ms there and back, --loss percent of the packets in each direction. Both trainers send by the same
algorithm (TCP_CONGESTION of each socket), over as many connections as --connections allows. Gradients and parameters
are float16, nothing is in the background: an epoch's end has to carry 4 bytes for each parameter each way. A row tells
the median seconds of an epoch's end, of later epochs alone (connections are added while bytes flow), their range, and
the share of the link that this is.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def kernel():
    """What else decides how fast a connection is."""
    settings = pathlib.Path("/proc/sys/net")
    return {
        "qdisc": (settings / "core/default_qdisc").read_text().strip(),
        "tcp_wmem": (settings / "ipv4/tcp_wmem").read_text().split(),
        "tcp_rmem": (settings / "ipv4/tcp_rmem").read_text().split(),
    }


def epoch(options, algorithm, loss, connections):
    """The row of optimizer_vs_hivemind.py, with the later epochs of both trainers alone."""
    flags = {
        "only": "cohive",
        "modes": "synchronous",
        "millions": options.millions,
        "epochs": options.epochs,
        "batches": 4,
        "work": 0.05,
        "link": f"{options.rate}:{options.delay}:{loss}",
        "congestion-control": algorithm,
        "connections-per-peer": connections,
    }
    command = [sys.executable, str(HERE / "optimizer_vs_hivemind.py"), "--float16", "--json"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    row = json.loads(done.stdout)["rows"][0]
    if "ends" not in row:
        return row
    half = len(row["ends"]) // 2  # one trainer's, then the other's
    late = [end for ends in (row["ends"][:half], row["ends"][half:]) for end in ends[len(ends) // 2 :]]
    end = statistics.median(late)
    return row | {"link": row["link"] * row["end"] / end, "end": end, "late": late}


def told(row):
    late = row.get("late")
    if not late:
        return row["error"]
    return f"{row['end']:6.1f} s ({min(late):.1f} to {max(late):.1f}), {row['link']:.0%} of the link"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--delay", type=float, default=50)
    parser.add_argument("--loss", type=float, nargs="+", default=[0, 0.001, 0.01, 0.1])
    parser.add_argument("--algorithms", nargs="+", default=["cubic", "bbr"])
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--millions", type=float, default=16.8)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    facts, rows = kernel(), []
    if not options.json:
        print(f"{options.rate:g} Mbit/s, {options.delay:g} ms; qdisc {facts['qdisc']}", end="; ")
        print(*("{} {}".format(name, " ".join(facts[name])) for name in ("tcp_wmem", "tcp_rmem")), sep="; ", flush=True)
    for loss, algorithm, connections in itertools.product(options.loss, options.algorithms, options.connections):
        row = epoch(options, algorithm, loss, connections)
        rows.append({"loss": loss, "algorithm": algorithm, "connections": connections, **row})
        if not options.json:
            print(f"{loss:6g} %  {algorithm:8} {connections:3} {told(row)}", flush=True)
    if options.json:
        told_of = {"benchmark": "thin_links", "rate": options.rate, "delay": options.delay, "kernel": facts}
        print(json.dumps(told_of | {"rows": rows}))


if __name__ == "__main__":
    main()
