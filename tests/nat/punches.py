#!/usr/bin/env python3
"""How many hole punches succeed, and how many of these at the first attempt, where the routers allow it.

    tests/nat/punches.py [--pairs 100] [--kinds restricted,port-restricted,...] [--delay 50] [--loss 1] [--jobs 3]

Every pair is two cohive peers behind routers, in a world of its own with public nodes that relay; the left one calls
the right one by its id, which begins over a relay. The kinds of the pairs take turns. Prints one line per pair, and the
sums. Needs root and the programs in $COHIVE_BIN_DIR (default build/release/bin).
"""

import argparse
import asyncio
import functools
import itertools
import logging
import multiprocessing
import re
import shutil
import time

import lab
import namespaces
import peers
from link import programs

PUBLIC_NODES = 2
PATIENCE = 60  # seconds until the first successful call
WATCHED = 25  # seconds after it: three attempts
KINDS = ("restricted", "port-restricted", "double", "firewall")  # which drop what comes from a stranger
WITHOUT = {("firewall", "firewall")}  # both have addresses of their own, and meet when both dial
PUNCHED, DIALLED = "punched", "dialled without a relay"
LOGS = programs().parent / "nat-logs/punches"


async def punch(world, kinds, link):
    """What becomes of one pair."""
    public = []
    for number in range(PUBLIC_NODES):
        initial = public[0].addresses if public else ()
        public.append(await peers.Cohive.start(world.host(f"public{number}"), initial, public=True))
    hosts = [world.host(name, kind, families=(4,), link=link) for name, kind in zip(("left", "right"), kinds)]
    initial = [address for address in public[0].addresses if "/ip4/" in address]
    # One after the other: peers that find each other while both join may dial before any relay is used.
    left, right = [await peers.Cohive.start(host, initial) for host in hosts]
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                await left.call(right.id, b"?", 10)
                break
            except peers.CallError:
                if time.monotonic() > until:
                    return "never connected"
                await asyncio.sleep(0.5)
        relayed, until = False, time.monotonic() + WATCHED
        while time.monotonic() < until:
            connections = await left.connections(right.id)
            relayed = relayed or any(peers.CIRCUIT in address for address in connections)
            if any(peers.CIRCUIT not in address for address in connections):
                return PUNCHED if relayed else DIALLED
            await asyncio.sleep(0.1)
        return "relayed"
    finally:
        await asyncio.gather(*(peer.close() for peer in (left, right, *public)), return_exceptions=True)


def attempts(world):
    """The attempts that the called end counts; 0 when a dial of an address that it was told got through."""
    logs = [path.read_text() for path in world.logs.glob("*.cohive.log")]
    return max((int(found) for log in logs for found in re.findall(r"was open at attempt (\d+)", log)), default=0)


def tried(options, task):
    """One pair in a world, and a process, of its own."""
    number, kinds = task
    logs = LOGS / f"{number}-{'-'.join(kinds)}"
    shutil.rmtree(logs, ignore_errors=True)
    logging.disable()
    link = lab.Link(delay=options.delay / 2, loss=options.loss / 2)  # the path has two such links
    began = time.monotonic()
    try:
        with lab.World(logs) as world:
            outcome, needed = asyncio.run(punch(world, kinds, link)), attempts(world)
    except Exception as error:  # a pair that could not be tried must not end the others
        outcome, needed = f"{type(error).__name__}: {error}", 0
    attempt = f" at attempt {needed}" if outcome == PUNCHED else ""
    print(f"{number:3} {kinds[0]:>15} -> {kinds[1]:15} {outcome}{attempt}, {time.monotonic() - began:.0f} s", flush=True)
    return outcome, needed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--kinds", default=",".join(KINDS), help="of hosts; every pair that needs punching")
    parser.add_argument("--delay", type=float, default=50, help="milliseconds from peer to peer, one way")
    parser.add_argument("--loss", type=float, default=1, help="percent from peer to peer")
    parser.add_argument("--jobs", type=int, default=3, help="worlds at once")
    options = parser.parse_args()
    if reason := namespaces.unavailable():
        parser.exit(77, f"skipped: {reason}\n")
    kinds = options.kinds.split(",")
    pairs = [pair for pair in itertools.product(kinds, kinds) if pair not in WITHOUT]
    pairs = itertools.islice(itertools.cycle(pairs), options.pairs)
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        outcomes = pool.map(functools.partial(tried, options), list(enumerate(pairs)), chunksize=1)
    punched = [needed for outcome, needed in outcomes if outcome == PUNCHED]
    dialled = sum(outcome == DIALLED for outcome, _ in outcomes)
    first = sum(needed <= 1 for needed in punched)
    print(f"{len(punched)} of {len(outcomes) - dialled} punches succeeded, {first} of them at the first attempt; "
          f"{dialled} pairs needed none")


if __name__ == "__main__":
    main()
