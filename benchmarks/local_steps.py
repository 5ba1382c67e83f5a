#!/usr/bin/env python3
"""What do local steps cost, and save? One process trains a small transformer on a text; beside it peers do so with local steps and an
outer optimizer, with as many steps of each and the same samples of all.

    benchmarks/local_steps.py --text FILE [--steps 600] [--batch-size 32] [--peers 4] [--seeds 3] [--only NAME...] [--output FILE]
                              [--points FILE]

A peer's batch is its share of the one process's, and may want another learning rate for that (--peers-learning-rate).
Prints a table in Markdown: the loss on held-out text at the end, what it is more than that of the one process, and the
bytes that each peer sent for a step. --points keeps the same for loss_against_bytes.py, which draws it. Exit code 1
when a trainer fails. Build first: tools/convergence.sh --list does. Needs nothing but Python.
"""

import argparse
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path

from convergence import ROOT, SYNCHRONOUS, Bench, Failed, mean, print_table, say, seeds_of

LOCAL = ["--local-steps", "--no-fit-my-link"]
SPARSE = [*LOCAL, *SYNCHRONOUS, "--agreed-compression", "sparse2"]
OF_SENDERS = ["--aggregation", "mean-of-senders"]
BLOCK4 = ["--agreed-compression", "block4"]
OUTER_OF_30 = [*LOCAL, *SYNCHRONOUS, "--outer-lr", "0.8", "--outer-momentum", "0.4"]
OUTER_OF_100 = [*LOCAL, *SYNCHRONOUS, "--outer-lr", "0.8", "--outer-momentum", "0.6"]
CASES = {  # local steps of an epoch, and flags
    "gradients in every step": (1, SYNCHRONOUS),
    "gradients in every step, block4": (1, [*SYNCHRONOUS, *BLOCK4, "--full-state-every", "20"]),
    "H = 30": (30, [*LOCAL, *SYNCHRONOUS, "--outer-momentum", "0.5"]),
    "H = 30, rate 0.8, momentum 0.4": (30, OUTER_OF_30),
    "H = 30, block4, rate 0.8, momentum 0.4": (30, [*OUTER_OF_30, *BLOCK4]),
    "H = 30, in the background": (30, [*LOCAL, "--outer-momentum", "0.5"]),
    "H = 30, block4": (30, [*LOCAL, *SYNCHRONOUS, "--outer-momentum", "0.5", *BLOCK4]),
    "H = 30, 3 fragments, block4": (10, [*LOCAL, *SYNCHRONOUS, "--fragments", "3", "--outer-momentum", "0.5", *BLOCK4]),
    "H = 30, float16, no momentum": (30, [*LOCAL, *SYNCHRONOUS, "--outer-momentum", "0", "--fp16", "--outer-lr", "1"]),
    "H = 30, sparse2, mean": (30, [*SPARSE, "--aggregation", "mean", "--outer-lr", "1"]),
    "H = 30, sparse2, mean of senders": (30, [*SPARSE, *OF_SENDERS, "--outer-lr", "1"]),
    "H = 30, sparse2, mean of senders, 0.5": (30, [*SPARSE, *OF_SENDERS, "--outer-lr", "0.5"]),
    "H = 30, sparse2, mean of senders, clipped": (30, [*SPARSE, *OF_SENDERS, "--outer-lr", "1", "--clip-factor", "1"]),
    "H = 30, momentum 0.9": (30, [*LOCAL, *SYNCHRONOUS]),
    "H = 100": (100, [*LOCAL, *SYNCHRONOUS]),
    "H = 100, rate 0.8, momentum 0.6": (100, OUTER_OF_100),
    "H = 100, block4, rate 0.8, momentum 0.6": (100, [*OUTER_OF_100, *BLOCK4]),
    "H = 30, parameters averaged": (30, ["--use-local-updates", *SYNCHRONOUS]),
}


def options_of(given, steps_per_round, share):
    """What Bench.command() reads, for rounds of so many steps."""
    options = argparse.Namespace(**vars(given))
    options.batch_size = given.batch_size // share
    options.target_batch_size = given.batch_size * steps_per_round
    options.epochs = given.steps // steps_per_round
    if share > 1 and given.peers_learning_rate:
        options.learning_rate = given.peers_learning_rate
    return options


def outcome(summaries, one):
    """Steps are those that were made: a round ends by the samples of all."""
    loss, sent, steps = (mean(s[what] for s in summaries) for what in ("eval_loss", "bytes_sent", "batches"))
    return {"steps": steps, "loss": loss, "more": loss / one - 1, "sent": sent, "bytes_per_step": sent / steps}


def row(name, came):
    sizes = f"{came['sent'] / 1e6:.1f} | {came['bytes_per_step'] / 1e3:.1f}"
    return f"| {name} | {came['steps']:.0f} | {came['loss']:.4f} | {came['more']:+.1%} | {sizes} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=32, help="samples of a step, of all peers together")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3, help="of each case, whose losses are averaged")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--peers-learning-rate", type=float,
                        help="the same of the peers (default: that of the one process)")
    parser.add_argument("--matchmaking-time", type=float, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one run")
    parser.add_argument("--flags", default="", help="more flags of cohive-train, such as those of the model")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--points", type=Path, help="a JSON file that what came of each case is added to")
    given = parser.parse_args()
    if unknown := set(given.only) - set(CASES):
        parser.error(f"--only: no such case: {', '.join(sorted(unknown))}")
    if given.batch_size % given.peers:
        parser.error("--batch-size: a multiple of --peers")
    for name in given.only or CASES:
        if given.steps % CASES[name][0]:
            parser.error(f"--steps: a multiple of {CASES[name][0]}, the steps of a round of '{name}'")

    more, lines, failed = shlex.split(given.flags), [], 0
    points = json.loads(given.points.read_text()) if given.points and given.points.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        one, spread = Bench(options_of(given, 1, 1), Path(folder)).one_process([*SYNCHRONOUS, *more])
        for name in given.only or CASES:
            begun = time.monotonic()
            steps_per_round, flags = CASES[name]
            bench = Bench(options_of(given, steps_per_round, given.peers), Path(folder))
            try:
                summaries = [s for seed in seeds_of(given) for s in bench.swarm([*flags, *more], 100 * seed)[0]]
                points[name] = outcome(summaries, one)
                line = row(name, points[name])
            except Failed as failure:
                line, failed = f"| {name} | {failure} | | | | |", failed + 1
            lines.append(line)
            if given.points:
                given.points.write_text(json.dumps(points, indent=1) + "\n")
            say(line, f"{time.monotonic() - begun:.0f} s")
    print_table(
        f"One process, {given.steps} steps of {given.batch_size} samples: loss {one:.4f} (mean of {given.seeds} seeds, "
        f"{spread:.4f} apart). {given.peers} peers, as many steps of {given.batch_size // given.peers} samples each:",
        ["rounds", "steps of each", "loss", "beside one process", "MB sent by each", "kB for a step"],
        lines, given.output)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
