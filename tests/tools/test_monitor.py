"""cohive-monitor as a person at a shell meets it: lines, a table, a page with a history, a picture of it, the doctor.

Usage: test_monitor.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import json
import os
import pty
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
import xml.etree.ElementTree
from pathlib import Path

import shell
from shell import NOBODY, PATIENCE, bootstrap, environment, run, started


def read(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.read().decode()


class Monitor(unittest.TestCase):
    def wait_for(self, what, expected):
        give_up = time.monotonic() + PATIENCE
        while (found := what()) != expected:
            self.assertLess(time.monotonic(), give_up, f"{found} does not become {expected}")
            time.sleep(0.1)

    def serving(self, peers, *arguments):
        return started("cohive-monitor", "serve", "--json", "--metrics-address", "127.0.0.1:0", "--interval", "0.1",
                       "--crawl-interval", "1", "--initial-peers", *peers, *arguments)

    def test_a_piped_monitor_prints_lines(self):
        with bootstrap() as (_, hub), started("cohive-monitor", "--interval", "0.1", "--initial-peers", *hub["initial_peers"]) as monitor:
            for _ in range(2):
                self.assertTrue(monitor.stdout.readline().startswith("cohive_run: 0 peers (0 clients), epoch 0, 0 samples"))

    def test_a_terminal_gets_a_table(self):
        with bootstrap() as (_, hub):
            ours, theirs = pty.openpty()
            monitor = subprocess.Popen([shell.BIN / "cohive-monitor", "--initial-peers", *hub["initial_peers"]], stdout=theirs,
                                       stderr=subprocess.DEVNULL, env=environment)
            os.close(theirs)
            text = ""
            try:
                while "1 of 1 nodes answer" not in text:
                    text += os.read(ours, 4096).decode()
            finally:
                monitor.kill()
                monitor.wait()
                os.close(ours)
            self.assertIn("! no trainer reports", text)

    def test_the_state_of_a_run_and_who_can_be_reached(self):
        with bootstrap() as (_, hub), bootstrap("--initial-peers", *hub["initial_peers"]) as (other, second), \
                self.serving(hub["initial_peers"]) as monitor:
            page = json.loads(monitor.stdout.readline())["page"]
            state = lambda: json.loads(read(page + "api/v1/state"))
            self.wait_for(lambda: state()["reachable_nodes"], 2)
            self.assertEqual({peer["id"] for peer in state()["peers"]}, {hub["peer_id"], second["peer_id"]})
            self.assertEqual(state()["parts"], [2])
            self.assertEqual([warning["kind"] for warning in state()["warnings"]], ["no_trainers"])
            self.assertEqual(json.loads(read(page + "status"))["swarm"]["run_id"], "cohive_run")
            reachable = lambda peer: json.loads(read(page + "api/v1/is_reachable/" + peer))
            self.assertTrue(reachable(second["peer_id"])["reachable"])
            nobody = reachable(NOBODY)
            self.assertFalse(nobody["reachable"])
            self.assertIn("cannot connect", nobody["message"])
            with self.assertRaisesRegex(urllib.error.HTTPError, "400"):
                reachable("nonsense")
            for site in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}, {"Referer": "http://evil.example/"}):
                request = urllib.request.Request(page + "api/v1/is_reachable/" + second["peer_id"], headers=site)
                with self.assertRaisesRegex(urllib.error.HTTPError, "403"):  # an <img> of a page elsewhere
                    urllib.request.urlopen(request, timeout=PATIENCE)
            metrics = read(page + "metrics")
            self.assertIn('cohive_swarm_nodes{reachable="yes",run_id="cohive_run"} 2', metrics)
            self.assertIn('cohive_swarm_warnings{kind="no_trainers",run_id="cohive_run"} 1', metrics)
            other.kill()
            self.wait_for(lambda: "unreachable" in [warning["kind"] for warning in state()["warnings"]], True)

    def test_a_history_is_gone_on_with_and_drawn(self):
        with tempfile.TemporaryDirectory() as folder, bootstrap() as (_, hub):
            history, picture = Path(folder, "run.jsonl"), Path(folder, "run.svg")
            for looks in (1, 2):
                with self.serving(hub["initial_peers"], "--history", str(history)) as monitor:
                    monitor.stdout.readline()
                    if looks == 1:
                        self.wait_for(lambda: history.exists() and history.read_text().count("\n"), 1)
                        line = json.loads(history.read_text())
                        line.update(epoch=3, loss=2.5, loss_step=3, time=line["time"] - 100)
                        history.write_text(json.dumps(line) + "\n")
                    else:
                        self.wait_for(lambda: history.read_text().count("\n"), 2)
            drawn = run("cohive-monitor", "plot", history, "-o", picture)
            self.assertEqual(drawn.returncode, 0, drawn.stderr)
            self.assertEqual(len(xml.etree.ElementTree.parse(picture).findall(".//{*}path")), 2, "speed and trainers; of losses there is one")
            other = run("cohive-monitor", "plot", history, "-o", picture, "--run-id", "other")
            self.assertEqual(other.returncode, 2)
            self.assertIn("no look at run other", other.stderr)

    def test_an_old_history_that_cannot_be_read_and_a_page_that_cannot_be_had(self):
        with tempfile.TemporaryDirectory() as folder, bootstrap() as (_, hub), shell.taken_port() as port:
            serve = ["cohive-monitor", "serve", "--initial-peers", *hub["initial_peers"]]
            self.assertEqual(run(*serve, "--metrics-address", f"127.0.0.1:{port}").returncode, 2)
            self.assertEqual(run("cohive-monitor", "plot", folder + "/none", "-o", folder + "/picture").returncode, 2)

    def test_the_doctor_is_that_of_cohive_dht_and_looks_at_a_run(self):
        with bootstrap() as (_, hub):
            alone = [run(program, "--json", "doctor", *hub["initial_peers"]) for program in ("cohive-monitor", "cohive-dht")]
            steps = [[json.loads(line)["step"] for line in one.stdout.splitlines()] for one in alone]
            self.assertEqual(steps[0], steps[1])
            self.assertEqual([one.returncode for one in alone], [0, 0])
            examined = run("cohive-monitor", "--json", "doctor", "--run-id", "my_run", "--initial-peers", *hub["initial_peers"])
            self.assertEqual(examined.returncode, 1, examined.stderr)
            found = {line["step"]: line for line in map(json.loads, examined.stdout.splitlines())}
            self.assertEqual((found["trainers"]["status"], found["swarm"]["status"]), ("failed", "ok"))
            self.assertIn('none trains run "my_run" now, or its trainers were given another --run-id', found["trainers"]["text"])


class Traces(unittest.TestCase):
    """What several peers did, in one picture."""

    def begin(self, ts, group):
        return {"ph": "b", "cat": "round", "name": "all-reduce", "id": 1, "pid": 7, "tid": 1, "ts": ts, "args": {"group_id": group}}

    def write(self, path, events, end="\n]\n"):
        name = {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": path.name}}
        path.write_text("[\n" + ",\n".join(json.dumps(event) for event in [name, *events]) + end)
        return path

    def test_clocks_are_set_right_by_the_rounds_that_peers_share(self):
        with tempfile.TemporaryDirectory() as folder:
            at = lambda name: Path(folder, name)
            right = self.write(at("right"), [self.begin(1e6, "aa"), self.begin(5e6, "bb")])
            ahead = self.write(at("ahead"), [self.begin(11e6, "aa"), self.begin(15.1e6, "bb"), self.begin(20e6, "cc")], end=",\n{\"ph\"")
            farther = self.write(at("farther"), [self.begin(25e6, "cc")])
            of_another_program = {"ph": "X", "name": 7, "ts": 1, "args": []}
            alone = self.write(at("alone"), [self.begin(3e6, "dd"), of_another_program])
            merged = run("cohive-monitor", "merge-traces", right, ahead, farther, alone, "-o", at("all"))
            self.assertEqual(merged.returncode, 0, merged.stderr)
            events = json.loads(at("all").read_text())
            begun = {(event["pid"], event["args"]["group_id"]): event["ts"] for event in events if event["ph"] == "b"}
            self.assertEqual(begun[1, "bb"], 5e6)
            self.assertAlmostEqual(begun[2, "bb"], 5e6, delta=0.2e6)
            self.assertAlmostEqual(begun[3, "cc"], begun[2, "cc"], delta=1)
            self.assertEqual(begun[4, "dd"], 3e6)
            self.assertEqual([event["pid"] for event in events if event["ph"] == "M"], [1, 2, 3, 4])
            self.assertIn("its clock moved by -10.0 s", merged.stdout)
            self.assertIn("alone: 2 events, 1 rounds, none of them with another file", merged.stdout)
            self.assertEqual(run("cohive-monitor", "merge-traces", at("none"), "-o", at("all")).returncode, 2)

    def test_two_trainers_and_a_node(self):
        if not shell.programs("cohive-train"):
            self.skipTest("built without LibTorch")
        with tempfile.TemporaryDirectory() as folder, bootstrap("--trace", folder + "/node") as (node, hub):
            Path(folder, "text").write_text("In the beginning was the Word, and the Word was with others. " * 200)
            train = lambda name: started("cohive-train", "--text", folder + "/text", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--width", "16", "--layers",
                                         "1", "--context", "16", "--target-batch-size", "4000", "--matchmaking-time", "1", "--max-epochs", "4",
                                         "--trace", f"{folder}/{name}", "--initial-peers", *hub["initial_peers"])
            with train("a") as first, train("b") as second:
                for process in (first, second):
                    process.communicate(timeout=PATIENCE)
                    self.assertEqual(process.returncode, 0)
            node.terminate()
            self.assertEqual(node.wait(PATIENCE), 0)
            files = [Path(folder, name) for name in ("node", "a", "b")]
            begun = [[event for event in json.loads(file.read_text()) if event["ph"] == "b"] for file in files]
            for trainer in begun[1:]:
                self.assertLessEqual({"dial", "call", "find a group", "all-reduce", "parts", "optimizer step", "trainer waits"},
                                     {event["name"] for event in trainer})
            groups = [{event["args"]["group_id"] for event in trainer if event["name"] == "all-reduce"} for trainer in begun[1:]]
            self.assertTrue(groups[0] & groups[1], "they have averaged together")
            merged = run("cohive-monitor", "merge-traces", *files, "-o", folder + "/all")
            self.assertEqual(merged.returncode, 0, merged.stderr)
            self.assertEqual(len(json.loads(Path(folder, "all").read_text())), sum(len(json.loads(file.read_text())) for file in files))


if __name__ == "__main__":
    shell.main()
