"""Extra tensors and averaged statistics of the optimizer, in runs and downloads of cohive and Python hivemind trainers."""

import time

import pytest

pytest.importorskip("hivemind")

from test_training import BATCH, PATIENCE, same, trainers  # noqa: E402, F401

AT_ONCE = {"offload_optimizer": False, "delay_state_averaging": False}  # of Python, as the cohive trainer has it


def second_moment(python):
    state = python.optimizer.state_averager.optimizer.state
    parameter = next(iter(state))
    return state[parameter]["exp_avg_sq"].flatten()[0].item()


def test_both_hold_the_averages_of_extra_tensors_and_statistics(trainers):  # noqa: F811
    """Each steps with its own gradients, 1 and 3: that both have the same statistics afterwards is the work of the averaging."""
    common = {"algorithm": "adam", "run_id": "extras", "target_batch_size": 2000, "average_opt_statistics": ["exp_avg", "exp_avg_sq"]}
    cohive = trainers.cohive(1.0, mean=1, count=10, use_local_updates=[], **common)
    python = trainers.python(cohive.initial_peers, 3.0, mean=3, count=20, use_local_updates=True, **AT_ONCE, **common)
    cohive.begin()
    for _ in range(2):
        python.run_epoch()
        ours = cohive.wait_for("epoch")
        assert ours["state_group"] == 2
        assert same(python.weight, ours["weight"])
        assert ours["mean"] == python.mean.tolist() == [2, 2, 2]
        assert ours["count"] == python.count.item() == 15
        moment = second_moment(python)
        assert ours["second_moment"] == pytest.approx(moment, rel=1e-5)
        assert moment > 0


def test_python_that_averages_in_place_and_in_the_background_averages_with_cohive(trainers):  # noqa: F811
    """hivemind.Optimizer's defaults: tensors of the offloaded optimizer are averaged where they are."""
    common = {"algorithm": "adam", "run_id": "extras", "target_batch_size": 1000, "average_opt_statistics": ["exp_avg_sq"]}
    cohive = trainers.cohive(1.0, mean=1, delay_state_averaging=[], **common)
    python = trainers.python(cohive.initial_peers, 3.0, mean=3, **common)
    cohive.begin()
    give_up = time.monotonic() + PATIENCE
    ours = None
    while python.mean.tolist() != [2, 2, 2] or ours is None or ours["mean"] != [2, 2, 2]:
        assert time.monotonic() < give_up, f"the averages do not come: {python.mean}, {ours}"
        python.step()
        while not cohive.events.empty():
            ours = cohive.events.get()


def test_python_takes_extra_tensors_from_a_cohive_trainer(trainers):  # noqa: F811
    common = {"algorithm": "adam", "run_id": "takeover"}
    cohive = trainers.cohive(1.0, mean=1.5, count=10, target_batch_size=4 * BATCH, max_epochs=3, **common)
    cohive.begin()
    while (ours := cohive.wait_for("epoch"))["epoch"] < 3:
        pass
    python = trainers.python(cohive.initial_peers, 1.0, mean=0, count=0, target_batch_size=100000, **AT_ONCE, **common)
    python.optimizer.load_state_from_peers()
    assert python.optimizer.local_epoch == 3
    assert same(python.weight, ours["weight"])
    assert python.mean.tolist() == [1.5, 1.5, 1.5]
    assert python.count.item() == 10
    assert second_moment(python) == pytest.approx(ours["second_moment"], rel=1e-5)


def test_cohive_takes_extra_tensors_from_a_python_trainer(trainers):  # noqa: F811
    common = {"algorithm": "adam", "run_id": "takeover"}
    python = trainers.python([], 1.0, mean=1.5, count=10, target_batch_size=4 * BATCH, **AT_ONCE, **common)
    for _ in range(3):
        python.run_epoch()
    cohive = trainers.cohive(1.0, mean=0, count=0, initial_peers=python.initial_peers, target_batch_size=16 * BATCH, **common)
    cohive.begin()
    taken = cohive.wait_for("downloaded")
    assert taken["epoch"] == 3
    assert same(python.weight, taken["weight"])
    assert (taken["mean"], taken["count"]) == ([1.5, 1.5, 1.5], 10)
    assert taken["second_moment"] == pytest.approx(second_moment(python), rel=1e-5)
