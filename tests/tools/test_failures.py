"""What a person sees when something is wrong: the sentence in the log, in /status and from the doctor, each where it can know.

Usage: test_failures.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python. docs/troubleshooting.md has the table of all.
"""

import contextlib
import glob
import json
import re
import subprocess
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

import shell
from shell import NOBODY, PATIENCE, bootstrap, programs, run, taken_port


class WithFolder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def wait_for(self, what, sentence):
        """Until the text that what() returns has a part like that."""
        give_up = time.monotonic() + PATIENCE
        while not re.search(sentence, text := what()):
            self.assertLess(time.monotonic(), give_up, f"no '{sentence}' in:\n{text[-3000:]}")
            time.sleep(0.1)

    def read(self, url):
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def status(self, page):
        return json.loads(self.read(page + "status"))

    def assert_said(self, log, page, sentence, kind):
        """In the log, and in the status with that kind."""
        self.wait_for(lambda: Path(log).read_text(), sentence)
        self.wait_for(lambda: "\n".join(failure["kind"] + ": " + failure["message"] for failure in self.status(page)["failures"]),
                      "(?m)^" + kind + ": .*" + sentence)

    def doctor(self, *arguments, env=None):
        """The sentences of the steps that have failed."""
        examined = run("cohive-monitor", "--json", "doctor", *arguments, env=env)
        found = [json.loads(line) for line in examined.stdout.splitlines()]
        return "\n".join(line["step"] + ": " + line["text"] for line in found if line["status"] == "failed")


class FailuresOfNodes(WithFolder):
    def test_a_dead_initial_peer(self):
        with taken_port() as port:
            pass  # free again: nobody listens
        dead, log = f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}", self.folder / "log"
        with bootstrap() as (_, hub), bootstrap("--metrics-address", ":0", "--log-file", str(log), "--initial-peers",
                                                *hub["initial_peers"], dead) as (_, node):
            self.assert_said(log, node["page"], "some initial peers did not answer: " + dead, "join")
            self.assert_said(log, node["page"], "some initial peers did not answer: .*refused", "join")
            said = self.doctor("--run-id", "any", "--initial-peers", *hub["initial_peers"], dead)
            self.assertIn(f"the initial peer {dead} does not answer: newcomers that know only this one cannot join", said)
            self.assertIn("tcp: ", said)

    def test_a_clock_that_is_off(self):
        library = next(iter(glob.glob("/usr/lib/*/faketime/libfaketime.so.1")), None)
        if not library:
            self.skipTest("no libfaketime")
        early = {**shell.environment, "LD_PRELOAD": library, "FAKETIME": "+10s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        with bootstrap() as (_, hub):
            refused = run("cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--initial-peers", *hub["initial_peers"], env=early)
            self.assertEqual(refused.returncode, 1)
            self.assertIn("the clocks of this machine and of the initial peer differ by more than 3 seconds", refused.stderr)
            self.assertIn("clock: this machine's clock is 10.0 s ahead of that of the node", self.doctor(*hub["initial_peers"], env=early))
        with bootstrap(env=early) as (_, hub):
            self.assertIn("clock: this machine's clock is 10.0 s behind that of the node", self.doctor(*hub["initial_peers"]))

    def test_a_relay_that_is_lost(self):
        log = self.folder / "log"
        with bootstrap("--relay", "--metrics-address", ":0") as (process, relay), \
                bootstrap("--force-reachability", "private", "--metrics-address", ":0", "--log-file", str(log),
                          "--trusted-relays", *relay["initial_peers"]) as (_, hidden):
            self.wait_for(lambda: json.dumps(self.status(hidden["page"])["node"]["relays"]), relay["peer_id"])
            process.kill()
            self.assert_said(log, hidden["page"], "lost the relay " + relay["peer_id"], "relay")
            self.assertEqual(self.status(hidden["page"])["node"]["relays"], [])
            self.assertIn("tcp: ", self.doctor(*relay["initial_peers"]))


class FailuresOfTrainers(WithFolder):
    def setUp(self):
        super().setUp()
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        self.text = self.folder / "text"
        self.text.write_text("In the beginning was the Word, and the Word was with others. " * 200)
        self.processes = []
        self.running = contextlib.ExitStack()
        self.addCleanup(self.running.close)
        _, self.hub = self.running.enter_context(bootstrap())

    def train(self, name, *arguments, width=16, prefix=(), timeout=5):
        """The address of the page of a trainer, and its log."""
        log = self.folder / (name + ".log")
        process = subprocess.Popen([*prefix, shell.BIN / "cohive-train", "--text", self.text, "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--layers", "1",
                                    "--context", "16", "--width", str(width), "--matchmaking-time", "1", "--averaging-timeout", str(timeout),
                                    "--target-batch-size", "4000", "--metrics-address", ":0", "--log-file", log, "--log-level", "info",
                                    "--initial-peers", *self.hub["initial_peers"], *map(str, arguments)],
                                   env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.processes.append(process)
        self.running.callback(process.wait)
        self.running.callback(process.kill)
        page = next(line.split()[1] for line in process.stdout if line.startswith("Page: "))
        drain = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
        self.running.callback(drain.wait)
        self.running.callback(process.kill)
        process.stdout.close()
        return page, log

    def test_a_run_id_that_nobody_else_has(self):
        self.train("ours", "--run-id", "ours")
        page, log = self.train("other", "--run-id", "other")
        self.wait_for(log.read_text, "no other trainer reports for run other yet: this is the first one, or the run has another name")
        self.wait_for(lambda: json.dumps(self.status(page)["runs"]), r'"peers": 1\b')
        said = self.doctor("--run-id", "another", *self.hub["initial_peers"])
        self.assertIn('trainers: no trainer reports: none trains run "another" now, or its trainers were given another --run-id', said)

    def test_a_model_that_is_another_one(self):
        """One that comes when the other has ended an epoch already cannot take its state; else they meet, and refuse one another."""
        trainers = [self.train(str(width), width=width) for width in (16, 32)]
        either = r"refused us \(BAD_SCHEMA_HASH: another model or optimizer than here\)|parameter 0 has another shape"
        self.wait_for(lambda: "".join(log.read_text() for _, log in trainers), either)
        self.assertTrue(any(re.search(either, failure["message"]) for page, _ in trainers for failure in self.status(page)["failures"]
                            if failure["kind"] in ("round", "download")))
        # They can hear of one another before both reports of progress are in the DHT.
        self.wait_for(lambda: self.doctor("--run-id", "cohive_run", *self.hub["initial_peers"]),
                      "models: 1 trainer has another model or optimizer than 1 other, and cannot average with them: ")

    def test_a_member_killed_in_a_round(self):
        """Its partner sends slowly, so that a round takes a while."""
        page, log = self.train("stays", "--bandwidth", "30K", width=64, timeout=40)
        self.train("killed", "--bandwidth", "30K", width=64, timeout=40)
        running = r"(?m)^cohive_averaging_round_parts\{.*\} [1-9]"
        self.wait_for(lambda: self.read(page + "metrics"), running)
        self.processes[-1].kill()
        # Where that round has ended just before, the next one finds nobody.
        self.wait_for(log.read_text, "of [0-9]+ parts keep local values|all peers that this one waited for have left|"
                                     "no averaging group was formed in time")
        self.wait_for(lambda: json.dumps([round["outcome"] for run in self.status(page)["runs"] for round in run["rounds"]]), "partial|failed")

    def test_a_disk_that_is_full(self):
        disk = self.folder / "disk"
        disk.mkdir()
        mount = ["unshare", "-rm", "bash", "-c", f'mount -t tmpfs -o size=64k none {disk} && exec "$@"', "full"]
        if subprocess.run([*mount, "true"], capture_output=True).returncode != 0:
            self.skipTest("no file system of its own may be mounted here")
        page, log = self.train("full", "--checkpoint-dir", disk, "--checkpoint-every", "1epochs", prefix=mount)
        self.assert_said(log, page, "no checkpoint: .*No space left on device", "checkpoint")


if __name__ == "__main__":
    shell.main()
