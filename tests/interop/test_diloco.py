"""A run of cohive and of OpenDiLoCo's classes over Python hivemind: local steps, and outer steps by one mean.

The classes here have OpenDiLoCo's names and bases, and do on the wire what its do
(PrimeIntellect-ai/OpenDiLoCo, open_diloco/hivemind_diloco.py): `DiLoCoGradAverager` averages how far each trainer has
come, with the weight 1, and `DiLoCoStateAverager` averages the outer parameters after each of its steps.
"""

import json
import os
import time

import pytest

hivemind = pytest.importorskip("hivemind")

import torch  # noqa: E402
from hivemind.averaging.averager import DecentralizedAverager  # noqa: E402
from hivemind.dht import DHT  # noqa: E402
from hivemind.optim.progress_tracker import ProgressTracker  # noqa: E402
from hivemind.optim.state_averager import TrainingStateAverager  # noqa: E402
from test_training import CohiveTrainer, PackageTrainer  # noqa: E402

RUN, BATCH, LOCAL_STEPS, PAUSE = "diloco", 8, 60, 0.05
MATCHMAKING, TIMEOUT = 2.0, 30.0
INNER_RATE, RATE, MOMENTUM = 0.1, 0.7, 0.9
EPOCHS = 2

OF_THE_PACKAGE = """
import json, sys, time, torch, cohive
torch.set_num_threads(1)
weight, bias = torch.zeros(2, 3, requires_grad=True), torch.zeros(2, requires_grad=True)
options = json.loads(sys.argv[1])
dht = cohive.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], start=True)
optimizer = cohive.Optimizer(
    dht=dht, params=[weight, bias], optimizer=lambda params: torch.optim.SGD(params, lr=0.1), use_local_updates=True,
    averaging_timeout=30, delay_state_averaging=False, outer_lr=0.7, outer_momentum=0.9, open_diloco=True, **options)
values = lambda: [one for tensor in (weight, bias) for one in tensor.flatten().tolist()]
print(json.dumps({"event": "ready", "initial_peers": [str(one) for one in dht.get_visible_maddrs()]}), flush=True)
sys.stdin.readline()
while True:
    optimizer.zero_grad()
    (weight.sum() + bias.sum()).backward()
    before = [one - 0.1 for one in values()]
    optimizer.step()
    report = optimizer.last_report
    if report.epoch_changed:
        print(json.dumps({"event": "epoch", "epoch": optimizer.local_epoch, "group": report.state_group,
                          "before": before, "after": values()}), flush=True)
    time.sleep(0.05)
"""


class OfThePackage(PackageTrainer):
    """A Python trainer of cohive, of gradient 1."""

    begin = CohiveTrainer.begin

    def __init__(self, **options):
        super().__init__(OF_THE_PACKAGE, json.dumps(options))
        self.initial_peers = self.ready["initial_peers"]


class DiLoCoStateAverager(TrainingStateAverager):
    pass


class DiLoCoGradAverager(DecentralizedAverager):
    pass


class DiLoCoTrainer:
    """Local steps of plain gradient descent, and outer ones of SGD with Nesterov momentum."""

    def __init__(self, initial_peers, gradient):
        self.gradient = gradient
        self.parameters = [torch.zeros(2, 3, requires_grad=True), torch.zeros(2, requires_grad=True)]
        self.dht = DHT(initial_peers=initial_peers, start=True)
        common = {"dht": self.dht, "start": True, "min_matchmaking_time": MATCHMAKING, "allreduce_timeout": TIMEOUT}
        self.state = DiLoCoStateAverager(
            prefix=f"{RUN}_state_averager", params=self.parameters, offload_optimizer=True, custom_gradients=True,
            optimizer=lambda params: torch.optim.SGD(params, lr=RATE, momentum=MOMENTUM, nesterov=True), **common)
        self.anchor = [one for group in self.state.optimizer.param_groups for one in group["params"]]
        for one in self.anchor:
            if one.grad is None:
                one.grad = torch.zeros_like(one)
        self.differences = DiLoCoGradAverager(
            averaged_tensors=tuple(one.grad for one in self.anchor), prefix=f"{RUN}_grad_averager", **common)
        self.tracker = ProgressTracker(
            dht=self.dht, prefix=RUN, target_batch_size=BATCH * LOCAL_STEPS, start=True, max_refresh_period=2)

    def values(self):
        return [value for one in self.parameters for value in one.detach().flatten().tolist()]

    def run_round(self):
        """Local steps until there are enough of its own or the others are ahead, then an outer one. Returns what the
        parameters were before and after it, and the members of its groups."""
        samples = 0
        while samples < BATCH * LOCAL_STEPS and self.tracker.global_epoch <= self.state.local_epoch:
            with torch.no_grad():
                self.parameters[0] -= INNER_RATE * self.gradient
                self.parameters[1] -= INNER_RATE
            samples += BATCH
            self.tracker.report_local_progress(self.state.local_epoch, samples)
            time.sleep(PAUSE)
        before, groups = self.values(), []
        with self.tracker.pause_updates():
            with self.differences.get_tensors() as differences, torch.no_grad():
                for difference, anchor, parameter in zip(differences, self.anchor, self.parameters):
                    difference.copy_(anchor - parameter)
            groups.append(self.differences.step(timeout=TIMEOUT))
            self.state.step(
                increment_epoch=True, optimizer_step=True, zero_grad=False, averaging_round=True,
                averaging_opts={"timeout": TIMEOUT})
            with torch.no_grad():
                for anchor, parameter in zip(self.anchor, self.parameters):
                    parameter.copy_(anchor)
            self.tracker.update_epoch(self.state.local_epoch)
        return before, self.values(), groups

    def close(self):
        for one in (self.tracker, self.differences, self.state, self.dht):
            one.shutdown()


@pytest.mark.parametrize("kind", ["C++", "Python"])
def test_outer_steps_are_the_same_in_both(program, kind):
    """Gradients 1 and 3: a step is that of the mean of both differences, of however many local steps each is."""
    common = {"run_id": RUN, "target_batch_size": 2 * BATCH * LOCAL_STEPS, "matchmaking_time": MATCHMAKING}
    if kind == "C++":
        cohive = CohiveTrainer(program("cohive-interop-diloco"), 1.0, batch_size=BATCH, **common)
    elif "COHIVE_LIBRARY" not in os.environ:
        pytest.skip("libcohive.so is not built")
    else:
        cohive = OfThePackage(batch_size_per_step=BATCH, **common)
    python = None
    try:
        python = DiLoCoTrainer(cohive.initial_peers, 3.0)
        cohive.begin()
        anchor, momentum, together = [0.0] * 8, [0.0] * 8, 0
        while together < EPOCHS:
            before, after, groups = python.run_round()
            while (ours := cohive.wait_for("epoch"))["epoch"] < python.state.local_epoch:
                assert together == 0, "a round without the other trainer"
                anchor = ours["after"]
            assert ours["epoch"] == python.state.local_epoch
            assert ours["group"] == 2 and groups[0] and len(groups[0]) == 2
            together += 1
            mean = [start - (one + other) / 2 for start, one, other in zip(anchor, before, ours["before"])]
            momentum = [MOMENTUM * old + new for old, new in zip(momentum, mean)]
            anchor = [old - RATE * (new + MOMENTUM * kept) for old, new, kept in zip(anchor, mean, momentum)]
            assert ours["after"] == pytest.approx(anchor, abs=1e-4)
            assert after == pytest.approx(anchor, abs=1e-4)
        assert anchor[0] < -0.5 and anchor[7] < -0.5, "both have learned"
    finally:
        if python:
            python.close()
        cohive.close()
