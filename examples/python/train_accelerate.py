#!/usr/bin/env python3
"""Trains a small network together with other machines, with accelerate's Accelerator on each of them.

It needs `pip install accelerate`. The first peer begins a swarm and prints the line by which others join:

    python train_accelerate.py --peers 2
    INITIAL_PEERS=/ip4/.../p2p/... python train_accelerate.py --peers 2
"""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import cohive
from common import Goal, join, parse_flags


def main() -> None:
    flags = parse_flags(__doc__.splitlines()[0], learning_rate=0.1)
    dht = join(flags)
    accelerator = Accelerator()

    torch.manual_seed(0)  # all peers begin with the same model, and know the same truth
    truth = torch.randn(8, 1)
    # The optimizer keeps the places of the parameters, so the model is moved before it is made.
    model = torch.nn.Linear(8, 1).to(accelerator.device)
    optimizer = cohive.Optimizer(
        dht=dht,
        run_id=flags.run_id,
        target_batch_size=flags.target_batch_size,
        batch_size_per_step=flags.batch_size,
        params=model.parameters(),
        optimizer=lambda params: torch.optim.SGD(params, lr=flags.learning_rate),
        matchmaking_time=2.0,
        averaging_timeout=20.0,
    )
    optimizer.load_state_from_peers()

    torch.seed()  # each peer has data of its own
    inputs = torch.randn(64 * flags.batch_size, 8)
    outputs = inputs @ truth + 0.1 * torch.randn(len(inputs), 1)
    loader = DataLoader(TensorDataset(inputs, outputs), batch_size=flags.batch_size, shuffle=True)
    # `prepared` is accelerate's wrapper, for the loop; `optimizer` goes on telling of the run.
    prepared_model, prepared, loader = accelerator.prepare(model, optimizer, loader)

    goal, done = Goal(flags), False
    while not done:
        for batch, wanted in loader:
            prepared.zero_grad()
            loss = torch.nn.functional.mse_loss(prepared_model(batch), wanted)
            accelerator.backward(loss)
            prepared.step()
            done = goal.is_reached(optimizer, loss.item())
            if done:
                break

    optimizer.shutdown()
    dht.shutdown()
    print(goal.summary())


if __name__ == "__main__":
    main()
