#!/usr/bin/env python3
"""Does a swarm learn as well as one process? Peers train a small transformer on a text; beside them one process does so with the
same total batch, for as many epochs. Once for every mode of averaging and every codec of gradients.

    benchmarks/convergence.py --text FILE [--epochs 60] [--peers 4] [--only NAME...] [--tolerance 0.05] [--device cuda]
                               [--output FILE]

Prints a table in Markdown: the loss on held-out text at the end, what it is more than that of the one process, and whether the
peers end with equal parameters. Exit code 1 when a case exceeds the tolerance, or a trainer fails; 2 when there is no such
device. tools/convergence.sh builds first and brings a text. Needs nothing but Python.
"""

import argparse
import contextlib
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAME = 1e-3  # parameters that differ by less are equal, as cohive-train --compare has it

SYNCHRONOUS = ["--no-delay-state-averaging"]
OFFLOADED_STEP = ["--offload-optimizer", "--delay-optimizer-step"]
CASES = {
    "synchronous": SYNCHRONOUS,
    "delay_state_averaging": ["--delay-state-averaging"],
    "delay_optimizer_step": OFFLOADED_STEP,
    "delay_grad_averaging": [*OFFLOADED_STEP, "--delay-grad-averaging"],
    "delay_grad_averaging, not offloaded": ["--delay-optimizer-step", "--delay-grad-averaging"],
    "use_local_updates": ["--use-local-updates"],
    "full_state_every 20": [*SYNCHRONOUS, "--full-state-every", "20"],
    "use_local_updates, full_state_every 20": ["--use-local-updates", "--full-state-every", "20"],
    "PowerSGD, rank 4": [*SYNCHRONOUS, "--averager-rank", "4"],
    "float16": [*SYNCHRONOUS, "--grad-compression", "float16"],
    "meanstd_16bit": [*SYNCHRONOUS, "--grad-compression", "meanstd_16bit"],
    "uniform_8bit": [*SYNCHRONOUS, "--grad-compression", "uniform_8bit"],
    "quantile_8bit": [*SYNCHRONOUS, "--grad-compression", "quantile_8bit"],
    "blockwise_8bit": [*SYNCHRONOUS, "--grad-compression", "blockwise_8bit"],
    "block4": [*SYNCHRONOUS, "--agreed-compression", "block4"],
    "top_k, 10 %": [*SYNCHRONOUS, "--agreed-compression", "top_k", "--density", "0.1"],
    "top_k, 1 %": [*SYNCHRONOUS, "--agreed-compression", "top_k"],
}
# What is not sent now comes later: in runs as short as these, such cases are behind. So many times the tolerance is theirs.
BEHIND = {"PowerSGD, rank 4": 2, "top_k, 10 %": 2, "top_k, 1 %": 4}


def say(*words):
    print(*words, file=sys.stderr, flush=True)


class Failed(Exception):
    pass


@contextlib.contextmanager
def bootstrap(bin):
    with subprocess.Popen([bin / "cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--json"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())["initial_peers"][0]
        finally:
            process.terminate()


def await_all(processes, timeout):
    """Waits for named trainers, [(name, process, log)]; none is left when this fails."""
    deadline = time.monotonic() + timeout
    try:
        for name, process, log in processes:
            if process.wait(max(1, deadline - time.monotonic())) != 0:
                raise Failed(f"{name} failed: " + (log.read_text().splitlines() or ["no output"])[-1])
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {timeout:.0f} s")
    finally:
        for _, process, _ in processes:
            process.kill()
            process.wait()


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder

    def command(self, name, seed, flags):
        o = self.options
        return [o.bin / "cohive-train", "--text", o.text, "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--batch-size", str(o.batch_size),
                "--target-batch-size", str(o.target_batch_size), "--max-epochs", str(o.epochs), "--learning-rate", str(o.learning_rate),
                "--matchmaking-time", str(o.matchmaking_time), "--averaging-timeout", "30", "--seed", str(seed), "--device", o.device,
                "--summary", self.folder / f"{name}.json", "--save", self.folder / f"{name}.params", *flags]

    def train(self, peers, seed, flags):
        """The summaries of trainers that start together."""
        names = [f"peer{n}" for n in range(peers)]
        for name in names:
            (self.folder / f"{name}.json").unlink(missing_ok=True)
        processes = []
        for n, name in enumerate(names):
            path = self.folder / f"{name}.log"
            with open(path, "w") as log:
                processes.append((name, subprocess.Popen(self.command(name, seed + n, flags), stdout=log, stderr=log), path))
        await_all(processes, self.options.timeout)
        return [json.loads((self.folder / f"{name}.json").read_text()) for name in names]

    def one_process(self, flags=SYNCHRONOUS):
        """The mean held-out loss over several seeds, and how far they lie apart."""
        losses = []
        for seed in seeds_of(self.options):
            (summary,) = self.train(1, 100 * seed, flags)
            losses.append(summary["eval_loss"])
            say(f"one process, seed {seed}: {summary['eval_loss']:.4f}, accuracy {summary['eval_accuracy']:.3f}")
        return sum(losses) / len(losses), max(losses) - min(losses)

    def swarm(self, flags, seed=1):
        with bootstrap(self.options.bin) as address:
            summaries = self.train(self.options.peers, seed, ["--initial-peers", address, *flags])
        files = [self.folder / f"peer{n}.params" for n in range(self.options.peers)]
        compared = subprocess.run([self.options.bin / "cohive-train", "--compare", *files], capture_output=True, text=True)
        return summaries, json.loads(compared.stdout)["largest_difference"]


def seeds_of(options):
    return range(options.first_seed, options.first_seed + options.seeds)


def mean(values):
    values = list(values)
    return sum(values) / len(values) if values else 0.0


def peers_per_round(summary):
    rounds = summary["rounds_by_group_size"]
    count = sum(rounds)
    return sum(size * n for size, n in enumerate(rounds)) / count if count else 0.0


def row(name, summaries, difference, one, tolerance):
    """A line of the table, and whether it is within the tolerance."""
    group = mean(map(peers_per_round, summaries))
    loss = mean(s["eval_loss"] for s in summaries)
    more = loss / one - 1
    good = more <= tolerance and difference is not None and difference <= SAME
    cells = [f"{name}", f"{loss:.4f}", f"{more:+.1%} (up to {tolerance:.0%})", f"{mean(s['eval_accuracy'] for s in summaries):.3f}",
             f"{group:.2f}" if group else "-", f"{mean(s['bytes_sent'] for s in summaries) / 1e6:.1f}",
             "no number" if difference is None else f"{difference:.1e}", "yes" if good else "**no**"]
    return "| " + " | ".join(cells) + " |", good


def print_table(sentence, columns, lines, output=None):
    """What this program was called with and has found, in Markdown; also into a file."""
    table = "\n".join([
        f"{datetime.date.today()}, {os.cpu_count()} processors: `{shlex.join(map(str, [Path(sys.argv[0]).name, *sys.argv[1:]]))}`",
        "",
        sentence,
        "",
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *lines])
    print(table)
    if output:
        output.write_text(table + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3, help="of the one process, whose losses are averaged")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--target-batch-size", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--matchmaking-time", type=float, default=2)
    parser.add_argument("--tolerance", type=float, default=0.05)
    parser.add_argument("--device", default="cpu", help="where the trainers compute: cpu, cuda, or cuda:N")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for one case")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name the cases")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.list:
        print("\n".join(CASES))
        return 0
    if unknown := set(options.only) - set(CASES):
        parser.error(f"--only: no such case: {', '.join(sorted(unknown))}")
    if options.text is None or not options.text.exists():
        parser.error("--text: a text file is needed")

    # What a trainer says at once it says once, and not after every case.
    begins = subprocess.run([options.bin / "cohive-train", "--text", options.text, "--device", options.device, "--dry-run"],
                            capture_output=True, text=True)
    if begins.returncode != 0:
        say(begins.stderr.strip() or f"cohive-train --dry-run ended with {begins.returncode}")
        return begins.returncode if begins.returncode > 0 else 1

    lines, failed = [], 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, Path(folder))
        one, spread = bench.one_process()
        for name in options.only or CASES:
            begun = time.monotonic()
            try:
                tolerance = options.tolerance * BEHIND.get(name, 1)
                line, good = row(name, *bench.swarm(CASES[name], 100 * options.first_seed), one, tolerance)
            except Failed as failure:
                line, good = f"| {name} | {failure} | | | | | | **no** |", False
            failed += not good
            lines.append(line)
            say(line, f"{time.monotonic() - begun:.0f} s")
    print_table(
        f"One process, {options.epochs} epochs of {options.target_batch_size} samples: loss {one:.4f} "
        f"(mean of {options.seeds} seeds, {spread:.4f} apart). {options.peers} peers:",
        ["mode or codec", "loss", "beside one process", "accuracy", "peers per round", "MB sent by each", "parameters differ by", "good"],
        lines, options.output)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
