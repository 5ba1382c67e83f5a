#!/usr/bin/env python3
"""Which peers reach each other: for every pair of kinds of hosts a world with two peers that know only a public bootstrap
node, by what path the left one gets through to the right one, and when.

    tests/nat/matrix.py [--peers p2pd|cohive] [--left MAKE] [--right MAKE] [--relay MAKE] [--kinds open,symmetric,...]
                        [--delay 50] [--loss 1] [--all-reduce] [--relay-dies] [--trusted-relays] [--repeat 1] [--jobs 3]
                        [--json FILE]

Prints a table in Markdown. Both peers start at once, each where its kind says, five public nodes (all bootstrap nodes and
relays) before them. A cell tells the path, the seconds from the start to the first successful call by peer id, and, when
it began over a relay, to the direct connection:
    direct    never over a relay, or one side can be dialled     punched   over a relay first, then through both routers
    relayed   over a relay for good                              none      no call within 60 s
    *         a call of 300 kB over it fails, as every all-reduce would, or with --all-reduce that one
    +N        with --relay-dies: the relay in use was killed, and N seconds later a call went through again
Needs root, the programs in $COHIVE_BIN_DIR (default build/release/bin), and for p2pd tools/install-deps.sh --interop.
"""

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import multiprocessing
import pathlib
import shutil
import statistics
import sys
import time

import interpreter

if __name__ == "__main__":
    interpreter.with_hivemind()

import lab
import namespaces
import peers
from link import programs

PUBLIC_NODES = 5  # a p2pd believes in its outer address when four see the same
PATIENCE = 60  # seconds until the first successful call
WATCHED = 20  # seconds after it, in which a relayed connection may become a direct one: three attempts of five seconds
ASKING = 0.25  # seconds between two looks at the connections
RETRYING = 0.5  # seconds after a failed call
PAYLOAD = 300_000  # bytes; the relays that all hivemind peers are by default end a connection after 128 KiB
PAYLOAD_TIME = 20  # seconds
ALL_REDUCE_TIME = 40  # seconds, matchmaking included
KINDS = [*lab.KINDS, "open/6", "firewall/6"]
LOGS = programs().parent / "nat-logs/matrix"


@dataclasses.dataclass
class Outcome:
    """How one pair fared."""

    left: str
    right: str
    path: str = "none"
    first: float | None = None  # seconds to the first successful call
    direct: float | None = None  # seconds to a direct connection, when the first one was relayed
    payload: bool | None = None  # whether a large call went through, and the all-reduce
    again: float | None = None  # seconds from the death of the relay in use to the next successful call
    error: str | None = None  # of the last failed call


def place(world, name, kind, link):
    """A host of a kind as the table names it: one with IPv4 alone, or with /6 one with IPv6 alone."""
    kind, _, family = kind.partition("/")
    return world.host(name, kind, families=(6,) if family else (4,), link=link)


async def measure(world, left_kind, right_kind, options):
    """Starts all peers of a world and watches the pair; returns its outcome."""
    outcome, link = Outcome(left_kind, right_kind), None
    if options.delay or options.loss:
        link = lab.Link(delay=options.delay / 2, loss=options.loss / 2)  # the path has two such links
    public = []
    for number in range(PUBLIC_NODES):
        initial = public[0].addresses if public else ()
        public.append(await peers.MAKES[options.relay].start(world.host(f"public{number}"), initial, public=True))
    hosts = [place(world, name, kind, link) for name, kind in (("left", left_kind), ("right", right_kind))]
    began = time.monotonic()
    left, right = await asyncio.gather(*(
        peers.MAKES[make].start(host, initial_for(host, public[0].addresses))
        for make, host in zip((options.left, options.right), hosts)))
    try:
        await follow(left, right, began, outcome)
        if options.all_reduce and outcome.first is not None:
            await reduce_all(left, right, public, hosts, outcome)
        if options.relay_dies and outcome.path == "relayed":
            await survive(left, right, public, outcome)
    finally:
        await asyncio.gather(*(peer.close() for peer in (left, right, *public)), return_exceptions=True)
    return outcome


def initial_for(host, addresses):
    """The addresses that a user with such a host would be given: of its kind of IP."""
    return [address for address in addresses if any(f"/ip{family}/" in address for family in host.families)]


async def follow(left, right, began, outcome):
    """Calls until one call gets through, then waits for the connection to become a direct one."""

    def since():
        return round(time.monotonic() - began, 1)

    while outcome.first is None:
        try:
            await left.call(right.id, b"?", max(1, PATIENCE - since()))
            outcome.first = since()
        except peers.CallError as error:
            outcome.error = str(error)
            if since() > PATIENCE:
                return
            await asyncio.sleep(RETRYING)
    relayed = False
    while since() < outcome.first + WATCHED:
        connections = await left.connections(right.id)
        relayed = relayed or any(peers.CIRCUIT in address for address in connections)
        if any(peers.CIRCUIT not in address for address in connections):
            outcome.direct = since() if relayed else None
            break
        await asyncio.sleep(ASKING)
    outcome.path = path_of(outcome, relayed)
    outcome.error = None
    try:
        await left.call(right.id, bytes(PAYLOAD), PAYLOAD_TIME)
        outcome.payload = True
    except peers.CallError as error:
        outcome.payload, outcome.error = False, str(error)


async def reduce_all(left, right, public, hosts, outcome):
    """Averages as many bytes as the large call has."""
    try:
        await public[0].join_dht()
        await asyncio.gather(*(peer.join_dht(initial_for(host, public[0].addresses))
                               for peer, host in zip((left, right), hosts)))
        count = PAYLOAD // 4
        averages = await asyncio.gather(*(peer.average([value] * count, ALL_REDUCE_TIME)
                                          for peer, value in ((left, 1.0), (right, 2.0))))
        if any(average != [1.5] * count for average in averages):
            raise peers.CallError("all-reduce: another result")
    except (peers.CallError, peers.PeerError) as error:
        outcome.payload, outcome.error = False, str(error)


async def survive(left, right, public, outcome):
    """Kills the relay that carries the connection."""
    connections = " ".join(await left.connections(right.id))
    for relay in public:
        if f"{relay.id}{peers.CIRCUIT}" in connections:
            died = time.monotonic()
            await relay.kill()
            while time.monotonic() - died < PATIENCE:
                with contextlib.suppress(peers.CallError):
                    await left.call(right.id, b"?", 10)
                    outcome.again = round(time.monotonic() - died, 1)
                    return
                await asyncio.sleep(RETRYING)
            outcome.error = "it does not survive its relay"
            return


def path_of(outcome, relayed):
    if relayed and outcome.direct is None:
        return "relayed"
    dialled = not relayed or any(kind.startswith("open") for kind in (outcome.left, outcome.right))
    return "direct" if dialled else "punched"


def measure_once(options, task):
    """One pair in a world, and a process, of its own."""
    number, (left, right) = task
    logs = LOGS / f"{number}-{left}-{right}".replace("/", "")
    shutil.rmtree(logs, ignore_errors=True)
    logging.disable()  # hivemind logs every failed call
    try:
        with lab.World(logs) as world:
            outcome = asyncio.run(measure(world, left, right, options))
    except Exception as error:  # a pair that could not be tried must not end the others
        outcome = Outcome(left, right, "error", error=f"{type(error).__name__}: {error}")
    print(f"{left:>15} -> {right:15} {cell([outcome])}{'   ' + outcome.error.splitlines()[0] if outcome.error else ''}",
          file=sys.stderr, flush=True)
    return outcome


# ---- The table


def cell(outcomes):
    """What a pair's cell says, of one or several tries."""
    outcome = outcomes[0]
    mark = "" if outcome.payload or outcome.path in ("none", "error") else " *"
    if len(outcomes) == 1:
        if outcome.first is None:
            return outcome.path
        again = f" +{outcome.again:.0f}" if outcome.again is not None else ""
        return f"{outcome.path} {outcome.first:.0f}" + (f"→{outcome.direct:.0f}" if outcome.direct else "") + mark + again
    counts = collections.Counter(outcome.path for outcome in outcomes)
    marks = sum(outcome.payload is False for outcome in outcomes)
    firsts = [outcome.first for outcome in outcomes if outcome.first is not None]
    said = ", ".join(f"{count} {path}" for path, count in counts.most_common())
    return said + (f"; {statistics.median(firsts):.0f}" if firsts else "") + (f" ({marks}*)" if marks else "")


def table(outcomes, kinds):
    """Rows are what calls, columns what is called."""
    pairs = collections.defaultdict(list)
    for outcome in outcomes:
        pairs[outcome.left, outcome.right].append(outcome)
    lines = [f"| from \\ to | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for left in kinds:
        lines.append(f"| **{left}** | " + " | ".join(cell(pairs[left, right]) for right in kinds) + " |")
    return "\n".join(lines)


def summary(outcomes):
    """One line: how many took which path, and how long it took."""
    counts = collections.Counter(outcome.path for outcome in outcomes)
    firsts = [outcome.first for outcome in outcomes if outcome.first is not None]
    text = ", ".join(f"{counts[path]} {path}" for path in ("direct", "punched", "relayed", "none", "error") if counts[path])
    if firsts:
        text += f"; first call after {statistics.median(firsts):.1f} s in the median, {max(firsts):.1f} s at most"
    failed = sum(outcome.payload is False for outcome in outcomes)
    again = [outcome.again for outcome in outcomes if outcome.again is not None]
    if again:
        text += f"; {len(again)} survived the death of their relay, by a call after {max(again):.1f} s at most"
    return f"{len(outcomes)} tries: {text}; a call of {PAYLOAD // 1000} kB failed in {failed}."


def main():
    makes = sorted(peers.MAKES)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", choices=makes, default="p2pd", help="the make of all peers not named otherwise")
    parser.add_argument("--left", choices=makes, help="the make of the calling peer")
    parser.add_argument("--right", choices=makes, help="the make of the called peer")
    parser.add_argument("--relay", choices=makes, help="the make of the public nodes")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of hosts; those with IPv6 alone end in /6")
    parser.add_argument("--delay", type=float, default=0, help="milliseconds from peer to peer, one way")
    parser.add_argument("--loss", type=float, default=0, help="percent from peer to peer")
    parser.add_argument("--all-reduce", action="store_true", help="the pair averages, too; of cohive's peers")
    parser.add_argument("--relay-dies", action="store_true", help="relayed pairs lose the relay in use")
    parser.add_argument("--trusted-relays", action="store_true", help="p2pd is told to relay through the bootstrap node")
    parser.add_argument("--repeat", type=int, default=1, help="tries of every pair")
    parser.add_argument("--jobs", type=int, default=3, help="worlds at once")
    parser.add_argument("--json", type=pathlib.Path, help="a file for every single outcome")
    options = parser.parse_args()
    options.left, options.right, options.relay = (make or options.peers for make in (options.left, options.right, options.relay))
    if reason := namespaces.unavailable():
        parser.exit(77, f"skipped: {reason}\n")
    peers.P2pd.trusts_initial = options.trusted_relays
    kinds = options.kinds.split(",")
    tasks = list(enumerate(list(itertools.product(kinds, kinds)) * options.repeat))
    for make in {options.left, options.right, options.relay}:
        peers.MAKES[make].prepare()
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        outcomes = pool.map(functools.partial(measure_once, options), tasks, chunksize=1)
    if options.json:
        options.json.write_text(json.dumps([dataclasses.asdict(outcome) for outcome in outcomes], indent=1))
    print(table(outcomes, kinds), f"\n{summary(outcomes)}", sep="\n")


if __name__ == "__main__":
    main()
