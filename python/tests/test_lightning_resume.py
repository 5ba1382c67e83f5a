"""HivemindStrategy: a peer that was killed goes on from its checkpoint, in a swarm that went on without it."""

import os
import signal

import pytest

torch = pytest.importorskip("torch", reason="no torch here")
if not torch.distributed.is_available():
    pytest.skip("no torch.distributed here", allow_module_level=True)

from lightning_peers import peer  # noqa: E402, F401  (a fixture)
from test_distributed import others  # noqa: E402, F401  (a fixture: two trainers of the same model)


@pytest.mark.parametrize("options", [dict(), dict(offload_optimizer=True)], ids=["plain", "offload"])
def test_a_killed_peer_comes_back_to_a_run_that_went_on(others, peer, options):  # noqa: F811
    trainers, addresses = others
    killed = peer(peers=addresses, devices=1, epochs=10**6, save_each=True, name="killed", options=options)
    killed.wait_for(2, meanwhile=lambda: trainers.wait_for(1))
    os.kill(killed.told()[0]["pid"], signal.SIGKILL)
    assert killed.process.wait(30) == -signal.SIGKILL
    last = killed.told()[-1]
    state = torch.load(last["saved"], weights_only=False)["optimizer_states"][0]
    assert state["local_epoch"] == last["epoch"]
    trainers.wait_for(3)
    ahead = min(trainers.epochs)
    assert ahead > last["epoch"]

    back = peer(
        peers=addresses, devices=1, resume=last["saved"], epochs=2, group=3, save_each=True, name="back",
        options=options,
    )  # fmt: skip
    ((begin, *epochs),) = back.trained()
    assert epochs[0]["epoch"] > ahead, "it takes the state of the run, which is ahead of its checkpoint"
    assert epochs[-1]["group"] == 3, "and trains with the others"
    for one in epochs:
        assert one["rate"] == pytest.approx(0.01 * 0.9 ** one["epoch"])
    state = torch.load(epochs[-1]["saved"], weights_only=False)["optimizer_states"][0]
    assert state["local_epoch"] == epochs[-1]["epoch"]
    assert abs(float(state["state"][0]["step"]) - epochs[-1]["epoch"]) <= 1, "Adam's steps are those of the run"
    trainers.wait_for(2)
    assert not trainers.failures
