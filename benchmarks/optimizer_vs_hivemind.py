"""What training together costs the trainer's thread: cohive in C++ and in Python beside Python hivemind, the same loop
on all, in one go. The rows "python" are cohive's package: the very script of hivemind's rows, with another import.
The row "torch" is one trainer with torch's own Adam, which averages with nobody: what the loop itself takes.

    .deps/interop/bin/python benchmarks/optimizer_vs_hivemind.py [--peer build/release/bin/cohive-bench-trainer]
        [--millions 12.6 50 100] [--modes default synchronous delays reuse] [--epochs 4] [--work 0.1] [--float16] [--link RATE:DELAY[:LOSS]] [--mixed] [--json]

Two peers on loopback, or on hosts that an emulated link of RATE Mbit/s, DELAY ms round trip and LOSS percent joins (--link; needs root, and
cohive-link-emulator of tests/nat), Adam, float32 tensors of 2048 x 2048, 16 batches each per epoch, a pause of --work seconds after each batch
for the work that a GPU would do. Printed per epoch (medians of all peers and epochs but the first):
  in calls   seconds that the trainer's thread spends in step()
  slower by  seconds by which the epoch is longer than the same loop without any optimizer
  end, step  the call that ends an epoch, and the median of the calls that do not
  peak       memory of the trainer beyond what its process needs empty, in sizes of the parameters
  link       with --link: what the two rounds of an epoch send one way, over what the link carries in the call that ends it (synchronous)
The package comes from PYTHONPATH, by default python/ of this repository, with $COHIVE_LIBRARY, by default the
library of build/release.
With --mixed one peer of each kind trains in one run, too: hivemind+ and +cohive are what either of the two loses.
The modes: `default` is hivemind.Optimizer's (parameters are averaged in the background); `synchronous` delays nothing; `delays` delays state
averaging, optimizer step and gradient averaging, offloaded; `reuse` is the default with reuse_grad_buffers.
"""

import argparse
import contextlib
import functools
import importlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

os.environ["OMP_NUM_THREADS"] = "1"
PATIENCE = 900  # seconds for the epochs of two peers
MODES = {
    "default": {"delay_state_averaging": True},
    "synchronous": {"delay_state_averaging": False},
    "delays": {"delay_state_averaging": True, "delay_optimizer_step": True, "delay_grad_averaging": True, "offload_optimizer": True},
    "reuse": {"delay_state_averaging": True, "reuse_grad_buffers": True},
}


def peak_bytes(pid):
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def package_of(name):
    """hivemind, or cohive, which has its names."""
    if name == "hivemind":
        import hivemind

        return hivemind
    root = pathlib.Path(__file__).parents[1]
    os.environ.setdefault("COHIVE_LIBRARY", str(root / "build/release/libcohive.so"))
    sys.path.append(str(root / "python"))
    import cohive

    return cohive


def python_peer(settings):
    import torch

    torch.set_num_threads(1)
    hivemind = None if settings["package"] == "torch" else package_of(settings["package"])
    # What is imported at the first step belongs to the empty process, as LibTorch does in C++.
    small = torch.zeros(1, requires_grad=True)
    small.sum().backward()
    torch.optim.Adam([small]).step()
    empty = peak_bytes(os.getpid())

    parameters = [torch.zeros(2048, 2048, requires_grad=True) for _ in range(settings["tensors"])]
    size = sum(parameter.numel() * 4 for parameter in parameters)

    def backward():
        sum(parameter.sum() for parameter in parameters).backward()
        with torch.no_grad():
            for parameter in parameters:
                if not parameter.grad.is_contiguous():
                    parameter.grad = parameter.grad.contiguous()

    start = time.perf_counter()
    for _ in range(settings["batches"]):
        for parameter in parameters:
            parameter.grad = None
        backward()
        time.sleep(settings["work"])
    alone = time.perf_counter() - start

    if settings["package"] == "torch":
        return report(train_alone(settings, parameters, backward), alone, empty, size)
    mode = dict(MODES[settings["mode"]])
    mode.setdefault("offload_optimizer", False)
    mode.setdefault("delay_optimizer_step", False)
    if settings["float16"]:
        half = importlib.import_module(settings["package"] + ".compression").Float16Compression()
        mode["grad_compression"] = mode["state_averaging_compression"] = half
    dht = hivemind.DHT(initial_peers=settings["initial_peers"], host_maddrs=[settings["listen"]], start=True)
    make = lambda params: torch.optim.Adam(params, 1e-3)  # noqa: E731
    optimizer = hivemind.Optimizer(dht=dht, run_id="bench", target_batch_size=settings["batches"] * 2, batch_size_per_step=1,
                                   params=parameters, optimizer=make, matchmaking_time=settings["matchmaking_time"], averaging_timeout=60, **mode)
    print(json.dumps({"initial_peers": [str(address) for address in dht.get_visible_maddrs()]}), flush=True)
    sys.stdin.readline()
    plain, ends, epochs, lost, in_calls, begin = [], [], [], [], 0.0, time.perf_counter()
    while len(epochs) <= settings["epochs"]:
        if not mode.get("reuse_grad_buffers"):
            optimizer.zero_grad()
        backward_into(optimizer, parameters, mode, backward)
        before, start = optimizer.local_epoch, time.perf_counter()
        optimizer.step()
        took = time.perf_counter() - start
        in_calls += took
        if optimizer.local_epoch != before:
            ends.append(took)
            lost.append(in_calls)
            in_calls = 0.0
            epochs.append(time.perf_counter() - begin)
            begin = time.perf_counter()
        else:
            plain.append(took)
        time.sleep(settings["work"])
    report({"plain": plain, "ends": ends[1:], "epochs": epochs[1:], "lost": lost[1:]}, alone, empty, size)


def report(result, alone, empty, size):
    peak = peak_bytes(os.getpid()) - empty
    print(json.dumps({**result, "alone": alone, "peak_per_parameters": peak / size, "peak_bytes": peak}), flush=True)
    sys.stdin.readline()
    os._exit(0)  # the orderly end of hivemind's own processes takes long: Peer.close kills them


def train_alone(settings, parameters, backward):
    """As many batches for a step as each peer has for an epoch."""
    import torch

    optimizer = torch.optim.Adam(parameters, 1e-3)
    print(json.dumps({"initial_peers": []}), flush=True)
    sys.stdin.readline()
    ends, epochs = [], []
    for _ in range(settings["epochs"] + 1):
        begin = time.perf_counter()
        for batch in range(settings["batches"]):
            optimizer.zero_grad()
            backward()
            start = time.perf_counter()
            if batch == settings["batches"] - 1:
                optimizer.step()
                ends.append(time.perf_counter() - start)
            time.sleep(settings["work"])
        epochs.append(time.perf_counter() - begin)
    return {"plain": [0.0], "ends": ends[1:], "epochs": epochs[1:], "lost": ends[1:]}


def backward_into(optimizer, parameters, mode, backward):
    if not mode.get("reuse_grad_buffers"):
        return backward()
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    backward()
    for parameter, sums in zip(parameters, kept):
        if sums is not None:
            parameter.grad = sums.add_(parameter.grad)


class Place:
    """Where a peer runs: this machine, or a host of an emulated network."""

    def __init__(self, host=None):
        self.host = host
        self.listen = f"/ip4/{host.addresses[4] if host else '127.0.0.1'}/tcp/0"

    def command(self, command):
        return [str(word) for word in (self.host.command(command) if self.host else command)]


@contextlib.contextmanager
def places(link):
    """Two places; `link` is RATE:DELAY[:LOSS] or nothing."""
    if not link:
        yield [Place(), Place()]
        return
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests/nat"))
    import lab

    rate, delay, loss = map(float, [*link.split(":"), "0"][:3])
    with lab.World() as world:
        line = lab.Link(rate=rate, delay=delay / 4, loss=loss / 2)  # each host's own line, each way
        yield [Place(world.host(name, link=line)) for name in ("left", "right")]


class Peer:
    def __init__(self, command, log=subprocess.DEVNULL):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                        start_new_session=True)
        try:
            self.initial_peers = self.read()["initial_peers"]
        except BaseException:
            self.kill()
            raise

    def read(self):
        while True:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError("a peer ended early")
            if line.startswith("{"):
                return json.loads(line)

    def tell(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.tell()
            self.process.wait(60)
        self.kill()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def run_pair(makers, at):
    peers = []
    # A peer that hangs is killed, and read() tells.
    guard = threading.Timer(PATIENCE, lambda: [peer.kill() for peer in peers])
    guard.daemon = True
    guard.start()
    try:
        for make, place in zip(makers, at):
            peers.append(make(place, peers[0].initial_peers if peers else []))
        for peer in peers:
            peer.tell()
        return [peer.read() for peer in peers]
    finally:
        guard.cancel()
        for peer in peers:
            peer.close()


def summary(results):
    def median(name):
        return statistics.median(value for result in results for value in result[name])

    ideal = statistics.median(result["alone"] for result in results)
    return {"in_calls": median("lost"), "slower_by": median("epochs") - ideal, "share": median("lost") / median("epochs"), "end": median("ends"),
            "step": median("plain"), "longest_step": max(max(result["plain"]) for result in results),
            "peak_per_parameters": max(result["peak_per_parameters"] for result in results), "epoch": median("epochs"), "alone": ideal,
            "groups": results[0].get("groups"), "ends": [value for result in results for value in result["ends"]]}


def link_share(options, tensors, row):
    """Two peers each send half of the values and half of the averages, in two rounds."""
    bits = 2 * 8 * (2 if options.float16 else 4) * tensors * 2048 * 2048
    return bits / (1e6 * float(options.link.split(":")[0]) * row["end"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", default=pathlib.Path(__file__).parents[1] / "build/release/bin/cohive-bench-trainer")
    parser.add_argument("--millions", type=float, nargs="+", default=[12.6, 50, 100])
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=["default"])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--work", type=float, default=0.1)
    parser.add_argument("--matchmaking-time", type=float, default=2.0)
    parser.add_argument("--float16", action="store_true")
    parser.add_argument("--link")
    parser.add_argument("--congestion-control", default="", help="of cohive's peers in C++, as the option of cohive-train")
    parser.add_argument("--connections-per-peer", type=int, help="the same")
    parser.add_argument("--only", nargs="+", choices=["torch", "cohive", "python", "hivemind", "mixed"])
    parser.add_argument("--mixed", action="store_true", help="also one peer of each kind in one run")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--python-peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.python_peer:
        return python_peer(json.loads(options.python_peer))
    wanted = options.only or ["torch", "hivemind", "python", "cohive", *(["mixed"] if options.mixed else [])]

    rows = []
    for millions in options.millions:
        tensors = round(millions * 1e6 / 2048 / 2048)
        for mode in options.modes:
            def ours(place, initial_peers):
                flags = [f"--{name.replace('_', '-')}={str(value).lower()}" for name, value in MODES[mode].items()]
                flags += ["--fp16"] if options.float16 else []
                command = [options.peer, f"--tensors={tensors}", f"--batches={options.batches}", f"--epochs={options.epochs}", f"--work={options.work}",
                           f"--listen={place.listen}", f"--matchmaking-time={options.matchmaking_time}", *flags]
                if options.congestion_control:
                    command.append(f"--congestion-control={options.congestion_control}")
                if options.connections_per_peer:
                    command.append(f"--connections-per-peer={options.connections_per_peer}")
                return Peer(place.command(command + (["--initial-peers", *initial_peers] if initial_peers else [])))

            def by_python(package, place, initial_peers):
                settings = {"tensors": tensors, "batches": options.batches, "epochs": options.epochs, "work": options.work, "mode": mode,
                            "matchmaking_time": options.matchmaking_time, "initial_peers": initial_peers, "float16": options.float16,
                            "listen": place.listen, "package": package}
                return Peer(place.command([sys.executable, __file__, "--python-peer", json.dumps(settings)]))

            packages = ("hivemind", "cohive", "torch")
            theirs, python, alone = (functools.partial(by_python, package) for package in packages)
            pairs = {"torch": (alone,), "hivemind": (theirs, theirs), "python": (python, python),
                     "cohive": (ours, ours), "mixed": (theirs, ours)}
            for name, makers in pairs.items():
                if name not in wanted:
                    continue
                try:
                    with places(options.link) as at:
                        results = run_pair(makers, at)
                    found = [(name, results)] if name != "mixed" else [("hivemind+", results[:1]), ("+cohive", results[1:])]
                    found = [(who, summary(part)) for who, part in found]
                except RuntimeError as error:
                    found = [(name, {"error": str(error)})]
                for who, row in found:
                    if options.link and mode == "synchronous" and "end" in row:
                        row["link"] = link_share(options, tensors, row)
                    rows.append({"millions": tensors * 2048 * 2048 / 1e6, "mode": mode, "who": who, **row})
                    if not options.json:
                        show(rows[-1], first=len(rows) == 1)
    if options.json:
        print(json.dumps({"benchmark": "optimizer_vs_hivemind", "rows": rows}))


def show(row, first):
    if first:
        print(f"{'million':>8} {'mode':12} {'':9} {'in calls':>9} {'share':>6} {'slower by':>10} {'end':>8} {'step':>9} {'longest':>9} {'peak':>6}  groups")
    if "error" in row:
        print(f"{row['millions']:8.1f} {row['mode']:12} {row['who']:9} {row['error']}")
        return
    print(f"{row['millions']:8.1f} {row['mode']:12} {row['who']:9} {row['in_calls']:7.2f} s {row['share']:6.1%} {row['slower_by']:8.2f} s {row['end']:6.2f} s "
          f"{1000 * row['step']:6.1f} ms {1000 * row['longest_step']:6.0f} ms {row['peak_per_parameters']:5.1f}x  {row['groups'] or ''} {'link {:.0%}'.format(row['link']) if 'link' in row else ''}", flush=True)


if __name__ == "__main__":
    main()
