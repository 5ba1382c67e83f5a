"""The Debian packages that `cpack -G DEB` makes: what is in them, what they depend on, that it works where it is unpacked.

Usage: test_debian.py BUILD-FOLDER CMAKE CXX-COMPILER [unittest options].
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = CMAKE = COMPILER = None
SKIPPED = 77


def run(*command, **how):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **how)
    if result.returncode != 0:
        raise AssertionError(f"{command} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout


def setUpModule():
    global work, packages, fields, unpacked
    work = tempfile.TemporaryDirectory()
    run(Path(CMAKE).with_name("cpack"), "-G", "DEB", "-B", work.name, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip",
        "-D", f"CPACK_OUTPUT_FILE_PREFIX={work.name}/packages", cwd=BUILD)
    packages, fields, unpacked = {}, {}, {}
    for path in Path(work.name, "packages").glob("*.deb"):
        known = dict(re.findall(r"^ ?(\S+): (.*)$", run("dpkg-deb", "-f", path), flags=re.MULTILINE))
        name = known["Package"]
        packages[name], fields[name], unpacked[name] = path, known, Path(work.name, "unpacked", name)
        unpacked[name].mkdir(parents=True)
        run("dpkg-deb", "-x", path, unpacked[name])


def tearDownModule():
    work.cleanup()


def dependencies(name):
    return {re.split(r"[ (]", entry.strip())[0] for entry in fields[name]["Depends"].split(",")}


def programs():
    return sorted((unpacked["cohive"] / "usr/bin").iterdir())


class Debian(unittest.TestCase):
    def test_each_part_has_a_package_of_this_version(self):
        version = re.search(r"project\(cohive VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertEqual(set(packages) - {"cohive-train"}, {"cohive", "libcohive-dev"})
        self.assertEqual("cohive-train" in packages, Path(BUILD, "bin/cohive-train").exists())
        for known in fields.values():
            self.assertEqual(known["Version"], version)
            self.assertEqual(known["Architecture"], run("dpkg", "--print-architecture").strip())

    def test_files_belong_to_root_and_lie_below_usr(self):
        for name, path in packages.items():
            for line in run("dpkg-deb", "-c", path).splitlines():
                mode, owner, _, _, _, file = line.split()[:6]
                with self.subTest(package=name, file=file):
                    self.assertTrue(file.startswith("./usr/"))
                    self.assertEqual(owner, "root/root")
                    if not mode.startswith("l"):  # the mode of a link means nothing
                        self.assertEqual((mode[5], mode[8]), ("-", "-"), "others may write")

    def test_the_programs_depend_on_libraries_of_debian_alone(self):
        self.assertEqual([path.name for path in programs()],
                         ["cohive-bench", "cohive-bootstrap", "cohive-dht", "cohive-monitor"])
        needed = dependencies("cohive")
        self.assertTrue({"libc6", "libssl3"} <= needed or {"libc6", "libssl3t64"} <= needed, needed)
        self.assertEqual([package for package in needed if package.endswith("-dev")], [])
        for path in programs():
            self.assertNotRegex(run("readelf", "-d", path), r"R(UN)?PATH")

    def test_the_trainer_looks_for_libtorch_where_its_script_puts_it(self):
        if "cohive-train" not in packages:
            self.skipTest("there is no LibTorch")
        folder = unpacked["cohive-train"] / "usr"
        where = re.search(r"RUNPATH.*\[(.*)\]", run("readelf", "-d", folder / "bin/cohive-train"))[1]
        self.assertEqual(where, "$ORIGIN/../lib/cohive/libtorch/lib")
        self.assertEqual([package for package in dependencies("cohive-train") if "torch" in package or package.endswith("-dev")], [])
        self.assertIn("\nExecStart=/usr/bin/cohive-train ", (folder / "lib/systemd/system/cohive-train@.service").read_text())
        libtorch = Path(work.name, "somewhere/torch")
        (libtorch / "lib").mkdir(parents=True)
        get = folder / "bin/cohive-get-libtorch"
        refused = subprocess.run([get, libtorch], capture_output=True, text=True)
        self.assertEqual((refused.returncode, refused.stdout), (1, ""))
        self.assertIn("there is no lib/libtorch_cpu.so", refused.stderr)
        (libtorch / "lib/libtorch_cpu.so").touch()
        run(get, libtorch)
        self.assertTrue((folder / "lib/cohive/libtorch/lib/libtorch_cpu.so").samefile(libtorch / "lib/libtorch_cpu.so"))
        for script in ("postinst", "prerm", "postrm"):
            run("sh", "-n", "-c", run("dpkg-deb", "-I", packages["cohive-train"], script))

    def test_no_trainer_stays_enabled_where_the_package_is_removed(self):
        if not shutil.which("systemctl"):
            self.skipTest("there is no systemd")
        system = Path(work.name, "systemd")
        unit = system / "usr/lib/systemd/system/cohive-train@.service"
        unit.parent.mkdir(parents=True)
        unit.write_text((ROOT / "tools/cohive-train@.service.in").read_text().replace("@BINDIR@", "/usr/bin"))
        run("systemctl", f"--root={system}", "enable", "cohive-train@stories", "cohive-train@songs")
        wanted = system / "etc/systemd/system/multi-user.target.wants"
        self.assertEqual(len(list(wanted.iterdir())), 2)
        script = (ROOT / "packaging/debian/trainer/prerm").read_text().replace("/run/systemd/system", str(system))
        here = f'systemctl() {{ command systemctl --root={system} "$@"; }}\n'
        run("sh", "-c", here + script, "prerm", "upgrade")
        self.assertEqual(len(list(wanted.iterdir())), 2)
        run("sh", "-c", here + script, "prerm", "remove")
        self.assertEqual(list(wanted.iterdir()) if wanted.exists() else [], [])

    def test_every_program_has_a_manual_page_and_a_completion(self):
        for path in programs():
            with self.subTest(program=path.name):
                shown = run(path, "--help")
                flags = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", "\n".join(re.findall(r"^  -.*$", shown, flags=re.MULTILINE))))
                self.assertGreater(len(flags), 4)
                page = (unpacked["cohive"] / "usr/share/man/man1" / (path.name + ".1")).read_text().replace("\\-", "-")
                self.assertEqual({flag for flag in flags if flag not in page}, set())
                self.assertEqual(self.completed(path.name, "--"), flags)
        self.assertEqual(self.completed("cohive-bootstrap", "--force-reachability", "p"), {"public", "private"})
        self.assertIn("doctor", self.completed("cohive-dht", ""))
        self.assertIn("--host-maddrs", self.completed("cohive-dht", "doctor", "--ho"))

    def completed(self, program, *words):
        """What bash offers for the last word."""
        file = unpacked["cohive"] / "usr/share/bash-completion/completions" / program
        script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _${1//-/_}; printf "%s\\n" "${COMPREPLY[@]}"'
        return set(run("bash", "-c", script, "bash", file, program, *words).split())

    def test_the_unit_starts_the_installed_program(self):
        unit = unpacked["cohive"] / "usr/lib/systemd/system/cohive-bootstrap.service"
        self.assertIn("\nExecStart=/usr/bin/cohive-bootstrap ", unit.read_text())
        for script in ("postinst", "prerm", "postrm"):
            text = run("dpkg-deb", "-I", packages["cohive"], script)
            run("sh", "-n", "-c", text)
            self.assertEqual("cohive-bootstrap.service" in text or "purge" in text, True)

    def test_the_development_package_is_whole(self):
        installed = unpacked["libcohive-dev"] / "usr"
        for header in (ROOT / "include").rglob("*.hpp"):
            if header.relative_to(ROOT / "include").parts[1] in ("torch", "cuda"):
                continue  # of components that need not have been built
            self.assertTrue((installed / "include" / header.relative_to(ROOT / "include")).is_file(), header)
        for package in dependencies("libcohive-dev"):  # the build needed them, too
            self.assertEqual(run("dpkg-query", "-W", "-f=${db:Status-Status}", package), "installed", package)
        project = Path(work.name, "user")
        project.mkdir()
        (project / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.24)\nproject(user LANGUAGES CXX)\n"
            "find_package(cohive REQUIRED COMPONENTS net averaging train)\n"
            'foreach(component net averaging train)\n  if(NOT TARGET cohive::${component})\n    message(FATAL_ERROR "no ${component}")\n'
            "  endif()\nendforeach()\n")
        run(CMAKE, "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={installed}", f"-DCMAKE_CXX_COMPILER={COMPILER}",
            "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF")


class FreshSystem(unittest.TestCase):
    """A Debian with neither compiler nor Python; its packages come from a mirror."""

    def setUp(self):
        if not shutil.which("debootstrap"):
            self.skipTest("there is no debootstrap")
        if os.geteuid() != 0:
            self.skipTest("debootstrap needs root")
        self.system = Path(work.name, "system")
        release = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), flags=re.MULTILINE)[1]
        run("debootstrap", "--variant=minbase", release, self.system, *os.environ.get("DEBIAN_MIRROR", "").split())

    def inside(self, *command):
        return run("chroot", self.system, "env", "DEBIAN_FRONTEND=noninteractive", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *command)

    def test_the_programs_are_installed_run_and_removed(self):
        shutil.copy(packages["cohive"], self.system / "cohive.deb")
        shutil.copy("/etc/resolv.conf", self.system / "etc/resolv.conf")
        self.inside("apt-get", "install", "-y", "--no-install-recommends", "/cohive.deb")
        for path in programs():
            self.assertIn("Usage:", self.inside(path.name, "--help"))
        node = subprocess.Popen(["chroot", self.system, "cohive-bootstrap", "--json", "--host-maddrs", "/ip4/127.0.0.1/tcp/0"],
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            self.assertIn("peer_id", node.stdout.readline())
        finally:
            node.terminate()
            self.assertEqual(node.wait(30), 0)
            node.stdout.close()
        for tool in ("python3", "cc", "c++"):
            self.assertEqual(list(self.system.glob(f"usr/bin/{tool}")), [])
        self.inside("apt-get", "purge", "-y", "cohive")
        self.assertFalse((self.system / "usr/bin/cohive-bootstrap").exists())


if __name__ == "__main__":
    BUILD, CMAKE, COMPILER = sys.argv[1:4]
    del sys.argv[1:4]
    if not all(shutil.which(tool) for tool in ("dpkg-deb", "dpkg-shlibdeps", "readelf")):
        print("skipped: this is no system with dpkg-dev and binutils")
        sys.exit(SKIPPED)
    result = unittest.main(verbosity=2, exit=False).result
    if result.testsRun and len(result.skipped) == result.testsRun:
        sys.exit(SKIPPED)
    sys.exit(not result.wasSuccessful())
