"""The code of README.md, docs/python.md and of the package's README runs as it stands there."""

import pathlib
import re
import signal
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "docs/python.md", ROOT / "docs/local-steps.md", ROOT / "python/README.md"]


def blocks(word):
    found = []
    for document in DOCUMENTS:
        if document.exists():
            found += re.findall(r"^```python\n(.*?)^```$", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    # Ports of the documents may be taken here.
    found = [block.replace("0.0.0.0/tcp/31337", "0.0.0.0/tcp/0") for block in found]
    chosen = [block for block in found if word in block]
    if not chosen:
        pytest.skip("the documents are not here")
    return chosen


def test_records():
    for block in blocks("first.store"):
        names = {}
        exec(block, names)
        names["second"].shutdown()
        names["first"].shutdown()


def test_averaging(swarm):
    torch = pytest.importorskip("torch")
    import cohive

    (block,) = blocks("DecentralizedAverager([tensor]")
    peers = [dict(cohive=cohive, dht=dht, tensor=torch.full((3,), float(at))) for at, dht in enumerate(swarm(2))]
    threads = [threading.Thread(target=exec, args=(block, names)) for names in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for names in peers:
        assert torch.allclose(names["tensor"], torch.full((3,), 0.5)) and len(names["gathered"]) == 2
        names["averager"].shutdown()


def run_and_learn(block, torch, **names):
    """Runs a block that trains `model`, and returns its names."""
    model = torch.nn.Linear(4, 1)
    before = model.weight.detach().clone()
    names.update(torch=torch, model=model)
    exec(block, names)
    assert not torch.equal(model.weight, before)
    return names


def test_training(swarm):
    torch = pytest.importorskip("torch")
    import cohive

    (block,) = blocks("while optimizer.local_epoch < 2:\n    optimizer.zero_grad")
    names = run_and_learn(block, cohive=cohive, torch=torch, dht=swarm(1)[0])
    assert names["optimizer"].local_epoch == 2


def test_saving_when_a_machine_is_taken_back(trainer_alone, tmp_path):
    torch = pytest.importorskip("torch")
    (block,) = blocks("a spot machine is taken back")
    model, path, before = torch.nn.Linear(4, 1), tmp_path / "state.pt", signal.getsignal(signal.SIGTERM)
    optimizer = trainer_alone(
        params=model.parameters(), optimizer=torch.optim.AdamW, target_batch_size=64, batch_size_per_step=8
    )
    names = dict(signal=signal, sys=sys, torch=torch, model=model, optimizer=optimizer, path=path)
    try:
        exec(block, names)
        with pytest.raises(SystemExit):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert torch.load(path)["optimizer"]["local_epoch"] == 2


def test_local_steps(swarm):
    torch = pytest.importorskip("torch")
    import cohive.local_sgd

    (block,) = blocks("cohive.local_sgd.DiLoCo")
    names = run_and_learn(block, cohive=cohive, torch=torch, dht=swarm(1)[0])
    assert names["manager"].current_step() == 2


def test_the_loop_that_the_readme_opens_with(swarm):
    torch = pytest.importorskip("torch")
    import cohive

    (block,) = blocks("for batch in loader:")
    model = torch.nn.Linear(4, 1)
    before = model.weight.detach().clone()
    names = dict(
        cohive=cohive, torch=torch, model=model, initial_peers=swarm(1)[0].get_visible_maddrs(),
        loader=torch.randn(3, 2048, 4), loss=lambda model, batch: model(batch).square().mean(),
    )  # fmt: skip
    exec(block, names)
    assert not torch.equal(model.weight, before) and names["optimizer"].local_epoch == 1
    names["optimizer"].shutdown()
    names["dht"].shutdown()


def test_transformers(swarm, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="no transformers here")
    pytest.importorskip("accelerate", reason="no accelerate here")
    import cohive

    (block,) = blocks("transformers.Trainer(")

    class Model(torch.nn.Linear):
        def forward(self, inputs):
            return {"loss": super().forward(inputs).square().mean()}

    names = dict(
        cohive=cohive, torch=torch, transformers=transformers, model=Model(4, 1), dht=swarm(1)[0],
        dataset=[{"inputs": torch.randn(4)} for _ in range(1000)],
        arguments=transformers.TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=8, report_to="none", dataloader_pin_memory=False
        ),
    )  # fmt: skip
    exec(block, names)
    assert names["optimizer"].local_epoch == 2
    names["optimizer"].shutdown()


def test_ranks(swarm, monkeypatch):
    torch = pytest.importorskip("torch")
    import socket

    import cohive

    (block,) = blocks("cohive.LocalOptimizer(")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in dict(RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=port).items():
        monkeypatch.setenv(name, str(value))  # as torchrun does
    model = torch.nn.Linear(4, 1)
    names = dict(cohive=cohive, torch=torch, model=model, initial_peers=swarm(1)[0].get_visible_maddrs())
    try:
        exec(block, names)
        assert names["optimizer"].local_epoch == 2
    finally:
        torch.distributed.destroy_process_group()
