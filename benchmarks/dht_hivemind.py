"""The workload of `cohive-bench dht` on Python hivemind: prints the same JSON object.

Nodes are coroutines in a few processes, one per core by default: hivemind's own hivemind.DHT puts a process of 430 MB
around each node, which would only make it slower and larger.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import time

WORKERS = 16  # as in cohive-bench: operations under way at once, in all processes together
PATIENCE = 120  # seconds until a process that failed ends the others


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    return parser.parse_args()


async def measure(operation, workers, seconds):
    """Runs `operation(worker, round)` in loops; returns the latencies, the failures and the time it took."""
    latencies, failed = [], 0
    start = time.perf_counter()

    async def loop(worker):
        nonlocal failed
        turn = 0
        while time.perf_counter() < start + seconds:
            began = time.perf_counter()
            done = await operation(worker, turn)
            latencies.append(time.perf_counter() - began)
            failed += not done
            turn += 1

    await asyncio.gather(*(loop(worker) for worker in workers))
    return latencies, failed, time.perf_counter() - start


async def run_nodes(index, arguments, addresses, barrier, results):
    from hivemind.dht.node import DHTNode
    from hivemind.utils import get_dht_time

    nodes = []
    own = range(index, arguments.peers, arguments.processes)
    for number in own:
        # The first node of all comes first; the others join through it.
        node = await DHTNode.create(initial_peers=list(addresses) if number else [])
        if number == 0:
            addresses.extend([str(address) for address in await node.get_visible_maddrs()])
            await asyncio.to_thread(barrier.wait)
        nodes.append(node)
    await asyncio.to_thread(barrier.wait)

    async def store(worker, turn):
        node = nodes[(worker + turn) % len(nodes)]
        stored.append(f"key {worker} {turn}")
        return await node.store(stored[-1], turn, get_dht_time() + 600)

    async def get(worker, turn):
        found = await nodes[(turn * 7 + worker) % len(nodes)].get(keys[(turn * WORKERS + worker) % len(keys)], latest=True)
        return found is not None

    workers = range(index, WORKERS, arguments.processes)
    stored = []
    stores = await measure(store, workers, arguments.seconds)
    results.put(("stores", stores, stored))
    await asyncio.to_thread(barrier.wait)  # the parent has gathered all keys
    keys = list(addresses[-1])
    gets = await measure(get, workers, arguments.seconds)
    results.put(("gets", gets, None))
    await asyncio.to_thread(barrier.wait)
    await asyncio.gather(*(node.shutdown() for node in nodes))


def process_main(index, arguments, addresses, barrier, results):
    try:
        if index:
            barrier.wait()  # until the first node stands
        asyncio.run(run_nodes(index, arguments, addresses, barrier, results))
    except BaseException:
        barrier.abort()  # nobody waits for a process that failed
        raise


def summary(parts):
    latencies = sorted(latency for part, _, _ in parts for latency in part)
    percentile = lambda p: latencies[int(p * (len(latencies) - 1))] * 1000  # noqa: E731
    return {"per_second": sum(len(part) / wall for part, _, wall in parts), "p50_ms": percentile(0.5), "p99_ms": percentile(0.99),
            "failed": sum(failed for _, failed, _ in parts)}


def main():
    arguments = parse_arguments()
    arguments.processes = max(1, min(arguments.processes, arguments.peers, WORKERS))
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        addresses, results = manager.list(), manager.Queue()
        barrier = manager.Barrier(arguments.processes + 1, timeout=PATIENCE)
        processes = [context.Process(target=process_main, args=(index, arguments, addresses, barrier, results))
                     for index in range(arguments.processes)]
        for process in processes:
            process.start()
        # In the order of run_nodes: the first node stands, all stand, the stores are done, the gets are done.
        barrier.wait()
        barrier.wait()
        stores = [results.get(timeout=PATIENCE) for _ in processes]
        addresses.append([key for _, _, keys in stores for key in keys])
        barrier.wait()
        gets = [results.get(timeout=PATIENCE) for _ in processes]
        barrier.wait()
        for process in processes:
            process.join()
    print(json.dumps({"benchmark": "dht", "library": "hivemind", "peers": arguments.peers,
                      "stores": summary([part for _, part, _ in stores]), "gets": summary([part for _, part, _ in gets])}))


if __name__ == "__main__":
    main()
