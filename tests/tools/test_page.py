"""The live page in a browser: it shows what the program tells, follows it, and takes nothing that a peer says for markup.

Usage: test_page.py FOLDER-OF-PROGRAMS [unittest options]. Needs Python and Chromium; skipped without one.
"""

import http.server
import json
import os
import subprocess
import tempfile
import threading
import unittest
import urllib.request
from pathlib import Path

import browser
import shell

environment = {k: v for k, v in os.environ.items() if k not in ("INITIAL_PEERS", "PL_INITIAL_PEERS")}
HOSTILE = '<img src=x onerror="document.title=\'taken over\'"><script>document.title=\'taken over\'</script>'
FACTS = "[...document.querySelectorAll('#facts .fact')].map(fact => fact.innerText).join('|')"
PEER_ROWS = "document.querySelectorAll('#peers tbody tr').length"
LIVE = "document.getElementById('dot').className === 'live'"


def made_status(peers, epochs=40):
    """What a trainer among so many peers would tell, and some of them lie about what they are."""
    rounds = [{"time": 1.7e9 + 30 * i, "what": "gradients", "outcome": "failed" if i % 9 == 8 else "partial" if i % 7 == 6 else "ok",
               "cause": "no_group" if i % 9 == 8 else "", "message": HOSTILE if i % 9 == 8 else "", "group_id": "ab" * 20,
               "members": [] if i % 9 == 8 else ["12D3KooWmember" + str(n) for n in range(4)], "lost": [],
               "matchmaking_seconds": 1 + i % 4, "allreduce_seconds": .5 + i % 3 * .4, "bytes_sent": 1000, "bytes_received": 1000}
              for i in range(100)]
    return {
        "program": {"version": "0.1.0", "revision": "abc", "compiler": "Clang", "time": 1.7e9, "started": 1.7e9 - 3600, "uptime_seconds": 3600},
        "node": {"peer_id": "12D3KooWnode" + "x" * 40, "agent": "cohive", "addresses": ["/ip4/127.0.0.1/tcp/1"], "join": "INITIAL_PEERS=…",
                 "reachability": "public", "relays": [], "connections": peers, "bytes_in": 123456789, "bytes_out": 987654321},
        "peers": [{"id": "12D3KooWpeer" + str(i).zfill(40), "agent": HOSTILE if i % 2 else "hivemind", "address": f"/ip4/10.0.{i // 250}.{i % 250}/tcp/4001",
                   "path": "relayed" if i % 5 == 0 else "direct", "direction": "us" if i % 2 else "the peer", "security": "/noise", "connections": 1,
                   "streams": 2, "rtt_seconds": .01 + i / 1000 if i % 3 else None, "bytes_in": 1000 * i, "bytes_out": 500 * i, "seconds": 60 + i}
                  for i in range(peers)],
        "failures": [{"time": 1.7e9, "kind": "dial", "cause": "timeout", "message": HOSTILE}],
        "runs": [{"run_id": "demo", "mode": "node", "epoch": epochs, "global_epoch": epochs, "samples": 300, "own_samples": 100, "target_samples": 768,
                  "samples_per_second": 120.5, "eta_seconds": 4, "peers": 4, "clients": 0, "loss": 2.5, "wait_seconds": {"gradients": 42, "step": 3},
                  "rounds": rounds, "epochs": [{"epoch": e, "time": 1.7e9 + 6 * e, "seconds": 6, "wait_seconds": 1.5, "samples": 770,
                                                "samples_per_second": 110 + e % 5, "loss": None if e == 3 else 4 - 1.5 * e / epochs, "peers": 4}
                                               for e in range(epochs)]}]}


def made_swarm(peers, epoch=40):
    """What a monitor would tell of a run with so many peers, some of which lie about what they are."""
    members = [{"id": "12D3KooWpeer" + str(i).zfill(40), "role": ["trainer", "client", "node"][i % 3], "software": ["cohive", "hivemind"][i % 2],
                "agent": HOSTILE if i % 2 else "cohive/0.1", "address": f"/ip4/10.0.{i // 250}.{i % 250}/tcp/4001", "epoch": epoch if i % 3 < 2 else None,
                "samples": 10 * i, "samples_per_second": 100.0 + i, "loss": 2.5 if i % 2 else None, "age_seconds": 1.5,
                "reachable": None if i % 3 == 1 else i % 5 != 2, "rtt_seconds": .01 + i / 1000, "clock_ahead_seconds": 10.0 if i == 4 else 0.0,
                "neighbours": 5} for i in range(peers)]
    return {"run_id": "demo " + HOSTILE, "time": 1.7e9, "epoch": epoch, "claimed_epoch": epoch, "samples": 300, "target_samples": 768,
            "target_is_estimated": True, "samples_per_second": 120.5, "eta_seconds": 4, "loss": 2.5, "loss_epoch": epoch,
            "trainers": peers, "clients": peers // 3, "mapped": True, "nodes": peers, "reachable_nodes": peers, "parts": [peers], "peer_count": peers,
            "links": [[i, j] for i in range(min(peers, 60)) for j in range(0, min(peers, 60), 7) if i != j], "peers": members,
            "round_trips": [[i, j, .01 * (i + j)] for i in range(min(peers, 60)) for j in range(0, min(peers, 60), 14) if i != j],
            "rounds": [{"time": 1.7e9 + e, "what": "gradients", "outcome": ["ok", "failed"][e % 9 == 8], "message": HOSTILE, "group_id": "ab12" if e % 9 < 8 else "",
                        "member_count": peers, "told_by": [members[0]["id"]], "told_by_count": 7, "matchmaking_seconds": 1, "allreduce_seconds": .5} for e in range(40)],
            "warnings": [{"kind": "split", "message": "the swarm is split " + HOSTILE}],
            "losses": [{"epoch": e, "time": 1.7e9 + 6 * e, "loss": 4 - e / epoch} for e in range(1, epoch)],
            "looks": [{"time": 1.7e9 + 6 * e, "epoch": e, "samples_per_second": 100 + e % 7, "peers": peers} for e in range(epoch)],
            "epochs": [{"epoch": e, "time": 1.7e9 + 6 * e, "seconds": 6 + e % 3, "peers": peers} for e in range(epoch)]}


class MadeServer:
    """Serves the page of a real program, under its policy, with a status that a test makes up."""

    def __init__(self, page_url):
        with urllib.request.urlopen(page_url) as answer:
            self.page, self.policy = answer.read(), answer.headers["Content-Security-Policy"]
        self.status = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = outer.page if self.path == "/" else json.dumps(outer.status).encode()
                self.send_response(200 if self.path in ("/", "/status") else 404)
                self.send_header("Content-Security-Policy", outer.policy)
                self.send_header("Content-Type", "text/html; charset=utf-8" if self.path == "/" else "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # a browser that has left
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@unittest.skipUnless(browser.find(), "no Chromium: tools/install-deps.sh --browser installs it, or name one in $CHROMIUM")
class Page(unittest.TestCase):
    def start(self, *arguments):
        process = subprocess.Popen([shell.BIN / "cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--metrics-address", "127.0.0.1:0",
                                    "--json", *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return json.loads(process.stdout.readline())

    def made(self):
        server = MadeServer(self.start()["page"])
        self.addCleanup(server.close)
        return server

    def test_a_node_that_a_peer_joins(self):
        node = self.start()
        with browser.Browser() as page:
            page.open(node["page"])
            page.wait_for(LIVE)
            self.assertEqual(page.ask(PEER_ROWS), 0)
            before = page.ask(FACTS)
            joined = self.start("--initial-peers", *node["initial_peers"])
            page.wait_for(PEER_ROWS + " === 1")
            self.assertEqual(page.ask("document.querySelector('#peers tbody td').title"), joined["peer_id"])
            self.assertNotEqual(page.ask(FACTS), before)
            self.assertIn(node["initial_peers"][0], page.ask("document.getElementById('node').innerText"))
            self.assertEqual(page.complaints, [])

    def test_a_program_that_has_ended_is_said_to_have(self):
        server = self.made()
        server.status = made_status(3)
        with browser.Browser() as page:
            page.open(server.url)
            page.wait_for(LIVE)
            server.close()
            page.wait_for("!document.getElementById('problem').hidden")
            self.assertIn("does not answer", page.ask("document.getElementById('problem').innerText"))
            self.assertEqual(page.ask(PEER_ROWS), 3)

    def test_one_fifty_and_a_thousand_peers(self):
        server = self.made()
        with browser.Browser() as page:
            server.status = made_status(1)
            page.open(server.url)
            page.wait_for(LIVE)
            for peers in (1, 50, 1000):
                server.status = made_status(peers)
                page.wait_for(f"document.getElementById('peers-count').innerText.startsWith('{peers} connected')")
                self.assertEqual(page.ask(PEER_ROWS), min(peers, 50))
            page.ask("document.getElementById('peers-more').click()")
            self.assertEqual(page.ask(PEER_ROWS), 250)
            page.ask("document.querySelector('#peers th[data-key=rtt_seconds]').click()")
            self.assertIn("1.0 s", page.ask("document.querySelector('#peers tbody tr').innerText"), "the longest comes first")
            page.ask("(filter => { filter.value = '000999'; filter.dispatchEvent(new Event('input')); })(document.getElementById('peers-filter'))")
            self.assertEqual(page.ask(PEER_ROWS), 1)
            self.assertEqual(page.complaints, [])

    def test_what_peers_say_is_text(self):
        server = self.made()
        server.status = made_status(10)
        with browser.Browser() as page:
            page.open(server.url)
            page.wait_for(LIVE)
            self.assertEqual(page.ask("document.querySelectorAll('img').length"), 0)
            self.assertEqual(page.ask("document.querySelectorAll('script').length"), 1)
            self.assertIn("<img", page.ask("document.getElementById('peers').innerText"))
            self.assertIn("<img", page.ask("document.getElementById('failures').innerText"))
            self.assertNotIn("taken over", page.ask("document.title"))
            self.assertEqual(page.complaints, [])

    def test_a_run_has_curves_and_rounds_that_follow_it(self):
        server = self.made()
        server.status = made_status(4, epochs=1)
        with browser.Browser() as page:
            page.open(server.url)
            page.wait_for(LIVE)
            self.assertEqual(page.ask("document.querySelectorAll('.curve').length"), 0, "one epoch is no curve")
            server.status = made_status(4, epochs=40)
            page.wait_for("document.querySelectorAll('.curve').length === 2")
            first = page.ask("document.querySelector('.curve').getAttribute('d')")
            server.status = made_status(4, epochs=41)
            page.wait_for(f"document.querySelector('.curve').getAttribute('d') !== '{first}'")
            self.assertEqual(page.ask("document.querySelectorAll('.rounds g').length"), 100)
            self.assertEqual(page.ask("document.querySelectorAll('.rounds .failed:not(.searching)').length"), 11)
            page.ask("document.querySelectorAll('.rounds g')[0].dispatchEvent(new PointerEvent('pointermove', {clientX: 10, clientY: 10}))")
            self.assertIn("4 members", page.ask("document.getElementById('tip').innerText"))
            self.assertEqual(page.complaints, [])

    def test_a_whole_run_of_one_fifty_and_a_thousand_peers(self):
        server = self.made()
        with browser.Browser() as page:
            server.status = {**made_status(1), "swarm": made_swarm(1, epoch=40)}
            page.open(server.url)
            page.wait_for(LIVE)
            for epoch, peers in ((41, 1), (42, 50), (43, 1000)):
                server.status = {**made_status(1), "swarm": made_swarm(peers, epoch)}
                page.wait_for(f"document.getElementById('swarm-facts').innerText.startsWith('{epoch}')")
                self.assertEqual(page.ask("document.querySelectorAll('#members tbody tr').length"), min(peers, 50))
                self.assertEqual(page.ask("document.querySelectorAll('.map .member').length"), min(peers, 150))
                self.assertEqual(page.ask("document.querySelectorAll('.matrix .self').length"), min(peers, 60))
            self.assertEqual(page.ask("document.querySelectorAll('#swarm-curves .curve').length"), 4)
            self.assertEqual(page.ask("document.querySelectorAll('.matrix .far').length"), 5 * 60 - 5)
            self.assertEqual(page.ask("document.querySelectorAll('#swarm-curves .rounds g').length"), 40)
            page.ask("document.querySelector('#swarm-curves .rounds g').dispatchEvent(new PointerEvent('pointermove', {clientX: 10, clientY: 10}))")
            self.assertIn("told by", page.ask("document.getElementById('tip').innerText"))
            page.ask("document.querySelector('#members th[data-key=rtt_seconds]').click()")
            self.assertIn("1.0 s", page.ask("document.querySelector('#members tbody tr').innerText"), "the longest comes first")
            page.ask("document.querySelector('.map .member').dispatchEvent(new PointerEvent('pointermove', {clientX: 10, clientY: 10}))")
            self.assertIn("12D3KooWpeer", page.ask("document.getElementById('tip').innerText"))
            self.assertGreater(page.ask("document.querySelectorAll('.link.shown').length"), 5)
            self.assertEqual(page.ask("document.querySelectorAll('img').length"), 0, "what peers say is text")
            self.assertIn("<img", page.ask("document.getElementById('warnings').innerText"))
            self.assertEqual(page.complaints, [])

    def test_a_run_that_the_monitor_watches(self):
        node = self.start()
        self.start("--initial-peers", *node["initial_peers"])
        monitor = subprocess.Popen([shell.BIN / "cohive-monitor", "serve", "--json", "--metrics-address", "127.0.0.1:0", "--interval", "0.2",
                                    "--crawl-interval", "1", "--initial-peers", *node["initial_peers"]], env=environment, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        self.addCleanup(monitor.communicate)
        self.addCleanup(monitor.kill)
        with browser.Browser() as page:
            page.open(json.loads(monitor.stdout.readline())["page"])
            page.wait_for("document.querySelectorAll('#members tbody tr').length === 2")
            self.start("--initial-peers", *node["initial_peers"])
            page.wait_for("document.querySelectorAll('#members tbody tr').length === 3")
            self.assertIn("no trainer reports", page.ask("document.getElementById('warnings').innerText"))
            self.assertIn("3 of 3", page.ask("document.getElementById('swarm-facts').innerText"))
            self.assertEqual(page.complaints, [])

    def test_a_token_comes_from_the_address(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        token = Path(folder.name, "token")
        token.write_text("a+b/c==\n")
        token.chmod(0o400)
        node = self.start("--metrics-token-file", str(token))
        with browser.Browser() as page:
            page.open(node["page"])
            page.wait_for("document.getElementById('problem').innerText.includes('token is needed')")
            page.open(node["page"] + "#token=a+b/c==")
            page.wait_for(LIVE)
            page.complaints.clear()
            page.ask("document.querySelector('.links a[href=\"/metrics\"]').click()")
            page.wait_for("document.getElementById('shown').innerText.includes('cohive_p2p_connections')")
            self.assertEqual(page.ask("location.pathname"), "/")
            self.assertEqual(page.complaints, [])


if __name__ == "__main__":
    shell.main()
