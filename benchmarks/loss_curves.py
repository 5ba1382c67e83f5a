#!/usr/bin/env python3
"""How the loss falls in a swarm, beside one process with the same total batch: a GPT of 25 million parameters on a text, and an
image network with batch normalisation in mixed precision, with PowerSGD, with the optimizer offloaded, with everything delayed,
and with all of that at once.

    benchmarks/loss_curves.py gpt --text FILE [--epochs N] [--peers 4] [--only NAME...] [--svg FILE] [--points FILE]
    benchmarks/loss_curves.py cnn [...]

Prints a table in Markdown of the held-out loss on the way and at the end; --svg draws it, and --points keeps the numbers, with
which --draw draws again without training. Exit code 1 when a trainer fails. Needs nothing but Python.
"""

import argparse
import datetime
import html
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from convergence import ROOT, Failed, await_all, bootstrap, say

SYNCHRONOUS = ["--no-delay-state-averaging"]
DELAYED = ["--offload-optimizer", "--delay-optimizer-step", "--delay-grad-averaging"]
ONE_PROCESS = "one process"
CASES = {
    ONE_PROCESS: SYNCHRONOUS,
    "PowerSGD": [*SYNCHRONOUS, "--averager-rank", "{rank}"],
    "offload": [*SYNCHRONOUS, "--offload-optimizer"],
    "offload, all delayed": DELAYED,
    "PowerSGD, offload, all delayed": [*DELAYED, "--averager-rank", "{rank}"],
}
MODELS = {
    "gpt": {"rank": 32, "epochs": 24, "every": 2, "matchmaking": 60, "title": "GPT of 25 million parameters, held-out loss",
            "flags": ["--size", "25m", "--context", "32", "--batch-size", "4", "--target-batch-size", "32",
                      "--learning-rate", "0.001", "--warmup-epochs", "5", "--average-state-every", "10"]},
    "cnn": {"rank": 8, "epochs": 40, "every": 2, "matchmaking": 3, "title": "Image network, batch normalisation, float16, held-out loss",
            "flags": ["--model", "cnn", "--channels", "8", "--mixed-precision", "float16", "--batch-size", "16",
                      "--target-batch-size", "128", "--learning-rate", "0.005", "--average-state-every", "5"]},
}


class Trainers:
    """The processes of one case."""

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.model = MODELS[options.model]

    def command(self, number, flags):
        o = self.options
        data = ["--text", o.text] if o.model == "gpt" else []
        look = ["--eval-every", str(self.model["every"])] if number == 0 else []
        return [o.bin / "cohive-train", *self.model["flags"], *data, "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--json",
                "--max-epochs", str(o.epochs), "--matchmaking-time", str(self.model["matchmaking"]), "--averaging-timeout", "120",
                "--next-chunk-timeout", "30", "--seed", str(1 + number), "--save", self.folder / f"peer{number}.params", *look, *[flag.format(rank=self.model["rank"]) for flag in flags]]

    def train(self, peers, flags):
        """What all of them printed as JSON."""
        printed, processes = [[] for _ in range(peers)], []

        def read(process, lines):
            for line in process.stdout:
                if line.startswith("{"):
                    lines.append(json.loads(line))

        for number in range(peers):
            path = self.folder / f"peer{number}.log"
            with open(path, "w") as log:
                process = subprocess.Popen(self.command(number, flags), stdout=subprocess.PIPE, stderr=log, text=True)
            processes.append((f"peer {number}", process, path))
        readers = [threading.Thread(target=read, args=(process, lines)) for (_, process, _), lines in zip(processes, printed)]
        for reader in readers:
            reader.start()
        await_all(processes, self.options.timeout)
        for reader in readers:
            reader.join()
        return printed

    def run(self, name):
        """The points of a curve and what goes into the table."""
        if name == ONE_PROCESS:
            printed = self.train(1, CASES[name])
        else:
            with bootstrap(self.options.bin) as address:
                printed = self.train(self.options.peers, [*CASES[name], "--initial-peers", address])
        points = [(e["epoch"], e["loss"]) for e in printed[0] if e["event"] == "evaluation"]
        summaries = [next(e for e in lines if e["event"] == "summary") for lines in printed]
        points = [point for point in points if point[0] < summaries[0]["epoch"]]
        points.append((summaries[0]["epoch"], summaries[0]["eval_loss"]))
        difference = None
        if len(printed) > 1:
            files = [self.folder / f"peer{n}.params" for n in range(len(printed))]
            compared = subprocess.run([self.options.bin / "cohive-train", "--compare", *files], capture_output=True, text=True)
            difference = json.loads(compared.stdout)["largest_difference"]
        rounds = sum((s["rounds_by_group_size"] for s in summaries), [])
        weight = sum(size * n for s in summaries for size, n in enumerate(s["rounds_by_group_size"]))
        return {"points": points, "accuracy": summaries[0]["eval_accuracy"], "difference": difference,
                "group": weight / sum(rounds) if sum(rounds) else 1, "batches": sum(s["batches"] for s in summaries),
                "megabytes": sum(s["bytes_sent"] for s in summaries) / len(summaries) / 1e6}


# ---- A chart

COLOURS = ["#555555", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 20, 46, 48


def ticks(low, high, count=6):
    """Round numbers between two others."""
    step = 10.0 ** len(str(int(high))) / 1000
    while (high - low) / step > count:
        step *= 2.5 if str(step).strip("0.")[:1] == "2" else 2
    first = -(-low // step)
    return [round(step * (first + n), 6) for n in range(int((high - first * step) / step + 1e-9) + 1)]


def frame(title):
    """What a chart begins with."""
    return [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="13">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            f'<text x="{LEFT}" y="26" font-size="16">{html.escape(title)}</text>']


def level(place, text, dashes=""):
    """A line across the chart, with its value on the left."""
    return (f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}" stroke="#dddddd"{dashes}/>'
            f'<text x="{LEFT - 8}" y="{place + 4:.1f}" text-anchor="end">{text}</text>')


def value_below(place, text):
    """A value of the axis below the chart."""
    return f'<text x="{place:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{text}</text>'


def chart(title, curves):
    """An SVG of curves: name to points."""
    xs = [x for points in curves.values() for x, _ in points]
    ys = [y for points in curves.values() for _, y in points]
    low, high, last = min(ys), max(ys), max(xs)
    margin = (high - low) * 0.05
    low, high = low - margin, high + margin

    def at(x, y):
        return (LEFT + (WIDTH - LEFT - RIGHT) * x / last, TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low))

    out = frame(title)
    out += [level(at(0, y)[1], f"{y:g}") for y in ticks(low, high)]
    out += [value_below(at(x, low)[0], f"{x:g}") for x in ticks(0, last)]
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">epochs (optimizer steps)</text>')
    for number, (name, points) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
        dashes = ' stroke-dasharray="6 4"' if name == ONE_PROCESS else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        y = TOP + 16 + 20 * number
        out.append(f'<line x1="{WIDTH - 260}" x2="{WIDTH - 228}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="2"{dashes}/>'
                   f'<text x="{WIDTH - 220}" y="{y}">{html.escape(name)}</text>')
    return "\n".join([*out, "</svg>", ""])


def reached(points, loss):
    """The epoch in which a curve comes down to a loss; None when it does not."""
    for (before, high), (epoch, low) in zip(points, points[1:]):
        if low <= loss:
            return epoch if high <= loss else before + (epoch - before) * (high - loss) / (high - low)
    return None


def table(results, peers):
    lines = [f"| {peers} peers | loss half way | loss at the end | one process had it at epoch | accuracy | peers per round | MB sent by each | parameters differ by |",
             "|---|---|---|---|---|---|---|---|"]
    for name, result in results.items():
        middle, (last, loss) = result["points"][len(result["points"]) // 2], result["points"][-1]
        cells = [name, f"{middle[1]:.3f} (epoch {middle[0]})", f"{loss:.3f} (epoch {last})"]
        if name == ONE_PROCESS:
            cells += ["", f"{result['accuracy']:.3f}", "", "", ""]
        else:
            there = reached(results[ONE_PROCESS]["points"], loss) if ONE_PROCESS in results else None
            cells += ["not yet" if there is None else f"{there:.0f}", f"{result['accuracy']:.3f}", f"{result['group']:.2f}",
                      f"{result['megabytes']:.0f}", "no number" if result["difference"] is None else f"{result['difference']:.1e}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for one case")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", choices=CASES)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--points", type=Path, help="a JSON file that cases are added to")
    parser.add_argument("--draw", action="store_true", help="train nothing: draw what --points holds")
    options = parser.parse_args()
    options.epochs = options.epochs or MODELS[options.model]["epochs"]
    if options.model == "gpt" and not options.draw and (options.text is None or not options.text.exists()):
        parser.error("--text: a text file is needed")

    results, failed = {}, 0
    settings = {"model": options.model, "epochs": options.epochs, "peers": options.peers}
    if options.points and options.points.exists():
        results = json.loads(options.points.read_text())
        if not options.draw and any(result.get("settings", settings) != settings for result in results.values()):
            parser.error("--points: it holds runs with another model, or as many epochs or peers as these do not have")
    for name in [] if options.draw else options.only or CASES:
        begun = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                results[name] = {**Trainers(options, Path(folder)).run(name), "settings": settings}
            say(f"{name}: {results[name]['points'][-1]} after {time.monotonic() - begun:.0f} s")
        except Failed as failure:
            failed += 1
            results.pop(name, None)
            say(f"{name}: {failure}")
        if options.points:
            options.points.write_text(json.dumps(results, indent=1) + "\n")
    results = {name: results[name] for name in CASES if name in results}
    if results:
        print(f"{datetime.date.today()}, {os.cpu_count()} processors: `{shlex.join(map(str, [Path(sys.argv[0]).name, *sys.argv[1:]]))}`\n")
        print(table(results, options.peers))
        if options.svg:
            options.svg.write_text(chart(MODELS[options.model]["title"], {name: r["points"] for name, r in results.items()}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
