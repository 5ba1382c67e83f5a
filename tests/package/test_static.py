"""The programs of the preset `static`, in a root directory that holds nothing but them.

Usage: test_static.py FOLDER [unittest options]. Exits with 77 where they were not built.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SKIPPED = 77
PATIENCE = 60  # seconds
FOLDER = None
PROGRAMS = ["cohive-bench", "cohive-bootstrap", "cohive-dht", "cohive-monitor"]


def setUpModule():
    global root
    root = Path(unittest.enterModuleContext(tempfile.TemporaryDirectory()))
    for program in PROGRAMS:
        shutil.copy2(FOLDER / program, root)


def inside(*command):
    """The command line of a program in the empty root; users other than root need a namespace for it."""
    as_root = [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]
    return [*as_root, "chroot", str(root), *map(str, command)]


def run(*command):
    return subprocess.run(inside(*command), capture_output=True, text=True, timeout=PATIENCE)


class Static(unittest.TestCase):
    def test_no_program_needs_a_library_nor_a_loader(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                headers = subprocess.run(["readelf", "-ld", FOLDER / program], capture_output=True, text=True, check=True)
                self.assertNotRegex(headers.stdout, "NEEDED|INTERP")

    def test_they_start_in_an_empty_root(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                result = run("/" + program, "--version")
                self.assertEqual((result.returncode, result.stderr), (0, ""))
                self.assertTrue(result.stdout.startswith(program + " "), result.stdout)

    def test_a_node_there_is_one_that_others_join(self):
        with self.node() as address:
            told = run("/cohive-dht", "doctor", "--initial-peers", address)
            self.assertEqual(told.returncode, 0, told.stdout + told.stderr)
            self.assertIn("the peer proved its id", told.stdout)

    def test_names_are_found_with_the_files_that_are_there(self):
        (root / "etc").mkdir()
        (root / "etc/hosts").write_text("127.0.0.1 boot.example.org\n")
        with self.node() as address:
            named = address.replace("/ip4/127.0.0.1/", "/dns4/boot.example.org/")
            told = run("/cohive-dht", "doctor", "--initial-peers", named)
            self.assertEqual(told.returncode, 0, told.stdout + told.stderr)

    @contextlib.contextmanager
    def node(self):
        command = inside("/cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--json", "--identity-path", "/key")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield json.loads(process.stdout.readline())["initial_peers"][0]
            finally:
                process.terminate()
                self.assertEqual(process.wait(PATIENCE), 0)


if __name__ == "__main__":
    FOLDER = Path(sys.argv.pop(1)).resolve()
    if not all((FOLDER / program).is_file() for program in PROGRAMS):
        print(f"{FOLDER} has no programs: tools/static.sh builds them")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
