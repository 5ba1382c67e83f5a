"""Signals, and readers that go away: no work is lost to them.

Usage: test_signals.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import shell
from shell import NOBODY, PATIENCE, bootstrap, environment, programs, small_trainer, taken_port

STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU]


def catches(process, number):
    """Whether a process has a handler for a signal by now."""
    with contextlib.suppress(FileNotFoundError):
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
        return bool(caught >> (number - 1) & 1)


class WithPrograms(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def start(self, program, *arguments, **options):
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment, **options}
        process = subprocess.Popen([shell.BIN / program, *map(str, arguments)], **options)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def until(self, condition):
        give_up = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), give_up)
            time.sleep(0.002)


class SignalsOfTrainers(WithPrograms):
    def setUp(self):
        super().setUp()
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        self.small = small_trainer(self.folder)
        self.save, self.summary, self.checkpoints = (self.folder / name for name in ("params", "summary.json", "checkpoints"))
        self.outputs = ["--save", self.save, "--summary", self.summary, "--checkpoint-dir", self.checkpoints]

    def train(self, *arguments, **options):
        return self.start("cohive-train", *self.small, *self.outputs, *arguments, **options)

    def assert_ended_in_order(self, process, code=0):
        self.assertEqual(process.wait(PATIENCE), code)
        self.assertGreater(self.save.stat().st_size, 0)
        self.assertIn("epoch", json.loads(self.summary.read_text()))
        self.assertTrue(list(self.checkpoints.glob("*.safetensors")))

    def test_a_reader_that_goes_away_ends_the_output_alone(self):
        for flags in ([], ["--json"]):
            process = self.train("--seconds", "6", "--resume", *flags)
            process.stdout.readline()
            process.stdout.close()
            self.assert_ended_in_order(process)
            self.assertGreater(json.loads(self.summary.read_text())["epoch"], 0)
            self.assertEqual(process.stderr.read().count("nobody reads the standard output"), 1)
            process.stdout = None

    def test_a_reader_that_has_fallen_asleep_does_not_keep_it_from_ending(self):
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(writing, False)
        os.write(writing, b"x" * 4096)
        os.set_blocking(writing, True)
        process = self.train(stdout=writing)
        os.close(writing)
        self.until(lambda: catches(process, signal.SIGTERM))
        time.sleep(1)  # it waits for the reader by now, or does so soon
        process.send_signal(signal.SIGTERM)
        self.assert_ended_in_order(process)

    def test_streams_that_are_closed(self):
        process = subprocess.Popen(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", shell.BIN / "cohive-train", *self.small, *self.outputs,
                                    "--max-epochs", "2"], env=environment)
        self.assert_ended_in_order(process)
        self.assertNotIn(b"peer ", self.summary.read_bytes() + self.save.read_bytes())

    def test_files_that_may_not_grow(self):
        process = subprocess.Popen(["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", shell.BIN / "cohive-train", *small_trainer(self.folder, width=64),
                                    *self.outputs, "--max-epochs", "2"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        _, said = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 1, said)
        for flag in ("--checkpoint-dir: ", "--save: "):
            self.assertRegex(said, f"(?m)^cohive-train: {flag}.*File too large")
        self.assertEqual(json.loads(self.summary.read_text())["epoch"], 2)

    def test_each_signal_that_ends_it_leaves_the_results(self):
        for number in STOPS:
            with self.subTest(signal=number):
                process = self.train("--resume")
                next(line for line in process.stdout if line.startswith("epoch"))
                process.send_signal(number)
                if number != signal.SIGINT:
                    process.send_signal(number)  # as a shell and a terminal do that close together
                self.assert_ended_in_order(process)

    def test_nohup(self):
        process = self.train(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        next(line for line in process.stdout if line.startswith("epoch"))
        process.send_signal(signal.SIGHUP)
        next(line for line in process.stdout if line.startswith("epoch"))
        process.send_signal(signal.SIGTERM)
        self.assert_ended_in_order(process)

    def test_a_signal_while_it_starts(self):
        for number in STOPS:
            with self.subTest(signal=number):
                process = self.train("--resume")
                self.until(lambda: catches(process, number))
                process.send_signal(number)
                self.assert_ended_in_order(process)

    def test_signals_are_caught_before_the_libraries_begin(self):
        """Which takes longer than everything else before the text is read."""
        reading, writing = os.pipe()
        self.addCleanup(os.close, writing)
        caught = []
        for _ in range(3):
            begin = time.monotonic()
            process = self.start("cohive-train", "--text", "/dev/stdin", stdin=reading, stderr=subprocess.PIPE)
            self.until(lambda: catches(process, signal.SIGTERM))
            caught.append(time.monotonic() - begin)
            process.stderr.readline()  # "reading /dev/stdin to its end"
            loaded = time.monotonic() - begin
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(PATIENCE), 0)
            caught[-1] /= loaded
        os.close(reading)
        self.assertLess(min(caught), 0.5)

    def test_a_signal_while_it_waits_for_its_swarm(self):
        with taken_port() as port:
            pass  # free again: nobody listens
        process = self.train("--initial-peers", f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}")
        next(line for line in process.stderr if "no swarm yet" in line)
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE), 0)
        self.assertIn("told to stop before the work began", process.stderr.read())

    def test_a_signal_while_an_attempt_to_join_goes_on(self):
        """What accepts connections and says nothing holds an attempt for as long as it may last."""
        with taken_port() as port:
            for number in (signal.SIGTERM, signal.SIGINT):
                process = self.train("--initial-peers", f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}")
                connection = f" 0100007F:{port:04X} "  # its side of it, in the table of the kernel
                self.until(lambda: any(connection in line and line.split()[3] == "01"
                                       for line in Path("/proc/net/tcp").read_text().splitlines()))
                process.send_signal(number)
                sent = time.monotonic()
                process.communicate(timeout=PATIENCE)
                self.assertLess(time.monotonic() - sent, 3, "it has to give back a network and a model, too")

    def test_a_request_for_diagnostics_while_it_starts(self):
        process = self.train("--max-epochs", "1")
        self.until(lambda: catches(process, signal.SIGTERM))
        process.send_signal(signal.SIGUSR1)
        self.assert_ended_in_order(process)

    def test_work_without_anything_to_put_in_order_ends_by_the_signal(self):
        os.mkfifo(self.folder / "text")
        process = self.start("cohive-train", "--dry-run", "--text", self.folder / "text")
        process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE), -signal.SIGTERM)


class SignalsOfNodes(WithPrograms):
    def test_each_signal_ends_a_node_in_order(self):
        for number in STOPS:
            with self.subTest(signal=number):
                state = self.folder / f"state{number}"
                process = self.start("cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--state-path", state)
                process.stdout.readline()
                os.utime(state, (1, 1))  # the clock of files may not move between two writes
                process.send_signal(number)
                self.assertEqual(process.wait(PATIENCE), 0)
                self.assertGreater(state.stat().st_mtime, 1)

    def test_a_signal_while_a_program_starts(self):
        with bootstrap() as (_, hub):
            for program, *arguments in (["cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0"],
                                        ["cohive-monitor", "--initial-peers", *hub["initial_peers"]],
                                        ["cohive-monitor", "serve", "--metrics-address", "127.0.0.1:0", "--initial-peers", *hub["initial_peers"]]):
                for number in STOPS:
                    with self.subTest(program=program, signal=number):
                        process = self.start(program, *arguments)
                        self.until(lambda: catches(process, number))
                        process.send_signal(number)
                        self.assertEqual(process.wait(PATIENCE), 0)

    def test_a_node_goes_on_without_a_reader(self):
        with bootstrap("--metrics-address", "127.0.0.1:0") as (process, line):
            process.stdout.close()
            process.stdout = open(os.devnull)
            self.assertIsNone(process.poll())
            again = self.start("cohive-dht", "ping", line["initial_peers"][0])
            self.assertEqual(again.wait(PATIENCE), 0)

    def test_a_watcher_without_a_reader_ends(self):
        with bootstrap() as (_, hub):
            for flags in ([], ["--json"]):
                process = self.start("cohive-monitor", "--interval", "0.1", *flags, "--initial-peers", *hub["initial_peers"])
                process.stdout.readline()
                process.stdout.close()
                self.assertEqual(process.wait(PATIENCE), 0)
                self.assertEqual(process.stderr.read(), "")
                process.stdout = None

    def test_answers_that_cannot_be_printed(self):
        with bootstrap() as (_, hub), open("/dev/full", "w") as full:
            for program, *arguments in (["cohive-dht", "peers"], ["cohive-monitor", "--once"], ["cohive-monitor", "doctor"]):
                process = self.start(program, *arguments, "--initial-peers", *hub["initial_peers"], stdout=full)
                self.assertEqual(process.wait(PATIENCE), 1)
                self.assertRegex(process.stderr.read(), "^.*the standard output is lost from here on: No space left on device\n$")

    def test_a_measurement_ends_at_once(self):
        process = self.start("cohive-bench", "transport", "--seconds", "60")
        self.until(lambda: catches(process, signal.SIGTERM) is False)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(PATIENCE), -signal.SIGINT)


if __name__ == "__main__":
    shell.main()
