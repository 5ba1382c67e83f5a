#!/usr/bin/env python3
"""How much of their speed trainers keep while some of them are killed and replaced: the same swarm quiet, then with faults.

    benchmarks/killed_trainers.py [--trainers 5] [--every 5] [--seconds 90] [--seed 1] [--target-batch-size 512] [--pause SECONDS] [--bin build/release/bin] [--json]

Every --every seconds one trainer is killed (SIGKILL), and another one started at once. Printed: epochs per second without and with the
faults, their ratio, and how long newcomers took from their start to their first epoch. All of it shares this machine's cores: what
starting a program costs is part of the loss. With --pause a batch takes no processor time but a pause, as where a GPU computes, and
trainers do not slow each other down; the target is then in batches.
"""

import argparse
import json
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PATIENCE = 120  # seconds until all trainers have ended an epoch
RUN = ["--run-id", "killed", "--batch-size", "8", "--width", "32", "--layers", "1", "--context", "32", "--matchmaking-time", "2",
       "--averaging-timeout", "15", "--threads", "1", "--log-level", "warn", "--host-maddrs", "/ip4/127.0.0.1/tcp/0"]


class Program:
    def __init__(self, log, *command):
        self.log, self.started, self.killed, self.first_epoch = log, time.monotonic(), None, None
        with log.open("wb") as output:
            self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def epoch(self):
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 4000))
            found = re.findall(rb"^epoch\s+(\d+)", log.read(), re.M)
        epoch = int(found[-1]) if found else 0
        if epoch > 0 and self.first_epoch is None:
            self.first_epoch = time.monotonic() - self.started
        return epoch

    def age(self):
        """Seconds until it was killed."""
        return (self.killed or time.monotonic()) - self.started

    def kill(self):
        self.killed = time.monotonic()
        self.process.kill()
        self.process.wait()


class Swarm:
    def __init__(self, options, folder):
        self.options, self.folder, self.count = options, folder, 0
        self.trainers, self.newcomers, self.bootstrap = [], [], None

    def begin(self):
        options, folder = self.options, self.folder
        self.bootstrap = Program(folder / "bootstrap.log", options.bin / "cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0")
        until = time.monotonic() + PATIENCE
        while not (found := re.findall(r"INITIAL_PEERS=(\S+)", self.bootstrap.log.read_text())):
            if time.monotonic() > until or self.bootstrap.process.poll() is not None:
                raise SystemExit(f"the bootstrap node did not start: {self.bootstrap.log.read_text()[-500:]}")
            time.sleep(0.05)
        self.initial_peers = found[0]
        for _ in range(options.trainers):
            self.start_trainer()

    def start_trainer(self):
        self.count += 1
        if self.options.pause:
            batches = self.options.target_batch_size // self.options.trainers
            self.trainers.append(Program(self.folder / f"trainer{self.count}.log", self.options.bin / "cohive-bench-trainer", "--until-killed",
                                         "--initial-peers", self.initial_peers, "--tensors", 1, "--rows", 256, "--columns", 256, "--matchmaking-time", 2,
                                         "--averaging-timeout", 15, "--work", self.options.pause, "--batches", batches, "--peers", self.options.trainers))
            return
        self.trainers.append(Program(self.folder / f"trainer{self.count}.log", self.options.bin / "cohive-train", "--text", ROOT / "README.md",
                                     "--initial-peers", self.initial_peers, *RUN, "--target-batch-size", self.options.target_batch_size,
                                     "--seed", self.count))

    def epoch(self):
        return max(trainer.epoch() for trainer in self.trainers)

    def epochs_per_second(self, every, rng):
        """Counts epochs of the newest trainer, from when all have trained; `every` 0: no faults."""
        until = time.monotonic() + PATIENCE
        while min(trainer.epoch() for trainer in self.trainers) < 3:
            if time.monotonic() > until:
                raise SystemExit("the trainers did not begin together")
            time.sleep(0.2)
        first, start = self.epoch(), time.monotonic()
        next_fault = start + every
        while time.monotonic() < start + self.options.seconds:
            time.sleep(0.1)
            for trainer in self.trainers:
                trainer.epoch()
            if every and time.monotonic() > next_fault:
                victim = rng.choice(self.trainers)
                self.trainers.remove(victim)
                victim.kill()
                self.start_trainer()
                self.newcomers.append(self.trainers[-1])
                next_fault += every
        return (self.epoch() - first) / (time.monotonic() - start)

    def close(self):
        for program in filter(None, [*self.trainers, self.bootstrap]):
            program.kill()


def measure(options, every):
    with tempfile.TemporaryDirectory() as folder:
        swarm = Swarm(options, pathlib.Path(folder))
        try:
            swarm.begin()
            rate = swarm.epochs_per_second(every, random.Random(options.seed))
            # One that was killed, or is still on its way, counts where it had the time of one that got in.
            slowest = max((trainer.first_epoch or 0 for trainer in swarm.newcomers), default=0)
            in_time = [trainer for trainer in swarm.newcomers if trainer.first_epoch or trainer.age() > slowest]
            return rate, [trainer.first_epoch or float("inf") for trainer in in_time]
        finally:
            swarm.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainers", type=int, default=5)
    parser.add_argument("--every", type=float, default=5)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target-batch-size", type=int, default=512)
    parser.add_argument("--pause", type=float, help="seconds of a batch that takes no processor time")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    quiet, _ = measure(options, 0)
    killed, newcomers = measure(options, options.every)
    result = {"benchmark": "killed_trainers", "trainers": options.trainers, "fault_every": options.every, "epochs_per_second": quiet,
              "epochs_per_second_killed": killed, "kept": killed / quiet if quiet else 0,
              "newcomer_seconds": statistics.median(newcomers) if newcomers else None}
    if options.json:
        print(json.dumps(result))
    else:
        late = f", newcomers train after {result['newcomer_seconds']:.1f} s" if newcomers else ""
        print(f"{options.trainers} trainers, one killed every {options.every:.0f} s: {quiet:.2f} epochs/s quiet, {killed:.2f} killed: {result['kept']:.0%} kept{late}")


if __name__ == "__main__":
    main()
