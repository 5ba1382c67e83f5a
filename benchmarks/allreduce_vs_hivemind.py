"""Averaging rounds of cohive beside Python hivemind and Gloo, in one go: a table, and JSON with --json.

    .deps/interop/bin/python benchmarks/allreduce_vs_hivemind.py [--bench build/release/bin/cohive-bench]
        [--peers 2 4] [--megabytes 64] [--rounds 5] [--json]

Every peer is a process of its own on loopback; a round is timed from the call to its result, finding the group included
(Gloo has no groups to find). `ceiling` is what `cohive-bench transport` sends through one encrypted stream; an
all-reduce sends as much each way, and with two cores a stream each way at once is slower than that.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import socket
import statistics
import subprocess
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
import torch.distributed  # noqa: E402

PATIENCE = 300


def hivemind_peer(rank, initial_peers, peers, megabytes, rounds, codec, addresses, barrier, results):
    import hivemind
    from hivemind.compression import Float16Compression, NoCompression

    compression = {"float32": NoCompression, "float16": Float16Compression}[codec]()
    dht = hivemind.DHT(initial_peers=initial_peers, start=True)
    averager = hivemind.DecentralizedAverager([torch.full((megabytes * 1_000_000 // 4,), float(rank))], dht, prefix="bench", start=True,
                                              target_group_size=peers, compression=compression)
    if rank == 0:
        addresses.put([str(address) for address in dht.get_visible_maddrs()])
    seconds = []
    for number in range(rounds + 1):
        barrier.wait(PATIENCE)
        start = time.perf_counter()
        averager.step(timeout=PATIENCE)
        if number > 0:  # the first also connects the peers
            seconds.append(time.perf_counter() - start)
    results.put(statistics.median(seconds))
    barrier.wait(PATIENCE)
    averager.shutdown()
    dht.shutdown()


def measure_hivemind(peers, megabytes, rounds, codec):
    context = multiprocessing.get_context("fork")  # hivemind's own processes are forked and need it
    addresses, results, barrier = context.Queue(), context.Queue(), context.Barrier(peers)
    started, initial = [], []
    for rank in range(peers):
        started.append(context.Process(target=hivemind_peer, args=(rank, initial, peers, megabytes, rounds, codec, addresses, barrier, results)))
        started[-1].start()
        if rank == 0:
            initial = addresses.get(timeout=PATIENCE)
    seconds = statistics.median(results.get(timeout=PATIENCE) for _ in started)
    for process in started:
        process.join(PATIENCE)
    return seconds


def gloo_peer(rank, port, peers, megabytes, rounds, results):
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=peers)
    values = torch.full((megabytes * 1_000_000 // 4,), float(rank))
    seconds = []
    for number in range(rounds + 1):
        torch.distributed.barrier()
        start = time.perf_counter()
        torch.distributed.all_reduce(values)
        values /= peers
        if number > 0:
            seconds.append(time.perf_counter() - start)
    results.put(statistics.median(seconds))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def measure_gloo(peers, megabytes, rounds):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    started = [context.Process(target=gloo_peer, args=(rank, port, peers, megabytes, rounds, results)) for rank in range(peers)]
    for process in started:
        process.start()
    seconds = statistics.median(results.get(timeout=PATIENCE) for _ in started)
    for process in started:
        process.join(PATIENCE)
    return seconds


def cohive(bench, *arguments):
    return json.loads(subprocess.run([bench, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", default=pathlib.Path(__file__).parents[1] / "build/release/bin/cohive-bench")
    parser.add_argument("--peers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    stream = cohive(options.bench, "transport")
    ceiling = max(stream[name]["stream_megabytes_per_second"] for name in stream if name != "benchmark")
    both_ways = max(stream[name]["both_ways_megabytes_per_second"] for name in stream if name != "benchmark")
    rows = []
    for peers in options.peers:
        ours = cohive(options.bench, "allreduce", "--peers", peers, "--megabytes", options.megabytes)
        gloo = measure_gloo(peers, options.megabytes, options.rounds)
        for codec in ("float32", "float16"):
            theirs = measure_hivemind(peers, options.megabytes, options.rounds, codec)
            seconds = ours[codec]["round_p50_ms"] / 1000
            # Every peer sends (n - 1) / n of its values, and as many averages of the part it owns.
            sent = 2 * options.megabytes * (peers - 1) / peers / (1 if codec == "float32" else 2)
            rows.append({"peers": peers, "codec": codec, "hivemind_seconds": theirs, "cohive_seconds": seconds,
                         "times_hivemind": theirs / seconds, "gloo_seconds": gloo, "times_gloo": gloo / seconds,
                         "share_of_ceiling": sent / seconds / ceiling, "share_of_both_ways": sent / seconds / both_ways, "failed_rounds": ours[codec]["failed"]})
    if options.json:
        print(json.dumps({"benchmark": "allreduce_vs_hivemind", "megabytes": options.megabytes,
                          "stream_megabytes_per_second": ceiling, "both_ways_megabytes_per_second": both_ways, "rows": rows}))
        return
    print(f"{options.megabytes} MB of float32 per peer; one encrypted stream: {ceiling:.0f} MB/s, or {both_ways:.0f} MB/s each way at once")
    print(f"{'peers':>5} {'codec':8} {'hivemind':>10} {'cohive':>10} {'ratio':>7} {'Gloo, plain':>12} {'ratio':>7} {'of ceiling':>11} {'of both ways':>13}")
    for row in rows:
        print(f"{row['peers']:5} {row['codec']:8} {row['hivemind_seconds']:8.3f} s {row['cohive_seconds']:8.3f} s {row['times_hivemind']:6.1f}x "
              f"{row['gloo_seconds']:10.3f} s {row['times_gloo']:6.2f}x {row['share_of_ceiling']:10.0%} {row['share_of_both_ways']:13.0%}")


if __name__ == "__main__":
    main()
