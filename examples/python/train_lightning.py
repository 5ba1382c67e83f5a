#!/usr/bin/env python3
"""Trains a small network together with other machines, by Lightning's Trainer.

The first peer begins a swarm and prints the line by which others join:

    python train_lightning.py --peers 2
    INITIAL_PEERS=/ip4/.../p2p/... python train_lightning.py --peers 2
"""

import sys

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, IterableDataset

from cohive.lightning import HivemindStrategy
from common import Goal, parse_flags


class Sums(IterableDataset):
    """Made-up data without an end: five numbers, and the sum of their squares."""

    def __iter__(self):
        torch.seed()  # each peer has data of its own
        while True:
            numbers = torch.rand(5)
            yield numbers, numbers.square().sum(dim=0, keepdim=True)


class Net(pl.LightningModule):
    def __init__(self, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = torch.nn.Sequential(torch.nn.Linear(5, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        inputs, wanted = batch
        return torch.nn.functional.mse_loss(self.layers(inputs), wanted)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


class UntilGoal(pl.Callback):
    """Ends the training, which would go on for ever."""

    def __init__(self, goal: Goal) -> None:
        self.goal = goal

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self.goal.is_reached(trainer.strategy.optimizers[0], float(outputs["loss"])):
            trainer.should_stop = True


def main() -> None:
    flags = parse_flags(__doc__.splitlines()[0], learning_rate=0.01)
    try:
        # It begins a swarm and prints how others join, or joins that of initial_peers or $INITIAL_PEERS.
        strategy = HivemindStrategy(
            target_batch_size=flags.target_batch_size,  # samples of a step, of all peers together
            run_id=flags.run_id,
            initial_peers=flags.initial_peers or None,
            host_maddrs=flags.host_maddrs,
            dht_opts={"announce_maddrs": flags.announce_maddrs},
            matchmaking_time=2.0,
            averaging_timeout=20.0,
        )
    except (ValueError, RuntimeError) as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ValueError) else 1)

    pl.seed_everything(0)  # all peers begin with the same model
    goal = Goal(flags)
    trainer = pl.Trainer(
        strategy=strategy,
        accelerator="auto",
        max_epochs=1,
        callbacks=[UntilGoal(goal)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(flags.learning_rate), DataLoader(Sums(), batch_size=flags.batch_size))
    print(goal.summary())


if __name__ == "__main__":
    main()
