"""cohive-bootstrap in the place of hivemind-dht: its flags, its lines in the log, and a script that starts either."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("hivemind")

PATIENCE = 60
HIVEMIND_DHT = Path(sys.executable).with_name("hivemind-dht")
LISTEN = "/ip4/127.0.0.1/tcp/0"

# As a script of hivemind's users starts a node; $1: the program, $2: a folder, the rest: initial peers. Variables that are
# empty leave a flag without values.
SCRIPT = """
program=$1 folder=$2; shift 2
exec "$program" --host_maddrs {listen} --initial_peers $* --identity_path "$folder/identity" --refresh_period 1
"""


class Node:
    """A node started by the script, and what it has logged."""

    def __init__(self, program, folder, peers=()):
        folder.mkdir()
        script = folder / "start.sh"
        script.write_text(SCRIPT.format(listen=LISTEN))
        self.process = subprocess.Popen(["sh", script, program, folder, *peers], stderr=subprocess.PIPE, text=True)

    def line(self, pattern):
        """The first group of the next line that has the pattern."""
        for line in self.process.stderr:
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"the log ended without {pattern}")

    def join_words(self):
        """The words by which hivemind's own tests make a second node join."""
        words = self.line(r"Running a DHT instance\. To connect other peers to this one, use (.+)$").split()
        assert words[0] == "--initial_peers"
        return words[1:]

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.stderr.close()


@pytest.fixture
def nodes(tmp_path):
    started = []

    def start(program, peers=()):
        started.append(Node(program, tmp_path / str(len(started)), peers))
        return started[-1]

    yield start
    for node in started:
        node.close()


def flags_of_hivemind():
    """Each flag of hivemind-dht, with an example of its value where it has one."""
    shown = subprocess.run([HIVEMIND_DHT, "--help"], check=True, capture_output=True, text=True).stdout
    usage = shown.partition("\noptions:")[0]
    return {flag: value for flag, value in re.findall(r"\[(--\w+)(?: \[?([A-Z_]+))?", usage)}


VALUES = {"INITIAL_PEERS": [], "HOST_MADDRS": [LISTEN], "ANNOUNCE_MADDRS": ["/ip4/127.0.0.1/tcp/31337"], "REFRESH_PERIOD": ["5"]}


def test_every_flag_is_taken_or_refused_with_a_reason(program, tmp_path):
    flags = flags_of_hivemind()
    assert {"--initial_peers", "--host_maddrs", "--identity_path"} <= set(flags)
    for flag, kind in flags.items():
        values = {**VALUES, "IDENTITY_PATH": [tmp_path / "identity"]}.get(kind, [])
        for name in (flag, flag.replace("_", "-")):
            node = subprocess.Popen([program("cohive-bootstrap"), name, *values], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    text=True)
            if node.stdout.readline().startswith("To join this swarm"):  # nothing: it has ended
                node.terminate()
                assert node.communicate(timeout=PATIENCE) and node.returncode == 0
                continue
            errors = node.communicate(timeout=PATIENCE)[1]
            assert node.returncode == 2
            assert errors.startswith(f"cohive-bootstrap: {flag.replace('_', '-')}: "), errors
            assert flag == "--use_ipfs", errors


@pytest.mark.parametrize("first", ["cohive-bootstrap", "hivemind-dht"])
@pytest.mark.parametrize("second", ["cohive-bootstrap", "hivemind-dht"])
def test_a_script_starts_either(program, nodes, first, second):
    find = {"cohive-bootstrap": program("cohive-bootstrap"), "hivemind-dht": HIVEMIND_DHT}
    begun = nodes(find[first])
    joined = nodes(find[second], begun.join_words())
    joined.join_words()
    for node in (begun, joined):
        node.line(r"(2) DHT nodes \(including this one\) are in the local routing table")
        assert int(node.line(r"Local storage contains (\d+) keys")) >= 0
    assert joined.close() == 0


def test_the_name_hivemind_dht_can_be_given_to_it(program, nodes, tmp_path):
    link = tmp_path / "hivemind-dht"
    link.symlink_to(program("cohive-bootstrap"))
    assert nodes(link).join_words()
