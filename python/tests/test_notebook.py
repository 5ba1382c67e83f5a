"""The notebook of examples/python runs, cell by cell, and has no outputs."""

import json
import pathlib

import pytest

torch = pytest.importorskip("torch", reason="no torch here")

NOTEBOOK = pathlib.Path(__file__).resolve().parents[2] / "examples/python/two_peers.ipynb"


@pytest.fixture
def notebook():
    if not NOTEBOOK.exists():
        pytest.skip("the examples are not here")
    return json.loads(NOTEBOOK.read_text())


def test_its_format(notebook):
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 4)
    for cell in notebook["cells"]:
        assert cell["cell_type"] in ("code", "markdown") and cell["metadata"] == {} and cell["source"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            assert all(len(line.rstrip("\n")) <= 120 for line in cell["source"])


def test_two_peers_learn_one_model(notebook, capsys):
    names = {}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    out = capsys.readouterr().out
    assert "hello\n" in out
    assert "first: the last round had 2 peers" in out and "second: the last round had 2 peers" in out
    assert names["farthest"] < 1e-3
    epochs = [[epoch for epoch, peers, _ in told if peers == 2] for told in names["losses"]]
    assert all(len(one) >= 5 for one in epochs), names["losses"]
    (*_, last), (first, *_) = names["losses"][0], names["losses"][0]
    assert last[2] < first[2], "it has learnt"
