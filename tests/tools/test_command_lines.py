"""What all programs have in common on the command line: options as flags, variables and lines of a file, units, --help;
and what scripts make of the folder in which they are called.

Usage: test_command_lines.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import itertools
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

import shell
from shell import NOBODY, PATIENCE, bootstrap, environment, programs, run, started

ROOT = Path(__file__).resolve().parents[2]
MANUAL = ROOT / "packaging/manual.py"
TOOLS = ROOT / "tools"
ALL = ("cohive-bootstrap", "cohive-train", "cohive-monitor", "cohive-dht", "cohive-bench")
FIRST, SECOND, THIRD = (f"/ip4/192.0.2.{number}/tcp/31337" for number in (1, 2, 3))


class CommandLines(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, content):
        path = Path(self.folder, name)
        path.write_text(content)
        return str(path)

    def refused(self, says, *command, env=None):
        result = run(*command, env={**environment, **(env or {})})
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
        self.assertIn(says, result.stderr)

    def announced(self, *arguments, env=None):
        """What a bootstrap node tells others, without its peer id."""
        with started("cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", *arguments, env={**environment, **(env or {})}) as node:
            return [address.split("/p2p/")[0] for address in json.loads(node.stdout.readline())["initial_peers"]]

    def test_every_program_says_its_version(self):
        for program in programs(*ALL):
            said = run(program, "--version")
            self.assertEqual((said.returncode, said.stderr), (0, ""))
            self.assertRegex(said.stdout, rf"^{program} \d+\.\d+\.\d+ \(.+, .+\)\n$")

    def test_help_has_groups_and_examples(self):
        for program in programs(*ALL):
            text = run(program, "--help").stdout
            self.assertGreaterEqual(len(re.findall(r"^\S.*:$", text, flags=re.MULTILINE)), 3, text)
            self.assertRegex(text, rf"(?m)^Examples:\n  {program} ")

    def test_help_of_the_trainer_is_what_a_user_chooses_from(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        short, whole = (set(re.findall(r"(?m)^  (--[\w-]+)", run("cohive-train", flag).stdout))
                        for flag in ("--help", "--help-all"))
        self.assertLess(short, whole)
        self.assertLessEqual(len(short), 75)
        self.assertIn("--verified-share", whole - short)
        self.assertIn("--help-all", short)

    def test_any_option_of_the_trainer_can_be_set_by_its_name(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        dry = ["--model", "cnn", "--dry-run", "--json"]
        plan = json.loads(run("cohive-train", *dry, "--set", "target_batch_size=96", "--set=batch-size=8").stdout)
        self.assertEqual((plan["target_batch_size"], plan["batch_size"]), (96, 8))
        for setting, says in (("clip-factr=3", "clip-factor"), ("clip-factor", "name=value"), ("=3", "name=value"),
                              ("clip-factor=0.5", "--clip-factor"), ("config=x", "name=value")):
            self.refused(says, "cohive-train", *dry, "--set", setting)
        self.refused("--set", "cohive-train", *dry, "--set")

    def test_rounds_of_local_steps_are_fitted_unless_they_are_given(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        dry = ["--model", "cnn", "--dry-run", "--json"]
        for flags, target in ((["--local-steps"], None), (["--local-steps", "--fp16"], None), ([], 1024),
                              (["--local-steps", "--no-fit-my-link"], 1024),
                              (["--local-steps", "--target-batch-size", "96"], 96)):
            self.assertEqual(json.loads(run("cohive-train", *dry, *flags).stdout)["target_batch_size"], target, flags)
        self.refused("--local-steps", "cohive-train", *dry, "--fit-my-link")
        self.refused("--target-batch-size", "cohive-train", *dry, "--local-steps", "--fit-my-link",
                     "--target-batch-size", "96", "--grad-compression", "none")

    def test_fragments_are_those_of_local_steps(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        dry = ["cohive-train", "--model", "cnn", "--dry-run", "--json", "--fragments"]
        self.assertEqual(run(*dry, "2", "--local-steps").returncode, 0)
        self.refused("--local-steps", *dry, "2")
        for number in ("0", "65", "1.5", "-1"):
            self.refused("--fragments", *dry, number, "--local-steps")

    def test_beside_opendiloco_nothing_is_fitted(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        dry = ["cohive-train", "--model", "cnn", "--dry-run", "--json", "--open-diloco"]
        self.assertEqual(run(*dry, "--local-steps", "--target-batch-size", "96").returncode, 0)
        self.refused("--local-steps", *dry)
        self.refused("OpenDiLoCo", *dry, "--local-steps", "--fit-my-link")
        self.refused("outer_optimizer.fragments", *dry, "--local-steps", "--fragments", "2")

    def test_sparse_differences_go_with_local_steps_alone(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        sparse = ["cohive-train", "--model", "cnn", "--dry-run", "--json", "--agreed-compression", "sparse2"]
        self.assertEqual(run(*sparse, "--local-steps").returncode, 0)
        self.assertEqual(run(*sparse, "--local-steps", "--aggregation", "mean", "--density", "0.03").returncode, 0)
        self.refused("outer_optimizer", *sparse)
        self.refused("momentum to 0", *sparse, "--local-steps", "--outer-momentum", "0.5")
        self.refused("verified_share", *sparse, "--local-steps", "--verified-share", "0.1")

    def test_full_states_go_with_rounds_of_parameters_as_they_are(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        full = ["cohive-train", "--model", "cnn", "--dry-run", "--json", "--full-state-every", "20"]
        self.assertEqual(run(*full).returncode, 0)
        self.assertEqual(run(*full, "--use-local-updates", "--aggregation", "trimmed-mean").returncode, 0)
        self.refused("outer_optimizer", *full, "--local-steps")
        self.refused("state_averaging_compression", *full, "--state-averaging-compression", "float16")
        self.refused("ClippedMean", *full, "--aggregation", "clipped-mean")

    def test_manual_pages_and_completions_are_made(self):
        """What they hold is tested where they are installed: tests/package/test_debian.py."""
        for program in programs(*ALL):
            with self.subTest(program=program):
                subprocess.run([sys.executable, MANUAL, shell.BIN / program, "1.2.3", self.folder], check=True, timeout=PATIENCE)
                subprocess.run(["bash", "-n", f"{self.folder}/{program}"], check=True)
                page = Path(self.folder, program + ".1")
                for words in (".SH EXAMPLES", ".SH SETTINGS", "cohive 1.2.3"):
                    self.assertIn(words, page.read_text())
                if shutil.which("man") and shutil.which("groff"):
                    shown = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page], capture_output=True, text=True)
                    self.assertEqual((shown.returncode, shown.stderr), (0, ""))

    def test_a_flag_goes_before_the_file_and_the_file_before_the_variable(self):
        variables = {"COHIVE_BOOTSTRAP_ANNOUNCE_MADDRS": FIRST + "," + SECOND, "COHIVE_BOOTSTRAP_JSON": "true"}
        file = ["--config", self.file("node.toml", f'announce_maddrs = ["{SECOND}"]\njson = true\n')]
        self.assertEqual(self.announced(env=variables), [FIRST, SECOND])
        self.assertEqual(self.announced(*file, env=variables), [SECOND])
        self.assertEqual(self.announced(*file, "--announce_maddrs", THIRD, env=variables), [THIRD])

    def test_a_file_has_a_section_for_each_subcommand(self):
        with bootstrap() as (_, node):
            settings = f'json = true\ninitial-peers = "{node["initial_peers"][0]}"\n[serve]\nmetrics_address = "127.0.0.1:0"\n'
            with started("cohive-monitor", "--config", self.file("monitor.toml", settings), "serve") as monitor:
                self.assertRegex(json.loads(monitor.stdout.readline())["metrics"], r"^http://127\.0\.0\.1:\d+/metrics")

    def test_options_of_subcommands_have_variables(self):
        with bootstrap() as (_, node):
            variables = {"INITIAL_PEERS": node["initial_peers"][0], "COHIVE_DHT_JSON": "true", "COHIVE_DHT_STORE_SUBKEY": "of the environment"}
            self.assertEqual(run("cohive-dht", "store", "key", "1", env={**environment, **variables}).returncode, 0)
            (line,) = run("cohive-dht", "get", "key", env={**environment, **variables}).stdout.splitlines()
            self.assertEqual([entry["subkey"] for entry in json.loads(line)["entries"]], ["of the environment"])

    def test_an_option_of_another_subcommand_changes_nothing(self):
        seeds = {"COHIVE_BENCH_FAULTS_SEED": "7", "COHIVE_BENCH_ADVERSARY_SEED": "8"}
        result = run("cohive-bench", "faults", "--runs", "1", "--seed", "5", env={**environment, **seeds, "COHIVE_BENCH_ADVERSARY_RUNS": "100000000"})
        self.assertEqual(result.returncode, 2, "a value that is none is refused wherever it is")
        result = run("cohive-bench", "faults", "--runs", "1", "--seed", "5", env={**environment, **seeds})
        self.assertEqual(json.loads(result.stdout)["first_seed"], 5)

    def test_services_of_kubernetes_are_no_options(self):
        links = {"COHIVE_DHT_SERVICE_HOST": "10.0.0.1", "COHIVE_DHT_SERVICE_PORT": "31337", "COHIVE_DHT_SERVICE_PORT_TCP": "31337",
                 "COHIVE_DHT_PORT": "tcp://10.0.0.1:31337", "COHIVE_DHT_PORT_31337_TCP": "tcp://10.0.0.1:31337",
                 "COHIVE_DHT_PORT_31337_TCP_ADDR": "10.0.0.1"}
        with bootstrap() as (_, node):
            self.assertEqual(run("cohive-dht", "peers", "--initial-peers", node["initial_peers"][0], env={**environment, **links}).returncode, 0)
        self.refused("COHIVE_DHT_PORT", "cohive-dht", "peers", env={"COHIVE_DHT_PORT": "31337"})

    def test_a_flag_that_says_no_says_no_in_the_environment(self):
        with started("cohive-bootstrap", "--host-maddrs", "/ip4/0.0.0.0/tcp/0", "--json", "--metrics-address", "127.0.0.1:0",
                     env={**environment, "COHIVE_BOOTSTRAP_NO_NAT_PORT_MAP": "true"}) as node:
            with urllib.request.urlopen(json.loads(node.stdout.readline())["page"] + "debug/tasks", timeout=PATIENCE) as answer:
                tasks = answer.read().decode()
        self.assertIn("listening / accept", tasks)
        self.assertNotIn("map ports", tasks)

    def test_settings_that_are_none_are_refused(self):
        self.refused("COHIVE_DHT_NO_SUCH", "cohive-dht", "peers", env={"COHIVE_DHT_NO_SUCH": "1"})
        self.refused("unknown.toml:1: there is no option \"no_such\"", "cohive-bootstrap", "--config", self.file("unknown.toml", "no_such = 1\n"))
        self.refused("missing.toml", "cohive-bootstrap", "--config", self.folder + "/missing.toml")
        self.refused("--ttl", "cohive-dht", "--config", self.file("bad.toml", "[store]\nttl = 0\n"), "store", "key", "1")
        for program in programs(*ALL):
            command = {"cohive-dht": ["peers"], "cohive-bench": ["codec"]}.get(program, [])
            self.refused("--log-level", program, *command, env={"COHIVE_LOG_LEVEL": "loud"})

    def test_options_that_nothing_would_look_at_are_refused(self):
        relay = f"{FIRST}/p2p/{NOBODY}"
        node, monitor = "cohive-bootstrap", "cohive-monitor"
        limits = ("--relay-reservations", "--relay-reservations-per-network", "--relay-circuits",
                  "--relay-circuits-per-peer", "--relay-megabytes", "--relay-minutes")
        pairs = [(flag, "--relay", node, flag, "5") for flag in limits]
        pairs += [("--state-period", "--state-path", node, "--state-period", "5"),
                  ("--metrics-token-file", "--metrics-address", node, "--metrics-token-file", "any"),
                  ("--trusted-relays", "--no-relay", node, "--no-relay", "--trusted-relays", relay),
                  ("--once", "serve", monitor, "serve", "--once"),
                  ("--once", "serve", monitor, "--once", "serve"),
                  ("--interval", "--once", monitor, "--once", "--interval", "5"),
                  ("--crawl-interval", "--once", monitor, "--once", "--crawl-interval", "5"),
                  ("--crawl-interval", "--json", monitor, "--json", "--crawl_interval=5"),
                  ("--run-id", "merge-traces", monitor, "merge-traces", "FILE", "-o", "out", "--run-id", "any")]
        looks = (["--interval", "5"], ["--crawl-interval", "5"], ["--target-batch-size", "5"], ["--once"])
        of_the_swarm = (["--json"], ["--initial-peers", relay], ["--secret-file", "any"], ["--members", "any"],
                        ["--identity-path", "any"])
        pairs += [(flag, "plot", monitor, "plot", "FILE", "-o", "out", flag, *value)
                  for flag, *value in (*looks, *of_the_swarm)]
        pairs += [(flag, "doctor", monitor, "doctor", relay, flag, *value) for flag, *value in looks]
        commands = {"cohive-dht": ["peers"], "cohive-bench": ["codec"]}
        megabytes = "--log-file-megabytes"
        pairs += [(megabytes, "without --log-file", program, *commands.get(program, []), megabytes, "5")
                  for program in programs(*ALL)]
        if programs("cohive-train"):
            trainer = ["cohive-train", "--model", "cnn", "--dry-run"]
            pairs += [("--metrics-token-file", "--metrics-address", *trainer, "--metrics-token-file", "any"),
                      ("--trusted-relays", "--no-relay", *trainer, "--no-relay", "--trusted-relays", relay),
                      ("--trusted-relays", "--client", *trainer, "--client", "--trusted-relays", relay)]
        for flag, other, *command in pairs:
            with self.subTest(command=command):
                self.refused(flag, *command)
                self.refused(other, *command)

    def test_options_for_other_commands_may_stand_in_a_file_and_in_variables(self):
        variables = {"COHIVE_MONITOR_INTERVAL": "5", "COHIVE_MONITOR_ONCE": "true", "COHIVE_LOG_FILE_MEGABYTES": "5"}
        file = ["--config", self.file("monitor.toml", "interval = 5\nonce = true\ncrawl-interval = 5\n")]
        plot = ["plot", self.folder + "/none", "-o", self.folder + "/picture"]
        self.refused("cannot read " + self.folder + "/none", "cohive-monitor", *plot, env=variables)
        self.refused("cannot read " + self.folder + "/none", "cohive-monitor", *file, *plot)
        with bootstrap() as (_, node):
            peers = ["--initial-peers", node["initial_peers"][0]]
            # The file of `serve`, which would be refused as one that cannot be written, and its token.
            serves = {"COHIVE_MONITOR_SERVE_HISTORY": self.folder + "/no/such/file",
                      "COHIVE_MONITOR_SERVE_METRICS_TOKEN_FILE": "/none"}
            once = run("cohive-monitor", "--once", *peers, env={**environment, **serves})
            self.assertEqual(once.returncode, 0, once.stderr)
            text = f'once = true\ninitial-peers = "{node["initial_peers"][0]}"\n'
            settings = self.file("both.toml", text + '[serve]\nmetrics-address = "127.0.0.1:0"\n')
            with started("cohive-monitor", "--config", settings, "serve") as monitor:
                self.assertRegex(monitor.stdout.readline(), "^Page: ")
        serving = ["--relay", "--relay-circuits", "5"]
        self.assertEqual(self.announced("--json", "--announce-maddrs", FIRST, *serving), [FIRST])
        config = self.file("node.toml", f'no-relay = false\ntrusted-relays = ["{SECOND}/p2p/{NOBODY}"]\n')
        self.assertEqual(self.announced("--json", "--announce-maddrs", FIRST, "--config", config), [FIRST])

    def test_times_have_units(self):
        periods = ["--refresh-period", "1m", "--state_period=500ms", "--state-path", self.folder + "/state"]
        self.assertEqual(self.announced("--json", *periods, "--announce-maddrs", FIRST), [FIRST])
        self.refused("--refresh-period", "cohive-bootstrap", "--refresh-period", "500ms")  # a second is the least
        for time in ("5 parsecs", "5M", "m m", "-1s"):
            self.refused("--interval", "cohive-monitor", "--interval", time)
        if programs("cohive-train"):
            checkpoints = ["--checkpoint-dir", self.folder, "--checkpoint-every"]
            for time in ("600", "10m", "1.5h", "5epochs"):
                planned = run("cohive-train", "--model", "cnn", "--dry-run", "--matchmaking-time", "1500ms", *checkpoints, time)
                self.assertEqual(planned.returncode, 0, planned.stderr)
            self.refused("--checkpoint-every", "cohive-train", *checkpoints, "10weeks")

    def test_the_second_interrupt_ends_a_program_at_once(self):
        with bootstrap() as (node, _):
            while node.poll() is None:
                node.send_signal(signal.SIGINT)
            self.assertIn(node.returncode, (0, -signal.SIGINT))


class Scripts(unittest.TestCase):
    """tools/*.sh, called in another folder than the repository's."""

    def setUp(self):
        """A copy of the scripts, which end where they would install something; my.txt lies where they are called."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.tools = Path(shutil.copytree(TOOLS, self.folder / "copy/tools"))
        self.script(self.tools / "install-deps.sh", 'echo "installing $*"; exit 1')
        (self.folder / "my.txt").touch()

    def script(self, path, body):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    def called(self, name, *options):
        path = f"{self.folder}/path:{environment['PATH']}"
        return subprocess.run([self.tools / name, *options], env={**environment, "PATH": path, "PYTHON": "python3"}, cwd=self.folder,
                              capture_output=True, text=True, timeout=PATIENCE)

    def test_help_is_that_of_the_script(self):
        scripts = [path.name for path in TOOLS.glob("*.sh") if path.name != "lib.sh"]
        self.assertGreater(len(scripts), 6)
        for name in scripts:
            shown = subprocess.run(["./" + name, "--help"], cwd=TOOLS, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual((shown.returncode, shown.stderr), (0, ""), name)
            self.assertTrue(shown.stdout.startswith(f"tools/{name} ["), shown.stdout)

    def test_paths_are_those_of_the_caller(self):
        missing = self.called("demo.sh", "--text", "none.txt")
        self.assertEqual((missing.returncode, missing.stderr), (2, f"demo.sh: cannot read {self.folder}/none.txt\n"))
        self.assertEqual(self.called("demo.sh", "--text", "my.txt").stdout, "installing \n")
        for program in (self.tools / "install-deps.sh", *[self.folder / "path" / name for name in ("cmake", "ninja", "clang++-19")]):
            self.script(program, "exit 0")
        self.script(self.folder / "path/python3", 'echo "in $PWD: $*"; exit 1')
        self.called("wheel.sh", "--out", "dist")
        self.assertTrue((self.folder / "dist").is_dir())
        measured = self.called("convergence.sh", "--text", "my.txt", "--output", "table.md")
        self.assertIn(f"in {self.folder}: {self.tools.parent}/benchmarks/convergence.py --text my.txt --output table.md\n", measured.stdout)

    def test_packages_are_left_alone_where_that_is_asked_for(self):
        for name in ("demo.sh", "convergence.sh"):
            self.assertEqual(self.called(name, "--no-apt", "--text", "my.txt").stdout, "installing --no-apt\n")

    def test_whatever_is_tested_can_be_installed(self):
        """What reads the options of install-deps.sh is the real one, up to its first function."""
        reading, installing, _ = (TOOLS / "install-deps.sh").read_text().partition("\nas_root() {")
        self.assertTrue(installing)
        (self.tools / "install-deps.sh").write_text(reading + '\necho "installing $*"; exit 1\n')
        builds = ([], ["--asan"], ["--tsan"], ["--tsan", "--threads"], ["--aarch64"], ["--gcc"])
        others = ([], ["--slow"], ["--all"]), ([], ["--no-interop"]), ([], ["--no-apt"])
        for chosen in itertools.product(builds, *others):
            options = list(itertools.chain(*chosen))
            with self.subTest(options=options):
                asked = self.called("test.sh", *options)
                self.assertEqual(asked.stderr, "")
                self.assertTrue(asked.stdout.startswith("installing "), asked.stdout)
                installed = asked.stdout.split()
                self.assertEqual("--browser" in installed, options[:1] == ["--all"])
                self.assertEqual("--no-apt" in installed, "--no-apt" in options)

    def test_the_last_line_counts_the_tests(self):
        case = '<testcase name="{}" time="{}" status="{}">{}</testcase>'
        cases = [case.format("quick", 0.5, "run", ""), case.format("slow", 12.34, "run", ""),
                 case.format("wrong", 3, "fail", "<failure/>"),
                 case.format("absent", 0, "notrun", '<skipped message="SKIP_RETURN_CODE=77"/>'),
                 case.format("missing", 0, "notrun", '<skipped message="Unable to find executable"/>')]
        report = self.folder / "report.xml"
        self.script(self.tools / "install-deps.sh", "exit 0")
        for name in ("cmake", "ninja", "clang++-19"):
            self.script(self.folder / "path" / name, "exit 0")
        find = 'while [ "$1" != --output-junit ]; do shift; done'
        self.script(self.folder / "path/ctest", f'{find}; mkdir -p "${{2%/*}}"; cp {report} "$2"')
        for count, code, last in ((5, 1, "2 passed, 2 failed, 1 skipped"), (2, 0, "2 passed, 0 failed, 0 skipped")):
            report.write_text(f"<testsuite>{''.join(cases[:count])}</testsuite>")
            tested = self.called("test.sh")
            self.assertEqual((tested.returncode, tested.stderr), (code, ""))
            self.assertEqual(tested.stdout.splitlines()[-1], last)
            self.assertIn("in seconds:\n   12.3  slow\n", tested.stdout)


if __name__ == "__main__":
    shell.main()
