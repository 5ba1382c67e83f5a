"""A model on a GPU: what stays there, what is copied, and when. Each test runs with an emulated device, whose memory is
the host's, and with a real one where there is one."""

import functools
import time
import types

import pytest

torch = pytest.importorskip("torch", reason="no torch here")

import test_optimizer  # noqa: E402
from conftest import QUICK  # noqa: E402
from test_optimizer import (  # noqa: E402, F401
    KINDS,
    SGD,
    SIZES,
    OwnAdam,
    loss_of,
    model_of,
    run_both,
    statistics_of,
    stepped_by_torch,
    test_a_batch_that_overflows_does_not_count,
    test_a_newcomer_takes_the_state,
    test_a_newcomer_takes_the_state_of_local_steps,
    test_a_parameter_without_gradients_stays,
    test_a_scaled_loss_makes_the_same_step,
    test_an_epoch_is_a_step_with_the_mean_over_its_samples,
    test_an_optimizer_that_exists_steps_the_same,
    test_delayed_steps_arrive,
    test_extra_tensors_and_statistics_are_averaged,
    test_gradients_add_up_in_reused_buffers,
    test_local_updates_step_in_every_batch,
    test_models_of_other_types_are_trained,
    test_peers_step_together,
    test_schedules_follow_epochs_and_groups_can_be_written,
    test_the_scaler_of_torch_is_taken,
    train_alone,
)

import cohive  # noqa: E402
from cohive import _gpu, _model  # noqa: E402
from cohive._native import lib  # noqa: E402


class EmulatedLink:
    """Copies at once, counts them, and finds memory that changes while a GPU would still read it."""

    def __init__(self):
        self.downloads = self.uploads = 0
        self._reading = []

    def memory(self, shapes, dtype=torch.float32):
        return [torch.empty(shape, dtype=dtype) for shape in shapes]

    def download(self, copies):
        self.wait()
        self.downloads += 1
        for to, values in copies:
            to.copy_(values)

    def upload(self, copies):
        self.uploads += 1
        for to, values in copies:
            to.copy_(values)
            self._reading.append((values, values.clone()))

    def wait(self):
        for values, before in self._reading:
            assert torch.equal(values.nan_to_num(), before.nan_to_num()), "it has changed while it was being copied"
        self._reading.clear()


class CountedLink(_gpu.Link):
    """A real one."""

    def __init__(self, device):
        super().__init__(device)
        self.downloads = self.uploads = 0

    def download(self, copies):
        self.downloads += 1
        super().download(copies)

    def upload(self, copies):
        self.uploads += 1
        super().upload(copies)


#: The library has a device that torch does not have: one of the tests in C++, whose memory is the host's.
EMULATED = lib.cohive_gpu_count() > 0 and not torch.cuda.is_available()


class CopiedSums(_gpu.Sums):
    def take(self, where_they_are=False, real=_gpu.Sums.take):
        sums, *rest = real(self, where_they_are)
        self.copies = [None if one is None else one.clone() for one in sums]
        return (self.copies, *rest)


no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


REAL = [pytest.param(name, marks=no_gpu) for name in ("cuda", "cuda copies")]


@pytest.fixture(params=["copies", "steps there", *REAL], autouse=True)
def links(request, monkeypatch):
    """All links that were made, in order: of models on the device that tests have, an emulated one or a real one. The
    library steps there, or the emulated device is one that it does not know."""
    made, away = [], []
    if request.param != "cuda":
        there = request.param == "steps there"
        monkeypatch.setattr(_gpu, "can_step_there", lambda parameters, link: there and link is not None)
    if not request.param.startswith("cuda"):
        monkeypatch.setattr(_model.Model, "device", lambda model: 0 if EMULATED and model.on_gpu else None)
        monkeypatch.setattr(_model.Model, "stream", lambda model: 0)
        if not EMULATED:  # for the library it is the host's memory, where it reads sums while the next ones begin
            monkeypatch.setattr(_gpu.Sums, "take", CopiedSums.take)
    if request.param.startswith("cuda"):
        monkeypatch.setattr(test_optimizer, "DEVICE", "cuda")
        real = _gpu.link_for

        def link_for(parameters):
            link = real(parameters)
            if link is None:
                return None
            made.append(CountedLink(parameters[0].device))
            return made[-1]
    else:
        is_plain = _model.is_plain

        def link_for(parameters):
            if parameters[0].dtype == torch.float64:
                return None
            away.extend(parameters)
            made.append(EmulatedLink())
            return made[-1]

        def is_here(tensor):
            return is_plain(tensor) and all(tensor.data_ptr() != one.data_ptr() for one in away)

        monkeypatch.setattr(_model, "is_plain", is_here)
    monkeypatch.setattr(_gpu, "link_for", link_for)
    return made


@pytest.fixture
def trainer(trainer_alone):
    return functools.partial(trainer_alone, target_batch_size=16)


def train_epoch(optimizer, weight, sizes=SIZES):
    """Yields after each batch."""
    for size in sizes:
        loss_of(weight, size).backward()
        optimizer.step(batch_size=size)
        optimizer.zero_grad()
        yield


OFFLOADED = {"offloaded": dict(offload_optimizer=True), "on the device": dict(offload_optimizer=False)}


@pytest.mark.parametrize("where", OFFLOADED)
def test_a_batch_that_ends_no_epoch_copies_nothing(trainer, links, where):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"], **OFFLOADED[where])
    (link,) = links
    for _ in range(3):
        before = link.downloads, link.uploads
        batches = train_epoch(optimizer, weight)
        for _ in SIZES[:-1]:
            next(batches)
            assert (link.downloads, link.uploads) == before
        next(batches)
        if not optimizer._model.on_gpu:
            assert link.downloads > before[0] and link.uploads > before[1]
    assert optimizer.local_epoch == 3
    assert torch.allclose(weight, stepped_by_torch(KINDS["adam"]), rtol=1e-4, atol=1e-5)


def test_gradients_and_parameters_of_an_epoch_are_copied_once(trainer, links):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD)
    (link,) = links
    for epoch in (1, 2, 3):
        for _ in train_epoch(optimizer, weight):
            pass
        assert (link.downloads, link.uploads) == (epoch, epoch)


def test_gradients_of_16_bits_add_up_in_32(trainer):
    """In float16 the later ones would be lost."""
    weight = torch.nn.Parameter(torch.full((6,), 1.0, dtype=torch.float16, device=test_optimizer.DEVICE))
    optimizer = trainer(params=[weight], optimizer=SGD, target_batch_size=64, batch_size_per_step=1)
    for at in range(64):
        weight.grad = torch.full_like(weight, 2048.0 if at == 0 else 0.5)
        optimizer.step()
    assert optimizer.local_epoch == 1
    mean = (2048 + 63 * 0.5) / 64
    assert torch.allclose(weight.float(), torch.full_like(weight, 1 - 0.1 * mean).float(), rtol=1e-3)


def test_an_epoch_that_is_not_finite_makes_no_step(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=8)
    for factor in (float("nan"), 1.0):
        (weight.sum() * factor).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert optimizer.local_epoch == 1 and torch.equal(weight, model_of())
    train_alone_from(optimizer, weight, 2)
    assert not torch.equal(weight, model_of()), "the next one does"


def train_alone_from(optimizer, weight, epoch):
    while optimizer.local_epoch < epoch:
        for _ in train_epoch(optimizer, weight):
            pass


def test_a_saved_state_forgets_batches_of_before(trainer):
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=SGD)
    state = optimizer.state_dict()
    batches = train_epoch(optimizer, weight)
    next(batches)
    optimizer.load_state_dict(state)
    train_alone_from(optimizer, weight, 1)
    assert torch.allclose(weight, stepped_by_torch(SGD, epochs=1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", OFFLOADED)
@pytest.mark.parametrize("kind", ["adam", "a class of the user's"])
def test_a_peer_on_a_device_and_one_without_train_together(swarm, links, where, kind, monkeypatch):
    peers, models, made = swarm(2), [model_of()], []
    monkeypatch.setattr(test_optimizer, "DEVICE", "cpu")
    models.append(model_of())
    options = dict(QUICK, target_batch_size=64, batch_size_per_step=4, optimizer=KINDS[kind])
    made.append(cohive.Optimizer(dht=peers[0], params=models[:1], **options, **OFFLOADED[where]))
    monkeypatch.setattr(_gpu, "link_for", lambda parameters: None)
    made.append(cohive.Optimizer(dht=peers[1], params=models[1:], **options))

    def train(at):
        made[at].load_state_from_peers()
        while made[at].local_epoch < 4:
            models[at].grad = torch.full_like(models[at], 0.25 * (at + 1))
            made[at].step()
            time.sleep(0.02)
        made[at].finish()

    run_both(lambda: train(0), lambda: train(1))
    assert torch.allclose(models[0].cpu(), models[1], atol=1e-5)
    assert not torch.allclose(models[1], torch.full((6,), 0.5), atol=1e-2)
    for one in made:
        one.shutdown()


def test_extra_tensors_go_on_changing(trainer):
    """They come to a round as they are at its begin, and what it makes of them comes back."""
    weight, extra = model_of(), torch.zeros(3, dtype=torch.float16, device=test_optimizer.DEVICE)
    optimizer = trainer(params=[weight], optimizer=SGD, extra_tensors=[extra], average_state_every=1)
    for epoch in (1, 2):
        for _ in train_epoch(optimizer, weight):
            extra += 1
        extra_seen = optimizer._model._beside[0][1]
        assert torch.equal(extra_seen.cpu(), torch.full((3,), 4.0 * epoch - 1)), "before the last batch was over"
        assert torch.equal(extra.float().cpu(), torch.full((3,), 4.0 * epoch))


def test_models_that_have_no_link_are_told_of(monkeypatch, caplog):
    monkeypatch.undo()

    def parameter(device, dtype=torch.float32):
        return types.SimpleNamespace(device=torch.device(device), dtype=dtype)

    with caplog.at_level("WARNING", "cohive.train"):
        assert _gpu.link_for([parameter("cpu")]) is None and not caplog.records
        assert _gpu.link_for([parameter("cuda:0"), parameter("cuda:1")]) is None
        assert "several devices" in caplog.text
        caplog.clear()
        assert _gpu.link_for([parameter("cuda:0", torch.float64)]) is None
        assert "float64" in caplog.text and len(caplog.records) == 1


# ---- On a real GPU


@no_gpu
@pytest.mark.parametrize("where", OFFLOADED)
def test_a_batch_that_ends_no_epoch_waits_for_nothing(trainer, where):
    if test_optimizer.DEVICE != "cuda":
        pytest.skip("an emulated device has no queue")
    weight = model_of()
    optimizer = trainer(params=[weight], optimizer=KINDS["adam"], target_batch_size=10**6, **OFFLOADED[where])
    for _ in train_epoch(optimizer, weight):
        pass
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.cuda._sleep(2_000_000_000)  # about a second
        weight.grad = torch.ones_like(weight)
        begin = time.perf_counter()
        optimizer.step(batch_size=4)
        taken = time.perf_counter() - begin
        assert not torch.cuda.current_stream().query(), "the device works on"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert taken < 0.1


@no_gpu
def test_the_device_works_while_parameters_are_copied(trainer):
    if test_optimizer.DEVICE != "cuda":
        pytest.skip("an emulated device has no queue")
    weight = torch.nn.Parameter(torch.zeros(1_000_000, device="cuda"))
    optimizer = trainer(params=[weight], optimizer=SGD, batch_size_per_step=16)
    for epoch in (1, 2, 3):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        # What is queued now reads the new parameters, though nobody has waited for them.
        assert torch.allclose(weight.detach().clone(), torch.full_like(weight, -0.1 * epoch))
