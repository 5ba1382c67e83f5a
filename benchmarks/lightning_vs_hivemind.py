"""What training together costs a Trainer of Lightning: cohive's HivemindStrategy beside the one of lightning-hivemind,
the same script with another import, on the same Lightning.

    PYTHON benchmarks/lightning_vs_hivemind.py [--blocks readme overlap offload reuse] [--epochs 4] [--work 0.1]
        [--target 4096] [--only cohive] [--json] [--log FILE]

PYTHON is an environment with hivemind 1.1.12 and the newest Lightning with which lightning-hivemind can be imported:
    python3.11 -m venv ENV; ENV/bin/pip install --no-deps lightning==2.5.5 lightning-hivemind, with hivemind's own needs
The package cohive comes from python/ of this repository, with $COHIVE_LIBRARY, by default the library of build/release.

Two peers on loopback train a network of 2,177 parameters by batches of 32, with the settings of lightning-hivemind's
documents and a pause of --work seconds in each batch for what a GPU would do. Printed are medians of both peers and all epochs but the first:
  lost    seconds by which an epoch is longer than its batches take in a Trainer without a strategy
  worst   the same of the worst epoch
  epoch   seconds of an epoch
"""

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

os.environ["OMP_NUM_THREADS"] = "1"
ROOT = pathlib.Path(__file__).parents[1]
BATCH, ALONE = 32, 60  # samples of a batch; batches of the Trainer without a strategy
PATIENCE = 400


def schedule(optimizer):
    import torch

    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)


def settings_of(block):
    offloaded = dict(offload_optimizer=True, scheduler_fn=schedule)
    return {
        "readme": {},
        "overlap": dict(offloaded, delay_state_averaging=True, delay_grad_averaging=True, delay_optimizer_step=True),
        "offload": offloaded,
        "reuse": dict(reuse_grad_buffers=True),
    }[block]


def peer(how):
    import torch
    from lightning.pytorch import Callback, LightningModule, Trainer

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Model(LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

        def training_step(self, batch, batch_idx):
            return self.layers(batch[0]).sub(batch[0].sum(dim=1, keepdim=True)).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.001)

        def train_dataloader(self):
            data = torch.utils.data.TensorDataset(torch.randn(BATCH * 1000, 32))
            return torch.utils.data.DataLoader(data, batch_size=BATCH)

    class Watch(Callback):
        """Tells (seconds, batches, peers) of each epoch of the run."""

        def __init__(self):
            self.epoch, self.batches, self.begin, self.ends = 0, 0, None, []

        def on_train_batch_start(self, *_):
            time.sleep(how["work"])

        def on_train_batch_end(self, trainer, *_):
            now, self.batches = time.perf_counter(), self.batches + 1
            self.ends.append(now)
            if ended.is_set():
                trainer.should_stop = True
            epoch = getattr(trainer.strategy.optimizers[0], "local_epoch", 0)
            if epoch != self.epoch:
                if self.begin is not None:
                    tell(seconds=now - self.begin, batches=self.batches, peers=trainer.strategy.num_peers)
                self.epoch, self.batches, self.begin = epoch, 0, now

    ended = threading.Event()
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    quiet.update(accelerator="cpu", devices=1, callbacks=[Watch()])
    Trainer(max_steps=20, **quiet).fit(Model())  # what is made once
    watch = Watch()
    Trainer(max_steps=ALONE, **{**quiet, "callbacks": [watch]}).fit(Model())
    tell(alone=(watch.ends[-1] - watch.ends[0]) / (len(watch.ends) - 1))  # fit() itself begins and ends once

    strategy = importlib.import_module(how["module"]).HivemindStrategy(
        target_batch_size=how["target"], host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=how["peers"],
        **settings_of(how["block"]),
    )  # fmt: skip
    tell(peers=[str(address) for address in strategy.dht.get_visible_maddrs()])
    # By the descriptor: hivemind forks, and its children close sys.stdin, whose lock a reader would hold.
    threading.Thread(target=lambda: (os.read(0, 1), ended.set()), daemon=True).start()
    quiet["callbacks"] = [Watch()]
    Trainer(strategy=strategy, max_epochs=100, **quiet).fit(Model())
    tell(end=True)


def tell(**what):
    print("told", json.dumps(what), flush=True)


class Peer:
    def __init__(self, module, peers, options, block):
        how = dict(module=module, peers=peers, block=block, work=options.work, target=options.target)
        variables = {"COHIVE_LIBRARY": str(ROOT / "build/release/libcohive.so"), "PYTHONPATH": str(ROOT / "python")}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--peer", json.dumps(how)], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=options.log or subprocess.DEVNULL, env={**variables, **os.environ},
            start_new_session=True,
        )  # fmt: skip
        self.alone, self.epochs = self.next()["alone"], []
        self.addresses = self.next()["peers"]

    def next(self):
        for line in self.process.stdout:
            word, _, rest = line.partition(" ")
            if word == "told":
                return json.loads(rest)
        raise SystemExit(f"a peer has ended with {self.process.wait()}")

    def watch(self, count):
        """Until it has trained so many epochs with another peer in sight."""
        while len(self.epochs) <= count:
            seen = self.next()
            if seen["peers"] == 2:
                self.epochs.append(seen)

    def lost(self):
        """Seconds of each epoch but the first."""
        return [one["seconds"] - one["batches"] * self.alone for one in self.epochs[1:]]

    def end(self):
        self.process.stdin.write("end\n")
        self.process.stdin.flush()

    def close(self):
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            print("a peer does not end by itself", file=sys.stderr)
        self.kill()

    def kill(self):
        """Also the processes that hivemind begins, which hold its output open."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def measure(module, options, block):
    peers = [Peer(module, None, options, block)]
    guard = threading.Timer(PATIENCE, lambda: [one.kill() for one in peers])
    guard.start()
    try:
        peers.append(Peer(module, peers[0].addresses, options, block))
        threads = [threading.Thread(target=one.watch, args=(options.epochs,)) for one in peers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if any(len(one.epochs) <= options.epochs for one in peers):
            return None
        for one in peers:
            one.end()
        for one in peers:
            one.close()
    finally:
        guard.cancel()
        for one in peers:
            one.kill()
    lost = [seconds for one in peers for seconds in one.lost()]
    epochs = [epoch["seconds"] for one in peers for epoch in one.epochs[1:]]
    return dict(lost=statistics.median(lost), worst=max(lost), epoch=statistics.median(epochs), batch=peers[0].alone)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", nargs="+", default=["readme", "overlap", "offload", "reuse"])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--work", type=float, default=0.1)
    parser.add_argument("--target", type=int, default=4096)
    parser.add_argument("--only", choices=["cohive", "hivemind"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--log", type=argparse.FileType("w"), help="for what the peers write to stderr")
    parser.add_argument("--peer", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return peer(options.peer)
    modules = {"hivemind": "lightning_hivemind.strategy", "cohive": "cohive.lightning"}
    for block in options.blocks:
        for name, module in modules.items():
            if options.only in (None, name):
                load = os.getloadavg()[0]
                found = measure(module, options, block)
                if options.json or found is None:
                    print(json.dumps({"block": block, "strategy": name, "load": load, "found": found}), flush=True)
                else:
                    numbers = "  ".join(f"{key} {value:.2f}" for key, value in found.items())
                    print(f"{block:8} {name:9} {numbers}  load {load:.1f}", flush=True)


if __name__ == "__main__":
    main()
