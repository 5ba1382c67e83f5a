"""Our optimizer steps beside torch's fused ones and DeepSpeed's CPU Adam on one core, in one go, as a table and as JSON.

    .deps/interop/bin/python benchmarks/optimizer_vs_torch.py [--bench build/release/bin/cohive-bench]
        [--parameters 100] [--rounds 3] [--deepspeed DIR]

Numbers are milliseconds of one step, the fastest of several; the programs take turns, as machines are not equally busy all
the time. With --deepspeed, DeepSpeed is installed into DIR by pip unless it is there; its extension is compiled on first use,
which takes minutes and needs g++. `goal` is what the project promises: Adam at 80 % of the memory bandwidth.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402

STEPS = ["adam", "adamw", "adam_amsgrad", "sgd", "sgd_momentum"]
DEEPSPEED = ["deepspeed==0.19.8", "ninja", "hjson", "einops", "py-cpuinfo", "psutil", "tqdm"]


def torch_optimizers():
    fused = dict(lr=1e-3, fused=True)
    return {"adam": lambda p: torch.optim.Adam(p, **fused),
            "adamw": lambda p: torch.optim.AdamW(p, **fused),
            "adam_amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, **fused),
            "sgd": lambda p: torch.optim.SGD(p, **fused),
            "sgd_momentum": lambda p: torch.optim.SGD(p, momentum=0.9, **fused)}


def deepspeed_optimizers(directory):
    """The optimizers, or a sentence that says why there are none."""
    if directory:
        directory = pathlib.Path(directory).resolve()
        if not (directory / "deepspeed").is_dir():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(directory)]
            done = subprocess.run(install + ["--no-build-isolation"] + DEEPSPEED, capture_output=True, text=True)
            if done.returncode:
                return "pip: " + done.stderr.strip().splitlines()[-1]
        sys.path.append(str(directory))
        os.environ["PATH"] = f"{directory / 'bin'}:{os.environ['PATH']}"
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(directory / "extensions"))
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        os.environ.setdefault("MAX_JOBS", "1")
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        DeepSpeedCPUAdam([torch.nn.Parameter(torch.zeros(1))])  # compiles it
    except Exception as error:  # whatever a build at run time may end with
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return {"adam": lambda p: DeepSpeedCPUAdam(p, lr=1e-3, adamw_mode=False),
            "adamw": lambda p: DeepSpeedCPUAdam(p, lr=1e-3, adamw_mode=True, weight_decay=1e-2)}


def fastest_step(make, parameter, seconds):
    """Milliseconds."""
    optimizer = make([parameter])
    optimizer.step()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        optimizer.step()
        best = min(best, time.perf_counter() - start)
    return best * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parents[1]
    parser.add_argument("--bench", default=root / "build/release/bin/cohive-bench")
    parser.add_argument("--parameters", type=int, default=100, help="millions of them")
    parser.add_argument("--seconds", type=float, default=1, help="about how long each step is measured in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deepspeed", metavar="DIR", help="where DeepSpeed is or will be installed")
    arguments = parser.parse_args()

    deepspeed = deepspeed_optimizers(arguments.deepspeed)
    skipped = deepspeed if isinstance(deepspeed, str) else None
    makers = {"torch": torch_optimizers(), "deepspeed": {} if skipped else deepspeed}
    # One core, the same for all.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    torch.manual_seed(7348)
    parameter = torch.nn.Parameter(torch.randn(arguments.parameters * 1_000_000))
    parameter.grad = torch.randn_like(parameter)
    # Ours spends about half of the time on copies and on steps on all cores.
    command = [arguments.bench, "optimizer", "--parameters", str(arguments.parameters), "--seconds",
               str(2 * arguments.seconds), "--only", *STEPS]
    rows = {name: {} for name in STEPS}
    shares = {name: [] for name in STEPS}

    def keep(name, who, milliseconds):
        rows[name][who] = min(rows[name].get(who, milliseconds), milliseconds)

    for _ in range(arguments.rounds):
        ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["steps"]
        for name in STEPS:
            keep(name, "cohive", ours[name]["one_core_ms"])
            shares[name].append(ours[name]["share_of_memory_bandwidth"])
            for who, make in makers.items():
                if name in make:
                    keep(name, who, fastest_step(make[name], parameter, arguments.seconds))

    for name in STEPS:
        rows[name]["share_of_memory_bandwidth"] = statistics.median(shares[name])
    print(f"{'ms per step':16}{'cohive':>9}{'torch':>9}{'ratio':>8}{'deepspeed':>11}{'ratio':>8}{'of memory':>11}")
    for name, row in rows.items():
        line = f"{name:16}{row['cohive']:9.1f}{row['torch']:9.1f}{row['torch'] / row['cohive']:8.2f}"
        line += (f"{row['deepspeed']:11.1f}{row['deepspeed'] / row['cohive']:8.2f}" if "deepspeed" in row
                 else f"{'-':>11}{'-':>8}")
        print(line + f"{row['share_of_memory_bandwidth']:11.2f}")
    print(f"goal: adam's share of the memory bandwidth is at least 0.8: {rows['adam']['share_of_memory_bandwidth']:.2f}")
    if skipped:
        print(f"DeepSpeed skipped: {skipped}")
    print(json.dumps({"benchmark": "optimizer_vs_torch", "millions_of_parameters": arguments.parameters, "steps": rows,
                      "deepspeed_skipped": skipped}))


if __name__ == "__main__":
    main()
