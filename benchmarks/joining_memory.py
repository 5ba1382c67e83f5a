#!/usr/bin/env python3
"""What a download of the state costs a run in memory: peaks of the trainers that share it, and of the newcomer.

    benchmarks/joining_memory.py [--peer build/release/bin/cohive-bench-trainer] [--millions 100] [--batches 16]
        [--work 0.1] [--after 3] [--epochs 3] [--late] [--json]

Two trainers on loopback (cohive-bench-trainer: Adam, float32, the default delays) end --after epochs, and a third one
begins. Printed, in sizes of the parameters and beyond what the process takes empty: the peak of a trainer before, that
of the two from then on, until the newcomer has ended --epochs epochs, and the newcomer's; how long it took until
its first epoch; and, with --late, the peak of a trainer that is stopped until the others have ended two epochs, and
catches up. Counters of peaks are set back in between, which needs Linux.
"""

import argparse
import json
import pathlib
import queue
import signal
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATIENCE = 600  # seconds


class Trainer:
    def __init__(self, options, initial_peers):
        command = [str(options.peer), "--until-killed", f"--tensors={round(options.millions * 1e6 / 2048 / 2048)}", f"--batches={options.batches}",
                   f"--work={options.work}", "--delay-state-averaging=true"]
        self.process = subprocess.Popen(command + (["--initial-peers", *initial_peers] if initial_peers else []), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.lines = queue.Queue()
        threading.Thread(target=lambda: [self.lines.put(line) for line in self.process.stdout], daemon=True).start()
        self.epochs = 0

    def line(self):
        return self.lines.get(timeout=PATIENCE)

    def initial_peers(self):
        while not (line := self.line()).startswith("{"):
            pass
        told = json.loads(line)
        self.empty = told["empty_bytes"]
        return told["initial_peers"]

    def begin(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def await_epochs(self, count):
        while self.epochs < count:
            self.epochs += self.line().startswith("epoch")

    def count_epochs(self):
        while not self.lines.empty():
            self.await_epochs(self.epochs + 1)
        return self.epochs

    def status(self, field):
        with open(f"/proc/{self.process.pid}/status") as status:
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field + ":"))

    def forget_peak(self):
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


def measure(options):
    size = round(options.millions * 1e6 / 2048 / 2048) * 2048 * 2048 * 4
    trainers = []

    def add():
        trainers.append(Trainer(options, trainers[0].peers if trainers else []))
        trainers[-1].peers = trainers[-1].initial_peers()
        return trainers[-1]

    def peak(trainer):
        return (trainer.status("VmHWM") - trainer.empty) / size

    try:
        for trainer in [add(), add()]:
            trainer.begin()
        for trainer in trainers:
            trainer.await_epochs(options.after)
        before = max(peak(trainer) for trainer in trainers)
        for trainer in trainers:
            trainer.forget_peak()
        newcomer, start = add(), time.monotonic()
        newcomer.begin()
        newcomer.await_epochs(1)
        seconds = time.monotonic() - start
        newcomer.await_epochs(options.epochs)
        found = {"before": before, "donors": [peak(trainer) for trainer in trainers[:-1]], "newcomer": peak(newcomer),
                 "seconds": seconds}
        if not options.late:
            return found
        late = trainers[1]
        late.forget_peak()
        late.process.send_signal(signal.SIGSTOP)
        trainers[0].await_epochs(trainers[0].count_epochs() + 2)
        late.process.send_signal(signal.SIGCONT)
        late.await_epochs(late.count_epochs() + 2)
        return {**found, "late": peak(late)}
    finally:
        for trainer in trainers:
            trainer.process.kill()
            trainer.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", default=ROOT / "build/release/bin/cohive-bench-trainer")
    parser.add_argument("--millions", type=float, default=100)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--work", type=float, default=0.1)
    parser.add_argument("--after", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options)
    if options.json:
        print(json.dumps({"benchmark": "joining_memory", "millions": options.millions, **found}))
        return
    print(f"before {found['before']:.2f}, donors {', '.join(f'{donor:.2f}' for donor in found['donors'])}, "
          f"newcomer {found['newcomer']:.2f} sizes; its first epoch after {found['seconds']:.1f} s")
    if options.late:
        print(f"one that catches up {found['late']:.2f} sizes")


if __name__ == "__main__":
    main()
