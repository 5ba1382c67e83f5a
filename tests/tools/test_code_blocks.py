"""Every block of code in the documents: commands are run, or parsed by the program they call; files are read by their
reader; code of C++ and CMake is that of the sources, which are built and run elsewhere.

Usage: test_code_blocks.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python. A comment in the line before a
block says where it is from, or what it is:

    <!-- examples/trainer.cpp -->   cpp, cmake: its lines stand in this file; blank lines may stand for what is left out
    <!-- members.txt -->            a file that the commands of the same document name
    <!-- exchange -->               text: messages between peers, whose names are those of proto and the sources
"""

import contextlib
import json
import re
import shutil
import socket
import subprocess
import tempfile
import tomllib
import unittest
from dataclasses import dataclass
from pathlib import Path

import shell
from shell import PATIENCE, bootstrap, environment, programs, run
from test_documents import commands_of
from test_trainer import idx

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("monitoring/**/*.md"), *ROOT.glob("examples/**/*.md")])
KINDS = {"sh", "cpp", "cmake", "python", "toml", "ini", "yaml", "text"}
# What else than our programs and scripts may stand in a block; whether these do what they say is not ours to test.
SYSTEM = {"sudo", "apt-get", "pip", "systemctl", "journalctl", "podman", "docker", "head", "base64", "chmod", "for", "done", "wait"}
REAL = {"head", "base64", "chmod"}  # lines of these alone are run


@dataclass
class Block:
    document: Path
    mark: str  # of the comment before it
    kind: str
    text: str

    def __str__(self):
        return f"{self.document.relative_to(ROOT)}: {self.text.splitlines()[0] if self.text else ''}"


def blocks(*kinds):
    for document in DOCUMENTS:
        found = re.findall(r"^(?:<!-- ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", document.read_text(), flags=re.DOTALL | re.MULTILINE)
        for mark, kind, text in found:
            if not kinds or kind in kinds:
                yield Block(document, mark, kind, text)


def commands(block):
    """The lines of a block of shell, each with its simple commands as words."""
    for line in block.text.replace("\\\n", " ").splitlines():
        found = [command[1:] if command[:1] == ["do"] else command for command in commands_of(line)]
        yield line, [command for command in found if command]


def without_variables(command):
    """The words of a command, and the variables set before it."""
    variables = {}
    while command and re.match(r"\w+=", command[0]):
        name, _, variables[name] = command[0].partition("=")
        command = command[1:]
    return command, variables


class CodeBlocks(unittest.TestCase):
    def test_every_block_is_of_a_kind_that_is_tested(self):
        self.assertGreater(len(list(blocks())), 40)
        for document in DOCUMENTS:
            fences = re.findall(r"^ *```(\w*)", document.read_text(), flags=re.MULTILINE)
            with self.subTest(document=document.name):
                self.assertEqual(set(fences[0::2]) - KINDS, set())
                self.assertEqual(len(fences), 2 * sum(block.document == document for block in blocks()), "an indented block")

    def test_code_is_that_of_the_sources(self):
        for block in blocks("cpp", "cmake"):
            with self.subTest(block=str(block)):
                self.assertTrue(block.mark, "no file is named")
                plain = [line.strip() for line in (ROOT / block.mark).read_text().splitlines()]
                for paragraph in block.text.split("\n\n"):
                    wanted = [line.strip() for line in paragraph.strip("\n").splitlines()]
                    self.assertTrue(any(plain[at:at + len(wanted)] == wanted for at in range(len(plain))), paragraph)

    def test_python_is_python(self):
        """tests/interop/test_python_blocks.py runs it where hivemind is installed."""
        for block in blocks("python"):
            compile(block.text, str(block), "exec")

    def test_messages_of_an_exchange_exist(self):
        sources = "".join(path.read_text() for folder in ("proto", "src", "include") for path in (ROOT / folder).rglob("*.*"))
        for block in blocks("text"):
            if block.mark != "exchange":
                continue
            with self.subTest(block=str(block)):
                arrows = [line for line in block.text.splitlines() if re.match(r"\w+ +-> ", line)]
                self.assertGreater(len(arrows), 1)
                for name in re.findall(r"\b[A-Z]\w*[A-Z_a-z]\b", block.text):
                    self.assertRegex(sources, rf"\b{name}\b")

    def test_the_files_of_an_example_are_named_in_its_document(self):
        for block in blocks("text", "toml", "yaml"):
            if block.mark != "exchange":
                with self.subTest(block=str(block)):
                    self.assertRegex(block.mark, r"^[\w.-]+\.\w+$")
                    self.assertIn(block.mark, re.sub(r"<!--.*?-->", "", block.document.read_text()))

    def test_toml_is_read_by_the_trainer(self):
        for block in blocks("toml"):
            settings = tomllib.loads(block.text)
            self.assertTrue(settings)  # Shell.test_commands gives them to cohive-train

    def test_yaml_is_a_list_of_targets(self):
        """The one kind of YAML there is; Prometheus reads it in tests/interop/test_prometheus.py."""
        yaml = None
        with contextlib.suppress(ImportError):
            import yaml
        for block in blocks("yaml"):
            self.assertTrue(block.text.startswith("- targets: ["), str(block))
            for group in yaml.safe_load(block.text) if yaml else []:
                self.assertEqual(set(group), {"targets", "labels"})

    def test_a_drop_in_of_systemd_fits_the_unit(self):
        unit = (ROOT / "tools/cohive-bootstrap.service.in").read_text().replace("@BINDIR@", str(shell.BIN))
        for block in blocks("ini"):
            if block.mark.endswith(".env"):
                continue  # variables of a program: test_files_of_variables
            with self.subTest(block=str(block)), tempfile.TemporaryDirectory() as folder:
                options = re.search(r'^Environment="OPTIONS=(.*)"$', block.text, flags=re.MULTILINE)[1]
                self.assertEqual(run("cohive-bootstrap", "--version", *options.split()).returncode, 0)
                variables = set(re.findall(r"^Environment=\"?(\w+)=", block.text, flags=re.MULTILINE))
                self.assertEqual(variables - set(re.findall(r"^Environment=\"?(\w+)=", unit, flags=re.MULTILINE)), set())
                if shutil.which("systemd-analyze"):
                    path = Path(folder, "cohive-bootstrap.service")
                    path.write_text(unit)
                    drop_in = Path(folder, "cohive-bootstrap.service.d/override.conf")
                    drop_in.parent.mkdir()
                    drop_in.write_text(block.text)
                    checked = subprocess.run(["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=PATIENCE,
                                             env={**environment, "SYSTEMD_UNIT_PATH": folder + ":"})
                    self.assertNotIn("cohive-bootstrap.service", checked.stderr)


    def test_units_and_containers_leave_every_option_to_their_user(self):
        """An option that they set by a flag would stand twice where a user gives it again, which is refused."""
        unit = (ROOT / "tools/cohive-bootstrap.service.in").read_text()
        start = re.search("^ExecStart=(.*)$", unit, flags=re.MULTILINE)[1]
        own = {"--host-maddrs", "--identity-path", "--state-path"}  # LISTEN, and its folder
        self.assertEqual(set(re.findall(r"--[\w-]+", start)), own)
        texts = {"cohive-bootstrap": unit + (ROOT / "packaging/container/Containerfile").read_text(),
                 "cohive-train": (ROOT / "packaging/container/Containerfile.trainer").read_text()}
        for program, text in texts.items():
            entry = json.loads(re.search("^ENTRYPOINT (.*)$", text, flags=re.MULTILINE)[1])
            self.assertEqual(entry, [f"/usr/bin/{program}"])
            if not programs(program):
                continue
            known = "".join(run(program, help).stdout for help in ("--help", "--help-all"))
            for variable in re.findall(r"\b(COHIVE_[A-Z_]+)=", text):
                self.assertIn(f"Env:{variable})", known)

    def test_files_of_variables(self):
        """Those of the trainer's units are variables that it has."""
        for block in blocks("ini"):
            if not block.mark.endswith(".env") or not programs("cohive-train"):
                continue
            known = run("cohive-train", "--help-all").stdout
            for line in block.text.splitlines():
                if line and not line.startswith("#"):
                    self.assertIn(f"Env:{line.split('=')[0]})", known)


class Shell(unittest.TestCase):
    """Runs what can be run: on loopback and free ports, in a folder with the files that the block names. Trainers make a
    dry run; measurements, pictures and what needs a package or a container are parsed by the program alone."""

    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.node = cls.stack.enter_context(bootstrap())[1]["initial_peers"][0]

    @classmethod
    def tearDownClass(cls):
        cls.stack.close()

    def test_commands(self):
        for block in blocks("sh"):
            with self.subTest(block=str(block)), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
                self.files(block, Path(folder))
                self.swarm = self.node
                for line, found in commands(block):
                    for command in found:
                        self.check(block, command, folder, running)
                    if found and {command[0] for command in found} <= REAL:
                        subprocess.run(["bash", "-c", line], cwd=folder, check=True, timeout=PATIENCE)

    @staticmethod
    def files(block, folder):
        """What the commands of the block read."""
        (folder / "corpus.txt").write_text("In the beginning was the Word, and the Word was with others. " * 200)
        (folder / "mnist").mkdir()
        (folder / "mnist/train-images-idx3-ubyte").write_bytes(idx(40, 28, 28))
        (folder / "mnist/train-labels-idx1-ubyte").write_bytes(idx(40))
        for other in blocks("text", "toml"):
            if re.fullmatch(r"[\w-]+\.\w+", other.mark) and (other.document == block.document or other.kind == "toml"):
                (folder / other.mark).write_text(other.text)

    def check(self, block, command, folder, running):
        words, variables = without_variables(command)
        if words[0].startswith("cohive-"):
            if programs(words[0]):
                self.run_program(words, variables, folder, running)
        elif "/" in words[0] or words[0] == "python3":
            script = ROOT / (words[1] if words[0] == "python3" else words[0])
            shared = script.with_name("common.py")  # of the examples in Python
            text = script.read_text() + (shared.read_text() if shared.exists() else "")
            ours = words[:words.index("--")] if "--" in words else words
            for flag in [word for word in ours if word.startswith("--")]:
                self.assertRegex(text, rf"{flag}\b", f"{script.name} does not know {flag}")
        else:
            self.assertIn(words[0], SYSTEM, "neither a program of ours nor one that is known here")
            self.check_system(words)

    def check_system(self, words):
        if "-f" in words and words[0] == "docker":
            self.assertTrue((ROOT / words[words.index("-f") + 1]).is_file())
        if words[:2] == ["podman", "build"]:
            self.assertTrue((ROOT / "packaging/container" / (words[words.index("-f") + 1] if "-f" in words else "Containerfile")).is_file())
        if words[:2] == ["podman", "run"] and "cohive-bootstrap" in words:
            ours = words[words.index("cohive-bootstrap") + 1:]
            self.assertEqual(run("cohive-bootstrap", "--version", *ours).returncode, 0)
        for unit in [word for word in words if word.startswith("cohive-")]:
            if words[0] == "journalctl" or "systemctl" in words:
                self.assertTrue((ROOT / f"tools/{re.sub('@.*', '@', unit)}.service.in").is_file())

    def here(self, word, before):
        """A word of the documents, with an address that exists, and ports that are free."""
        if word == "..." or "..." in word and "/p2p/" in word or word.startswith("/ip4/203.0.113.7/") and before != "--announce-maddrs":
            return self.swarm
        word = re.sub(r"^/ip4/0\.0\.0\.0/tcp/\d+$", "/ip4/127.0.0.1/tcp/0", word)
        word = re.sub(r"^/ip6/::/tcp/\d+$", "/ip6/::1/tcp/0" if has_ipv6() else "/ip4/127.0.0.1/tcp/0", word)
        return re.sub(r"^127\.0\.0\.1:94\d\d$", "127.0.0.1:0", word).replace("~/", "")

    def run_program(self, words, variables, folder, running):
        program, *arguments = words
        if arguments[-1:] == ["..."] and (len(arguments) < 2 or not arguments[-2].startswith("--")):
            arguments.pop()  # and whatever else one likes
        flag = ""
        for at, word in enumerate(arguments):
            flag = word if word.startswith("--") else flag
            arguments[at] = self.here(word, flag)
        peers = self.here(variables.pop("INITIAL_PEERS", self.swarm), "")
        joins = {} if program in ("cohive-bootstrap", "cohive-train") else {"INITIAL_PEERS": peers}
        variables = {name: value.replace("$rank", "0") for name, value in variables.items()}
        if program == "cohive-train":
            model = [] if {"--text", "--model", "--config"} & set(arguments) else ["--model", "cnn"]
            arguments = ["--dry-run", *model, *arguments]
            arguments += ["--initial-peers", peers] if "--initial-peers" not in arguments else []
        elif program == "cohive-bench" or {"plot", "merge-traces"} & set(arguments):
            arguments = ["--version", *arguments]
        process = running.enter_context(subprocess.Popen([shell.BIN / program, *arguments], cwd=folder, stdout=subprocess.PIPE,
                                                         stderr=subprocess.PIPE, text=True, env={**environment, **joins, **variables}))
        running.callback(process.kill)
        line = process.stdout.readline()  # nothing: it has ended
        stays = program == "cohive-bootstrap" or program == "cohive-monitor" and not {"--once", "--version", "doctor"} & set(arguments)
        if not stays:
            _, errors = process.communicate(timeout=PATIENCE)
            self.assertIn(process.returncode, (0, 1) if "doctor" in arguments else (0,), errors)
            return
        self.assertTrue(line, process.stderr.read() if not line else "")
        if program == "cohive-bootstrap":
            joined = re.search(r"INITIAL_PEERS=(\S+) ", line)
            self.swarm = joined[1].split(",")[0] if joined else json.loads(line)["initial_peers"][0]
            if "203.0.113.7" in self.swarm or "example.org" in self.swarm:
                self.swarm = self.node  # it has announced an address of the documents

    def test_a_command_that_is_wrong_is_found_out(self):
        for wrong in ("cohive-bootstrap --host-maddrs nonsense", "cohive-dht store key", "cohive-trian --text corpus.txt", "tools/demo.sh --minutes 3",
                      "tools/no_such.sh", "curl example.org", "cohive-monitor --interval never --once"):
            with self.subTest(wrong=wrong), tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
                self.swarm = self.node
                with self.assertRaises((AssertionError, FileNotFoundError)):
                    self.assertTrue(programs(wrong.split()[0]) or not wrong.startswith("cohive-"))
                    self.check(None, wrong.split(), folder, running)


def has_ipv6():
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


if __name__ == "__main__":
    shell.main()
