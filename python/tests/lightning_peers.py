"""Processes that train with Lightning: what tests of them share."""

import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import QUICK
from test_distributed import TARGET

PACKAGES = {"lightning.pytorch": "cohive.lightning", "pytorch_lightning": "cohive.pytorch_lightning"}
PROGRAM = pathlib.Path(__file__).with_name("lightning_program.py")
PATIENCE = 150


def need(package):
    """Without an import, which would be one beside threads that train."""
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"no {package} here")


class Peer:
    """One peer of lightning_program.py, started by Lightning or by torchrun.

    :param as_hivemind: the program imports lightning_hivemind, in whose place cohive is
    :param devices: its ranks
    :param epochs: ends after so many epochs, and only in one whose round had `group` peers
    :param save: a checkpoint at the end
    :param save_each: a checkpoint after each epoch of the run
    :param resume: from this checkpoint
    :param options: of the strategy
    """

    def __init__(
        self, folder, package="lightning.pytorch", peers=(), torchrun=False, as_hivemind=False, name="told", **how
    ):
        need(package)
        self.folder, self.name, self.devices = folder, name, how.get("devices", 2)
        options = {**QUICK, "host_maddrs": ["/ip4/127.0.0.1/tcp/0"], **how.pop("options", {})}
        how = {"epochs": 1, "group": 0, "save": None, "save_each": False, "resume": None, "target": TARGET, **how}
        strategy = "lightning_hivemind.strategy" if as_hivemind else PACKAGES[package]
        how.update(package=package, strategy=strategy, folder=str(folder), peers=[str(one) for one in peers])
        command = [sys.executable]
        if torchrun:
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.devices)]
        command += ["-m", "cohive.as_hivemind"] if as_hivemind else []
        command += [str(PROGRAM), json.dumps(dict(how, options=options, name=name, devices=self.devices))]
        variables = {one: value for one, value in os.environ.items() if "INITIAL_PEERS" not in one}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True
        )

    def told(self, rank=0):
        """The lines of a rank, as far as it has come."""
        path = self.folder / f"{self.name}.{rank}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ends(self):
        """What its process has printed, when it has ended."""
        return self.process.communicate(timeout=PATIENCE)

    def trained(self):
        """The lines of all ranks, of a training that has succeeded."""
        printed = self.ends()
        assert self.process.returncode == 0, printed
        told = [self.told(rank) for rank in range(self.devices)]
        assert [lines[-1] for lines in told] == [{"done": True}] * self.devices, printed
        return [lines[:-1] for lines in told]

    def wait_for(self, epochs, meanwhile):
        """Until all ranks have trained so many; the test does `meanwhile` again and again."""
        while not all(len(self.told(rank)) > epochs for rank in range(self.devices)):
            assert self.process.poll() is None, self.ends()
            meanwhile()

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate()


@pytest.fixture
def peer(tmp_path):
    """peer(**how): a Peer that trains."""
    made = []

    def make(**how):
        made.append(Peer(tmp_path, **how))
        return made[-1]

    yield make
    for one in made:
        one.kill()
