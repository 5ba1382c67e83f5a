"""Network namespaces that are gone when their owner is, however it ends.

A process claims a slot, a number that it holds by a lock on a file, and names its namespaces after it. The lock ends
with the process, also with one that is killed; what carries the name of an unlocked slot is left over and may go.
"""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

RUN = pathlib.Path("/run/cohive-nat")  # a lock file and a folder per slot
NETNS = pathlib.Path("/run/netns")  # where iproute2 keeps namespaces by name
SLOTS = 1000
NAME = re.compile(r"[a-z][a-z0-9-]{0,11}")  # of a host in its world
CLONE_NEWNET = 0x40000000
PATIENCE = 5  # seconds for killed processes to be gone

_libc = ctypes.CDLL(None, use_errno=True)


class LabError(RuntimeError):
    """The laboratory could not do what it was told."""


def unavailable():
    """Says why this machine cannot have a lab, or nothing when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "nft", "nsenter"):
        if not any((pathlib.Path(folder) / program).exists() for folder in os.get_exec_path()):
            return f"{program} is missing (tools/install-deps.sh --nat)"
    probe = subprocess.run(["unshare", "--net", "nft", "add table ip probe"], capture_output=True, text=True)
    if probe.returncode:
        return f"no network namespaces with nftables here: {probe.stderr.strip()}"
    return None


def run(*command, **options):
    """Runs a program of the system; raises LabError with what it said."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    if done.returncode:
        raise LabError(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def ip(lines):
    """Runs many commands of ip(8) at once."""
    run("ip", "-batch", "-", input="\n".join(lines) + "\n")


# ---- Slots


class Slot:
    """A number of our own, and the namespaces named after it."""

    def __init__(self, number, lock):
        self.number, self._lock = number, lock
        self._guard = None

    @classmethod
    def claim(cls):
        """Takes the first free slot; also clears away what dead owners left in others."""
        sweep()
        for number in range(1, SLOTS):
            if slot := cls._take(number):
                slot.folder.mkdir()
                slot._watch()
                return slot
        raise LabError(f"all {SLOTS} slots are in use")

    @classmethod
    def _take(cls, number):
        RUN.mkdir(exist_ok=True)
        lock = os.open(RUN / f"{number}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return cls(number, lock)

    def _watch(self):
        """Starts a shell that waits for our end, and clears the slot if we did not."""
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r line || exec "$0" "$1" sweep "$2"', sys.executable, __file__, str(self.number)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def name(self, host):
        if not NAME.fullmatch(host):
            raise LabError(f"'{host}' is no name of a host: up to 12 of a-z, 0-9 and -")
        return f"nat{self.number}-{host}"

    @property
    def folder(self):
        """A folder that goes with the slot."""
        return RUN / str(self.number)

    def namespaces(self):
        return sorted(path.name for path in NETNS.glob(f"nat{self.number}-*"))

    def clear(self):
        """Kills all processes in the slot's namespaces, removes these, and the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if not (names := self.namespaces()):
            return
        until = time.monotonic() + PATIENCE
        while (left := processes_in(names)) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        ip(f"netns del {name}" for name in names)

    def release(self):
        """Clears the slot and gives it back."""
        if self._lock is None:
            return
        self.clear()
        if self._guard:
            self._guard.communicate(b"over\n")
        os.close(self._lock)
        self._lock = None


def sweep():
    """Clears what dead owners left; returns the number of namespaces that went."""
    gone = 0
    left = [*NETNS.glob("nat*-*"), *RUN.glob("*[0-9]")]
    for number in {int(found[1]) for path in left if (found := re.match(r"(?:nat)?(\d+)(?:-|$)", path.name))}:
        if slot := Slot._take(number):
            gone += len(slot.namespaces())
            slot.release()
    return gone


def processes_in(names):
    """The ids of all processes that run in one of these namespaces."""
    inodes = {(NETNS / name).stat().st_ino for name in names}
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry.name}/ns/net").st_ino in inodes:
                    found.append(int(entry.name))
    return found


# ---- Inside a namespace


@contextlib.contextmanager
def inside(name):
    """The calling thread is in the namespace: what it opens there belongs there for good."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        there = os.open(NETNS / name, os.O_RDONLY)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(home)
    finally:
        os.close(home)


def _enter(descriptor):
    if _libc.setns(descriptor, CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, f"setns: {os.strerror(error)}")


def open_socket(name, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    """A socket of the namespace, to be used from anywhere."""
    with inside(name):
        return socket.socket(family, kind | socket.SOCK_CLOEXEC)


def set_kernel(name, settings):
    """Sets kernel parameters of a namespace: {"net.ipv4.ip_forward": 1}."""
    with inside(name):
        for key, value in settings.items():
            pathlib.Path("/proc/sys", *key.split(".")).write_text(str(value))


if __name__ == "__main__":  # namespaces.py sweep NUMBER: what the guard of a slot runs
    if slot := Slot._take(int(sys.argv[2])):
        slot.release()
