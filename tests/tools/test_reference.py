"""The pages of docs/reference are what the programs say: packaging/reference.py writes them.

Usage: test_reference.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import sys
import unittest
from pathlib import Path

import shell
from shell import programs

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs/reference"
sys.path.insert(0, str(ROOT / "packaging"))
import reference  # noqa: E402

AGAIN = "run packaging/reference.py with the folder of the programs"


class Reference(unittest.TestCase):
    maxDiff = None
    binaries = property(lambda self: [shell.BIN / name for name in programs(*reference.PROGRAMS)])

    def test_every_option_of_every_program_is_told(self):
        self.assertEqual({path.stem for path in PAGES.glob("cohive-*.md")}, set(reference.PROGRAMS))
        for binary in self.binaries:
            with self.subTest(program=binary.name):
                self.assertEqual((PAGES / f"{binary.name}.md").read_text(), reference.program_page(binary), AGAIN)

    def test_every_variable_is_told(self):
        self.assertEqual(reference.variables_of_sources(), set(reference.VARIABLES), "packaging/reference.py explains them")
        self.assertEqual((PAGES / "environment.md").read_text(), reference.environment_page(self.binaries), AGAIN)

    def test_the_python_package_is_told(self):
        page = reference.python_page()
        self.assertEqual((PAGES / "python.md").read_text(), page, AGAIN)
        for sentence in ("### Optimizer", "| `target_batch_size` | `None` | samples of an epoch, of all peers "
                         "together; left out with fit\\_my\\_link |", "* `shutdown()`: "):
            self.assertIn(sentence, page)

    def test_every_metric_that_the_sources_register_is_told(self):
        told = {name: text for name, (_, _, text) in self.told().items()}
        self.assertEqual(told, {name: reference.cell(text) for name, text in reference.metrics_of_sources().items()}, AGAIN)

    def test_what_running_programs_serve_is_told(self):
        served = reference.scraped(self.binaries)
        self.assertGreater(len(served), 70)
        rows = reference.metrics_in_page(reference.metrics_page(served))
        told = self.told()
        for name, (kind, labels, text) in rows.items():
            with self.subTest(metric=name):
                self.assertEqual((kind, text), (told[name][0], told[name][2]), AGAIN)
                self.assertEqual(self.values(labels) - self.values(told[name][1]), set(), AGAIN)

    @staticmethod
    def told():
        return reference.metrics_in_page((PAGES / "metrics.md").read_text())

    @staticmethod
    def values(labels):
        """Pairs of label and value in a cell of the table."""
        return {(label, value) for one in labels.split("; ") for label, _, values in [one.partition(": ")] for value in values.split(", ")}


if __name__ == "__main__":
    shell.main()
