"""A run of three: a C++ trainer, one of the Python package, and Python hivemind's, which all average with all."""

import pytest

pytest.importorskip("hivemind")

from test_training import PackageTrainer, same, trainers  # noqa: E402, F401

TARGET = 3000
EPOCHS, MOST_LATE = 10, 4  # hivemind's processes may be seconds late where the machine has other work

OF_THE_PACKAGE = """
import json, sys, time, torch, cohive
weight, bias = torch.zeros(3, 2, requires_grad=True), torch.zeros(2, requires_grad=True)
dht = cohive.DHT(sys.argv[1].split(","), start=True)
optimizer = cohive.Optimizer(
    dht=dht, run_id="three", target_batch_size=%d, batch_size_per_step=8, params=[weight, bias],
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9), matchmaking_time=2, averaging_timeout=30,
    delay_state_averaging=False)
print(json.dumps({"event": "ready"}), flush=True)
while True:
    optimizer.zero_grad()
    (weight.sum() * 5 + bias.sum() * 10).backward()
    optimizer.step()
    report = optimizer.last_report
    if report.epoch_changed:
        print(json.dumps({"event": "epoch", "epoch": optimizer.local_epoch, "group": report.grad_group,
                          "state_group": report.state_group, "weight": weight.flatten().tolist()}), flush=True)
    time.sleep(0.05)
""" % TARGET


class Epochs:
    """What a trainer of cohive tells of its epochs."""

    def __init__(self, trainer):
        self._trainer, self._last = trainer, {"epoch": 0}

    def entered(self, epoch):
        """What it tells of this one; None when it never enters it."""
        while self._last["epoch"] < epoch:
            self._last = self._trainer.wait_for("epoch")
        return self._last if self._last["epoch"] == epoch else None


def test_all_three_average_in_every_round(trainers):  # noqa: F811
    """Gradients 1, 3 and 5. Hivemind's tracker guesses the end of an epoch from what it has seen: it joins a run that
    goes on."""
    common = {"run_id": "three", "target_batch_size": TARGET}
    cohive = trainers.cohive(1.0, **common)
    package = PackageTrainer(OF_THE_PACKAGE, ",".join(cohive.initial_peers))
    try:
        cohive.begin()
        while cohive.wait_for("epoch")["group"] < 2:
            pass
        python = trainers.python(cohive.initial_peers, 3.0, delay_state_averaging=False, **common)
        for _ in range(2):  # takes their state, and is known to them when it has been in a round
            python.run_epoch()
        both = [Epochs(cohive), Epochs(package)]
        met, late = 0, []
        while met < EPOCHS:
            python.run_epoch()
            epoch = python.optimizer.local_epoch
            told = [one.entered(epoch) for one in both]
            together = all(one and (one["group"], one["state_group"]) == (3, 3) for one in told)
            if together and all(same(python.weight, one["weight"]) for one in told):
                met += 1
                continue
            late.append((epoch, python.held[-1], told))
            assert len(late) <= MOST_LATE, late
    finally:
        package.close()
