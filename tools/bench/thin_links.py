#!/usr/bin/env python3
"""Epochs of two trainers over an emulated link, by congestion control and by how many packets get lost.

  sudo python3 tools/bench/thin_links.py [--rate 200] [--delay 50] [--loss 0 0.001 0.01 0.1] [--algorithms cubic bbr]
        [--millions 16.8] [--epochs 4] [--json]

The link is that of optimizer_vs_hivemind.py (namespaces and cohive-link-emulator of tests/nat; needs root): --rate Mbit/s, --delay ms there and
back, --loss percent of the packets in each direction. Both trainers send by the same algorithm (TCP_CONGESTION of each socket). Gradients and
parameters are float16, nothing is in the background: an epoch's end has to carry 4 bytes for each parameter each way. A row tells the median
seconds of an epoch's end, their range, and the share of the link that this is.
"""

import argparse
import json
import pathlib
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


def epoch(options, algorithm, loss):
    """The row of optimizer_vs_hivemind.py."""
    command = [sys.executable, HERE / "optimizer_vs_hivemind.py", "--only", "cohive", "--float16", "--modes", "synchronous", "--json",
               "--millions", options.millions, "--epochs", options.epochs, "--batches", 4, "--work", 0.05,
               "--link", f"{options.rate}:{options.delay}:{loss}", "--congestion-control", algorithm]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)["rows"][0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--delay", type=float, default=50)
    parser.add_argument("--loss", type=float, nargs="+", default=[0, 0.001, 0.01, 0.1])
    parser.add_argument("--algorithms", nargs="+", default=["cubic", "bbr"])
    parser.add_argument("--millions", type=float, default=16.8)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    facts, rows = kernel(), []
    if not options.json:
        print(f"{options.rate:g} Mbit/s, {options.delay:g} ms; qdisc {facts['qdisc']}, tcp_wmem {' '.join(facts['tcp_wmem'])}, "
              f"tcp_rmem {' '.join(facts['tcp_rmem'])}", flush=True)
    for loss in options.loss:
        for algorithm in options.algorithms:
            row = epoch(options, algorithm, loss)
            rows.append({"loss": loss, "algorithm": algorithm, **row})
            if options.json:
                continue
            told = row.get("error") or f"{row['end']:6.1f} s ({min(row['ends']):.1f} to {max(row['ends']):.1f}), {row['link']:.0%} of the link"
            print(f"{loss:6g} %  {algorithm:8} {told}", flush=True)
    if options.json:
        print(json.dumps({"benchmark": "thin_links", "rate": options.rate, "delay": options.delay, "kernel": facts, "rows": rows}))


if __name__ == "__main__":
    main()
