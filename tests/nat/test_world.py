"""Worlds: who reaches whom, several at once, and nothing left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

import namespaces
import probe
from lab import KINDS, World

PATIENCE = 20  # seconds until something that should happen counts as not happening

# A process that makes a world with a program and a slow link in it, and says how it is named.
OWNER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from lab import Link, World
world = World()
host = world.host("host", "symmetric", link=Link(delay=1))
program = host.start(["sh", "-c", "echo it runs; exec sleep 1000"])
program.find("it runs")  # only then it is in the namespace
print(world.slot.number, program.pid, flush=True)
time.sleep(1000)
"""


def until(condition):
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "it does not happen"
        time.sleep(0.02)


async def arrives(sender, receiver, family):
    port = probe.some_port()
    with probe.bound(receiver, probe.TCP, port, probe.family_of(receiver.addresses[family])) as listener:
        listener.listen(8)
        return await probe.arrives(sender, listener, (receiver.addresses[family], port), probe.TCP)


def reach(*pairs, family=4):
    """Whether new TCP connections arrive, of each pair of a sender and a receiver."""

    async def tried():
        return await asyncio.gather(*(arrives(sender, receiver, family) for sender, receiver in pairs))

    return asyncio.run(tried())


def reaches(sender, receiver, family=4):
    return reach((sender, receiver), family=family)[0]


@pytest.mark.parametrize("family", [4, 6])
def test_public_hosts_reach_each_other_and_hidden_ones_only_reach_out(world, family):
    hosts = {kind: world.host(f"h{number}", kind) for number, kind in enumerate(KINDS)}
    public, other = world.host("public"), hosts.pop("open")
    assert all(reach((public, other), (other, public), family=family))
    assert all(reach(*((host, public) for host in hosts.values()), family=family))
    assert not any(reach(*((public, host) for host in hosts.values()), family=family))


def test_a_host_has_only_the_families_it_was_given(world):
    old, new, both = world.host("old", families=(4,)), world.host("new", families=(6,)), world.host("both")
    assert set(old.addresses) == {4} and set(new.addresses) == {6}
    assert reaches(old, both, 4) and not reaches(old, both, 6)
    assert reaches(new, both, 6) and not reaches(new, both, 4)


def test_the_machine_and_its_network_cannot_be_reached(world):
    host = world.host("host")
    routes = subprocess.run(["ip", "-n", world.core.namespace, "route"], capture_output=True, text=True).stdout
    assert "default" not in routes
    for target in ("127.0.0.1", "1.1.1.1"):
        assert asyncio.run(probe.connect(host, (target, 53))) is None


def test_worlds_at_once_do_not_meet(worlds):
    first, second = worlds(), worlds()
    hosts = [(world.host("a"), world.host("b")) for world in (first, second)]
    assert hosts[0][0].addresses == hosts[1][0].addresses  # the same addresses, and yet
    second.cut(hosts[1][1])
    assert reaches(*hosts[0]) and not reaches(*hosts[1])


def test_a_line_is_cut_and_mended(world):
    home, public = world.host("home", "full-cone"), world.host("public")
    assert reaches(home, public)
    world.cut(home)
    assert not reaches(home, public)
    world.mend(home)
    assert reaches(home, public)


def test_hosts_behind_one_router_are_neighbours(world):
    first = world.host("first", "port-restricted")
    second = world.host("second", behind=first)
    assert first.outer_address() == second.outer_address() != first.addresses[4]
    assert reaches(first, second) and reaches(second, first)


def test_nothing_is_left_of_a_world():
    with World() as world:
        slot = world.slot
        program = world.host("host", "double").start(["sleep", "1000"])
        assert slot.namespaces()
    assert not slot.namespaces() and not program.runs() and not world.logs.exists()


@pytest.mark.parametrize("guarded", [True, False])
def test_nothing_is_left_of_a_world_whose_owner_was_killed(guarded):
    owner = subprocess.Popen([sys.executable, "-c", OWNER, os.path.dirname(__file__)], stdout=subprocess.PIPE, text=True)
    number, program = owner.stdout.readline().split()
    left = namespaces.Slot(int(number), None).namespaces()
    assert len(left) == 3  # the core, the router, the host
    if not guarded:
        guard, = (pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_guard(pid, owner.pid))
        os.kill(guard, signal.SIGKILL)
    owner.kill()
    owner.wait()
    if not guarded:
        assert namespaces.sweep() == len(left)
    slot = namespaces.Slot(int(number), None)
    until(lambda: not slot.namespaces() and not slot.folder.exists() and not os.path.exists(f"/proc/{program}"))


def is_guard(pid, parent):
    try:
        with open(f"/proc/{pid}/stat") as stat, open(f"/proc/{pid}/cmdline") as command:
            return stat.read().rpartition(")")[2].split()[1] == str(parent) and "sweep" in command.read()
    except OSError:
        return False
