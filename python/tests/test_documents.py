"""The code of docs/python.md and of the package's README runs as it stands there."""

import pathlib
import re
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "docs/python.md", ROOT / "python/README.md"]


def blocks(word):
    found = []
    for document in DOCUMENTS:
        if document.exists():
            found += re.findall(r"^```python\n(.*?)^```$", document.read_text(), flags=re.DOTALL | re.MULTILINE)
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


def test_training(swarm):
    torch = pytest.importorskip("torch")
    import cohive

    (block,) = blocks("cohive.Optimizer(")
    model = torch.nn.Linear(4, 1)
    before = model.weight.detach().clone()
    names = dict(cohive=cohive, torch=torch, model=model, dht=swarm(1)[0])
    exec(block, names)
    assert not torch.equal(model.weight, before) and names["optimizer"].local_epoch == 2
