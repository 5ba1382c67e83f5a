#!/usr/bin/env python3
"""Trains a small network together with other machines, in a loop of plain PyTorch.

The first peer begins a swarm and prints the line by which others join:

    python train_pytorch.py --peers 2
    INITIAL_PEERS=/ip4/.../p2p/... python train_pytorch.py --peers 2
"""

import torch

import cohive
from common import Goal, join, parse_flags


def batch_of(size: int):
    """Made-up data: points of the plane, of which those inside of a circle are of class 1."""
    points = torch.randn(size, 2)
    return points, (points.norm(dim=1) < 1.2).long()


def main() -> None:
    flags = parse_flags(__doc__.splitlines()[0], learning_rate=0.01)
    dht = join(flags)

    torch.manual_seed(0)  # all peers begin with the same model
    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    optimizer = cohive.Optimizer(
        dht=dht,
        run_id=flags.run_id,
        target_batch_size=flags.target_batch_size,  # all peers together, for one step of Adam
        batch_size_per_step=flags.batch_size,
        params=model.parameters(),
        optimizer=lambda params: torch.optim.Adam(params, lr=flags.learning_rate),
        matchmaking_time=2.0,  # seconds to find the others; 15 by default, for slower lines
        averaging_timeout=20.0,
    )
    optimizer.load_state_from_peers()  # a peer that comes late begins where the others are
    torch.seed()  # but each has data of its own

    goal, done = Goal(flags), False
    while not done:
        points, classes = batch_of(flags.batch_size)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(points), classes)
        loss.backward()
        optimizer.step()  # counts the batch, and steps with all peers at the end of an epoch
        optimizer.report_loss(loss.item())  # for cohive-monitor
        done = goal.is_reached(optimizer, loss.item())

    optimizer.shutdown()
    dht.shutdown()
    print(goal.summary())


if __name__ == "__main__":
    main()
