"""What the tests of the package share. They need the library: $COHIVE_LIBRARY, or the one beside it."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def swarm():
    """swarm(N, **options): so many DHTs in one swarm, which are left at the end."""
    import cohive

    peers = []

    def make(count, **options):
        for _ in range(count):
            initial = peers[0].get_visible_maddrs() if peers else []
            peers.append(cohive.DHT(initial, start=True, **options))
        return peers

    yield make
    for peer in peers:
        peer.shutdown()


@pytest.fixture
def run_python():
    """run_python(CODE, **how): the finished process of another interpreter that has this package."""
    import subprocess

    def run(code, timeout=60, **how):
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, env=os.environ, **how
        )

    return run


#: of optimizers that find each other at once
QUICK = dict(run_id="run", matchmaking_time=1.0, averaging_timeout=10.0, averager_opts=dict(request_timeout=0.8))


@pytest.fixture
def trainer_alone():
    """trainer_alone(OPTIONS): an Optimizer in a swarm of its own."""
    import cohive

    made = []

    def make(**options):
        options = {**QUICK, "delay_state_averaging": False, **options}
        made.append(cohive.Optimizer(dht=cohive.DHT(start=True), **options))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()
        one.dht.shutdown()


@pytest.fixture
def signalled():
    """signalled(NUMBER, HANDLER): this process gets the signal in half a second, on its main thread; returns when it
    is sent. Handlers are as they were in the end."""
    import signal
    import threading
    import time

    before, timers = {}, []

    def make(number, handler):
        before.setdefault(number, signal.signal(number, handler))
        timers.append(threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, number)))
        timers[-1].start()
        return time.monotonic() + 0.5

    yield make
    for timer in timers:
        timer.join()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def interrupt():
    """interrupt(CODE, ARGUMENTS, after, within): a program that prints "waits" and begins a call gets Ctrl+C `after`
    seconds, prints "interrupted" `within` others, and ends."""
    import signal
    import subprocess
    import time

    def run(code, *arguments, after, within):
        # A shell has what it starts in the background ignore the signal.
        heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        command = [sys.executable, "-c", heeds + code, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        try:
            assert process.stdout.readline() == "waits\n"
            time.sleep(after)  # it is in its call; there is nothing to await that would tell
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "interrupted\n" and time.monotonic() - begin < within
            assert process.wait(20) == 0
        finally:
            process.kill()

    return run
