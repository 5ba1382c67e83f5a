"""A training script with the settings of one block of lightning-hivemind's documents, on a processor, over data made on
the spot: python published_blocks.py BLOCK PACKAGE. It imports lightning_hivemind and hivemind, as the blocks do.

It ends three epochs after a second peer came into sight.
"""

import importlib
import sys
import time
from functools import partial

import torch

BLOCK, PACKAGE = sys.argv[1:3]
Trainer = importlib.import_module(PACKAGE).Trainer
LightningModule, Callback = (getattr(importlib.import_module(PACKAGE), one) for one in ("LightningModule", "Callback"))


def schedule(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)


def settings():
    if BLOCK == "readme":
        return {}
    if BLOCK == "overlap":
        delayed = dict(delay_state_averaging=True, delay_grad_averaging=True, delay_optimizer_step=True)
        return dict(delayed, offload_optimizer=True, scheduler_fn=schedule)
    if BLOCK == "offload":
        return dict(offload_optimizer=True, scheduler_fn=schedule)
    if BLOCK == "reuse":
        return dict(reuse_grad_buffers=True)
    if BLOCK == "float16":
        from hivemind import Float16Compression

        return dict(grad_compression=Float16Compression(), state_averaging_compression=Float16Compression())
    if BLOCK == "size-adaptive":
        from hivemind import Float16Compression, SizeAdaptiveCompression, Uniform8BitQuantization

        by_size = SizeAdaptiveCompression(
            threshold=2**16 + 1, less=Float16Compression(), greater_equal=Uniform8BitQuantization()
        )
        return dict(grad_compression=by_size, state_averaging_compression=by_size)
    if BLOCK == "power-sgd":
        from hivemind.optim.power_sgd_averager import PowerSGDGradientAverager

        return dict(
            grad_averager_factory=partial(PowerSGDGradientAverager, averager_rank=32, min_compression_ratio=0.5)
        )
    raise SystemExit(f"no block {BLOCK}")


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        return self.layers(batch[0]).sub(batch[0].sum(dim=1, keepdim=True)).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.001)

    def train_dataloader(self):
        data = torch.utils.data.TensorDataset(torch.randn(32 * 900, 32))
        return torch.utils.data.DataLoader(data, batch_size=32)


class Ends(Callback):
    def __init__(self):
        self.peers, self.until, self.epoch = 1, 10**9, 0

    def on_train_batch_start(self, *_):
        time.sleep(0.02)  # what a batch takes

    def on_train_batch_end(self, trainer, *_):
        self.epoch = trainer.strategy.optimizers[0].local_epoch
        if trainer.strategy.num_peers > self.peers:
            self.peers, self.until = trainer.strategy.num_peers, self.epoch + 3
        trainer.should_stop = self.epoch >= self.until


if __name__ == "__main__":
    from lightning_hivemind.strategy import HivemindStrategy

    torch.set_num_threads(1)
    torch.manual_seed(0)
    strategy = HivemindStrategy(target_batch_size=1024, **settings())
    ends = Ends()
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer = Trainer(strategy=strategy, accelerator="cpu", devices=1, max_epochs=100, callbacks=[ends], **quiet)
    trainer.fit(Model())
    print("ended", ends.peers, ends.epoch, flush=True)
