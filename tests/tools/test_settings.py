"""What programs make of settings: numbers, files of --config, names of runs, variables.

Usage: test_settings.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import concurrent.futures
import json
import re
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

import shell
from shell import NOBODY, PATIENCE, bootstrap, environment, programs, run, started

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging"))
from manual import Help  # noqa: E402
from reference import Option  # noqa: E402

ALL = ("cohive-bootstrap", "cohive-train", "cohive-monitor", "cohive-dht", "cohive-bench")
PLAN = ["cohive-train", "--model", "cnn", "--dry-run", "--json"]  # says what a trainer makes of its settings
LONGEST = 300  # characters of a line of refusal
PEERS = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}" for port in (1, 2)]


class SettingsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, content, name="run.toml"):
        path = Path(self.folder, name)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def check_refusal(self, result, *says):
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
        self.assertLess(len(result.stderr), LONGEST, result.stderr)
        for words in says:
            self.assertIn(words, result.stderr)

    def refused(self, *command, says=(), env=None):
        with self.subTest(command=command[1:], env=env):
            self.check_refusal(run(*command, env={**environment, **(env or {})}), *says)

    def plan(self, *arguments, env=None):
        result = run(*PLAN, *arguments, env={**environment, **(env or {})})
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def plan_of(self, content):
        return self.plan("--config", self.file(content))

    def needs_trainer(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")


def numbers_of(program):
    """(subcommand or None, name, variable, value) of every option whose value is a number, as --help tells."""
    top = Help(shell.BIN / program)
    for command in (None, *top.subcommands()):
        for _, entries in Help(shell.BIN / program, *filter(None, [command])).groups if command else top.groups:
            for entry in entries:
                signature = entry[0]
                found = re.match(r"(\S+) (INT|UINT|FLOAT|TIME|RATE|PERIOD)\b", signature)
                if found and found[1].startswith("-"):
                    yield command, Option(*entry).names[-1], Option(*entry).variable, found[2]


class Numbers(SettingsTest):
    NONE = ("nan", "-nan", "inf", "-inf", "-5", "0x10", "1_000", "1,000", "5x", "5 5", " 5", "", "five", "9" * 400, "1e999", '"32"', "'32'", "5e", "+-5",
            "--5", "٣")
    command = {"cohive-train": ["--model", "cnn", "--dry-run"], "cohive-monitor": ["--once"]}

    def words(self, program, command):
        words = [command] if command else ["peers"] if program == "cohive-dht" else ["codec"] if program == "cohive-bench" else []
        return [*words, *self.command.get(program, []), *{"store": ["KEY", "1"], "plot": ["FILE", "-o", "out"]}.get(command, [])]

    def test_every_option_of_every_program_refuses_what_is_no_number(self):
        """All values for the first option of each kind; one value for all others, in one of the three places after the other."""
        tried, kinds = [], set()
        for program in programs(*ALL):
            for number, (command, name, variable, kind) in enumerate(numbers_of(program)):
                words = self.words(program, command)
                for value in () if kind in kinds else self.NONE:
                    tried.append(([program, *words, f"{name}={value}"], {}, name))
                kinds.add(kind)
                key = f'{name[2:]} = nan\n'
                config = self.file(f"[{command}]\n{key}" if command else key, f"{program} {command} {name}.toml")
                tried.append((([program, *words, f"{name}={'0x10' if number % 2 else '9' * 400}"], {}, name),
                              ([program, *words], {variable: "5y"}, name),
                              ([program, "--config", config, *words], {}, f"{config}:{2 if command else 1}: {name}"))[number % 3])
        self.assertGreater(len({(words[0], name) for words, _, name in tried}), 60)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            results = pool.map(lambda one: run(*one[0], env={**environment, **one[1]}), tried)
            for (command, env, says), result in zip(tried, results):
                with self.subTest(command=command, env=env):
                    self.check_refusal(result, says)

    def test_zeros_before_a_number_change_nothing(self):
        self.needs_trainer()
        for arguments, env in ((["--target-batch-size", "0512"], {}), ([], {"COHIVE_TRAIN_TARGET_BATCH_SIZE": "0512"}),
                               (["--config", self.file('target-batch-size = "0512"\n')], {}), (["--target-batch-size=+512"], {})):
            self.assertEqual(self.plan(*arguments, env=env)["target_batch_size"], 512)
        self.assertEqual(self.plan("--learning-rate", "01e-3")["learning_rate"], 0.001)
        self.refused(*PLAN, "--config", self.file("target-batch-size = 0512\n"), says=["run.toml:1: "])  # as TOML has it

    def test_muon_has_rates_of_its_own_and_is_never_offloaded(self):
        self.needs_trainer()
        self.assertEqual(self.plan("--optimizer", "muon")["learning_rate"], 0.02)
        self.assertEqual(self.plan("--optimizer", "muon", "--learning-rate", "0.05", "--adamw-learning-rate", "1e-4")["learning_rate"], 0.05)
        self.assertEqual(self.plan("--optimizer", "adam")["learning_rate"], 0.001)
        self.refused(*PLAN, "--adamw-learning-rate", "1e-4", says=["--optimizer muon"])
        self.refused(*PLAN, "--optimizer", "muon", "--momentum", "1", says=["--momentum"])
        for flags in (["--offload-optimizer"], ["--delay-optimizer-step"]):
            self.refused(*PLAN, "--optimizer", "muon", *flags, says=["steps where the model is"])

    def test_whole_numbers_are_whole(self):
        self.needs_trainer()
        for value in ("1e3", "5.0", "18446744073709551616", "-0", "1e"):
            self.refused(*PLAN, f"--seed={value}", says=["--seed"])
        self.assertEqual(self.plan("--seed", "18446744073709551615")["event"], "dry_run")
        for value in ("5.0", "1e3", "true", "2026-01-01", "[5]", "{ a = 5 }", "[]"):
            self.refused(*PLAN, "--config", self.file(f"seed = {value}\n"), says=["run.toml:1: "])

    def test_what_goes_wrong_in_training_is_refused_before_it(self):
        self.needs_trainer()
        for setting in ("learning-rate=0", "learning-rate=1e-400", "learning-rate=1e400", "momentum=1.01", "momentum=nan", "lr-gamma=nan",
                        "clip-grad-norm=-1", "clip-grad-norm=nan", "until=nan", "until=-5", "max-epochs=-1", "max-epochs=99999999999999999999",
                        "target-batch-size=0", "grad-compression=0x10:none:float16", "checkpoint-every=5.5epochs", "bandwidth=0x1000",
                        "max-upload=1e", "max-upload=infK", "metrics-address=127.0.0.1:0x50", "metrics-address=127.0.0.1:65536", "metrics-address=9464", "wait-for-swarm=-2"):
            name, _, value = setting.partition("=")
            self.refused(*PLAN, "--checkpoint-dir", self.folder, "--" + setting, says=["--" + name])
            self.refused(*PLAN, "--checkpoint-dir", self.folder, says=[name], env={"COHIVE_TRAIN_" + name.upper().replace("-", "_"): value})

    def test_quotes_of_docker_are_told(self):
        self.needs_trainer()
        for value in ('"32"', "'32'"):
            self.refused(*PLAN, env={"COHIVE_TRAIN_BATCH_SIZE": value}, says=["--batch-size", "leave the quotes out"])
        self.refused(*PLAN, env={"COHIVE_TRAIN_RUN_ID": '"my_run"'}, says=["COHIVE_TRAIN_RUN_ID", "in quotes", "leave them out"])
        with bootstrap() as (_, node):  # a text of JSON has quotes of its own
            env = {"INITIAL_PEERS": node["initial_peers"][0], "COHIVE_DHT_JSON": "true", "COHIVE_DHT_STORE_SUBKEY": '"5"'}
            self.assertEqual(run("cohive-dht", "store", "key", "1", env={**environment, **env}).returncode, 0)
            (line,) = run("cohive-dht", "get", "key", env={**environment, **env}).stdout.splitlines()
            self.assertEqual([entry["subkey"] for entry in json.loads(line)["entries"]], ["5"])


class ConfigFiles(SettingsTest):
    def setUp(self):
        super().setUp()
        self.needs_trainer()

    def test_texts_are_what_toml_says(self):
        for written, meant in (('"run#1"', "run#1"), ("'run#1'", "run#1"), ('"a=b"', "a=b"), ('"a, b"', "a, b"), ('"tab\\u00e9"', "tabé"),
                               ('"say \\"hi\\""', 'say "hi"'), ("'back\\slash'", "back\\slash"), ('"""\nrun"""', "run"), ('"läuft"', "läuft"),
                               ('"[x]"', "[x]"), ('" x "', " x "), ('"x" # a comment', "x"), ('"x"   ', "x"), ('"5"', "5")):
            with self.subTest(written=written):
                self.assertEqual(self.plan_of(f"run-id = {written}\n")["run_id"], meant)

    def test_numbers_are_what_toml_says(self):
        for written, meant in (("10_000", 10000), ("0x200", 512), ("+512", 512), ('"512"', 512)):
            self.assertEqual(self.plan_of(f"target_batch_size = {written}\n")["target_batch_size"], meant)
        for written, meant in (("1e-2", 0.01), ("5_0.5", 50.5), ("1", 1)):
            self.assertEqual(self.plan_of(f"learning-rate={written}\n")["learning_rate"], meant)

    def test_lists_may_have_several_lines_or_nothing(self):
        one, other = PEERS
        for written, meant in ((f'["{one}", "{other}"]', PEERS), (f'[\n  "{one}", # the first\n  "{other}",\n]', PEERS), (f'"{one}"', [one]),
                               (f'"{one} {other}"', PEERS), (f'"{one},{other}"', PEERS), ("[]", [])):
            with self.subTest(written=written):
                self.assertEqual(self.plan_of(f"initial-peers = {written}\nrun-id = 'after'\n")["initial_peers"], meant)
        empty = self.file("initial-peers = []\n")
        for variable in ("COHIVE_TRAIN_INITIAL_PEERS", "INITIAL_PEERS", "PL_INITIAL_PEERS"):
            self.assertEqual(self.plan("--config", empty, env={variable: one})["initial_peers"], [], variable)
        self.assertEqual(self.plan("--config", empty, "--initial-peers", one)["initial_peers"], [one])

    def test_any_editor_may_have_written_it(self):
        text = "# of my run\r\n\r\nrun-id = 'mine'\r\nbatch-size = 8\r\n"
        for content in (text, "\ufeff" + text, text.replace("\r", ""), text.rstrip(), "\t" + text.replace(" = ", "\t=\t"), text.replace("batch-size", '"batch-size"')):
            plan = self.plan_of(content)
            self.assertEqual((plan["run_id"], plan["batch_size"]), ("mine", 8))
        self.assertEqual(self.plan_of("")["run_id"], "cohive_run")
        self.assertEqual(self.plan("--config", "/dev/null")["run_id"], "cohive_run")

    def test_flags_are_true_or_false(self):
        self.plan_of("use-relay = false\nfp16 = true\njson = true\n")
        self.plan_of("no-relay = true\n")
        for value in ("1", '"true"', "yes", "[true]", '""'):
            self.refused(*PLAN, "--config", self.file(f"fp16 = {value}\n"), says=["run.toml:1: "])

    def test_mistakes_are_told_with_their_line(self):
        for content, line, says in (("run-id = my_run", 1, ""), ("a\nb", 1, ""), ("run-id = 'x'\nrun-id = 'y'", 2, ""),
                                    ("batch-size = 8\nbatch_size = 9", 2, "batch_size sets what batch-size"),
                                    ("client = true\n\nclient-mode = true", 3, "client-mode"), ("use-relay = true\nno-relay = false", 2, "no-relay"),
                                    ("\nbatchsize = 8", 2, "did you mean batch-size?"), ("target_batchsize = 8", 1, "did you mean target-batch-size?"),
                                    ("colour = 'red'", 1, 'no option "colour"'), ("[swarm]\nclient = true", 1, "[swarm]"), ("[optimizer]\nmomentum = 0.5", 1, "optimizer is an option"),
                                    ("train.batch-size = 5", 1, "[train]"), ("batch-size.x = 5", 1, "batch-size is an option"),
                                    ("[[run]]\nid = 5", 1, "run"), ("batch-size = 8\nrun-id = 5", 2, "run-id takes a text in quotes"),
                                    ("run-id = 2026-01-01", 1, "text in quotes"), ("run-id = ['a']", 1, "not a list"),
                                    ("initial-peers = [5]", 1, "text in quotes"), ("initial-peers = [['a']]", 1, "text in quotes"),
                                    ("until = 2026-01-01T00:00:00Z", 1, "number"), ("\n\n\nbatch-size = 0", 4, "--batch-size"),
                                    ("help = true", 1, "command line"), ("config = 'other.toml'", 1, "command line"),
                                    ("run-id = 'a", 1, ""), ("run-id = \"\\q\"", 1, ""), ("run-id = '\xff'".encode("latin-1"), 1, ""),
                                    ("optimizer = 'x'", 1, "--optimizer"), ("learning-rate = inf", 1, "--learning-rate"), ("[", 1, "")):
            self.refused(*PLAN, "--config", self.file(content), says=[f"/run.toml:{line}: ", says])

    def test_files_that_are_none(self):
        missing = self.folder + "/missing.toml"
        for path in (missing, self.folder):
            self.refused(*PLAN, "--config", path, says=[path])
        self.refused(*PLAN, "--config", "/dev/zero", says=["/dev/zero"])
        self.refused(*PLAN, "--config", self.file("# " + "x" * (1 << 20)), says=["1 MiB"])
        twice = [word for name in ("a", "b") for word in ("--config", self.file("run-id = 'x'\n", name))]
        self.refused(*PLAN, *twice, says=["--config"])

    def test_sections_are_subcommands(self):
        for content, line, says in (("[stor]\nttl = 5", 1, "did you mean store?"), ("[store]\nttll = 5", 2, "did you mean ttl?"),
                                    ("ttl = 5", 1, "ttl"), ("store = 5", 1, "store"), ("[store]\nkey = 'x'", 2, "key"), ("store.ttl = 0", 1, "--ttl")):
            self.refused("cohive-dht", "--config", self.file(content), "peers", says=[f"/run.toml:{line}: ", says])
        with bootstrap() as (_, node):
            for content in ("[store]\nsubkey = 5\n", "store.subkey = '5'\n", "store = { subkey = 5 }\n"):
                peers = ["--initial-peers", node["initial_peers"][0]]
                config = self.file(f"json = true\n{content}")
                self.assertEqual(run("cohive-dht", *peers, "--config", config, "store", "key", "1").returncode, 0)
                found = json.loads(run("cohive-dht", *peers, "--config", config, "get", "key").stdout)
                self.assertEqual([entry["subkey"] for entry in found["entries"]], [5])


class NamesOfRuns(SettingsTest):
    NONE = (b"", b"\xff", b"run\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"a\nb", b"a\tb", b"a\x7f", b"\xc2\x85", b"x" * 257,
            b"a.b")

    def test_names_that_others_could_not_read_are_refused(self):
        commands = [["cohive-monitor", "--once"], ["cohive-monitor", "serve"], ["cohive-dht", "doctor"]] + ([PLAN] if programs("cohive-train") else [])
        for command in commands:
            for name in self.NONE:
                self.refused(*command, b"--run-id=" + name if name else "--run-id=", says=["--run-id"])
            self.refused(command[0], "--config", self.file('run-id = "a\\u0007b"\n'), *command[1:] if command[0] != "cohive-dht" else ["peers"],
                         says=["run.toml:1: "])

    def test_all_others_work_everywhere(self):
        for name in ("run#1", "läuft", "走る", "user/run", 'a "b"', "back\\slash", "x" * 256, "🙂", "a b", "{}", "%s"):
            with self.subTest(name=name), bootstrap() as (_, node):
                peers = ["--initial-peers", node["initial_peers"][0]]
                line = run("cohive-monitor", "--once", "--json", "--run-id", name, *peers)
                self.assertEqual(line.returncode, 0, line.stderr)
                self.assertEqual(json.loads(line.stdout)["run_id"], name)
                with started("cohive-monitor", "serve", "--json", "--run-id", name, "--metrics-address", "127.0.0.1:0", *peers) as monitor:
                    with urllib.request.urlopen(json.loads(monitor.stdout.readline())["metrics"], timeout=PATIENCE) as answer:
                        metrics = answer.read().decode()  # throws for what is no UTF-8
                self.assertIn('run_id="' + name.replace("\\", "\\\\").replace('"', '\\"') + '"', metrics)


class Variables(SettingsTest):
    def test_unknown_ones_are_told_with_the_known_one(self):
        for name, known in (("COHIVE_DHT_STORE_TTLL", "COHIVE_DHT_STORE_TTL"), ("COHIVE_DHT_INITIAL_PEER", "COHIVE_DHT_INITIAL_PEERS"),
                            ("COHIVE_LOG_LEVL", "COHIVE_LOG_LEVEL")):
            self.refused("cohive-dht", "peers", env={name: "1"}, says=[name + " is set", f"did you mean {known}?"])

    def test_those_of_other_programs_and_empty_ones_are_left_alone(self):
        with bootstrap() as (_, node):
            for env in ({"COHIVE_TRAIN_BATCH_SIZE": "none"}, {"COHIVE_HOME": "/"}, {"COHIVE_DHT_STORE_TTL": ""}, {"COHIVE_DHT_IDENTITY_PATH": ""}):
                result = run("cohive-dht", "peers", "--initial-peers", node["initial_peers"][0], env={**environment, **env})
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_flag_that_is_false_contradicts_nothing(self):
        env = {"COHIVE_BOOTSTRAP_NO_RELAY": "false", "COHIVE_BOOTSTRAP_USE_AUTO_RELAY": "true"}
        with bootstrap(env={**environment, **env}) as (_, node):
            self.assertTrue(node["initial_peers"])
        self.refused("cohive-bootstrap", env={name: "true" for name in env}, says=["--use-auto-relay", "--no-relay"])
        self.refused("cohive-bootstrap", "--no-relay", "--use-auto-relay", says=["--use-auto-relay", "--no-relay"])
        if programs("cohive-train"):
            self.plan(env={"COHIVE_TRAIN_RESUME": "false"})
            self.refused(*PLAN, "--resume", says=["--resume", "--checkpoint-dir"])

    def test_addresses_are_separated_by_spaces_or_commas(self):
        for separator in (" ", ",", ", ", "\n"):
            both = separator.join(f"/ip4/127.0.0.{host}/tcp/0" for host in (1, 2))
            with started("cohive-bootstrap", "--json", env={**environment, "COHIVE_BOOTSTRAP_HOST_MADDRS": both}) as node:
                self.assertEqual(len(json.loads(node.stdout.readline())["initial_peers"]), 2)
            if programs("cohive-train"):
                self.plan("--host-maddrs", both, "--announce-maddrs", "/ip4/192.0.2.1/tcp/1 /ip4/192.0.2.2/tcp/1")


if __name__ == "__main__":
    shell.main()
