"""Links are as slow and as lossy as they were told to be."""

import asyncio
import re
import socket
import statistics
import time

import pytest

import probe
from lab import Link
from link import NEAR

PATIENCE = 20  # seconds until something that should happen counts as not happening
PACKETS = 4000
SO_RCVBUFFORCE = 33  # beyond what the system allows users


def round_trips(host, observer, count):
    """Seconds of TCP handshakes."""

    async def timed():
        started = time.monotonic()
        made = await probe.connect(host, (observer.address, probe.PORTS[0]), timeout=10)
        made.close()
        return time.monotonic() - started

    async def all_timed():
        async with observer:
            return [await timed() for _ in range(count)]

    return asyncio.run(all_timed())


@pytest.mark.parametrize("family", [4, 6])
def test_a_delay_counts_both_ways_and_both_links(world, family):
    left, right = world.host("left", "symmetric", link=Link(delay=30)), world.host("right", link=Link(delay=20))
    took = round_trips(left, probe.Observer(right, family), 5)
    assert all(seconds >= 0.1 for seconds in took) and min(took) < 0.15


def test_jitter_varies_the_delay_around_its_mean(world):
    left, right = world.host("left", link=Link(delay=20, jitter=10)), world.host("right")
    took = round_trips(left, probe.Observer(right), 60)
    assert min(took) >= 0.02 and max(took) - min(took) > 0.01
    assert 0.03 < statistics.mean(took) < 0.06


def flood(sender, receiver):
    """Sends numbered packets one way; returns the numbers that arrive."""
    with probe.bound(receiver, probe.UDP, 4001) as here, probe.bound(sender, probe.UDP) as there:
        here.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        there.setblocking(True)
        for number in range(PACKETS):
            there.sendto(number.to_bytes(4, "big"), (receiver.addresses[4], 4001))
            if number % 50 == 49:
                time.sleep(0.001)
        here.settimeout(0.5)
        arrived = []
        try:
            while True:
                arrived.append(int.from_bytes(here.recv(10), "big"))
        except TimeoutError:
            return arrived


def test_loss_takes_the_share_that_it_was_given_and_keeps_the_order(world):
    left, right = world.host("left", link=Link(delay=5, jitter=5, loss=5)), world.host("right")
    arrived = flood(left, right)
    assert arrived == sorted(arrived)
    assert 0.03 < 1 - len(arrived) / PACKETS < 0.07
    carried, lost, overflown = left.link.packets(NEAR)
    assert carried + lost >= PACKETS and lost >= PACKETS - len(arrived) and overflown == 0


def test_a_link_changes_while_it_is_used(world):
    left, right = world.host("left", link=Link()), world.host("right")
    assert max(round_trips(left, probe.Observer(right), 3)) < 0.1
    left.link.become(Link(delay=100))
    assert min(round_trips(left, probe.Observer(right), 3)) >= 0.2
    left.link.become(Link(loss=100))
    assert flood(left, right) == []


def test_an_interface_that_is_gone_costs_nothing_and_the_other_links_go_on(world):
    left, right, public = world.host("left", link=Link()), world.host("right", link=Link(delay=1)), world.host("public")
    left.ip(["link del eth0"])
    began = world.emulator.processor_seconds()
    assert max(round_trips(right, probe.Observer(public), 3)) < 0.1
    time.sleep(1)
    assert world.emulator.processor_seconds() - began < 0.5


def streamed(sender, receiver, seconds):
    """Mbit/s of one TCP connection as they arrive, of each second."""
    server = receiver.start(["iperf3", "--server", "--one-off", "--forceflush", "--format", "m"])
    server.find("listening")
    sender.start(["iperf3", "--client", receiver.addresses[4], "--time", seconds]).wait(seconds + PATIENCE)
    server.wait()
    return [float(rate) for rate in re.findall(r"([\d.]+) Mbits/sec +$", server.output(), re.M)]


@pytest.mark.parametrize("rate, delay", [(100, 100), (200, 50)])
def test_one_connection_fills_a_fast_and_long_link(world, rate, delay):
    left, right = world.host("left", link=Link(rate=rate, delay=delay)), world.host("right")
    for _ in range(3):  # a machine that is busy with other things may hold either end up
        best = statistics.median(sorted(streamed(left, right, 8))[-5:])
        if best >= 0.95 * rate:
            break
    assert 0.95 * rate <= best <= 1.02 * rate


def test_a_rate_may_differ_by_direction(world):
    left, right = world.host("left", link=Link(rate=100, up=10, delay=5)), world.host("right")
    up, down = max(streamed(left, right, 3)), max(streamed(right, left, 3))
    assert 8 < up < 11 and 80 < down < 110
