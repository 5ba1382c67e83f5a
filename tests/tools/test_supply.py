"""What the programs are made of: hardened, and with a bill of materials.

Usage: test_supply.py FOLDER-OF-PROGRAMS [unittest options]. Needs readelf.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import shell
from shell import programs

ROOT = Path(__file__).resolve().parents[2]


def path_of(program):
    return shell.BIN / program


def elf(program, *what):
    return subprocess.run(["readelf", "--wide", *what, path_of(program)], check=True, capture_output=True,
                          text=True).stdout


@unittest.skipUnless(shutil.which("readelf"), "needs readelf")
class Hardening(unittest.TestCase):
    installed = property(lambda self: programs("cohive-bootstrap", "cohive-monitor", "cohive-dht", "cohive-train"))

    def test_programs_can_be_loaded_anywhere(self):
        for program in self.installed:
            with self.subTest(program=program):
                self.assertRegex(elf(program, "--file-header"), r"Type:\s+DYN")

    def test_what_the_loader_fills_in_is_read_only_afterwards(self):
        for program in self.installed:
            with self.subTest(program=program):
                self.assertIn("GNU_RELRO", elf(program, "--program-headers"))
                self.assertRegex(elf(program, "--dynamic"), r"\(FLAGS.*\bNOW\b|BIND_NOW")

    def test_stacks_hold_no_code(self):
        for program in self.installed:
            with self.subTest(program=program):
                stack = re.search(r"GNU_STACK.*", elf(program, "--program-headers"))[0]
                self.assertNotIn("RWE", stack.replace(" ", ""))

    def test_stacks_are_guarded_and_c_functions_checked(self):
        for program in self.installed:
            with self.subTest(program=program):
                symbols = elf(program, "--dyn-syms")
                self.assertIn("__stack_chk_fail", symbols)
                self.assertRegex(symbols, r"__\w+_chk\b")


class BillOfMaterials(unittest.TestCase):
    def test_it_names_what_is_linked_and_what_is_compiled_in(self):
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "bill.cdx.json")
            subprocess.run([sys.executable, ROOT / "packaging/sbom.py", output, "1.2", "abc", "--built-in", "boost=1.81",
                            path_of("cohive-bootstrap")], check=True)
            bill = json.loads(output.read_text())
        self.assertEqual((bill["bomFormat"], bill["specVersion"]), ("CycloneDX", "1.5"))
        components = {one["bom-ref"]: one for one in bill["components"]}
        self.assertEqual(components["boost (compiled in)"]["version"], "1.81")
        needed = re.findall(r"NEEDED.*\[(.*)\]", elf("cohive-bootstrap", "--dynamic"))
        for library in needed:
            self.assertRegex(components[library]["hashes"][0]["content"], "^[0-9a-f]{64}$")
        edges = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
        self.assertLessEqual(set(needed), set(edges["cohive-bootstrap"]))
        for ends in edges.values():
            self.assertLessEqual(set(ends), set(components))


class Wheels(unittest.TestCase):
    def test_each_is_pinned_by_its_hashes(self):
        lists = sorted((ROOT / "tools/wheels").glob("*.txt"))
        self.assertEqual([path.stem for path in lists], ["cuda", "libp2p", "torch"])
        for path in lists:
            text = "\n".join(line for line in path.read_text().splitlines() if not line.startswith("#"))
            for requirement in filter(None, re.split(r"(?<!\\)\n", text)):
                with self.subTest(requirement=requirement.split()[0]):
                    self.assertRegex(requirement, r"^[\w.-]+==[\d.]+ (\\\n +--hash=sha256:[0-9a-f]{64} ?)+$")

    def test_scripts_fetch_none_without_them(self):
        for path in ("tools/install-deps.sh", "packaging/cohive-get-libtorch.in"):
            commands = (ROOT / path).read_text().replace("\\\n", " ").splitlines()
            fetching = [line for line in commands if "-m pip install" in line]
            self.assertTrue(fetching)
            for line in fetching:
                self.assertIn("--require-hashes", line)

    def test_the_script_for_libtorch_gives_pip_the_list(self):
        with tempfile.TemporaryDirectory() as folder:
            script, python, seen = Path(folder, "bin", "get"), Path(folder, "python"), Path(folder, "seen")
            script.parent.mkdir()
            text = (ROOT / "packaging/cohive-get-libtorch.in").read_text()
            for name, value in (("COHIVE_LIBTORCH_PLACE", "lib/libtorch"), ("LibTorch_VERSION", "2.11.0"),
                                ("COHIVE_LIBTORCH_WHEELS", (ROOT / "tools/wheels/torch.txt").read_text())):
                text = text.replace(f"@{name}@", value)
            script.write_text(text)
            python.write_text(f'#!/bin/sh\nfor last; do :; done\necho "$@" >{seen}\ncat "$last" >>{seen}\n')
            python.chmod(0o755)
            run = subprocess.run(["sh", script], env={"PATH": "/usr/bin:/bin", "PYTHON": str(python)}, capture_output=True, text=True)
            self.assertIn("there is no lib/libtorch_cpu.so", run.stderr)  # the pip here fetches nothing
            self.assertIn("--require-hashes", seen.read_text())
            self.assertIn((ROOT / "tools/wheels/torch.txt").read_text(), seen.read_text())


if __name__ == "__main__":
    shell.main()
