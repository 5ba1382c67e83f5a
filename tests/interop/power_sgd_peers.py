"""Averagers of both kinds that use PowerSGD, and the same computed in one process."""

import pytest

import numpy as np
import torch
from hivemind.dht import DHT
from hivemind.optim.power_sgd_averager import PowerSGDGradientAverager
from hivemind.utils.math import get_flatten_greedy_dims, orthogonalize_

from interop_peer import Peer

SHAPES = [(37,), (96, 80), (2, 2), (90, 10, 3, 3), (1,)]  # the second and fourth are compressed
RATIO = 0.1
LIMIT = 60  # seconds for anything that waits for another peer
OPTIONS = {"min_matchmaking_time": 4.0, "request_timeout": 1.0, "part_size_bytes": 2048}


def gradients_of(members, seed):
    """What all have in common, and noise of each."""
    random = np.random.default_rng(seed)
    common = [random.normal(size=shape) for shape in SHAPES]
    return [[np.float32(tensor + random.normal(size=tensor.shape) / 2) for tensor in common] for _ in range(members)]


class Cohive:
    def __init__(self, peer, rank, members):
        self.peer = peer
        tensors = [{"shape": list(shape), "data": np.zeros(shape, np.float32).tobytes().hex()} for shape in SHAPES]
        peer.call("averager_start", prefix="mixed", tensors=tensors, averager_rank=rank, min_compression_ratio=RATIO,
                  target_group_size=members, sender_timeout=4.0, reducer_timeout=8.0, **OPTIONS)

    def start_step(self, gradients, weight):
        self.peer.call("averager_tensors", tensors=[{"data": tensor.tobytes().hex()} for tensor in gradients])
        return self.peer.start("averager_step", timeout=LIMIT, weight=weight, allow_retries=False)

    def load_factors(self):
        self.peer.call("averager_load_factors", timeout=LIMIT)

    def averages(self):
        found = self.peer.call("averager_tensors")
        return [np.frombuffer(bytes.fromhex(tensor["data"]), np.float32).reshape(tensor["shape"]) for tensor in found]

    def residuals(self):
        found = [self.peer.call("averager_residual", tensor=index) for index in (1, 3)]
        return [np.frombuffer(bytes.fromhex(data), np.float32) for data in found]


class Python:
    def __init__(self, dht, rank, members, kind, **options):
        self.parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        self.averager = kind(
            self.parameters, averager_rank=rank, dht=dht, prefix="mixed", min_compression_ratio=RATIO, start=True,
            target_group_size=members, sender_timeout=4.0, reducer_timeout=8.0, **{**OPTIONS, **options})

    def start_step(self, gradients, weight):
        for parameter, gradient in zip(self.parameters, gradients):
            parameter.grad = torch.tensor(gradient)
        self.averager.accumulate_grads_(batch_size=1)
        control = self.averager.step(weight=weight, wait=False, timeout=LIMIT, allow_retries=False)
        return lambda timeout=LIMIT: control.result(timeout=timeout)

    def load_factors(self):
        self.averager.load_state_from_peers(timeout=LIMIT)

    def factors(self):
        return [factor.clone() for factor in self.averager._qs]

    def averages(self):
        with self.averager.get_tensors() as tensors:
            return [tensor.numpy().copy() for tensor in tensors]

    def residuals(self):
        return [residual.numpy().ravel().copy() for residual in self.averager._ms]


@pytest.fixture
def swarm(program):
    started, addresses = [], []

    class Swarm:
        def cohive(self, rank, members):
            peer = Peer(program("cohive-interop-peer"))
            started.append(peer.close)
            peer.call("dht_start", initial_peers=addresses, client=False)
            addresses.extend(peer.addresses)
            return Cohive(peer, rank, members)

        def python(self, rank, members, kind=PowerSGDGradientAverager, client=False, **options):
            dht = DHT(initial_peers=list(addresses), start=True, client_mode=client)
            started.append(dht.shutdown)
            if not client:
                addresses.extend(str(address) for address in dht.get_visible_maddrs())
            peer = Python(dht, rank, members, kind, **options)
            started.append(peer.averager.shutdown)
            return peer

    yield Swarm()
    for stop in reversed(started):
        stop()


class Alone:
    """The group's round in one process, by hivemind's own functions."""

    def __init__(self, factors, members):
        self.factors = factors
        self.owed = [[torch.zeros(96, 80), torch.zeros(90, 90)] for _ in range(members)]

    def round(self, gradients, weights, in_q=None):
        """in_q: the weights in the second phase, where they are others."""
        weights = torch.tensor(weights) / sum(weights)
        in_q = weights if in_q is None else torch.tensor(in_q) / sum(in_q)
        averages = [sum(weight * torch.tensor(tensor) for weight, tensor in zip(in_q, column)) for column in zip(*gradients)]
        for number, index in enumerate((1, 3)):
            dims = get_flatten_greedy_dims(torch.zeros(SHAPES[index]))
            sums = [owed[number].reshape(dims) + torch.tensor(own[index]).reshape(dims) for owed, own in zip(self.owed, gradients)]
            p = sum(weight * matrix @ self.factors[number] for weight, matrix in zip(weights, sums))
            orthogonalize_(p)
            self.factors[number] = sum(weight * matrix.t() @ p for weight, matrix in zip(in_q, sums))
            average = p @ self.factors[number].t()
            for owed, matrix in zip(self.owed, sums):
                owed[number] = matrix - average
            averages[index] = average.reshape(SHAPES[index])
        return [average.numpy() for average in averages]


def assert_close(found, expected, tolerance=2e-5):
    for tensor, wanted in zip(found, expected):
        np.testing.assert_allclose(tensor.ravel(), np.asarray(wanted).ravel(), rtol=0, atol=tolerance)
