"""The programs of examples/python: two processes of each train together, the second started by the line that the first
has printed."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples/python"
NEEDS = {
    "train_pytorch.py": ["torch"],
    "train_lightning.py": ["torch", "lightning"],
    "train_accelerate.py": ["torch", "accelerate"],
    "train_transformers.py": ["torch", "transformers", "accelerate"],
}
PATIENCE = 150
# `python` is this interpreter, as where an environment is activated.
ENVIRONMENT = {name: value for name, value in os.environ.items() if "INITIAL_PEERS" not in name}
ENVIRONMENT["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])


@pytest.fixture
def start():
    """start(SCRIPT, FLAGS) or start(LINE): a process of the shell, in the folder of the sources."""
    started = []

    def run(line, flags=None):
        if flags is not None:
            line = f"python {path_of(line)} {flags}"
        how = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=ENVIRONMENT)
        started.append(subprocess.Popen(["bash", "-c", f"exec env {line}"], **how))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def path_of(script):
    """The example, from the folder of the sources; skipped where it cannot run."""
    if not (EXAMPLES / script).exists():
        pytest.skip("the examples are not here")
    for name in NEEDS[script]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"no {name} here")
    return f"examples/python/{script}"


def test_every_example_is_tried():
    assert {path.name for path in EXAMPLES.glob("train_*.py")} in (set(NEEDS), set())


@pytest.mark.parametrize("script", NEEDS)
def test_the_line_that_is_printed_makes_two_peers_of_two_processes(script, start):
    flags = "--peers 2 --epochs 2 --target-batch-size 256 --host-maddrs /ip4/127.0.0.1/tcp/0"
    first = start(script, flags)
    line = next((line for line in first.stdout if line.startswith("INITIAL_PEERS=")), None)
    assert line is not None, first.communicate()
    assert line.rstrip().endswith(f"python {path_of(script)} {flags}")
    second = start(line)
    told = [process.communicate(timeout=PATIENCE) for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], told
    for out, _ in told:
        last = out.rstrip().splitlines()[-1]
        assert last.startswith("done: epoch ") and ", peers 2, " in last, told


def test_wrong_flags_are_one_line(start):
    wrong = [
        ("train_pytorch.py", "--epochs none", "argument --epochs: 'none' is no number above 0"),
        ("train_pytorch.py", "--no-such-flag", "unrecognized arguments: --no-such-flag"),
        ("train_pytorch.py", "--initial-peers nonsense", "nonsense"),
        ("train_pytorch.py", "--run-id a.b", "'a.b' is no name of a run"),
    ]
    for process, (_, _, says) in [(start(script, flags), one) for one in wrong for script, flags in [one[:2]]]:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 2, errors
        (line,) = errors.splitlines()
        assert says in line


def test_lightning_tells_of_a_wrong_address_in_one_line(start):
    process = start("train_lightning.py", "--initial-peers nonsense")
    _, errors = process.communicate(timeout=PATIENCE)
    (line,) = [line for line in errors.splitlines() if "train_lightning" in line]
    assert process.returncode == 2 and "nonsense" in line and "Traceback" not in errors
