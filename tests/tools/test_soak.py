"""How soon a soak's run has its pace again, and what is left of one that is stopped (tools/soak.py).

Usage: test_soak.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

import shell

TOOLS = str(Path(__file__).resolve().parents[2] / "tools")
sys.path.insert(0, TOOLS)
import soak

USUAL = 10  # epochs a second, for each of the trainers
TRAINERS = 5


def paced(troubles, slow=(), two_at_work=()):
    """A run of 200 s, a look a second, in which no epoch ends within the times of `slow`."""
    pace, epochs = soak.Pace(), 0
    for second in range(200):
        at_work = 2 if any(begin <= second < end for begin, end in two_at_work) else TRAINERS
        pace.looks.append((second, epochs, at_work))
        if not any(begin <= second < end for begin, end in slow):
            epochs += USUAL * at_work
    pace.troubles = [(second, f"trouble at {second}") for second in troubles]
    return pace


class PaceOfASoak(unittest.TestCase):
    def test_a_trouble_that_slows_nobody_is_over_at_once(self):
        usual, found = paced([50, 80]).back_after()
        self.assertAlmostEqual(usual, USUAL)
        self.assertEqual(found, [(0, "trouble at 50"), (0, "trouble at 80")])

    def test_the_time_until_half_of_the_pace_is_told(self):
        _, found = paced([50], slow=[(50, 70)]).back_after()
        self.assertAlmostEqual(found[0][0], 20, delta=soak.PACE_OVER)

    def test_fewer_trainers_at_work_are_no_slower_run(self):
        _, found = paced([50], two_at_work=[(50, 90)]).back_after()
        self.assertEqual(found, [(0, "trouble at 50")])

    def test_what_goes_on_into_the_next_trouble_is_that_ones(self):
        _, found = paced([50, 60], slow=[(50, 90)]).back_after()
        self.assertEqual(found[0][0], 10)
        self.assertGreater(found[1][0], soak.BACK_WITHIN)

    def test_clients_that_are_alone_at_work_are_no_slower_run(self):
        with unittest.mock.patch.object(soak.time, "monotonic") as clock:
            clock.return_value = 1000
            pace, epochs = soak.Pace(), 0
            for second in range(200):
                clock.return_value = 1000 + second
                alone = 50 < second <= 80
                if second == 50:
                    pace.trouble("the last that can be dialled is killed")
                pace.note(epochs, TRAINERS, can_meet=not alone)
                epochs += 0 if alone else USUAL * TRAINERS
        usual, found = pace.back_after()
        self.assertAlmostEqual(usual, USUAL)
        self.assertLessEqual(found[0][0], soak.PACE_OVER)

    def test_a_run_that_never_comes_back_is_told(self):
        _, found = paced([150], slow=[(150, 200)]).back_after()
        self.assertGreater(found[0][0], soak.BACK_WITHIN)


class StoppedSoak(unittest.TestCase):
    # A soak that does nothing but start one program and wait.
    SCRIPT = """
import pathlib, sys
folder, tools = sys.argv[2:4]
del sys.argv[3]
sys.path.insert(0, tools)
import soak
soak.WORK = pathlib.Path(folder, "work")
def run(self):
    self.bootstrap = soak.Program("sleeper", "sleep", "600")
    print("pid", self.bootstrap.process.pid, flush=True)
    soak.time.sleep(600)
soak.Soak.run = run
soak.main()
"""

    @staticmethod
    def runs(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except FileNotFoundError:
            return False

    def test_its_programs_end_with_it(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "cohive-train").touch()
            command = [sys.executable, "-c", self.SCRIPT, "--bin", folder, TOOLS]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                self.assertIn("trainers for", process.stdout.readline())
                pid = process.stdout.readline().split()[1]
                self.assertTrue(self.runs(pid))
                process.terminate()
                _, stderr = process.communicate(timeout=30)
            self.assertEqual(process.returncode, 1, stderr)
            self.assertIn("ended early: told to stop by SIGTERM", stderr)
            deadline = time.monotonic() + 10
            while self.runs(pid) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertFalse(self.runs(pid))


if __name__ == "__main__":
    shell.main()
