"""A clock that is set while programs run: durations do not follow it.

Usage: test_clocks.py FOLDER-OF-PROGRAMS [unittest options]. Skipped by itself without libfaketime.
"""

import glob
import json
import re
import signal
import subprocess
import time
import unittest
from pathlib import Path

import shell
from shell import PATIENCE, environment, small_trainer

LIBRARY = next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), None)


class Clocks(shell.TrainerTest):
    def setUp(self):
        super().setUp()
        if not LIBRARY:
            self.skipTest("no libfaketime")
        self.offset = self.folder / "offset"
        self.set_clock("+0")

    def set_clock(self, offset):
        new = self.folder / "new"
        new.write_text(offset + "\n")
        new.rename(self.offset)

    def start(self, *arguments):
        fake = {**environment, "LD_PRELOAD": LIBRARY, "FAKETIME_TIMESTAMP_FILE": str(self.offset), "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
        process = subprocess.Popen([shell.BIN / "cohive-train", *small_trainer(self.folder), *arguments], env=fake, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def epoch_line(self, process):
        return int(next(line for line in process.stdout if line.startswith("epoch")).split()[1])

    def test_a_duration_is_no_longer_when_the_clock_is_set_back(self):
        process = self.start("--seconds", "8")
        begin = time.monotonic()
        self.epoch_line(process)
        self.set_clock("-30")
        lines = process.stdout.read().splitlines()
        self.assertEqual(process.wait(PATIENCE), 0)
        self.assertLess(time.monotonic() - begin, 25)
        epochs = [int(line.split()[1]) for line in lines if line.startswith("epoch")]
        self.assertGreaterEqual(len(epochs), 2, "lines come on")
        self.assertGreater(epochs[-1], epochs[0], "and so do epochs")

    def test_nor_shorter_when_it_is_set_ahead(self):
        process = self.start("--seconds", "600", "--json")
        begin = time.monotonic()
        reports = (json.loads(line) for line in process.stdout)
        left = [next(report for report in reports if report["event"] == "progress")["eta_seconds"]]
        self.set_clock("+3600")
        for _ in range(3):
            left.append(next(report for report in reports if report["event"] == "progress")["eta_seconds"])
        self.assertIsNone(process.poll())
        self.assertGreater(time.monotonic() - begin, 4, "three lines take three times two seconds")
        self.assertGreater(left[-1], 500)
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        self.assertEqual(process.wait(PATIENCE), 0)

    def test_until_is_by_the_clock(self):
        process = self.start("--until", str(int(time.time()) + 3600))
        self.epoch_line(process)
        self.set_clock("+3601")
        process.stdout.read()
        self.assertEqual(process.wait(PATIENCE), 0)


class Sources(unittest.TestCase):
    """What measures how long something takes asks a clock that nobody sets."""

    root = Path(__file__).resolve().parents[2]

    def test_programs_and_scripts(self):
        wall = re.compile(r"system_clock|std::time\(|gettimeofday|CLOCK_REALTIME|\btime\.time\(\)|datetime\.now|date \+%s")
        # Timestamps of lines, a moment that trainers are told by --until, and when records expire.
        known = {"tools/train/progress.cpp": 1, "tools/soak.py": 1, "tools/demo.sh": 1, "benchmarks/attacks.py": 1}
        found = {}
        for path in [*self.root.glob("tools/**/*"), *self.root.glob("benchmarks/*")]:
            if path.suffix in (".cpp", ".hpp", ".py", ".sh") and (count := len(wall.findall(path.read_text()))):
                found[str(path.relative_to(self.root))] = count
        self.assertEqual(found, known)


if __name__ == "__main__":
    shell.main()
