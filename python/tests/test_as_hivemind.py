"""`python -m cohive.as_hivemind`: scripts of hivemind run with cohive in its place."""

import importlib.metadata
import os
import shlex
import subprocess
import sys

import pytest

from cohive import _programs

SCRIPT = """
import sys
import hivemind
from hivemind import DHT, get_dht_time
from hivemind.dht.routing import DHTID
from hivemind.utils.multiaddr import Multiaddr

assert hivemind.__version__ == "1.1.12" and DHT.__module__ == "cohive.dht", DHT
with DHT(start=True) as first, hivemind.DHT(initial_peers=first.get_visible_maddrs(), start=True) as second:
    assert all(isinstance(one, Multiaddr) for one in first.get_visible_maddrs())
    first.store("key", "value", get_dht_time() + 60)
    assert second.get("key").value == "value"
for line, missing, kind in (
    ("import hivemind.moe", "hivemind.moe", ModuleNotFoundError),
    ("import hivemind.nothing", "hivemind.nothing", ModuleNotFoundError),
    ("from hivemind import RemoteExpert", "hivemind.RemoteExpert", ImportError),
    ("from hivemind.utils import RemoteExpert", "hivemind.utils.RemoteExpert", ImportError),
):
    try:
        exec(line)
    except kind as error:
        assert f"cohive has no {missing}" in str(error)
    else:
        sys.exit("nothing is wrong with: " + line)
assert not hasattr(hivemind, "RemoteExpert") and hasattr(hivemind, "Optimizer")
print("done", *sys.argv)
"""


def run(*arguments, **how):
    command = [sys.executable, "-m", "cohive.as_hivemind", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **how)


def test_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    result = run(str(script), "--flag", "1")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"done {script} --flag 1\n"


def test_names_are_where_hivemind_has_them(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "names.py"
    script.write_text(
        "from hivemind.utils.nested import *\n"
        "from hivemind.optim.progress_tracker import GlobalTrainingProgress, LocalTrainingProgress, PerformanceEMA\n"
        "from hivemind.utils.tensor_descr import TensorDescriptor\n"
        "import hivemind.utils, hivemind.utils.performance_ema\n"
        "assert hivemind.utils.performance_ema.PerformanceEMA is hivemind.utils.PerformanceEMA is PerformanceEMA\n"
        "assert hivemind.utils.nested_pack is nested_pack and hivemind.utils.TensorDescriptor is TensorDescriptor\n"
        "structure = {'b': (1, [2]), 'a': 3}\n"
        "assert nested_pack([5, 6, 7], structure) == {'a': 5, 'b': (6, [7])}\n"
        "print(*nested_flatten(structure))\n"
    )
    result = run(str(script))
    assert result.returncode == 0, result.stderr
    assert result.stdout == "3 1 2\n"


def test_a_script_has_the_modules_beside_it_and_a_log(tmp_path):
    (tmp_path / "beside.py").write_text("value = 'found'")
    script = tmp_path / "script.py"
    script.write_text(
        "import beside, hivemind\n"
        "from hivemind.utils.logging import get_logger, use_hivemind_log_handler\n"
        "from hivemind.utils.networking import choose_ip_address, log_visible_maddrs\n"
        "use_hivemind_log_handler('in_root_logger')\n"
        "get_logger(__name__).info(beside.value)\n"
        "addresses = ['/ip6/2001:db8::1/tcp/1', '/ip4/127.0.0.1/tcp/1', '/ip4/8.8.8.8/tcp/1/p2p/QmPeer']\n"
        "print(choose_ip_address(addresses), choose_ip_address(addresses, prefer_global=False))\n"
        "log_visible_maddrs(addresses[1:], only_p2p=False)\n"
    )
    result = run(str(script), cwd="/")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "8.8.8.8 127.0.0.1\n"
    assert "[INFO] [__main__] found" in result.stderr
    assert "--initial_peers /ip4/127.0.0.1/tcp/1 /ip4/8.8.8.8/tcp/1/p2p/QmPeer" in result.stderr


def test_levels_of_the_log_are_those_that_cohive_has(run_python):
    levels = {"info,dht=debug": 20, "dht=debug,warning": 30, "trace": 5, "OFF": 51, "nonsense": 20, "": 20}
    result = run_python(
        "import logging, os\n"
        "from cohive._like_hivemind import use_hivemind_log_handler\n"
        f"for given in {list(levels)}:\n"
        "    os.environ['HIVEMIND_LOGLEVEL'] = given\n"
        "    logging.getLogger().handlers.clear()\n"
        "    use_hivemind_log_handler('in_root_logger')\n"
        "    print(logging.getLogger().level)\n"
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [str(level) for level in levels.values()]


def test_a_module(tmp_path):
    (tmp_path / "trains.py").write_text(SCRIPT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = run("-m", "trains", "more", env={**os.environ, "PYTHONPATH": path})
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[0] == "done" and result.stdout.split()[-1] == "more"


AGAIN = """
import multiprocessing, sys
import hivemind

def work(queue):
    queue.put(hivemind.DHT.__module__)

if __name__ == "__main__":
    from cohive import as_hivemind, join_line
    with hivemind.DHT(start=True) as dht:
        print(join_line(dht))
    processes = multiprocessing.get_context("forkserver")
    queue = processes.SimpleQueue()
    process = processes.Process(target=work, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    with as_hivemind.started_again():
        print(sys.modules["__main__"].__spec__.name, *sys.argv[1:])
    print(*sys.argv[1:])
"""


@pytest.mark.parametrize("is_module", [False, True])
def test_others_and_further_processes_are_started_so_too(tmp_path, is_module):
    (tmp_path / "again.py").write_text(AGAIN)
    words = ["-m", "again"] if is_module else [str(tmp_path / "again.py")]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = run(*words, "--flag", "a b", env={**os.environ, "PYTHONPATH": path})
    assert result.returncode == 0, result.stderr
    line, in_process, again, after = result.stdout.splitlines()
    called = ["-m", "cohive.as_hivemind", *words, "--flag", "a b"]
    assert shlex.split(line)[1:] == [os.path.basename(sys.executable), *called]
    assert in_process == "cohive.dht"
    assert again == " ".join(called[1:]) and after == "--flag a b"


@pytest.mark.parametrize("is_module", [False, True])
def test_the_line_to_join_by_has_the_module_that_was_started(tmp_path, is_module):
    (tmp_path / "package").mkdir()
    code = "import cohive\nwith cohive.DHT(start=True) as dht:\n    print(cohive.join_line(dht))\n"
    (tmp_path / "package" / "__main__.py").write_text(code)
    words = ["-m", "package"] if is_module else ["package"]
    command = [sys.executable, *words, "--flag"]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    out = subprocess.check_output(command, text=True, timeout=60, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path})
    assert shlex.split(out)[1:] == [os.path.basename(sys.executable), *words, "--flag"]


def test_a_notebook_has_no_line_to_join_by(run_python):
    """Its main module has no file, as here, and the arguments are those of its kernel."""
    result = run_python(
        "import cohive, sys\n"
        "sys.argv = ['/site-packages/ipykernel_launcher.py', '-f', 'kernel.json']\n"
        "with cohive.DHT(start=True) as dht:\n"
        "    print(cohive.join_line(dht))\n"
    )
    assert result.returncode == 0, result.stderr
    assert shlex.split(result.stdout)[1:] == [os.path.basename(sys.executable), "..."]


def test_a_program_is_found_where_pip_has_put_it(tmp_path, monkeypatch):
    class File:  # of importlib.metadata
        name = "cohive-bootstrap"
        locate = staticmethod(lambda: tmp_path / "cohive-bootstrap")

    (tmp_path / "cohive-bootstrap").touch()
    called = []
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [File] if name == "cohive" else None)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "--flag"])
    monkeypatch.setattr(os, "execv", lambda *given: (called.append(given), sys.exit()))
    with pytest.raises(SystemExit):
        _programs.become("cohive-bootstrap")
    assert called == [(tmp_path / "cohive-bootstrap", ["cohive-bootstrap", "--flag"])]


def test_what_it_is_called_with():
    for arguments, says in (((), "usage"), (("-m",), "-m needs a module")):
        result = run(*arguments)
        assert result.returncode == 1 and says in result.stderr
    result = run("/nowhere/script.py")
    assert result.returncode == 1 and "/nowhere/script.py" in result.stderr
