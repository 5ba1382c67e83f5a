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
