"""HivemindStrategy with two devices of one machine: two ranks, on Gloo, that are one peer of a run."""

import importlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="no torch here")
if not torch.distributed.is_available():
    pytest.skip("no torch.distributed here", allow_module_level=True)

from conftest import QUICK  # noqa: E402
from test_distributed import TARGET, others  # noqa: E402, F401  (a fixture: two trainers of the same model)

PACKAGES = {"lightning.pytorch": "cohive.lightning", "pytorch_lightning": "cohive.pytorch_lightning"}
PATIENCE = 150

PROGRAM = """
import hashlib, importlib, json, os, sys, time, torch
HOW = json.loads(sys.argv[1])
package = importlib.import_module(HOW["package"])
HivemindStrategy = importlib.import_module(HOW["strategy"]).HivemindStrategy
torch.set_num_threads(1)

def tell(trainer, **what):
    with open(os.path.join(HOW["folder"], f"{HOW['name']}.{trainer.global_rank}"), "a") as out:
        print(json.dumps(what), file=out)

class Model(package.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
        self.register_buffer("mask", torch.zeros(2, dtype=torch.bool))
        self.groups = []
    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).square().mean()
    def values(self):
        values = torch.cat([one.detach().reshape(-1) for one in self.parameters()])
        return hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]
    def on_train_start(self):
        strategy, rank = self.trainer.strategy, self.trainer.global_rank
        strategy.barrier()
        tell(self.trainer, pid=os.getpid(), rank=rank, local=self.trainer.local_rank, world=self.trainer.world_size,
             zero=self.trainer.is_global_zero, dht=strategy.dht is not None, values=self.values(),
             broadcast=strategy.broadcast({"from": rank}), mean=float(strategy.reduce(torch.tensor(float(rank)))),
             sum=float(strategy.reduce(torch.tensor(float(rank)), reduce_op="sum")),
             gathered=strategy.all_gather(torch.tensor([rank])).reshape(-1).tolist(),
             all=strategy.reduce_boolean_decision(rank == 0),
             any=strategy.reduce_boolean_decision(rank == 0, all=False),
             sampler=type(self.trainer.train_dataloader.sampler).__name__,
             indices=list(self.trainer.train_dataloader.sampler))
    def on_train_batch_end(self, *_):
        optimizer = self.trainer.strategy.optimizers[0]
        report = optimizer.last_report
        if report.epoch_changed:
            self.groups.append(report.grad_group)
            tell(self.trainer, epoch=optimizer.local_epoch, group=report.grad_group, values=self.values(),
                 rate=optimizer.param_groups[0]["lr"], peers=self.trainer.strategy.num_peers)
        if len(self.groups) >= HOW["epochs"] and (not HOW["group"] or self.groups[-1] == HOW["group"]):
            self.trainer.should_stop = True
    def configure_optimizers(self):
        made = torch.optim.Adam(self.parameters(), lr=0.01)
        return [made], [torch.optim.lr_scheduler.ExponentialLR(made, 0.9)]
    def train_dataloader(self):
        data = torch.utils.data.TensorDataset(torch.randn(4 * 5000, 6))
        return torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)

class Pace(package.Callback):
    def on_train_batch_start(self, *_):
        time.sleep(0.02)

if __name__ == "__main__":
    strategy = HivemindStrategy(target_batch_size=HOW["target"], initial_peers=HOW["peers"], **HOW["options"])
    trainer = package.Trainer(
        strategy=strategy, accelerator="cpu", devices=2, max_epochs=100, callbacks=[Pace()], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Model(), ckpt_path=HOW["resume"])
    if HOW["save"]:
        trainer.save_checkpoint(HOW["save"])
    tell(trainer, done=True)
"""


def need(package):
    """Without an import, which would be one beside threads that train."""
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"no {package} here")


class Peer:
    """One peer of two ranks, started by Lightning or by torchrun."""

    def __init__(self, folder, package="lightning.pytorch", peers=(), torchrun=False, name="told", **how):
        need(package)
        self.folder, self.name = folder, name
        (folder / "program.py").write_text(PROGRAM)
        options = {**QUICK, "host_maddrs": ["/ip4/127.0.0.1/tcp/0"], **how.pop("options", {})}
        how = {"epochs": 1, "group": 0, "save": None, "resume": None, "target": TARGET, **how}
        how.update(package=package, strategy=PACKAGES[package], folder=str(folder), peers=[str(one) for one in peers])
        command = [sys.executable]
        if torchrun:
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [str(folder / "program.py"), json.dumps(dict(how, options=options, name=name))]
        variables = {one: value for one, value in os.environ.items() if "INITIAL_PEERS" not in one}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True
        )

    def told(self, rank):
        path = self.folder / f"{self.name}.{rank}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def ends(self):
        """What its process has printed, when it has ended."""
        return self.process.communicate(timeout=PATIENCE)

    def trained(self):
        """The lines of both ranks, of a training that has succeeded."""
        printed = self.ends()
        assert self.process.returncode == 0, printed
        told = [self.told(rank) for rank in range(2)]
        assert [lines[-1] for lines in told] == [{"done": True}] * 2, printed
        return [lines[:-1] for lines in told]

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


@pytest.mark.parametrize(
    "package, torchrun", [("lightning.pytorch", False), ("lightning.pytorch", True), ("pytorch_lightning", False)]
)
def test_two_devices_are_one_peer_of_three(others, peer, package, torchrun):  # noqa: F811
    trainers, addresses = others
    first, second = peer(package=package, peers=addresses, torchrun=torchrun, group=3).trained()
    begin = [first[0], second[0]]
    assert [one["rank"] for one in begin] == [one["local"] for one in begin] == [0, 1]
    assert [one["zero"] for one in begin] == [one["dht"] for one in begin] == [True, False]
    assert begin[0]["values"] == begin[1]["values"], "the ranks begin with one model"
    for one in begin:
        assert one["world"] == 2 and one["broadcast"] == {"from": 0} and one["gathered"] == [0, 1]
        assert one["mean"] == 0.5 and one["sum"] == 1.0 and not one["all"] and one["any"]
    shares = [set(one["indices"]) for one in begin]
    assert [len(one) for one in shares] == [4 * 5000 / 2] * 2
    if begin[0]["sampler"] == "DistributedSampler":  # Lightning 2.0 shuffles on each rank, before it shares out
        assert not shares[0] & shares[1]
    assert first[1:] == second[1:], "all ranks hold the same parameters, and know of the same rounds"
    last = first[-1]
    assert last["group"] == 3 and last["peers"] == 3
    trainers.wait_for(2)
    assert not trainers.failures


@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_is_killed_ends_its_peer_and_not_the_run(others, peer, dies):  # noqa: F811
    trainers, addresses = others
    one = peer(peers=addresses, epochs=10**6)
    trainers.wait_for(1)
    while not all(len(one.told(rank)) > 1 for rank in range(2)):  # both have trained an epoch
        assert one.process.poll() is None, one.ends()
        trainers.wait_for(1)
    ends = [os.pidfd_open(one.told(rank)[0]["pid"]) for rank in range(2)]
    os.kill(one.told(dies)[0]["pid"], signal.SIGKILL)
    ready, _, _ = select.select([ends[1 - dies]], [], [], PATIENCE)
    assert ready, "the other rank has ended, too"
    for end in ends:
        os.close(end)
    one.ends()
    assert one.process.returncode != 0
    trainers.wait_for(2)
    assert not trainers.failures


def test_two_ranks_go_on_from_a_checkpoint(peer, tmp_path):
    saved = tmp_path / "saved.ckpt"
    alone = dict(target=32, options={"matchmaking_time": 0.5})
    before = peer(epochs=3, save=str(saved), name="before", **alone).trained()
    state = torch.load(saved, weights_only=False)["optimizer_states"][0]
    assert state["local_epoch"] == 3 and state["state"][0]["step"] == 4
    first, second = peer(epochs=1, resume=str(saved), name="after", **alone).trained()
    assert first[0]["values"] == second[0]["values"] == before[0][-1]["values"]
    assert first[1:] == second[1:] and first[1]["epoch"] == 4
    assert first[1]["rate"] == pytest.approx(0.01 * 0.9**3)  # Lightning steps schedules at the end of its own epoch


@pytest.mark.parametrize("name", PACKAGES)
def test_what_ranks_cannot_be_is_refused(name):
    need(name)
    package = importlib.import_module(name)
    strategy = importlib.import_module(PACKAGES[name]).HivemindStrategy
    refused = importlib.import_module(name + ".utilities.exceptions").MisconfigurationException
    options = dict(target_batch_size=8, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    made = [strategy(**options) for _ in range(2)]
    try:
        with pytest.raises(refused, match="each machine is a peer of its own"):
            package.Trainer(strategy=made[0], accelerator="cpu", devices=2, num_nodes=2)
        trainer = package.Trainer(strategy=made[1], accelerator="cpu", devices=2, logger=False)
        assert trainer.world_size == 2 and trainer.distributed_sampler_kwargs["num_replicas"] == 2

        from torch.distributed.fsdp import FullyShardedDataParallel

        whole = object.__new__(FullyShardedDataParallel)  # FSDP itself wants a GPU
        torch.nn.Module.__init__(whole)
        made[1].model = torch.nn.Sequential(torch.nn.Linear(2, 1), whole)
        with pytest.raises(TypeError, match="not with FSDP or DTensor"):
            made[1].setup(trainer)
    finally:
        for one in made:
            one.dht.shutdown()
