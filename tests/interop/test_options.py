"""Every option of hivemind.Optimizer and of HivemindStrategy has a row in docs/from-hivemind.md that says what it is called here."""

import importlib
import inspect
from pathlib import Path

import hivemind

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "from-hivemind.md"


def rows(heading):
    section = DOCUMENT.read_text().split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    return {line.split("|")[1].strip().strip("`") for line in section.splitlines() if line.startswith("| `")}


def test_every_option_of_the_optimizer_is_explained():
    options = set(inspect.signature(hivemind.Optimizer.__init__).parameters) - {"self"}
    assert options - rows("hivemind.Optimizer 1.1.12") == set()


# The arguments of lightning_hivemind.strategy.HivemindStrategy 0.1.0, for where that package is not installed.
STRATEGY = """target_batch_size run_id batch_size delay_state_averaging delay_optimizer_step delay_grad_averaging offload_optimizer
reuse_grad_buffers scheduler_fn matchmaking_time averaging_timeout verbose averager_opts host_maddrs initial_peers use_ipfs
wait_timeout bootstrap_timeout use_relay use_auto_relay identity_path""".split()


def strategy_options():
    for module in ("lightning_hivemind.strategy", "lightning.pytorch.strategies", "pytorch_lightning.strategies"):
        try:
            strategy = importlib.import_module(module).HivemindStrategy
        except (ImportError, AttributeError):
            continue
        parameters = inspect.signature(strategy.__init__).parameters.values()
        return {parameter.name for parameter in parameters if parameter.kind != parameter.VAR_KEYWORD} - {"self"}
    return set(STRATEGY)


def test_every_option_of_the_strategy_is_explained():
    assert strategy_options() - rows("HivemindStrategy") == set()
