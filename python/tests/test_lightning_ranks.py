"""HivemindStrategy with two devices of one machine: two ranks, on Gloo, that are one peer of a run."""

import importlib
import os
import select
import signal

import pytest

torch = pytest.importorskip("torch", reason="no torch here")
if not torch.distributed.is_available():
    pytest.skip("no torch.distributed here", allow_module_level=True)

from lightning_peers import PACKAGES, PATIENCE, need, peer  # noqa: E402, F401  (a fixture)
from test_distributed import others  # noqa: E402, F401  (a fixture: two trainers of the same model)


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
    assert last["group"] == 3 and last["peers"] == 3 and last["rate"] == pytest.approx(0.01 * 0.9 ** last["epoch"])
    trainers.wait_for(2)
    assert not trainers.failures


@pytest.mark.parametrize("name", PACKAGES)
def test_ranks_of_a_program_that_imports_hivemind_are_started_as_it_was(peer, name):  # noqa: F811
    first, second = peer(package=name, as_hivemind=True, target=32, options={"matchmaking_time": 0.5}).trained()
    assert first[1:] == second[1:] and first[1]["epoch"] == 1


@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_is_killed_ends_its_peer_and_not_the_run(others, peer, dies):  # noqa: F811
    trainers, addresses = others
    one = peer(peers=addresses, epochs=10**6)
    one.wait_for(1, meanwhile=lambda: trainers.wait_for(1))
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


def test_two_ranks_go_on_from_a_checkpoint(peer, tmp_path):  # noqa: F811
    saved = tmp_path / "saved.ckpt"
    alone = dict(target=32, options={"matchmaking_time": 0.5})
    before = peer(epochs=3, save=str(saved), name="before", **alone).trained()
    state = torch.load(saved, weights_only=False)["optimizer_states"][0]
    assert state["local_epoch"] == 3 and state["state"][0]["step"] == 4
    first, second = peer(epochs=1, resume=str(saved), name="after", **alone).trained()
    assert first[0]["values"] == second[0]["values"] == before[0][-1]["values"]
    assert first[1:] == second[1:] and first[1]["epoch"] == 4
    assert first[1]["rate"] == pytest.approx(0.01 * 0.9**4)


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
