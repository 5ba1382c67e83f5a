"""Our codecs beside PyTorch and hivemind doing the same work on one core, in one go, as a table and as JSON.

    .deps/interop/bin/python benchmarks/codec_vs_torch.py [--bench build/release/bin/cohive-bench] [--megabytes 64]

Numbers are gigabytes of float32 per second, the fastest of several rounds. `goal` is what the project promises: halves
at 80 % of the memory bandwidth, uniform 8-bit encoding at 3 times hivemind's speed.
"""

import argparse
import json
import os
import pathlib
import subprocess
import time

os.environ["OMP_NUM_THREADS"] = os.environ["QUANTIZATION_THREADS"] = "1"

import torch  # noqa: E402
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor  # noqa: E402
from hivemind.proto import runtime_pb2  # noqa: E402

CODECS = ["NONE", "FLOAT16", "MEANSTD_16BIT", "UNIFORM_8BIT", "QUANTILE_8BIT", "BLOCKWISE_8BIT"]


def rate(tensor, seconds, work):
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        work()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end:
            return tensor.numel() * 4 / best / 1e9


def measure_python(megabytes, seconds):
    torch.set_num_threads(1)
    torch.manual_seed(7348)
    values = torch.randn(megabytes * 1_000_000 // 4)
    out, halves, accumulator = torch.empty_like(values), values.half(), torch.zeros_like(values)
    each = seconds / 6
    rows = {"copy": rate(values, each, lambda: out.copy_(values)),
            "to(half)": rate(values, each, lambda: values.to(torch.half)),
            "from half": rate(values, each, lambda: halves.to(torch.float)),
            "add half": rate(values, each, lambda: accumulator.add_(halves, alpha=0.5))}
    codecs = {}
    for name in CODECS:
        kind = runtime_pb2.CompressionType.Value(name)
        try:
            message = serialize_torch_tensor(values, kind)
        except ImportError:  # bitsandbytes is not there
            continue
        codecs[name] = {
            "encode": rate(values, each, lambda: serialize_torch_tensor(values, kind)),
            "decode": rate(values, each, lambda: deserialize_torch_tensor(message)),
            "accumulate": rate(values, each, lambda: accumulator.add_(deserialize_torch_tensor(message), alpha=0.5)),
        }
    return {**rows, "codecs": codecs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("--bench", default=root / "build/release/bin/cohive-bench")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3, help="about how long each codec is measured")
    arguments = parser.parse_args()

    command = [arguments.bench, "codec", "--megabytes", str(arguments.megabytes), "--seconds", str(arguments.seconds)]
    # One core, the same for both.
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    theirs = measure_python(arguments.megabytes, arguments.seconds)

    print(f"{'':16}{'encode':^26}{'decode':^26}{'accumulate':^26}")
    print(f"{'GB/s':16}" + f"{'cohive':>9}{'hivemind':>9}{'ratio':>8}" * 3)
    for name, row in ours["codecs"].items():
        line = f"{name:16}"
        for what in ("encode", "decode", "accumulate"):
            other = theirs["codecs"].get(name, {}).get(what)
            line += f"{row[what]:9.2f}" + (f"{other:9.2f}{row[what] / other:8.1f}" if other else f"{'-':>9}{'-':>8}")
        print(line)
    halves = ours["codecs"]["FLOAT16"]
    ratios = {
        "float16_encode_over_torch_to_half": halves["encode"] / theirs["to(half)"],
        "float16_decode_over_torch_to_float": halves["decode"] / theirs["from half"],
        "float16_accumulate_over_torch_add": halves["accumulate"] / theirs["add half"],
        "float16_share_of_memory_bandwidth": ours["float16_share_of_memory_bandwidth"],
        "uniform8_encode_over_hivemind":
            ours["codecs"]["UNIFORM_8BIT"]["encode"] / theirs["codecs"]["UNIFORM_8BIT"]["encode"],
    }
    goals = {"float16_share_of_memory_bandwidth": 0.8, "uniform8_encode_over_hivemind": 3.0}
    for name, ratio in ratios.items():
        print(f"{name:40}{ratio:8.2f}" + (f"   goal {goals[name]}" if name in goals else ""))
    print(json.dumps({"benchmark": "codec_vs_torch", "megabytes": arguments.megabytes, "ratios": ratios, "cohive": ours,
                      "python": theirs}))


if __name__ == "__main__":
    main()
