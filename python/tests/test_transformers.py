"""The callback and the schedule for a Trainer of transformers."""

import importlib.util

import pytest

torch = pytest.importorskip("torch", reason="no torch here")

MISSING = [name for name in ("transformers", "accelerate") if importlib.util.find_spec(name) is None]
# Not of the whole module: where all tests are skipped, pytest ends with 0.
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no {' and no '.join(MISSING)} here")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return {"inputs": torch.full((4,), float(at % 5))}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs):
        return {"loss": self.layer(inputs).square().mean()}


@pytest.fixture
def train(trainer_alone, tmp_path):
    """train(STEPS, **options): a Trainer that has trained for so many batches of 8 samples, and its optimizer."""
    import transformers

    from cohive.transformers import CollaborativeCallback, NoOpScheduler

    def run(steps, resume=None, stop_at_epoch=None, reports=None, delayed=False, **options):
        model = Model()
        optimizer = trainer_alone(
            target_batch_size=16,
            batch_size_per_step=8,
            params=model.parameters(),
            optimizer=lambda params: torch.optim.Adam(params, lr=0.1),
            scheduler=lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.5),
            delay_optimizer_step=delayed,
        )
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=8, max_steps=steps, report_to="none",
            logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, **options,
        )  # fmt: skip
        callback = CollaborativeCallback(optimizer, stop_at_epoch=stop_at_epoch)
        trainer = transformers.Trainer(
            model=model, args=arguments, train_dataset=Numbers(), optimizers=(optimizer, NoOpScheduler(optimizer)),
            callbacks=[callback] if reports is None else [reports, callback],
        )  # fmt: skip
        if reports is not None:
            callback.put_first(trainer)
        trainer.train(resume_from_checkpoint=resume)
        return trainer, optimizer

    return run


def test_epochs_are_logged_with_the_rates_of_the_run(train):
    trainer, optimizer = train(6, save_strategy="no")
    assert optimizer.local_epoch == 3
    logged = [one for one in trainer.state.log_history if "loss" in one]
    assert [(one["swarm_epoch"], one["swarm_peers"]) for one in logged] == [(1, 1), (2, 1), (3, 1)], logged
    assert [one["learning_rate"] for one in logged] == [pytest.approx(0.1 * 0.5**epoch) for epoch in (1, 2, 3)]


def test_what_reports_elsewhere_tells_of_the_run(train):
    import transformers

    class Reports(transformers.TrainerCallback):
        """As the one for TensorBoard, which a Trainer has before the callbacks that it is given."""

        told = []

        def on_log(self, args, state, control, logs=None, **_):
            self.told.append(dict(logs))

    train(4, reports=Reports(), save_strategy="no")
    assert [one["swarm_epoch"] for one in Reports.told if "loss" in one] == [1, 2]


def test_training_ends_with_the_run(train):
    trainer, optimizer = train(100, save_strategy="no", stop_at_epoch=2)
    assert optimizer.local_epoch == 2 and trainer.state.global_step == 4


def test_training_goes_on_from_a_checkpoint(train, tmp_path):
    train(4, save_strategy="steps", save_steps=4)
    _, optimizer = train(8, resume=str(tmp_path / "checkpoint-4"), save_strategy="no")
    assert optimizer.local_epoch == 4
    # One of Adam's steps is that with which its tensors are made.
    assert {int(kept["step"]) for kept in optimizer.opt.state.values()} == {5}
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**4)


@pytest.mark.parametrize(
    "options, saved",
    [
        (dict(save_strategy="steps", save_steps=4), 4),
        (dict(save_strategy="steps", save_steps=0.4), 4),  # of all steps, which are ten
        (dict(save_strategy="steps", save_steps=500), 10),  # at the end
        (dict(save_strategy="epoch"), 8),
    ],
)
def test_a_checkpoint_has_the_model_that_its_statistics_belong_to(train, tmp_path, options, saved):
    import safetensors.torch
    import transformers

    class Kept(transformers.TrainerCallback):
        """When a checkpoint is written: whose weights are those of the optimizer then."""

        models = {}

        def on_save(self, args, state, control, model=None, **_):
            self.models[state.global_step] = {name: one.clone() for name, one in model.state_dict().items()}

    train(10, reports=Kept(), delayed=True, **options)
    written = safetensors.torch.load_file(tmp_path / f"checkpoint-{saved}" / "model.safetensors")
    for name, one in Kept.models[saved].items():
        assert torch.equal(written[name], one), name


def test_gradients_that_the_trainer_would_zero_are_refused(trainer_alone):
    from cohive.transformers import CollaborativeCallback

    optimizer = trainer_alone(
        target_batch_size=16, optimizer=torch.optim.SGD(Model().parameters(), lr=0.1), reuse_grad_buffers=True
    )
    with pytest.raises(ValueError, match="without reuse_grad_buffers"):
        CollaborativeCallback(optimizer)
