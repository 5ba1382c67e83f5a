#!/usr/bin/env python3
"""How soon a program answers many scrapes of its metrics, and whether its loop is late meanwhile.

    benchmarks/scrapes.py [--rate 1000] [--seconds 10] [--peers 3] [--slow 0] [--bin build/release/bin] [--json]

Starts a bootstrap node and --peers others that join it, and asks the node for /metrics --rate times a second, whether it has answered the
one before or not. --slow clients connect, send nothing and come back when they are cut off. Printed: milliseconds from connecting to the
whole answer, and the lag of the loop's timers in the same seconds.
"""

import argparse
import asyncio
import json
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
LAG = re.compile(r'^cohive_core_loop_lag_seconds_bucket\{le="([^"]+)"\} (\d+)', re.M)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--slow", type=int, default=0)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def start(options, started, *more):
    command = [options.bin / "cohive-bootstrap", "--json", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--log-level", "warn", *more]
    started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return json.loads(started[-1].stdout.readline())


def lag_buckets(url):
    with urllib.request.urlopen(url + "metrics") as answer:
        return {float(bound): int(count) for bound, count in LAG.findall(answer.read().decode())}


def lag_at(share, before, after):
    """The bound of the bucket below which this share of the samples lies."""
    counts = {bound: after[bound] - before[bound] for bound in sorted(after)}
    return next(bound for bound, count in counts.items() if count >= share * counts[float("inf")])


async def scrape(host, port):
    begin = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = await reader.read(-1)
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise OSError(answer[:60])
    return time.perf_counter() - begin


async def be_slow(host, port):
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port)
            await reader.read(-1)
            writer.close()
        except OSError:
            await asyncio.sleep(0.01)


async def load(options, host, port):
    slow = [asyncio.create_task(be_slow(host, port)) for _ in range(options.slow)]
    begin, asked = time.perf_counter(), []
    for i in range(int(options.rate * options.seconds)):
        await asyncio.sleep(max(0, begin + i / options.rate - time.perf_counter()))
        asked.append(asyncio.create_task(scrape(host, port)))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    elapsed = time.perf_counter() - begin
    for one in slow:
        one.cancel()
    return [a for a in answers if isinstance(a, float)], [a for a in answers if not isinstance(a, float)], elapsed


def main():
    options = arguments()
    started = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to stop"))
    try:
        told = start(options, started, "--metrics-address", "127.0.0.1:0")
        for _ in range(options.peers):
            start(options, started, "--initial-peers", *told["initial_peers"])
        host, port = re.match(r"http://([^:/]+):(\d+)/", told["page"]).groups()
        before = lag_buckets(told["page"])
        seconds, failed, elapsed = asyncio.run(load(options, host, int(port)))
        after = lag_buckets(told["page"])
    finally:
        for process in started:
            process.kill()
    cuts = statistics.quantiles(seconds, n=100)
    result = {"benchmark": "scrapes", "per_second": round(len(seconds) / elapsed), "failed": len(failed), "slow_clients": options.slow,
              "p50_ms": round(1000 * cuts[49], 2), "p99_ms": round(1000 * cuts[98], 2), "most_ms": round(1000 * max(seconds), 2),
              "lag_p99_below_ms": 1000 * lag_at(.99, before, after)}
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['per_second']} scrapes/s beside {options.slow} slow clients: p50 {result['p50_ms']} ms, p99 {result['p99_ms']} ms, at most "
              f"{result['most_ms']} ms; {result['failed']} failed; 99 % of the loop's timers less than {result['lag_p99_below_ms']} ms late")


if __name__ == "__main__":
    main()
