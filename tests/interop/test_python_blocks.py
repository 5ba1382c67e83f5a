"""The Python code of README.md and docs runs, against programs of cohive."""

import json
import re
import struct
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

hivemind = pytest.importorskip("hivemind")

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60


def block(document, word):
    """The block of Python in the document that has the word."""
    (code,) = [code for code in re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)
               if word in code]
    return code


def test_a_python_trainer_of_the_readme_joins_a_node_of_cohive(program):
    code = block("README.md", "hivemind.Optimizer")
    node = subprocess.Popen([program("cohive-bootstrap"), "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--json"], stdout=subprocess.PIPE, text=True)
    (address,) = json.loads(node.stdout.readline())["initial_peers"]
    names = {"hivemind": hivemind, "torch": torch, "model": torch.nn.Linear(2, 1)}
    try:
        code = code.replace("/tcp/31338", "/tcp/0")  # the port may be taken here
        exec(re.sub(r"/ip4/203\.0\.113\.7/\S+Qm\.\.\.", address, code), names)
        names["model"](torch.ones(32, 2)).sum().backward()
        names["optimizer"].step()
        assert names["optimizer"].local_progress.samples_accumulated == 32
        names["optimizer"].shutdown()
        names["dht"].shutdown()
    finally:
        node.kill()
        node.wait()


DTYPES = {"F32": torch.float32, "F64": torch.float64, "F16": torch.float16, "I64": torch.int64, "U8": torch.uint8, "BOOL": torch.bool}


def load_file(path):
    """What safetensors.torch.load_file does, by the description of the format alone."""
    content = Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    tensors = json.loads(content[8:8 + size])
    tensors.pop("__metadata__", None)
    found = {}
    for name, tensor in tensors.items():
        begin, end = (8 + size + offset for offset in tensor["data_offsets"])
        found[name] = torch.frombuffer(bytearray(content[begin:end]), dtype=DTYPES[tensor["dtype"]]).reshape(tensor["shape"])
    return found


def test_python_reads_a_checkpoint(program, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", types.ModuleType("safetensors"))
    monkeypatch.setitem(sys.modules, "safetensors.torch", types.SimpleNamespace(load_file=load_file))
    code = block("docs/checkpoints.md", "safetensors")
    trained = subprocess.run([program("cohive-train"), "--model", "cnn", "--channels", "4", "--host-maddrs", "/ip4/127.0.0.1/tcp/0",
                              "--batch-size", "32", "--target-batch-size", "64", "--max-epochs", "2", "--checkpoint-dir", tmp_path],
                             capture_output=True, text=True, timeout=PATIENCE)
    assert trained.returncode == 0, trained.stderr
    (file,) = tmp_path.glob("epoch-*.safetensors")

    class Model:
        def load_state_dict(self, tensors):
            self.tensors = tensors

    model = Model()
    exec(code.replace("epoch-00000042.safetensors", str(file)), {"model": model})
    assert model.tensors and all(torch.isfinite(tensor).all() for tensor in model.tensors.values())
    assert not [name for name in model.tensors if name.startswith(("optimizer.", "extra.", "averager."))]
