"""The programs as a person at a shell meets them: what they print, what they exit with, that they stop when told.

Usage: test_programs.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import shell
from shell import NOBODY, PATIENCE, bootstrap, environment, programs, run, started, taken_port


class BadInput(unittest.TestCase):
    """One line on stderr that says what to do; exit code 2, or 1 for a swarm that cannot be reached."""

    joining = property(lambda self: programs("cohive-bootstrap", "cohive-monitor", "cohive-dht", "cohive-train"))

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.text = Path(cls.folder.name, "text.txt")
        cls.text.write_text("In the beginning was the Word, and the Word was with others. " * 200)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def refused(self, code, says, program, *arguments, env=None):
        needed = {"cohive-train": ["--text", str(self.text)], "cohive-monitor": ["--once"], "cohive-dht": ["peers"]}.get(program, [])
        if {"--text", "serve"} & set(arguments):
            needed = []
        with self.subTest(program=program, arguments=arguments):
            result = run(program, *needed, *arguments, env=env)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertTrue(result.stderr.startswith(program + ": "), result.stderr)
            self.assertIn(says, result.stderr)

    def test_unknown_flag(self):
        for program in self.joining:
            self.refused(2, "--no-such-flag", program, "--no-such-flag")
        self.refused(2, "--no-such-flag", "cohive-bench", "codec", "--no-such-flag")

    def test_text_that_cannot_be_read(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        missing, empty = Path(self.folder.name, "missing"), Path(self.folder.name, "empty")
        empty.mkdir()
        for path in (missing, empty):
            self.refused(2, str(path), "cohive-train", "--text", str(path))

    def test_result_file_that_cannot_be_written_is_refused_before_training(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        for flag in ("--save", "--summary"):
            self.refused(2, flag, "cohive-train", flag, self.folder.name + "/no/such/folder/file")

    def test_parameters_that_are_no_numbers_do_not_compare_as_equal(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        files = [Path(self.folder.name, name) for name in ("numbers", "spoilt")]
        files[0].write_bytes(struct.pack("<3f", 1, 2, 3))
        files[1].write_bytes(struct.pack("<3f", 1, float("nan"), 3))
        compared = run("cohive-train", "--compare", *files)
        self.assertEqual(compared.returncode, 1, compared.stdout)
        self.assertIsNone(json.loads(compared.stdout)["largest_difference"])

    def test_averaging_that_does_not_exist(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        for flag, value in (("--aggregation", "median"), ("--trim", "0.5"), ("--clip-radius", "0"), ("--clip-factor", "0.5"),
                            ("--verified-share", "1.5"), ("--agreed-compression", "block3"), ("--density", "0")):
            self.refused(2, flag, "cohive-train", flag, value)

    def test_schedules_that_do_not_fit(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        for named, *flags in (("--lr-schedule", "--lr-schedule", "wavy"), ("--schedule-epochs", "--lr-schedule", "cosine"),
                              ("--warmup-epochs", "--lr-schedule", "linear", "--max-epochs", "10", "--warmup-epochs", "9"),
                              ("--warmup-epochs", "--lr-schedule", "one-cycle", "--schedule-epochs", "10", "--warmup-epochs", "2"),
                              ("--lr-gamma", "--lr-gamma", "0")):
            self.refused(2, named, "cohive-train", "--text", str(self.text), *flags)

    def test_malformed_address(self):
        for program in self.joining:
            self.refused(2, "--initial-peers", program, "--initial-peers", "/ip4/300.0.0.1/tcp/1/p2p/" + NOBODY)
            self.refused(2, "/p2p/<peer id>", program, "--initial-peers", "/ip4/127.0.0.1/tcp/1")
            self.refused(2, "--initial-peers", program, env={**environment, "INITIAL_PEERS": "localhost:1337"})
        for program in programs("cohive-bootstrap", "cohive-train"):
            self.refused(2, "--host-maddrs", program, "--host-maddrs", "127.0.0.1:1337")

    def test_rate_that_is_none(self):
        for program in programs("cohive-bootstrap", "cohive-train"):
            for flag in ("--max-upload", "--max-download"):
                for rate in ("fast", "10X", "10MB", "0", "-5M", "nan", "1e99", "12"):
                    self.refused(2, flag, program, f"{flag}={rate}")
        for program in programs("cohive-train"):
            self.refused(2, "--bandwidth", program, "--bandwidth", "guessed")

    def test_congestion_control_that_the_kernel_lacks(self):
        for program in programs("cohive-bootstrap", "cohive-train"):
            self.refused(2, 'the kernel has no congestion control "no_such_one"', program, "--congestion-control", "no_such_one")

    def test_port_in_use(self):
        with taken_port() as port:
            for program in programs("cohive-bootstrap", "cohive-train"):
                self.refused(2, "in use", program, "--host-maddrs", f"/ip4/127.0.0.1/tcp/{port}")
                self.refused(2, "in use", program, "--metrics-address", f"127.0.0.1:{port}", "--host-maddrs",
                             "/ip4/127.0.0.1/tcp/0")

    def test_address_that_this_machine_does_not_have(self):
        """Its network may have yet to get it: a service manager starts a program again after 1, not after 2."""
        for program in programs("cohive-bootstrap", "cohive-train"):
            self.refused(1, "cannot listen on /ip4/192.0.2.1/tcp/0", program, "--host-maddrs", "/ip4/192.0.2.1/tcp/0")

    def test_swarm_that_cannot_be_reached(self):
        with taken_port() as port:
            pass  # free again: nobody listens
        for program in self.joining:
            at_once = ["--wait-for-swarm", "0"] if program in ("cohive-train", "cohive-bootstrap") else []
            self.refused(1, "cannot join the swarm", program, "--initial-peers",
                         f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}", *at_once)

    def test_another_peer_than_the_one_in_the_address(self):
        with bootstrap() as (_, line):
            address = re.sub("/p2p/.*", "/p2p/" + NOBODY, line["initial_peers"][0])
            for program in self.joining:
                self.refused(2, line["peer_id"], program, "--initial-peers", address)

    def test_addresses_to_announce_that_nobody_can_dial(self):
        circuit = "/ip4/203.0.113.7/tcp/1/p2p-circuit"
        for program in programs("cohive-bootstrap", "cohive-train"):
            at_once = ["--text", str(self.text), "--dry-run"] if program == "cohive-train" else []
            for address, says in (("/ip4/0.0.0.0/tcp/31337", "where to listen"), ("/ip6/::/tcp/31337", "where to listen"),
                                  ("/ip4/203.0.113.7/udp/31337/quic-v1", "peers dial by TCP"),
                                  ("/ip4/203.0.113.7/udp/31337/quic", "peers dial by TCP"),
                                  ("/ip4/203.0.113.7/tcp/443/ws", "peers dial by TCP"), ("/ip4/203.0.113.7", "peers dial by TCP"),
                                  ("/ip4/224.0.0.1/tcp/1", "no machine"), ("/ip4/255.255.255.255/tcp/1", "no machine"),
                                  ("/ip6/ff02::1/tcp/1", "no machine"), ("/ip6/fe80::1/tcp/1", "link-local"),
                                  ("/dnsaddr/boot.example", "dnsaddr"), (circuit, "a way through a relay"),
                                  ("/ip4/203.0.113.7/tcp/1/p2p/" + NOBODY, "peer id")):
                self.refused(2, says, program, *at_once, "--announce-maddrs", address)

    def test_identity_file_that_is_none(self):
        junk = Path(self.folder.name, "junk")
        junk.write_text("not a key")
        junk.chmod(0o600)
        Path(self.folder.name, "link").symlink_to(junk)
        for path, says in ((self.folder.name, "is a folder"), ("/dev/null", "is a pipe or a device"),
                           (self.folder.name + "/link", "is a symbolic link")):
            for program in programs("cohive-bootstrap", "cohive-train"):
                self.refused(2, says, program, "--identity-path", path)
        for program in programs("cohive-bootstrap", "cohive-train"):
            self.refused(2, str(junk), program, "--identity-path", str(junk))
        self.assertEqual(junk.read_text(), "not a key")

    def test_files_with_secrets_are_read_before_anything_is_made_or_joined(self):
        with taken_port() as port:
            pass  # free again: nobody listens
        with tempfile.TemporaryDirectory() as folder:
            missing, key, state = (os.path.join(folder, name) for name in ("missing", "key", "state"))
            swarm = ["--initial-peers", f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}"]
            for flag in ("--secret-file", "--members", "--metrics-token-file"):
                self.refused(2, missing, "cohive-bootstrap", flag, missing,
                             "--identity-path", key, "--state-path", state, "--metrics-address", "127.0.0.1:0")
            for flag in ("--secret-file", "--members"):
                self.refused(2, missing, "cohive-monitor", flag, missing, "--identity-path", key, *swarm)
                self.refused(2, missing, "cohive-dht", flag, missing, "--identity-path", key, *swarm)
            self.refused(2, missing, "cohive-monitor", "serve", "--metrics-token-file", missing,
                         "--identity-path", key, *swarm)
            self.assertEqual(os.listdir(folder), [])

    def test_files_of_a_trainer_are_tried_before_its_text_is_read(self):
        at_once = ["--text", str(self.text), "--dry-run"]
        missing, key = self.folder.name + "/missing", self.folder.name + "/key"
        listed = Path(self.folder.name, "listed")
        listed.write_text("nobody\n")
        for options, says in ((["--identity-path", missing + "/key"], missing),
                              (["--secret-file", missing], missing),
                              (["--members", missing, "--identity-path", key], missing),
                              (["--members", str(listed), "--identity-path", key], "line 1 begins with no peer id"),
                              (["--members", str(listed)], "--identity-path"),
                              (["--metrics-token-file", missing, "--metrics-address", "127.0.0.1:0"], missing)):
            self.refused(2, says, "cohive-train", *at_once, *options)
        self.assertFalse(Path(key).exists(), "a dry run makes no key")


class Bootstrap(unittest.TestCase):
    def test_prints_the_line_that_others_join_with(self):
        with started("cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0") as process:
            line = process.stdout.readline()
            peers = re.search(r"INITIAL_PEERS=(\S+) cohive-train", line).group(1)
            joined = run("cohive-monitor", "--once", "--json", "--run-id", "none", env={**environment, "INITIAL_PEERS": peers})
            self.assertEqual(joined.returncode, 0, joined.stderr)
            self.assertEqual(json.loads(joined.stdout)["peers"], 0)

    def test_keeps_its_peer_id_across_restarts(self):
        with tempfile.TemporaryDirectory() as folder:
            ids = set()
            for _ in range(2):
                with bootstrap("--identity-path", folder + "/key") as (_, line):
                    ids.add(line["peer_id"])
            self.assertEqual(len(ids), 1)
            self.assertEqual(os.stat(folder + "/key").st_mode & 0o077, 0, "others can read the private key")

    def test_a_swarm_with_a_secret_serves_those_that_know_it(self):
        with tempfile.TemporaryDirectory() as folder:
            ours, other = Path(folder, "ours"), Path(folder, "other")
            for path, secret in (ours, "a secret of the run, and long"), (other, "the secret of another run"):
                path.write_text(secret + "\n")
                path.chmod(0o400)
            with bootstrap("--secret-file", str(ours)) as (_, hub):
                watch = ["--once", "--json", "--initial-peers", *hub["initial_peers"]]
                self.assertEqual(run("cohive-monitor", *watch, "--secret-file", str(ours)).returncode, 0)
                stranger = run("cohive-monitor", *watch, "--secret-file", str(other))
                self.assertEqual(stranger.returncode, 1)
                self.assertIn("cannot join the swarm", stranger.stderr)
            ours.chmod(0o644)
            refused = run("cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--secret-file", str(ours))
            self.assertEqual(refused.returncode, 2)
            self.assertIn("chmod 400", refused.stderr)

    def test_a_list_of_members_lets_those_in_that_are_on_it(self):
        with tempfile.TemporaryDirectory() as folder:
            with bootstrap("--identity-path", folder + "/watcher") as (_, watcher):
                pass
            members, listed = Path(folder, "members"), ["--members", folder + "/members", "--identity-path"]
            members.write_text("# nobody yet\n")
            with bootstrap(*listed, folder + "/node") as (_, hub):
                members.write_text(hub["peer_id"] + "\n")
                watch = ["cohive-monitor", "--once", "--json", "--initial-peers", *hub["initial_peers"], *listed,
                         folder + "/watcher"]
                self.assertEqual(run(*watch).returncode, 1)
                members.write_text(hub["peer_id"] + "\n" + watcher["peer_id"] + " who watches\n")
                deadline = time.monotonic() + PATIENCE
                while run(*watch).returncode != 0:  # the node looks at its list from time to time
                    self.assertLess(time.monotonic(), deadline)

    def test_an_identity_belongs_to_one_process_at_a_time(self):
        with tempfile.TemporaryDirectory() as folder:
            key = folder + "/key"
            with bootstrap() as (_, hub), bootstrap("--identity-path", key, "--initial-peers", *hub["initial_peers"]):
                second = run("cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--identity-path", key)
                self.assertEqual(second.returncode, 2)
                self.assertIn(key, second.stderr)
                self.assertIn("in use", second.stderr)
                # A copy on another machine has a lock of its own: the swarm knows of the first.
                copy = folder + "/copy"
                shutil.copy(key, copy)  # with its mode
                third = run("cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--identity-path", copy,
                            "--initial-peers", *hub["initial_peers"])
                self.assertEqual(third.returncode, 2)
                self.assertIn("under this identity", third.stderr)
                # The only initial peer may be the original itself.
                with bootstrap("--identity-path", folder + "/original") as (_, original):
                    shutil.copy(folder + "/original", folder + "/twin")
                    for program in programs("cohive-bootstrap", "cohive-dht", "cohive-monitor", "cohive-train"):
                        with self.subTest(program=program):
                            needed = {"cohive-dht": ["peers"], "cohive-monitor": ["--once"],
                                      "cohive-train": ["--model", "cnn", "--max-epochs", "1"]}.get(program, [])
                            twin = run(program, *needed, "--identity-path", folder + "/twin", "--initial-peers",
                                       *original["initial_peers"])
                            self.assertEqual(twin.returncode, 2, twin.stderr)
                            self.assertIn("under this identity", twin.stderr)
            with bootstrap() as (_, hub), bootstrap("--identity-path", copy, "--initial-peers", *hub["initial_peers"]):
                pass

    def test_a_restarted_node_is_not_its_own_double(self):
        with tempfile.TemporaryDirectory() as folder, bootstrap() as (_, hub):
            arguments = ["--identity-path", folder + "/key", "--initial-peers", *hub["initial_peers"]]
            for _ in range(2):
                with bootstrap(*arguments) as (process, line):
                    process.kill()  # the others still hold its addresses and take it for connected
                    process.wait(PATIENCE)
                arguments += ["--host-maddrs", line["initial_peers"][0].split("/p2p/")[0]]

    def test_announces_what_it_is_told_to(self):
        with bootstrap("--announce-maddrs", "/dns4/swarm.example/tcp/31337") as (_, line):
            self.assertEqual(line["initial_peers"], ["/dns4/swarm.example/tcp/31337/p2p/" + line["peer_id"]])

    def test_is_reachable_as_far_as_it_is_told(self):
        for status in ("public", "private"):
            with bootstrap("--force-reachability", status, "--metrics-address", "127.0.0.1:0") as (_, line):
                with urllib.request.urlopen(line["metrics"], timeout=PATIENCE) as answer:
                    self.assertIn(f'\ncohive_p2p_reachability{{status="{status}"}} 1\n', answer.read().decode())
        refused = run("cohive-bootstrap", "--force-reachability", "perhaps")
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn("--force-reachability", refused.stderr)

    def test_a_relay_takes_reservations(self):
        with bootstrap("--relay", "--relay-megabytes", "1", "--metrics-address", "127.0.0.1:0") as (_, relay), \
                bootstrap("--force-reachability", "private", "--metrics-address", "127.0.0.1:0",
                          "--trusted-relays", *relay["initial_peers"]) as (_, hidden):
            for line, gauge in ((relay, "cohive_p2p_relay_reservations 1"), (hidden, "cohive_p2p_relays_held 1")):
                deadline = time.monotonic() + PATIENCE
                while gauge not in urllib.request.urlopen(line["metrics"], timeout=PATIENCE).read().decode():
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.1)
        refused = run("cohive-bootstrap", "--trusted-relays", "/ip4/127.0.0.1/tcp/1")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("must end with /p2p/", refused.stderr)

    def identity(self, path):
        """A key file, and the id in it."""
        with bootstrap("--identity-path", path) as (_, line):
            return line["peer_id"]

    def wait_for(self, line, pattern):
        """Until the metrics of a node have a line like that."""
        deadline = time.monotonic() + PATIENCE
        while not re.search(pattern, urllib.request.urlopen(line["metrics"], timeout=PATIENCE).read().decode(), re.MULTILINE):
            self.assertLess(time.monotonic(), deadline, pattern)
            time.sleep(0.1)

    def wait_for_text(self, path, text):
        """What a file holds once the text is in it."""
        deadline = time.monotonic() + PATIENCE
        while text not in (held := path.read_text()):
            self.assertLess(time.monotonic(), deadline, f"{text!r} is not in {held!r}")
            time.sleep(0.1)
        return held

    def test_nodes_that_name_each_other_begin_in_any_order_and_find_each_other(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as nodes:
            ids = [self.identity(f"{folder}/key{i}") for i in range(3)]
            with contextlib.ExitStack() as ports:
                taken = [ports.enter_context(taken_port()) for _ in ids]
            everybody = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}" for port, peer in zip(taken, ids)]

            def start(i):
                return nodes.enter_context(bootstrap(
                    "--identity-path", f"{folder}/key{i}", "--host-maddrs", f"/ip4/127.0.0.1/tcp/{taken[i]}",
                    "--metrics-address", "127.0.0.1:0", "--log-file", f"{folder}/log{i}", "--initial-peers", *everybody))

            process, second = start(1)  # alone: it serves, and says what it waits for
            self.assertIsNone(process.poll())
            self.assertEqual(urllib.request.urlopen(second["metrics"].replace("metrics", "readyz"), timeout=PATIENCE).status, 200)
            said = self.wait_for_text(Path(folder, "log1"), "no initial peer answers yet: serving meanwhile")
            self.assertIn(everybody[1] + " is this peer itself", said)
            _, third = start(2)
            self.wait_for(second, r"^cohive_p2p_peers 1$")
            _, first = start(0)
            for line in first, second, third:
                self.wait_for(line, r"^cohive_dht_nodes 2$")
            said = self.wait_for_text(Path(folder, "log1"), "the swarm is there")
            self.assertEqual(said.count("no initial peer answers yet"), 1)

    def test_a_node_that_waits_ends_when_told_and_waits_as_long_as_it_is_told(self):
        with taken_port() as port:
            pass  # free again: nobody listens
        nobody = ["--initial-peers", f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}"]
        for signum in (signal.SIGTERM, signal.SIGINT):
            with bootstrap(*nobody) as (process, line):
                self.assertTrue(line["initial_peers"])
                process.send_signal(signum)
                self.assertEqual(process.wait(PATIENCE), 0)
        given_up = run("cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", *nobody, "--wait-for-swarm", "2", "--json")
        self.assertEqual(given_up.returncode, 1)
        self.assertIn("cannot join the swarm", given_up.stderr.splitlines()[-1])
        self.assertIn("initial_peers", given_up.stdout)

    def test_a_node_may_name_itself_and_a_copy_of_it_may_not(self):
        with tempfile.TemporaryDirectory() as folder:
            key, peer = folder + "/key", self.identity(folder + "/key")
            with taken_port() as port:
                pass
            itself = ["--initial-peers", f"/ip4/127.0.0.1/tcp/{port}/p2p/{peer}"]
            at = ["--host-maddrs", f"/ip4/127.0.0.1/tcp/{port}", "--log-file", folder + "/log"]
            shutil.copy(key, folder + "/copy")
            with bootstrap("--identity-path", folder + "/copy", *itself) as (copy, _):  # nobody is there yet: it may be our router
                with bootstrap("--identity-path", key, *at, *itself) as (process, _):
                    self.assertEqual(copy.wait(PATIENCE), 2)  # it finds the original, a little later
                    self.assertIsNone(process.poll())
                    self.assertIn("is this peer itself", Path(folder, "log").read_text())

    def test_port_zero_is_announced_as_the_port_that_is_listened_on(self):
        with bootstrap("--announce-maddrs", "/ip4/203.0.113.7/tcp/0", "/dns4/boot.example/tcp/0") as (_, line):
            ports = {address.split("/")[4] for address in line["initial_peers"]}
            self.assertEqual(len(line["initial_peers"]), 2)
            self.assertEqual(len(ports), 1)
            self.assertNotIn("0", ports)

    def test_second_node_joins_the_first(self):
        with bootstrap() as (_, first):
            with bootstrap("--initial-peers", first["initial_peers"][0]) as (_, second):
                self.assertNotEqual(first["peer_id"], second["peer_id"])

    def test_serves_metrics_and_health(self):
        with bootstrap("--metrics-address", "127.0.0.1:0") as (_, line):
            base = line["metrics"].removesuffix("/metrics")
            # As a client of a proxy asks.
            with urllib.request.build_opener(urllib.request.ProxyHandler({"http": base})).open(base + "/healthz") as answer:
                self.assertEqual(answer.read(), b"ok\n")
            for path in ("/healthz", "/readyz"):
                with urllib.request.urlopen(base + path, timeout=PATIENCE) as answer:
                    self.assertEqual(answer.status, 200)
            with urllib.request.urlopen(line["metrics"], timeout=PATIENCE) as answer:
                self.assertIn("# TYPE cohive_", answer.read().decode())

    def test_finds_its_swarm_again_after_a_start_when_nobody_answered(self):
        with tempfile.TemporaryDirectory() as folder:
            first = ["--identity-path", f"{folder}/first"]
            second = ["--identity-path", f"{folder}/second", "--state-path", f"{folder}/state"]
            with bootstrap(*first) as (_, address):
                self.stop_when_started(*second, "--initial-peers", *address["initial_peers"])
            self.stop_when_started(*second)
            at = address["initial_peers"][0].split("/p2p/")[0]
            with bootstrap(*first, "--host-maddrs", at), \
                    bootstrap(*second, "--metrics-address", "127.0.0.1:0") as (_, line):
                with urllib.request.urlopen(line["metrics"], timeout=PATIENCE) as response:
                    self.assertTrue("\ncohive_p2p_peers 1\n" in response.read().decode())

    def stop_when_started(self, *arguments):
        with bootstrap(*arguments) as (process, _):
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(PATIENCE), 0)

    def test_ends_cleanly_when_told(self):
        for signum in (signal.SIGTERM, signal.SIGINT):
            with bootstrap() as (process, _):
                process.send_signal(signum)
                self.assertEqual(process.wait(PATIENCE), 0)


class Watching(unittest.TestCase):
    """What a running node tells to who looks."""

    def read(self, line, path, **headers):
        request = urllib.request.Request(line["page"].rstrip("/") + path, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def logged(self, path, pattern):
        """Waits until the file has a line like that."""
        give_up = time.monotonic() + PATIENCE
        while not re.search(pattern, text := Path(path).read_text(), re.MULTILINE):
            self.assertLess(time.monotonic(), give_up, f"no line like {pattern} in:\n{text}")
            time.sleep(0.05)
        return text

    def test_status_names_the_node_and_its_peers(self):
        with bootstrap("--metrics-address", ":0") as (_, line), bootstrap("--initial-peers", *line["initial_peers"]) as (_, other):
            self.assertTrue(line["page"].startswith("http://127.0.0.1:"), line["page"])
            status = json.loads(self.read(line, "/status"))
            self.assertEqual(status["node"]["peer_id"], line["peer_id"])
            self.assertIn(line["initial_peers"][0], status["node"]["join"])
            self.assertEqual([peer["id"] for peer in status["peers"]], [other["peer_id"]])
            self.assertEqual(status["peers"][0]["path"], "direct")
            self.assertGreaterEqual(status["dht"]["nodes"], 1)
            self.assertIn("INITIAL_PEERS", status["node"]["join"])
            self.assertIn("waits for", self.read(line, "/debug/tasks"))
            self.assertIn("Running a DHT instance", self.read(line, "/debug/log"))
            self.assertIn("<title>cohive</title>", self.read(line, "/"))

    def test_a_cap_of_the_swarm_holds_up_nobody_who_looks(self):
        """The page would take half a minute, and an answer has ten seconds."""
        capped = ["--json", "--metrics-address", "127.0.0.1:0", "--max-upload", "1K"]
        with tempfile.TemporaryDirectory() as folder:
            for program in programs("cohive-bootstrap", "cohive-train"):
                small = shell.small_trainer(folder) if program == "cohive-train" else ["--host-maddrs", "/ip4/127.0.0.1/tcp/0"]
                with self.subTest(program=program), started(program, *small, *capped) as process:
                    page = self.read(json.loads(process.stdout.readline()), "/")
                    self.assertTrue(page.endswith("</html>\n"))
                    self.assertGreater(len(page), 20_000)

    def test_a_dial_that_fails_is_in_the_status_the_metrics_and_the_log_with_one_cause(self):
        with taken_port() as free:
            port = free  # again, in a moment
        with tempfile.TemporaryDirectory() as folder, bootstrap() as (_, hub):
            log = folder + "/node.log"
            nobody = f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}"
            with bootstrap("--metrics-address", "127.0.0.1:0", "--initial-peers", *hub["initial_peers"], nobody, "--log-file", log,
                           "--log-format", "json", "--log-level", "info,p2p=debug") as (_, line):
                failures = json.loads(self.read(line, "/status"))["failures"]
                self.assertIn(("dial", "refused"), [(failure["kind"], failure["cause"]) for failure in failures])
                for failure in failures:
                    self.assertEqual(failure["message"].count(f"/tcp/{port}"), 1, "the address is said once")
                self.assertRegex(self.read(line, "/metrics"), r'cohive_p2p_dial_errors_total\{reason="refused"\} [1-9]')
                text = self.logged(log, '"event":"dial_failed"')
                event = next(json.loads(one) for one in text.splitlines() if "dial_failed" in one)
                self.assertEqual((event["cause"], event["peer"], event["module"]), ("refused", NOBODY, "p2p"))

    def test_a_token_is_asked_for_where_there_is_one(self):
        with tempfile.TemporaryDirectory() as folder:
            token = Path(folder, "token")
            token.write_text("s3cret\n")
            token.chmod(0o400)
            with bootstrap("--metrics-address", "127.0.0.1:0", "--metrics-token-file", str(token)) as (_, line):
                with self.assertRaisesRegex(urllib.error.HTTPError, "401"):
                    self.read(line, "/status")
                self.assertIn("node", json.loads(self.read(line, "/status", Authorization="Bearer s3cret")))
                self.assertEqual(self.read(line, "/healthz"), "ok\n")
            unusable = {}
            for name, mode, content in (("empty", 0o600, ""), ("open", 0o666, "s3cret\n"), ("readable", 0o644, "s3cret\n")):
                unusable[name] = Path(folder, name)
                unusable[name].write_text(content)
                unusable[name].chmod(mode)
            Path(folder, "link").symlink_to(token)
            for path in (*unusable.values(), Path(folder, "none"), Path(folder), Path(folder, "link"), Path("/dev/null")):
                refused = run("cohive-bootstrap", "--metrics-address", "127.0.0.1:0", "--metrics-token-file", str(path))
                self.assertEqual(refused.returncode, 2)
                self.assertIn(str(path), refused.stderr)

    def test_sigusr1_writes_tasks_and_the_last_lines_whatever_the_level(self):
        with tempfile.TemporaryDirectory() as folder:
            log = folder + "/node.log"
            with bootstrap("--log-file", log, "--log-level", "error") as (process, _):
                process.send_signal(signal.SIGUSR1)
                text = self.logged(log, "recent: .*Running a DHT instance")
                self.assertRegex(text, r"tasks: \d+ tasks, oldest first")
                self.assertIsNone(process.poll())

    def test_a_log_that_nobody_reads_stops_nothing(self):
        process = subprocess.Popen([shell.BIN / "cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--json", "--metrics-address",
                                    "127.0.0.1:0", "--log-level", "debug"], env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        try:
            line = json.loads(process.stdout.readline())
            for _ in range(100):  # each writes tasks and lines of the log, together more than the pipe takes
                process.send_signal(signal.SIGUSR1)
                self.assertEqual(self.read(line, "/healthz"), "ok\n")
            process.terminate()
            self.assertEqual(process.wait(PATIENCE), 0)
        finally:
            process.kill()
            process.communicate()

    def test_levels_and_files_that_are_none_are_refused(self):
        for arguments in (["--log-level", "loud"], ["--log-level", "info,dht=loud"], ["--log-file", "/dev/null/log"]):
            for program in programs("cohive-bootstrap", "cohive-monitor"):
                refused = run(program, *arguments, "--initial-peers", "/ip4/127.0.0.1/tcp/1/p2p/" + NOBODY)
                self.assertEqual(refused.returncode, 2, refused.stderr)
                self.assertEqual(refused.stderr.count("\n"), 1, refused.stderr)
                self.assertIn(arguments[1] if "/dev" in arguments[1] else arguments[0], refused.stderr)
        with_variable = run("cohive-monitor", "--once", env={**environment, "COHIVE_LOG_LEVEL": "loud"})
        self.assertEqual(with_variable.returncode, 2)


class Dht(unittest.TestCase):
    """cohive-dht against two bootstrap nodes, which know each other."""

    @classmethod
    def setUpClass(cls):
        cls.nodes = contextlib.ExitStack()
        _, cls.first = cls.nodes.enter_context(bootstrap())
        _, cls.second = cls.nodes.enter_context(bootstrap("--initial-peers", *cls.first["initial_peers"]))
        cls.peer_ids = {cls.first["peer_id"], cls.second["peer_id"]}

    @classmethod
    def tearDownClass(cls):
        cls.nodes.close()

    def dht(self, *arguments, code=0):
        result = run("cohive-dht", "--json", "--initial-peers", self.first["initial_peers"][0], *arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        if code != 0:
            self.assertEqual((result.stdout, result.stderr.count("\n")), ("", 1), result.stderr)
            return result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    def test_what_is_stored_is_read(self):
        for value in (5, "text", [1, {"a": None}], {"hex": "00ff"}):
            self.dht("store", "key", json.dumps(value))
            self.assertEqual(self.dht("get", "key")[0]["value"], value)

    def test_entries_of_a_dictionary(self):
        for subkey in ("a", "b"):
            self.dht("store", "dictionary", "1", "--subkey", subkey)
        self.assertEqual({entry["subkey"] for entry in self.dht("get", "dictionary")[0]["entries"]}, {"a", "b"})

    def test_a_key_that_nobody_stored(self):
        self.assertIn("missing", self.dht("get", "missing", code=1))

    def test_the_swarm_as_a_map(self):
        (found,) = self.dht("crawl")
        self.assertEqual({peer["peer_id"] for peer in found["peers"]}, self.peer_ids)
        self.assertEqual(found["reachable"], 2)
        self.assertTrue(all(peer["agent"].startswith("cohive/") for peer in found["peers"]))

    def test_nodes_by_distance_and_what_they_hold(self):
        self.dht("store", "held", "1")
        found = self.dht("find", "held")
        self.assertEqual({node["peer_id"] for node in found}, self.peer_ids)
        self.assertTrue(all(node["has_record"] for node in found))

    def test_ping_by_id_and_by_address(self):
        for peer in (self.second["peer_id"], self.second["initial_peers"][0]):
            (answer,) = self.dht("ping", peer)
            self.assertEqual(answer["peer_id"], self.second["peer_id"])
            self.assertGreater(answer["latency_ms"], 0)

    def test_a_peer_that_cannot_be_reached_and_one_that_is_none(self):
        self.assertIn(NOBODY, self.dht("ping", NOBODY, code=1))
        self.dht("ping", "nonsense", code=2)


class Doctor(unittest.TestCase):
    """cohive-dht doctor: each step with its result, and a sentence for each failure."""

    def examine(self, *arguments, code):
        result = run("cohive-dht", "--json", "doctor", *arguments)
        self.assertEqual(result.returncode, code, result.stderr + result.stdout)
        return {line["step"]: line for line in map(json.loads, result.stdout.splitlines())}

    def assert_fails_at(self, step, advice, address):
        found = self.examine(address, code=1)
        self.assertEqual([line["step"] for line in found.values() if line["status"] == "failed"], [step])
        self.assertEqual(list(found)[-1], step, "nothing is tried after it")
        self.assertIn(advice, found[step]["advice"])
        return found

    def test_a_healthy_node(self):
        with bootstrap("--relay") as (_, line):
            found = self.examine(line["initial_peers"][0], code=0)
            ok = [step for step, result in found.items() if result["status"] == "ok"]
            self.assertEqual(ok, ["tcp", "handshake", "identify", "ping", "dht", "clock", "relay"])
            self.assertEqual(found["handshake"]["details"]["security"], "/noise")
            self.assertTrue(found["identify"]["details"]["agent"].startswith("cohive/"))
            self.assertRegex(found["identify"]["details"]["observed"], r"^/ip4/127\.0\.0\.1/tcp/\d+$")
            self.assertLess(abs(found["clock"]["details"]["seconds_ahead"]), 1)
            self.assertEqual(found["relay"]["details"]["bytes"], 4 << 30)
            self.assertEqual(found["dial-back"]["status"], "skipped")  # all on one machine
            self.assertEqual(found["link"]["status"], "skipped")  # the same
            text = run("cohive-dht", "doctor", "--initial-peers", line["initial_peers"][0])
            self.assertEqual(text.returncode, 0, text.stdout)
            self.assertRegex(text.stdout, r"ok +handshake +noise, the peer proved its id")

    def test_an_address_without_an_id_is_completed(self):
        with bootstrap() as (_, line):
            full = line["initial_peers"][0]
            found = self.examine(full.split("/p2p/")[0], code=0)
            self.assertIn(full, found["handshake"]["advice"])

    def test_a_closed_port(self):
        with taken_port() as port:
            pass  # free again: nobody listens
        self.assert_fails_at("tcp", "nothing listens at that port", f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}")

    def test_one_address_of_a_name_is_enough(self):
        """localhost has an IPv6 address, too, on most machines; the node listens at none."""
        with bootstrap() as (_, line):
            found = self.examine(line["initial_peers"][0].replace("/ip4/127.0.0.1/", "/dns/localhost/"), code=0)
            self.assertEqual(found["handshake"]["status"], "ok")
            if len(found["name"]["details"]["addresses"]) > 1:
                self.assertEqual(found["tcp"]["status"], "skipped")
                self.assertIn("another address of the name answers", found["tcp"]["text"])

    def test_another_peer(self):
        with bootstrap() as (_, line):
            wrong = re.sub("/p2p/.*", "/p2p/" + NOBODY, line["initial_peers"][0])
            found = self.assert_fails_at("handshake", "correct what follows /p2p/", wrong)
            self.assertIn(line["peer_id"], found["handshake"]["text"])

    def test_another_service(self):
        with bootstrap("--metrics-address", "127.0.0.1:0") as (_, line):
            port = line["metrics"].split(":")[2].split("/")[0]
            self.assert_fails_at("handshake", "no libp2p node listens there", f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}")

    def test_a_silent_service(self):
        with taken_port() as port:
            self.assert_fails_at("handshake", "says nothing", f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}")

    def test_a_name_that_does_not_resolve(self):
        self.assert_fails_at("name", "getent hosts nowhere.invalid", f"/dns4/nowhere.invalid/tcp/1/p2p/{NOBODY}")

    def test_a_circuit_to_a_peer_that_the_relay_does_not_know(self):
        with bootstrap("--relay") as (_, line):
            circuit = f"{line['initial_peers'][0]}/p2p-circuit/p2p/{NOBODY}"
            self.assert_fails_at("circuit", "the relay does not serve that peer", circuit)

    def test_bad_input(self):
        for arguments in (["nonsense"], [], ["--host-maddrs", "nonsense", "/ip4/127.0.0.1/tcp/1"]):
            result = run("cohive-dht", "doctor", *arguments)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)


class Bench(unittest.TestCase):
    def test_measures_the_optimizer_steps_that_were_named(self):
        flags = ["optimizer", "--parameters", "1", "--seconds", "0.1", "--only"]
        result = run("cohive-bench", *flags, "adam", "accumulate")
        self.assertEqual(result.returncode, 0, result.stderr)
        measured = json.loads(result.stdout)
        self.assertEqual((list(measured["steps"]), list(measured["passes"])), (["adam"], ["accumulate"]))
        self.assertGreater(measured["steps"]["adam"]["share_of_memory_bandwidth"], 0)
        unknown = run("cohive-bench", *flags, "adamx")
        self.assertEqual((unknown.returncode, unknown.stdout), (2, ""))
        self.assertIn("adamx", unknown.stderr)

    def test_measures_a_gpu_or_says_that_there_is_none(self):
        result = run("cohive-bench", "cuda", "--seconds", "0.1", "--megabytes", "1")
        if result.returncode == 0:
            self.assertGreater(json.loads(result.stdout)["codecs"]["FLOAT16"]["encode"], 0)
            return
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
        self.assertIn("no usable GPU", result.stderr)


if __name__ == "__main__":
    shell.main()
