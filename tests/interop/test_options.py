"""Every option of hivemind.Optimizer has a row in docs/from-hivemind.md that says what it is called here."""

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
