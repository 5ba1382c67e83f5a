#!/usr/bin/env python3
"""Trouble without end: a swarm of small trainers on this machine, of which now and then one is killed, told to stop, or
suspended as if its machine slept, and whose bootstrap node is killed and comes back. Tells of every trainer that does
not find its way back, of epochs that do not end or are slow for longer than a moment, of offences that honest trainers
hold against each other, and of memory that grows; then the exit code is 1.

    tools/soak.py [--minutes 10] [--trainers 5] [--seed N] [--bin build/release/bin]

The programs must have been built (tools/demo.sh or tools/test.sh does). Logs stay in build/soak.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORK = ROOT / "build/soak"
PATIENCE = 45  # seconds after a start, a sleep or a restart of the bootstrap node until a trainer has to keep up
MOST_BEHIND = 30  # epochs
LOADING = 180  # seconds that a busy machine may take to load a program, which then says something
BETWEEN_LINES = 5  # seconds at most between two lines of a trainer, which tell its epoch
STALLED = 90  # seconds without an epoch of any trainer
PACE_OVER = 5  # seconds that a pace is measured over
SLOW = 0.5  # of the usual pace
BACK_WITHIN = 10  # seconds after a trouble until the run has its pace again
LEAVES_WITHIN = 60  # seconds, of a trainer that is told to stop
QUIET_END = 75  # seconds without trouble before the end
RUN = ["--run-id", "soak", "--target-batch-size", "96", "--batch-size", "4", "--width", "32", "--layers", "1", "--context", "32",
       "--matchmaking-time", "2", "--averaging-timeout", "15", "--average-state-every", "4", "--threads", "1", "--log-level", "debug"]


class Trouble(Exception):
    pass


def say(text):
    print(time.strftime("%H:%M:%S"), text, flush=True)


def resident_megabytes(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1]) / 1024


class Program:
    def __init__(self, name, *command):
        self.name, self.command, self.log = name, command, WORK / f"{name}.log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
        self.begun = self.since = time.monotonic()
        self.asleep_until = 0

    def loads(self):
        return self.log.stat().st_size == 0 and time.monotonic() - self.begun < LOADING

    def sends(self, number):
        self.process.send_signal(number)

    def wakes(self):
        self.sends(signal.SIGCONT)
        self.since, self.asleep_until = time.monotonic(), 0

    def ends(self):
        """Its exit code, or None when it does not end."""
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None

    def epoch(self):
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 200_000))
            found = re.findall(rb"^epoch\s+(\d+)", log.read(), re.M)
        return int(found[-1]) if found else -1


class Pace:
    """How fast epochs follow each other, by the newest one of any trainer at each look, for each trainer at work.

    The clock stands still while all that are at work are clients, which cannot be dialled: they have no group by
    themselves.
    """

    def __init__(self):
        self.looks, self.troubles = [], []
        self.stood_still, self.noted = 0, time.monotonic()

    def now(self):
        return time.monotonic() - self.stood_still

    def note(self, newest, at_work, can_meet=True):
        if not can_meet:
            self.stood_still += time.monotonic() - self.noted
        self.noted = time.monotonic()
        if can_meet:
            self.looks.append((self.now(), newest, at_work))

    def trouble(self, what):
        self.troubles.append((self.now(), what))

    def back_after(self):
        """For each trouble the seconds until the pace was back, or until the next trouble, and what it was."""
        paces, last = [], 0
        for first, (begin, newest, _) in enumerate(self.looks):
            while last < len(self.looks) and self.looks[last][0] < begin + PACE_OVER:
                last += 1
            if last == len(self.looks):
                break
            end, then, _ = self.looks[last]
            at_work = statistics.mean(count for _, _, count in self.looks[first:last])
            paces.append((begin, (then - newest) / (end - begin) / max(1, at_work)))
        usual = statistics.median(pace for _, pace in paces)
        ends = [moment for moment, _ in self.troubles[1:]] + [paces[-1][0]]
        found = []
        for (moment, what), end in zip(self.troubles, ends):
            back = next((begin for begin, pace in paces if moment <= begin < end and pace >= SLOW * usual), end)
            found.append((back - moment, what))
        return usual, found


class Soak:
    def __init__(self, options):
        self.options, self.started = options, 0
        self.random = random.Random(options.seed)
        self.end = time.monotonic() + 60 * options.minutes
        self.until = time.time() + 60 * options.minutes  # the same moment, as trainers are told it
        self.faults, self.counts, self.slowest_stop = [], {}, 0
        self.pace = Pace()
        self.newest_at = collections.deque()  # the newest epoch of a trainer, in the last seconds
        self.bootstrap = None
        self.trainers, self.leaving = [], []

    def start_bootstrap(self):
        self.bootstrap = Program("bootstrap", self.options.bin / "cohive-bootstrap", "--host-maddrs", f"/ip4/127.0.0.1/tcp/{self.options.port}",
                                 "--identity-path", WORK / "bootstrap.key", "--state-path", WORK / "bootstrap.state")
        for _ in range(200):
            if found := re.findall(r"INITIAL_PEERS=(\S+)", self.bootstrap.log.read_text()):
                self.initial_peers = found[-1]
                return
            if self.bootstrap.process.poll() is not None:
                break
            time.sleep(0.1)
        raise Trouble(f"the bootstrap node did not start, see {self.bootstrap.log}")

    def start_trainer(self):
        self.started += 1
        name = f"trainer{self.started}"
        # One in five cannot be dialled; two in five send their gradients as float16.
        kind = [["--client"], ["--fp16"], ["--fp16"], [], []][self.started % 5]
        if "--client" not in kind:
            kind = [*kind, "--host-maddrs", "/ip4/127.0.0.1/tcp/0"]
        self.trainers.append(Program(name, self.options.bin / "cohive-train", "--text", ROOT / "README.md", "--initial-peers", self.initial_peers,
                                     *RUN, *kind, "--seed", self.started, "--until", self.until, "--save", WORK / f"{name}.params",
                                     "--summary", WORK / f"{name}.json"))

    def fault(self, text):
        say(f"FAULT: {text}")
        self.faults.append(text)

    def look_for_offences(self):
        """All trainers are honest, whatever happens to them: what one holds against another is a fault of ours."""
        for log in sorted(WORK.glob("*.log")):
            found = re.findall(r".* is banned for .*", log.read_text(errors="replace"))
            if found:
                self.fault(f"{len(found)} offences of honest peers: {found[0]}, see {log}")

    def look_at_the_pace(self):
        if not self.pace.troubles:
            return
        usual, found = self.pace.back_after()
        times = sorted(seconds for seconds, _ in found)
        say(f"{usual:.2f} epochs a second for each trainer at work; after a trouble again after "
            f"{statistics.median(times):.0f} s (median), {times[-1]:.0f} s (most)")
        for seconds, what in found:
            if seconds > BACK_WITHIN:
                self.fault(f"{what}: the run had its pace again after {seconds:.0f} s")

    def say_trouble(self, what):
        say(what)
        self.pace.trouble(what)

    def make_trouble(self):
        victim = self.random.choice(self.trainers)
        if victim.asleep_until:
            return
        what = self.random.choices(["kill", "stop", "sleep", "kill the bootstrap node"], [35, 20, 30, 15])[0]
        self.counts[what] = self.counts.get(what, 0) + 1
        if what == "sleep":
            # Awake in time to end with the others.
            seconds = min(self.random.choice([3, 10, 30, 90]), int(self.end - time.monotonic()) - PATIENCE)
            self.say_trouble(f"{victim.name} sleeps for {seconds} s")
            victim.asleep_until = time.monotonic() + seconds
            victim.sends(signal.SIGSTOP)
        elif what == "kill the bootstrap node":
            self.say_trouble(what)
            self.bootstrap.process.kill()
            self.bootstrap.process.wait()
            time.sleep(self.random.uniform(0, 5))
            self.start_bootstrap()
            for trainer in self.trainers:
                trainer.since = time.monotonic()
        else:
            self.say_trouble(f"{what} {victim.name}")
            self.trainers.remove(victim)
            loads = victim.loads()  # a signal to a program that has not begun ends it as any other
            if what == "kill":
                victim.sends(signal.SIGKILL)
                victim.ends()
            else:
                victim.sends(signal.SIGTERM)
                self.leaving.append((victim, time.monotonic(), loads))

    def watch_who_leaves(self):
        for left in list(self.leaving):
            trainer, told, loads = left
            code, seconds = trainer.process.poll(), time.monotonic() - told
            if code is None and seconds < LEAVES_WITHIN:
                continue
            self.leaving.remove(left)
            self.slowest_stop = max(self.slowest_stop, seconds)
            if code is None:
                trainer.process.kill()
            if code != 0 and not (loads and code == -signal.SIGTERM):
                what = f"did not within {LEAVES_WITHIN} s" if code is None else f"exited with {code}"
                self.fault(f"{trainer.name} was told to stop and {what}")

    def watch(self):
        now = time.monotonic()
        if self.bootstrap.process.poll() is not None:
            self.fault(f"the bootstrap node exited with {self.bootstrap.process.returncode}")
            self.start_bootstrap()
        for trainer in list(self.trainers):
            if trainer.asleep_until and now > trainer.asleep_until:
                trainer.wakes()
            if trainer.process.poll() is not None:
                self.fault(f"{trainer.name} exited with {trainer.process.returncode}, see {trainer.log}")
                self.trainers.remove(trainer)
        awake = [trainer for trainer in self.trainers if not trainer.asleep_until]
        epochs = {trainer.name: trainer.epoch() for trainer in awake}
        newest = max(epochs.values(), default=-1)
        self.newest_at.append((now, newest))
        while now - self.newest_at[0][0] > BETWEEN_LINES:
            self.newest_at.popleft()
        if newest > self.newest or not awake:
            self.last_epoch = now
        elif now - self.last_epoch > STALLED:
            self.fault(f"no epoch has ended for {STALLED} s: {epochs}")
            self.last_epoch = now
        self.newest = newest
        at_work = [trainer for trainer in awake if epochs[trainer.name] > newest - MOST_BEHIND]
        can_meet = not at_work or any("--client" not in trainer.command for trainer in at_work)
        self.pace.note(newest, len(at_work), can_meet)
        self.watch_who_leaves()
        for trainer in awake:
            if trainer.loads():
                trainer.since = now
            if now - trainer.since > PATIENCE and epochs[trainer.name] < self.newest_at[0][1] - MOST_BEHIND:
                self.fault(f"{trainer.name} does not keep up: {epochs}, see {trainer.log}")
                trainer.since = now
        return epochs

    def run(self):
        self.start_bootstrap()
        self.newest, self.last_epoch = -1, time.monotonic()
        next_trouble, next_start, next_report, first_size = time.monotonic() + 30, 0, 0, None
        while time.monotonic() < self.end:
            now = time.monotonic()
            if len(self.trainers) < self.options.trainers and now > next_start and now < self.end - QUIET_END:
                self.start_trainer()
                next_start = now + self.random.uniform(1, 15)
            if now > next_trouble and now < self.end - QUIET_END and len(self.trainers) > 1:
                self.make_trouble()
                next_trouble = now + self.random.uniform(5, 25)
            epochs = self.watch()
            size = resident_megabytes(self.bootstrap.process.pid)
            if now > next_report:
                next_report = now + 15
                say(f"{self.end - now:5.0f} s left, bootstrap node {size:.0f} MB, epochs {epochs}")
            if first_size is None and now - self.bootstrap.since > 60:
                first_size = size
            if first_size and size > 1.5 * first_size + 16:
                self.fault(f"the bootstrap node has grown from {first_size:.0f} to {size:.0f} MB")
                first_size = size
            time.sleep(1)
        self.finish()

    def finish(self):
        say("the trainers agree on their last parameters")
        for trainer in self.trainers:
            if trainer.asleep_until:
                trainer.wakes()
        saved = []
        for trainer in self.trainers:
            if (code := trainer.ends()) != 0:
                self.fault(f"{trainer.name} did not end" if code is None else f"{trainer.name} exited with {code}")
            elif (WORK / f"{trainer.name}.params").exists():
                saved.append(WORK / f"{trainer.name}.params")
                summary = json.loads((WORK / f"{trainer.name}.json").read_text())
                say(f"{trainer.name}: epoch {summary['epoch']}, loss {summary['loss_end']:.3f}, {summary['state_downloads']} downloads")
        compared = subprocess.run([self.options.bin / "cohive-train", "--compare", *saved], capture_output=True, text=True)
        say(f"compared: {compared.stdout.strip() or compared.stderr.strip()}")
        if compared.returncode != 0:
            self.fault("the trainers hold different parameters")
        self.bootstrap.sends(signal.SIGTERM)
        if self.bootstrap.ends() != 0:
            self.fault("the bootstrap node did not end when it was told to")

    def clean_up(self):
        for program in [*self.trainers, *(left[0] for left in self.leaving), self.bootstrap]:
            if program and program.process.poll() is None:
                program.process.kill()


def end_early(number, frame):
    raise Trouble(f"told to stop by {signal.Signals(number).name}")


def main():
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_early)  # its programs would stay otherwise
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--trainers", type=int, default=5)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="of the troubles; printed")
    parser.add_argument("--port", type=int, default=31400, help="of the bootstrap node (default 31400)")
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    if options.minutes < 3 or options.trainers < 2:
        parser.error("at least 3 minutes and 2 trainers")
    if not (options.bin / "cohive-train").exists():
        parser.error(f"no cohive-train in {options.bin}: build it with tools/demo.sh or tools/test.sh")
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    os.environ.pop("INITIAL_PEERS", None)
    soak = Soak(options)
    say(f"{options.trainers} trainers for {options.minutes:g} minutes, seed {options.seed}, logs in {WORK}")
    try:
        soak.run()
        soak.look_for_offences()
        soak.look_at_the_pace()
    except (Trouble, KeyboardInterrupt) as end:
        sys.exit(f"ended early: {end}")
    finally:
        soak.clean_up()
    counts = ", ".join(f"{what}: {count}" for what, count in sorted(soak.counts.items())) or "none"
    say(f"troubles: {counts}; trainers started: {soak.started}; slowest stop: {soak.slowest_stop:.0f} s; "
        f"faults: {len(soak.faults)}")
    sys.exit(1 if soak.faults else 0)


if __name__ == "__main__":
    main()
