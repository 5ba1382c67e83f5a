"""What is made of the documents: the API, from the comments of the public headers, in which each class, type, function
and constant of a namespace has a sentence; and the site.

Usage: test_site.py FOLDER-OF-PROGRAMS [unittest options]. Skipped where doxygen and mkdocs are missing
(tools/install-deps.sh --docs).
"""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import shell

ROOT = Path(__file__).resolve().parents[2]
UNDOCUMENTED = re.compile(r"include/(?P<header>\S+): warning: (?:Compound (?P<compound>\S+)|Member (?P<member>.*) of (?P<owner>\w+) (?P<of>\S+)) is not documented")


def is_internal(found):
    """What the standard library or a template finds by itself, no caller names it."""
    return "detail" in (found["of"] or found["compound"]) or "operator" in (found["member"] or "")


class Api(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("doxygen"):
            raise unittest.SkipTest("no doxygen")
        with tempfile.TemporaryDirectory() as folder:
            settings = (ROOT / "docs/Doxyfile").read_text() + f"OUTPUT_DIRECTORY = {folder}\nGENERATE_HTML = NO\nGENERATE_XML = YES\n"
            done = subprocess.run(["doxygen", "-"], input=settings, cwd=ROOT, capture_output=True, text=True, check=True)
            cls.warnings = [line for line in done.stderr.splitlines() if "warning:" in line]
            cls.documented = len(list(Path(folder, "xml").glob("class*.xml")))

    def test_everything_in_a_namespace_has_a_sentence(self):
        self.assertGreater(self.documented, 80)
        missing = []
        for found in filter(None, map(UNDOCUMENTED.search, self.warnings)):
            if (found["compound"] or found["owner"] in ("namespace", "file")) and not is_internal(found):
                missing.append(f"{found['header']}: {found['compound'] or found['member']}")
        self.assertEqual(missing, [])

    def test_comments_are_understood(self):
        self.assertEqual([line for line in self.warnings if not UNDOCUMENTED.search(line)], [])


class Site(unittest.TestCase):
    def test_it_is_built_without_warnings(self):
        if not shutil.which("mkdocs"):
            self.skipTest("no mkdocs")
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["mkdocs", "build", "--strict", "--site-dir", folder], cwd=ROOT, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("WARNING", done.stderr)
            self.assertGreater(len(list(Path(folder).rglob("index.html"))), 30)


if __name__ == "__main__":
    shell.main()
