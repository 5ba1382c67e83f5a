"""HivemindStrategy in a Trainer of Lightning, in both of its packages."""

import importlib
import os
import subprocess
import sys
import time
import types

import pytest

torch = pytest.importorskip("torch", reason="no torch here")

PACKAGES = {"lightning.pytorch": "cohive.lightning", "pytorch_lightning": "cohive.pytorch_lightning"}
LOCAL = dict(host_maddrs=["/ip4/127.0.0.1/tcp/0"], matchmaking_time=1.0, averaging_timeout=10.0)
PATIENCE = 120


@pytest.fixture(params=PACKAGES)
def lightning(request):
    """(the package, the strategy for it)"""
    package = pytest.importorskip(request.param, reason=f"no {request.param} here", exc_type=ImportError)
    return package, importlib.import_module(PACKAGES[request.param]).HivemindStrategy


def trainer_of(package, strategy, **options):
    options = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        **options,
    }
    return package.Trainer(strategy=strategy, enable_progress_bar=False, max_epochs=1, **options)


def model_of(package, batch_sizes=(4, 4, 4, 4), schedule=None, **more):
    class Batches(torch.utils.data.Dataset):
        def __len__(self):
            return len(batch_sizes)

        def __getitem__(self, at):
            return torch.randn(batch_sizes[at], 6, generator=torch.Generator().manual_seed(at))

    class Model(package.LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((6,), 0.5))
            self.epochs, self.rates = [], []

        def training_step(self, batch, batch_idx):
            return batch.matmul(self.weight).pow(2).mean()

        def on_train_batch_end(self, outputs, batch, batch_idx):
            optimizer = self.trainer.strategy.optimizers[0]
            self.epochs.append(optimizer.local_epoch)
            self.rates.append(optimizer.param_groups[0]["lr"])

        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            return optimizer if schedule is None else ([optimizer], [schedule(optimizer)])

        def train_dataloader(self):
            return torch.utils.data.DataLoader(Batches(), batch_size=None)

    for name, value in more.items():
        setattr(Model, name, value)
    return Model()


def test_epochs_are_counted_in_samples_of_each_batch(lightning):
    package, strategy = lightning
    model = model_of(package, batch_sizes=(4, 4, 8, 2, 2, 12))
    trainer_of(package, strategy(target_batch_size=16, **LOCAL)).fit(model)
    assert model.epochs == [0, 0, 1, 1, 1, 2]
    assert not torch.equal(model.weight, torch.full((6,), 0.5))


@pytest.mark.parametrize(
    "options",
    [dict(), dict(delay_optimizer_step=True, delay_state_averaging=True), dict(delay_grad_averaging=True)],
    ids=["at once", "delayed", "gradients delayed"],
)
def test_schedules_follow_the_epochs_of_the_run(lightning, options):
    package, strategy = lightning
    model = model_of(package, schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    trainer = trainer_of(package, strategy(target_batch_size=8, **options, **LOCAL))
    trainer.fit(model)
    assert model.epochs == [0, 1, 1, 2]
    # Lightning steps schedules at the end of its own epoch.
    assert trainer.lr_scheduler_configs[0].scheduler.get_last_lr() == [pytest.approx(0.025)]


def test_zero_grad_is_taken_over_and_given_back(lightning):
    package, strategy = lightning
    model = model_of(package)
    before = model.optimizer_zero_grad
    trainer_of(package, strategy(target_batch_size=8, reuse_grad_buffers=True, **LOCAL)).fit(model)
    assert model.epochs == [0, 1, 1, 2] and model.optimizer_zero_grad == before


def as_lightning_hivemind_saves(path):
    """The epoch is among what the optimizer keeps of parameters; schedules have no count of their own."""
    checkpoint = torch.load(path, weights_only=False)
    (state,) = checkpoint["optimizer_states"]
    state.pop("masters", None)
    state["state"]["local_epoch"] = state.pop("local_epoch")
    for schedule in checkpoint["lr_schedulers"]:
        del schedule["cohive_step"]
    torch.save(checkpoint, path)


@pytest.mark.parametrize("convert", [lambda path: None, as_lightning_hivemind_saves], ids=["own", "lightning-hivemind"])
@pytest.mark.parametrize("options", [dict(), dict(offload_optimizer=True)], ids=["plain", "offload"])
def test_training_goes_on_from_a_checkpoint(lightning, tmp_path, options, convert):
    package, strategy = lightning

    def adam(self):
        made = torch.optim.Adam(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.5)
        return {"optimizer": made, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    first = model_of(package, configure_optimizers=adam)
    trainer = trainer_of(
        package, strategy(target_batch_size=8, **options, **LOCAL), enable_checkpointing=True, default_root_dir=tmp_path
    )
    trainer.fit(first)
    trainer.save_checkpoint(path := tmp_path / "saved.ckpt")
    saved = torch.load(path, weights_only=False)["optimizer_states"][0]
    assert saved["local_epoch"] == 2 and saved["state"][0]["step"] == 3
    convert(path)
    second = model_of(package, configure_optimizers=adam)
    again = package.Trainer(
        strategy=strategy(target_batch_size=8, **options, **LOCAL), accelerator="cpu", logger=False, max_epochs=2,
        enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False,
    )  # fmt: skip
    again.fit(second, ckpt_path=path)
    assert second.epochs == [2, 3, 3, 4]
    assert second.rates == [pytest.approx(0.01 * 0.5**epoch) for epoch in second.epochs]
    assert again.optimizers[0].state[second.weight]["step"] == 5


def test_what_a_schedule_sets_beside_the_rate_is_that_of_an_optimizer_that_is_made_anew(lightning):
    package, strategy = lightning

    def adam(self):
        made = torch.optim.Adam(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(made, max_lr=0.1, total_steps=20)
        return {"optimizer": made, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    model = model_of(package, configure_optimizers=adam)
    trainer = trainer_of(package, strategy(target_batch_size=8, offload_optimizer=True, **LOCAL), precision="bf16-true")
    trainer.fit(model)
    (group,) = trainer.optimizers[0].opt.param_groups
    schedule = trainer.lr_scheduler_configs[0].scheduler.scheduler
    assert schedule.optimizer is not trainer.optimizers[0].opt and trainer.optimizers[0].local_epoch == 2
    (wanted,) = schedule.optimizer.param_groups
    assert wanted["betas"] != (0.95, 0.999) and (group["lr"], group["betas"]) == (wanted["lr"], wanted["betas"])


@pytest.mark.parametrize("options", [dict(), dict(precision="bf16-true")], ids=["the same", "made anew"])
def test_training_goes_on_from_a_checkpoint_of_another_strategy(lightning, tmp_path, options):
    package, strategy = lightning

    def adam(self):
        made = torch.optim.Adam(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(made, 0.5)
        return {"optimizer": made, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    first = model_of(package, configure_optimizers=adam, on_train_batch_end=lambda *_: None)
    plain = trainer_of(package, "auto", **options)
    plain.fit(first)
    plain.save_checkpoint(path := tmp_path / "saved.ckpt")
    saved = torch.load(path, weights_only=False)["optimizer_states"][0]["state"][0]
    assert saved["step"] == 4

    second = model_of(package, configure_optimizers=adam)
    offloads = strategy(target_batch_size=8, offload_optimizer=True, **LOCAL)
    again = package.Trainer(
        strategy=offloads, accelerator="cpu", logger=False, max_epochs=2, enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False, **options,
    )  # fmt: skip
    again.fit(second, ckpt_path=path)
    assert second.epochs == [0, 1, 1, 2], "the epochs are those of a run"
    (kept,) = again.optimizers[0].opt.state.values()
    assert kept["step"] == 4 + 2
    assert second.rates == [pytest.approx(0.01 * 0.5 ** (4 + epoch)) for epoch in second.epochs]


def test_a_trainer_and_its_strategy_are_used_again(lightning, tmp_path):
    package, strategy = lightning
    validates = dict(
        validation_step=lambda self, batch, _: self.log("loss", batch.matmul(self.weight).pow(2).mean()),
        val_dataloader=lambda self: self.train_dataloader(),
    )
    model = model_of(package, **validates)
    trainer = trainer_of(package, strategy(target_batch_size=8, **LOCAL), num_sanity_val_steps=0)
    trainer.validate(model, verbose=False)
    begun = trainer.strategy.dht
    assert begun.is_alive(), "who has read the line joins by it"
    trainer.fit(model)
    assert trainer.strategy.dht is begun and model.epochs == [0, 1, 1, 2] and not begun.is_alive()
    trainer.validate(model, verbose=False)
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=False)["optimizer_states"][0]
    assert saved["local_epoch"] == 2
    before = model.weight.detach().clone()
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model)
    assert model.epochs[4:] == [0, 1, 1, 2] and not torch.equal(model.weight, before)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(model, ckpt_path=tmp_path / "saved.ckpt")
    assert model.epochs[-1] == 6 and not trainer.strategy.dht.is_alive()


def test_the_device_is_that_of_the_trainer(lightning):
    package, strategy = lightning
    accelerators = importlib.import_module(package.__name__ + ".accelerators")
    one = strategy(target_batch_size=8, **LOCAL)
    one.accelerator = accelerators.CUDAAccelerator()
    one.parallel_devices = [torch.device("cuda", 1)]
    assert one.root_device == torch.device("cuda", 1)
    one.dht.shutdown()


def scaled(package):
    """The options of a Trainer that has 16-mixed on a processor."""
    plugins = importlib.import_module(package.__name__ + ".plugins")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return dict(plugins=[plugins.MixedPrecision("16-mixed", "cpu", scaler=scaler)])


def test_gradients_of_16_bits_are_clipped_without_their_scale(lightning):
    package, strategy = lightning
    model = model_of(package, batch_sizes=(8,))
    trainer = trainer_of(package, strategy(target_batch_size=8, **LOCAL), gradient_clip_val=0.25, **scaled(package))
    trainer.fit(model)
    assert model.epochs == [1]
    assert float((model.weight.detach() - 0.5).norm()) == pytest.approx(0.1 * 0.25, rel=1e-3)
    assert trainer.precision_plugin.scaler.get_scale() == 1024.0, "that of the plugin it was"


def test_epoch_and_peers_are_in_all_that_is_logged(lightning):
    package, strategy = lightning
    loggers = importlib.import_module(package.__name__ + ".loggers")

    class Kept(loggers.Logger):
        name, version = "kept", 0

        def __init__(self):
            super().__init__()
            self.lines = []

        def log_metrics(self, metrics, step=None):
            self.lines.append((step, metrics))

        def log_hyperparams(self, *_):
            pass

    kept, model = Kept(), model_of(package, batch_sizes=(4,) * 9)
    trainer = trainer_of(package, strategy(target_batch_size=16, **LOCAL), logger=kept, log_every_n_steps=3)
    trainer.fit(model)
    told = [(step, metrics["swarm_epoch"], metrics["swarm_peers"]) for step, metrics in kept.lines]
    assert told == [(2, 0, 1), (5, 1, 1), (8, 2, 1)]
    assert trainer.progress_bar_metrics["swarm_epoch"] == 2 and "swarm_rate" in trainer.progress_bar_metrics


def test_what_cannot_be_meant_is_refused(lightning):
    package, strategy = lightning
    refused = importlib.import_module(package.__name__ + ".utilities.exceptions").MisconfigurationException
    with pytest.raises(refused, match="target_batch_size"):
        trainer_of(package, strategy(target_batch_size=8, **LOCAL), accumulate_grad_batches=2).fit(model_of(package))
    callbacks = importlib.import_module(package.__name__ + ".callbacks")
    later = callbacks.GradientAccumulationScheduler(scheduling={0: 2})
    with pytest.raises(refused, match="target_batch_size"):
        trainer_of(package, strategy(target_batch_size=8, **LOCAL), callbacks=[later]).fit(model_of(package))
    with pytest.raises(refused, match="clip_grad_norm"):
        reuses = strategy(target_batch_size=8, reuse_grad_buffers=True, **LOCAL)
        trainer_of(package, reuses, gradient_clip_val=1.0).fit(model_of(package))
    two = lambda self: [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]
    model = model_of(package, configure_optimizers=two)
    model.automatic_optimization = False
    with pytest.raises(refused, match="one optimizer"):
        trainer_of(package, strategy(target_batch_size=8, **LOCAL)).fit(model)
    plateau = lambda self: {
        "optimizer": (optimizer := torch.optim.SGD(self.parameters(), lr=0.1)),
        "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), "monitor": "loss"},
    }
    with pytest.raises(ValueError, match="ReduceLROnPlateau"):
        trainer_of(package, strategy(target_batch_size=8, **LOCAL)).fit(model_of(package, configure_optimizers=plateau))
    with pytest.raises(ValueError, match="not QUIC|multiaddr|address"):
        strategy(target_batch_size=8, initial_peers="nonsense")


def test_keywords_are_those_of_the_optimizer_and_others_those_of_the_dht(lightning, tmp_path, monkeypatch):
    package, strategy = lightning
    for name in ("INITIAL_PEERS", "PL_INITIAL_PEERS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        TypeError, match="HivemindStrategy.. got .*'max_upload': it is one of DHT.., and .* in dht_opts"
    ):
        strategy(target_batch_size=8, max_upload=1000, **LOCAL)
    with pytest.raises(TypeError, match="'clip_grad_nrom'; did you mean 'clip_grad_norm'"):
        strategy(target_batch_size=8, clip_grad_nrom=1.0, **LOCAL)
    with pytest.raises(TypeError, match="'params'"):
        strategy(target_batch_size=8, params=[], **LOCAL)
    with pytest.raises(TypeError, match="DHT.. got .*'max_uplaod'; did you mean 'max_upload'"):
        strategy(target_batch_size=8, dht_opts=dict(max_uplaod=1000), **LOCAL)
    with pytest.raises(ValueError, match="give initial_peers, or leave use_ipfs out"):
        strategy(target_batch_size=8, use_ipfs=True, **LOCAL)
    options = dict(announce_maddrs=["/ip4/127.0.0.1/tcp/4321"])
    made = strategy(target_batch_size=8, dht_opts=options, tracker_opts={}, rank_timeout=5.0, **LOCAL)
    assert [str(one).split("/p2p")[0] for one in made.dht.get_visible_maddrs()] == options["announce_maddrs"]
    made.dht.shutdown()


def test_the_strategy_has_a_name(lightning):
    package, strategy = lightning
    model = model_of(package)
    trainer = trainer_of(package, "hivemind")
    assert isinstance(trainer.strategy, strategy)
    trainer.strategy.dht.shutdown()
    del model


PEER = """
import sys, torch
package = __import__("importlib").import_module("PACKAGE")
from STRATEGY import HivemindStrategy

class Model(package.LightningModule):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((6,), float(sys.argv[1])))
        self.seen = self.until = 0
    def training_step(self, batch, batch_idx):
        return batch.matmul(self.weight).pow(2).mean()
    def on_train_batch_end(self, outputs, batch, batch_idx):
        strategy = self.trainer.strategy
        epoch = strategy.optimizers[0].local_epoch
        if strategy.num_peers > self.seen:
            self.seen, self.until = strategy.num_peers, epoch + 3
        if self.seen == 2 and epoch >= self.until:
            self.trainer.should_stop = True
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.randn(40000, 6), batch_size=8)

strategy = HivemindStrategy(target_batch_size=256, matchmaking_time=2.0, averaging_timeout=10.0,
                            host_maddrs=["/ip4/127.0.0.1/tcp/0"])
print("listens", flush=True)
model = Model()
class Slow(package.Callback):
    def on_train_batch_start(self, *_):
        __import__("time").sleep(0.03)
package.Trainer(strategy=strategy, accelerator="cpu", logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, max_epochs=1, callbacks=[Slow()]).fit(model)
print("seen", model.seen, flush=True)
"""


def test_the_line_that_is_printed_makes_two_peers_of_two_processes(lightning):
    package, _ = lightning
    code = PEER.replace("PACKAGE", package.__name__).replace("STRATEGY", PACKAGES[package.__name__])
    how = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    environment = {name: value for name, value in os.environ.items() if "INITIAL_PEERS" not in name}
    first = subprocess.Popen([sys.executable, "-c", code, "0.5"], env=environment, **how)
    second = None
    try:
        lines = iter(first.stdout.readline, "")
        joins = next(line for line in lines if line.startswith("INITIAL_PEERS="))
        name, _, addresses = joins.split()[0].partition("=")
        second = subprocess.Popen([sys.executable, "-c", code, "0.5"], env={**environment, name: addresses}, **how)
        told = [process.communicate(timeout=PATIENCE) for process in (first, second)]
        assert [process.returncode for process in (first, second)] == [0, 0], told
        assert all("seen 2" in out for out, _ in told), told
    finally:
        for process in (first, second):
            if process is not None:
                process.kill()


def test_a_schedule_of_lightning_is_at_once_in_an_epoch_that_no_run_has_come_to():
    from cohive._strategy import HiveMindScheduler

    made = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    run = types.SimpleNamespace(local_epoch=2, param_groups=made.param_groups)
    schedule = HiveMindScheduler(run, torch.optim.lr_scheduler.ExponentialLR(made, 0.5))
    schedule.step()
    schedule.step()
    assert made.param_groups[0]["lr"] == 0.25 and schedule.current_step == 2
    run.local_epoch = 2**47
    begin = time.monotonic()
    schedule.step()
    assert time.monotonic() - begin < 5 and schedule.current_step == 2**47
