"""Five trainers in different places train one model, while the relay that some of them need is restarted."""

import json
import pathlib
import signal
import time

import pytest

from lab import Link
from probe import some_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 60  # seconds until something that should happen counts as not happening
SECONDS = 100  # of training
# What is between a trainer and the internet. Behind a symmetric router, with no public address, peers reach a trainer
# through the relay only, if they are behind routers themselves.
PLACES = {
    "public": dict(kind="open", families=(4,)),
    "home": dict(kind="port-restricted", families=(4,)),
    "other-home": dict(kind="restricted", families=(4,)),
    "relayed": dict(kind="symmetric", families=(4,)),
    "new": dict(kind="open", families=(6,)),
}
RUN = ["--run-id", "lab", "--text", ROOT / "README.md", "--threads", 1, "--target-batch-size", 512, "--batch-size", 8,
       "--matchmaking-time", 4, "--averaging-timeout", 30, "--average-state-every", 4, "--learning-rate", 0.003,
       "--wait-for-swarm", 60, "--shutdown-timeout", 20, "--json"]


def bootstrap(program, host, *options, port):
    """A bootstrap node, and its addresses for each family."""
    process = host.start([program("cohive-bootstrap"), "--json", "--host-maddrs", f"/ip4/0.0.0.0/tcp/{port}",
                          f"/ip6/::/tcp/{port}", *options])
    peer_id = json.loads(process.find(r'^\{"init.*\}$')[0])["peer_id"]
    hosts = {4: f"/ip4/{host.addresses[4]}", 6: f"/ip6/{host.addresses[6]}"}
    return process, {family: f"{address}/tcp/{port}/p2p/{peer_id}" for family, address in hosts.items()}


@pytest.mark.timeout(600)
def test_trainers_in_five_places_end_with_the_same_parameters(world, program, tmp_path):
    hub, relay = world.host("hub"), world.host("relay")
    _, initial = bootstrap(program, hub, port=some_port())
    relaying = ["--relay", "--initial-peers", initial[4], "--identity-path", tmp_path / "relay.key"]
    relay_port = some_port()
    node, _ = bootstrap(program, relay, *relaying, port=relay_port)

    end = time.time() + SECONDS
    trainers = {}
    for seed, (name, place) in enumerate(PLACES.items(), 1):
        host = world.host(name, link=Link(delay=10), **place)
        family = place["families"][0]
        trainers[name] = host.start([
            program("cohive-train"), *RUN, "--seed", seed, "--until", end, "--initial-peers", initial[family],
            "--host-maddrs", {4: "/ip4/0.0.0.0/tcp/0", 6: "/ip6/::/tcp/0"}[family],
            "--save", tmp_path / f"{name}.params", "--summary", tmp_path / f"{name}.json"])
    trainers["relayed"].find("peers can reach this node through", PATIENCE)

    time.sleep(SECONDS * 0.35)
    node.send(signal.SIGTERM)
    node.wait(PATIENCE)
    time.sleep(3)
    bootstrap(program, relay, *relaying, port=relay_port)

    trainers["relayed"].find(r"lost the relay(.*\n)+.*peers can reach this node through", PATIENCE)
    for name, trainer in trainers.items():
        assert trainer.wait(SECONDS + PATIENCE) == 0, f"{name}: {trainer.output()[-3000:]}"
    told = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in trainers}
    for name, summary in told.items():
        largest = max(size for size, rounds in enumerate(summary["rounds_by_group_size"]) if rounds)
        print(f"{name:10} epoch {summary['epoch']}, {summary['grad_rounds']} rounds of at most {largest}, "
              f"{summary['state_downloads']} downloads")
        assert largest == len(PLACES), f"{name} was never in a group of all"
    assert len({summary["epoch"] for summary in told.values()}) == 1
    compared = hub.start([program("cohive-train"), "--compare", *(tmp_path / f"{name}.params" for name in trainers)])
    assert compared.wait(PATIENCE) == 0, compared.output()
    print(compared.output().strip())
