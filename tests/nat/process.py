"""Programs that run in a world, with what they print kept in a file."""

import json
import os
import pathlib
import re
import subprocess
import time

PATIENCE = 30  # seconds for what a program should print
STOPPING = 5  # seconds from SIGTERM to SIGKILL
SHOWN = 2000  # characters of a log in an error


def processor_seconds(pid):
    """The time that a process has computed until now."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


class ProcessError(RuntimeError):
    """A program did not do what was waited for; with the end of what it printed."""


class Process:
    """A running program whose output goes to a file."""

    def __init__(self, command, log, *, environment=None):
        self.command, self.log = [str(part) for part in command], pathlib.Path(log)
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                             env={**os.environ, **(environment or {})}, start_new_session=True)
        self.pid = self._process.pid

    def output(self):
        return self.log.read_text(errors="replace")

    def find(self, pattern, timeout=PATIENCE):
        """Waits until a line matches; returns the match."""
        until = time.monotonic() + timeout
        while True:
            ended = self._process.poll() is not None
            if found := re.search(pattern, self.output(), re.M):
                return found
            if ended or time.monotonic() > until:
                raise self._error(f"printed nothing like '{pattern}'" + (" and ended" if ended else f" in {timeout} s"))
            time.sleep(0.02)

    def json(self, timeout=PATIENCE):
        """Waits for the first line that is a JSON object."""
        return json.loads(self.find(r"^\{.*\}$", timeout)[0])

    def wait(self, timeout=PATIENCE):
        """Waits until it ends; returns its exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._error(f"did not end in {timeout} s") from None

    def runs(self):
        return self._process.poll() is None

    def send(self, number):
        self._process.send_signal(number)

    def stop(self):
        """Asks it to end, and makes it end."""
        if self.runs():
            self._process.terminate()
            try:
                self._process.wait(STOPPING)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def resident(self):
        """Its memory in bytes, now and at most until now."""
        status = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        return tuple(1024 * int(re.search(rf"^{field}:\s+(\d+)", status, re.M)[1]) for field in ("VmRSS", "VmHWM"))

    def processor_seconds(self):
        return processor_seconds(self.pid)

    def _error(self, text):
        return ProcessError(f"{self.command[2] if 'nsenter' in self.command[0] else self.command[0]} {text}; the end of {self.log}:\n"
                            f"{self.output()[-SHOWN:]}")
