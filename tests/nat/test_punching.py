"""What is in the way of hole punching goes away before the next attempt."""

import asyncio
import errno
import time

import peers
import probe

GONE = 8  # seconds: the system's own patience is a minute
DEAF = """
table ip deaf {
  chain input {
    type filter hook input priority filter; policy drop;
  }
}"""
HALF_OPEN = "03"  # SYN_RECV in /proc/net/tcp


def half_open(host, port):
    """The connections at a listening port whose other end has not answered."""
    with host.inside(), open("/proc/thread-self/net/tcp") as table:
        rows = [row.split() for row in table.readlines()[1:]]
    return [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == HALF_OPEN]


def test_a_peer_that_does_not_answer_leaves_the_pair_of_ports_free(world):
    listener, silent = world.host("listener", families=(4,)), world.host("silent", families=(4,))
    silent.nft(DEAF)

    async def tried():
        peer = await peers.Cohive.start(listener, public=True)
        port = int(peer.addresses[0].split("/tcp/")[1].split("/")[0])
        with probe.bound(silent, probe.TCP, 0) as dialling:
            assert dialling.connect_ex((listener.addresses[4], port)) == errno.EINPROGRESS
            async with asyncio.timeout(GONE):
                while not half_open(listener, port):
                    await asyncio.sleep(0.05)
        began = time.monotonic()
        while half_open(listener, port) and time.monotonic() - began < GONE:
            await asyncio.sleep(0.1)
        assert not half_open(listener, port)
        await peer.close()

    asyncio.run(tried())
