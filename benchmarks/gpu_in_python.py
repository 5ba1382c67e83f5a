"""What cohive.Optimizer costs a trainer in Python whose model is on a GPU, beside plain torch, as a table and as JSON.

    COHIVE_LIBRARY=build/release/libcohive.so PYTHONPATH=python python3 benchmarks/gpu_in_python.py
        [--parameters 100] [--batches 8] [--epochs 3] [--device cuda]

One peer trains alone, so that no line counts. `step` is the time of a call of step() that ends no epoch, `waits` the
longest of them; `epoch` is the time from one epoch's end to the next, with all of the device's work, and `lost` is what
of it plain torch does not take, which accumulates gradients over the same batches and steps once. `copied` has every
gradient copied to the host in its batch, as models without a link have it (float64, several devices).
"""

import argparse
import functools
import gc
import json
import statistics
import time

import torch

import cohive
from cohive import _gpu

WIDTH = 4096


def model_of(millions, device):
    torch.manual_seed(7348)
    width = WIDTH if millions >= 20 else 256
    layers = max(round(millions * 1e6 / (width * width)), 1)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers))).to(device), width


def finish(device):
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def measured(step, model, inputs, arguments, per_epoch):
    """Milliseconds of each step() that ends no epoch, and seconds of each epoch but the first."""
    steps, epochs = [], []
    for epoch in range(arguments.epochs + 1):
        finish(arguments.device)
        begin = time.perf_counter()
        for batch in range(per_epoch):
            model(inputs).square().mean().backward()
            called = time.perf_counter()
            step(batch)
            taken = time.perf_counter() - called
            if epoch > 0 and batch + 1 < per_epoch:
                steps.append(taken * 1000)
        finish(arguments.device)
        if epoch > 0:
            epochs.append(time.perf_counter() - begin)
    return steps, epochs


def with_torch(arguments):
    model, width = model_of(arguments.parameters, arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(arguments.batch, width, device=arguments.device)

    def step(batch):
        if batch + 1 == arguments.batches:
            optimizer.step()
            optimizer.zero_grad()

    return measured(step, model, inputs, arguments, arguments.batches)


def with_cohive(arguments, linked, **options):
    model, width = model_of(arguments.parameters, arguments.device)
    inputs = torch.randn(arguments.batch, width, device=arguments.device)
    link_for = _gpu.link_for
    if not linked:
        _gpu.link_for = lambda parameters: None
    dht = cohive.DHT(start=True)
    try:
        optimizer = cohive.Optimizer(
            dht=dht,
            run_id="benchmark",
            target_batch_size=arguments.batches * arguments.batch,
            batch_size_per_step=arguments.batch,
            params=model.parameters(),
            optimizer=functools.partial(torch.optim.AdamW, lr=1e-4),
            delay_state_averaging=False,
            **options,
        )
    finally:
        _gpu.link_for = link_for

    def step(_):
        optimizer.step()
        optimizer.zero_grad()

    try:
        result = measured(step, model, inputs, arguments, arguments.batches)
        assert optimizer.local_epoch == arguments.epochs + 1, "epochs do not end where they should"
        return result
    finally:
        optimizer.shutdown()
        dht.shutdown()


WAYS = {
    "torch": with_torch,
    "copied": functools.partial(with_cohive, linked=False, offload_optimizer=True),
    "offloaded": functools.partial(with_cohive, linked=True, offload_optimizer=True),
    "offloaded, delayed": functools.partial(
        with_cohive, linked=True, offload_optimizer=True, delay_optimizer_step=True, delay_grad_averaging=True
    ),
    "on the GPU": functools.partial(with_cohive, linked=True, offload_optimizer=False),
    "on the GPU, delayed": functools.partial(
        with_cohive, linked=True, offload_optimizer=False, delay_optimizer_step=True, delay_grad_averaging=True
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, default=100, help="millions of them")
    parser.add_argument("--batch", type=int, default=64, help="samples")
    parser.add_argument("--batches", type=int, default=8, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=3, help="that are measured, after one that is not")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", choices=list(WAYS), help="beside torch")
    arguments = parser.parse_args()
    rows = {}
    for name, way in WAYS.items():
        if arguments.only is not None and name not in ("torch", *arguments.only):
            continue
        gc.collect()  # the way before has left its model in cycles
        if arguments.device.startswith("cuda"):
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(arguments.device)
        steps, epochs = way(arguments)
        rows[name] = {
            "step_ms": statistics.median(steps),
            "longest_step_ms": max(steps),
            "epoch_s": statistics.median(epochs),
        }
        rows[name]["lost_s"] = rows[name]["epoch_s"] - rows["torch"]["epoch_s"]
        if arguments.device.startswith("cuda"):
            rows[name]["peak_gib"] = torch.cuda.max_memory_allocated(arguments.device) / 2**30  # of torch's own
        if name == "torch":
            print(f"{'':22}{'step ms':>9}{'longest':>9}{'epoch s':>9}{'lost s':>9}{'peak GiB':>10}", flush=True)
        row = rows[name]
        line = f"{name:22}{row['step_ms']:9.2f}{row['longest_step_ms']:9.2f}{row['epoch_s']:9.3f}{row['lost_s']:9.3f}"
        print(line + f"{row.get('peak_gib', 0):10.2f}", flush=True)
    print(json.dumps({"benchmark": "gpu_in_python", "millions_of_parameters": arguments.parameters, "ways": rows}))


if __name__ == "__main__":
    main()
