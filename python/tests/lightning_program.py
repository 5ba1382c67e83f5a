"""A training script of Lightning that tells what it does: python lightning_program.py HOW, whose names are those of
lightning_peers.py. Lightning starts it again for each further rank."""

import hashlib
import importlib
import json
import os
import sys
import time

import torch

HOW = json.loads(sys.argv[1])
package = importlib.import_module(HOW["package"])


def tell(trainer, **what):
    """A line of this rank's file."""
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
        strategy, rank, sampler = self.trainer.strategy, self.trainer.global_rank, self.trainer.train_dataloader.sampler
        strategy.barrier()
        tell(
            self.trainer,
            pid=os.getpid(),
            rank=rank,
            local=self.trainer.local_rank,
            world=self.trainer.world_size,
            zero=self.trainer.is_global_zero,
            dht=strategy.dht is not None,
            values=self.values(),
            broadcast=strategy.broadcast({"from": rank}),
            mean=float(strategy.reduce(torch.tensor(float(rank)))),
            sum=float(strategy.reduce(torch.tensor(float(rank)), reduce_op="sum")),
            gathered=strategy.all_gather(torch.tensor([rank])).reshape(-1).tolist(),
            all=strategy.reduce_boolean_decision(rank == 0),
            any=strategy.reduce_boolean_decision(rank == 0, all=False),
            sampler=type(sampler).__name__,
            indices=list(sampler),
        )

    def on_train_batch_end(self, *_):
        optimizer = self.trainer.strategy.optimizers[0]
        report = optimizer.last_report
        if report.epoch_changed:
            self.groups.append(report.grad_group)
            self.tell_epoch(optimizer, report.grad_group)
        if len(self.groups) >= HOW["epochs"] and (not HOW["group"] or self.groups[-1] == HOW["group"]):
            self.trainer.should_stop = True

    def tell_epoch(self, optimizer, group):
        epoch, saved = optimizer.local_epoch, None
        if HOW["save_each"]:
            saved = os.path.join(HOW["folder"], f"{epoch}.ckpt")
            self.trainer.save_checkpoint(saved)
        tell(
            self.trainer,
            epoch=epoch,
            group=group,
            values=self.values(),
            rate=optimizer.param_groups[0]["lr"],
            peers=self.trainer.strategy.num_peers,
            saved=saved,
        )

    def configure_optimizers(self):
        made = torch.optim.Adam(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.9)
        return {"optimizer": made, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self):
        data = torch.utils.data.TensorDataset(torch.randn(4 * 5000, 6))
        return torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)


class Pace(package.Callback):
    def on_train_batch_start(self, *_):
        time.sleep(0.02)


def main():
    strategy = importlib.import_module(HOW["strategy"]).HivemindStrategy(
        target_batch_size=HOW["target"], initial_peers=HOW["peers"], **HOW["options"]
    )
    trainer = package.Trainer(
        strategy=strategy,
        accelerator="cpu",
        devices=HOW["devices"],
        max_epochs=100,
        callbacks=[Pace()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), ckpt_path=HOW["resume"])
    if HOW["save"]:
        trainer.save_checkpoint(HOW["save"])
    tell(trainer, done=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
