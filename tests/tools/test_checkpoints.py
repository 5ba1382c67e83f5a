"""Checkpoints of cohive-train from the outside: what is in the files, and what is left after any kind of end.

Usage: test_checkpoints.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python; where the package safetensors is
installed, it reads the files, too. KILLS is the number of kills, 12 if it is not set.
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import struct
import tempfile
import time
import unittest
from pathlib import Path

import shell
from shell import bootstrap, programs, run, started

try:
    import safetensors.numpy
except ImportError:
    safetensors = None

PATIENCE = 180  # seconds; several trainers share the machine
SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}


def read_checkpoint(path):
    """The metadata and the bytes of each tensor, by the rules of the format and of docs/checkpoints.md."""
    content = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8:8 + size])
    metadata = header.pop("__metadata__")
    digits = metadata["cohive.sha256"].encode()
    blank = content.replace(digits, b"0" * len(digits), 1)
    assert hashlib.sha256(blank).hexdigest().encode() == digits, f"{path} is damaged"
    data, tensors, end = content[8 + size:], {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, previous = entry["data_offsets"][0], end
        end = entry["data_offsets"][1]
        count = 1
        for length in entry["shape"]:
            count *= length
        assert begin == previous and end - begin == count * SIZES[entry["dtype"]], name
        tensors[name] = data[begin:end]
    assert end == len(data)
    return metadata, tensors


def epochs_in(folder):
    return sorted(int(path.name[6:14]) for path in Path(folder).glob("epoch-*.safetensors"))


class WithTrainer(unittest.TestCase):
    def setUp(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.files = Path(self.temporary.name)
        self.folder = self.files / "checkpoints"
        text = self.files / "text.txt"
        text.write_text("In the beginning was the Word, and the Word was with others. " * 200)
        self.common = ["--text", str(text), "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--layers", "1",
                       "--context", "16", "--batch-size", "32", "--matchmaking-time", "1"]
        self.narrow = [*self.common, "--width", "16"]
        self.small = [*self.narrow, "--target-batch-size", "256"]
        self.saving = ["--checkpoint-dir", str(self.folder), "--checkpoint-every", "1epochs"]

    def train(self, *arguments):
        summary = self.files / "summary.json"
        result = run("cohive-train", *self.small, "--summary", str(summary), *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(summary.read_text())


class Checkpoints(WithTrainer):
    def test_python_reads_what_a_trainer_wrote(self):
        self.train(*self.saving, "--max-epochs", "3", "--save", str(self.files / "parameters"))
        path = self.folder / "epoch-00000003.safetensors"
        metadata, tensors = read_checkpoint(path)
        self.assertEqual((metadata["cohive.epoch"], metadata["cohive.run_id"]), ("3", "cohive_run"))
        self.assertGreater(int(metadata["user.batches"]), 0)
        parameters = [name for name in tensors if not name.startswith("optimizer.")]
        self.assertIn("blocks.0.qkv.weight", parameters)
        for number in range(len(parameters)):
            self.assertEqual(tensors[f"optimizer.{number}.step"], struct.pack("<f", 3))
        saved = (self.files / "parameters").read_bytes()
        self.assertEqual(len(saved), sum(len(tensors[name]) for name in parameters))
        self.assertIn(tensors["symbols.weight"], saved)
        if safetensors:
            read = safetensors.numpy.load_file(path)
            self.assertEqual({name: value.tobytes() for name, value in read.items()}, tensors)

    def test_a_run_goes_on_where_it_ended(self):
        first = self.train(*self.saving, "--max-epochs", "3")
        second = self.train(*self.saving, "--resume", "--max-epochs", "5")
        self.assertEqual((first["epoch"], second["epoch"]), (3, 5))
        self.assertGreater(second["batches"], first["batches"], "the batches of both")
        self.assertEqual(max(epochs_in(self.folder)), 5)
        self.assertLessEqual(len(epochs_in(self.folder)), 3)

    def test_the_same_batches_and_steps_with_and_without_an_interruption(self):
        saves = [str(self.files / name) for name in ("whole", "parts")]
        self.train("--seed", "7", "--max-epochs", "4", "--save", saves[0])
        self.train("--seed", "7", *self.saving, "--max-epochs", "2")
        self.train("--seed", "8", *self.saving, "--resume", "--max-epochs", "4", "--save", saves[1])
        self.assertEqual(*(Path(path).read_bytes() for path in saves))

    def test_an_empty_folder_is_where_a_run_begins(self):
        self.assertEqual(self.train(*self.saving, "--resume", "--max-epochs", "1")["epoch"], 1)

    def test_a_run_begins_with_the_file_that_it_is_given(self):
        self.train(*self.saving, "--max-epochs", "3")
        file = str(self.folder / "epoch-00000003.safetensors")
        self.assertEqual(self.train("--load-checkpoint", file, "--max-epochs", "4")["epoch"], 4)
        self.assertEqual(self.train("--run-id", "other", "--load-checkpoint", file, "--max-epochs", "1")["epoch"], 1)

    def test_a_signal_leaves_a_checkpoint(self):
        for signum in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=signum), tempfile.TemporaryDirectory() as folder:
                with started("cohive-train", *self.small, "--checkpoint-dir", folder) as process:
                    for line in process.stdout:
                        if line.startswith("epoch") and int(line.split()[1]) > 0:
                            break
                    process.send_signal(signum)
                    self.assertEqual(process.wait(PATIENCE), 0)
                (epoch,) = epochs_in(folder)
                self.assertGreater(epoch, 0)
                read_checkpoint(f"{folder}/epoch-{epoch:08}.safetensors")

    def test_the_newest_whole_one_is_taken(self):
        self.train(*self.saving, "--max-epochs", "3")
        newest = self.folder / f"epoch-{max(epochs_in(self.folder)):08}.safetensors"
        older = epochs_in(self.folder)[-2]
        newest.write_bytes(newest.read_bytes()[:-100])
        with started("cohive-train", *self.small, *self.saving, "--resume") as process:
            line = next(line for line in process.stdout if line.startswith("resumed"))
        self.assertEqual(line, f"resumed at epoch {older}\n")

    def refused(self, says, *arguments, width=16):
        with self.subTest(arguments=arguments):
            result = run("cohive-train", *self.common, "--target-batch-size", "256", "--width", str(width), "--max-epochs", "1", *arguments)
            self.assertEqual(result.returncode, 2, result.stderr)
            lines = [line for line in result.stderr.splitlines() if line.startswith("cohive-train: ")]
            self.assertEqual(len(lines), 1, result.stderr)
            self.assertIn(says, lines[0])

    def test_bad_flags_and_files(self):
        folder = ["--checkpoint-dir", str(self.folder)]
        for flag in ("--resume", "--keep-checkpoints=3", "--checkpoint-every=5"):
            self.refused("--checkpoint-dir", flag)
        for period in ("0", "-1", "soon", "1.5epochs", "0epochs", "epochs", "nan"):
            self.refused("--checkpoint-every", *folder, f"--checkpoint-every={period}")
        self.refused("--keep-checkpoints", *folder, "--keep-checkpoints", "0")
        junk = self.files / "junk"
        junk.write_text("no tensors in here")
        self.refused(str(junk), "--checkpoint-dir", str(junk))
        self.refused(str(junk), "--load-checkpoint", str(junk))
        self.refused("No such file", "--load-checkpoint", str(self.files / "missing"))
        self.refused(str(self.files), "--load-checkpoint", str(self.files))

        self.train(*self.saving, "--max-epochs", "1")
        self.refused("name another folder", *folder)
        self.refused("another run", *folder, "--resume", "--run-id", "other")
        self.refused("does not fit", *folder, "--resume", width=32)
        (file,) = self.folder.iterdir()
        self.refused("does not fit", "--load-checkpoint", str(file), width=32)
        with started("cohive-train", *self.small, *self.saving, "--resume") as process:
            next(line for line in process.stdout if line.startswith("resumed"))
            self.refused("another process", *folder, "--resume")
        for path in self.folder.iterdir():
            path.write_bytes(path.read_bytes()[:-1])
        self.refused("no checkpoint in it is whole", *folder, "--resume")


class Kills(WithTrainer):
    def test_at_any_moment_the_newest_checkpoint_is_whole(self):
        """Checkpoints are written without a pause; killing hits them in all their parts."""
        moments, epoch = random.Random(1), 0
        for _ in range(int(os.environ.get("KILLS", "12"))):
            with started("cohive-train", *self.common, "--target-batch-size", "32", "--width", "96", *self.saving,
                         "--resume") as process:
                # One that is killed before its first checkpoint leaves nothing to resume.
                if epoch > 0:
                    line = next(line for line in process.stdout if line.startswith("resumed"))
                    self.assertGreaterEqual(int(line.split()[-1]), epoch)
                next(line for line in process.stdout if line.startswith("epoch"))
                time.sleep(moments.uniform(0, 0.3))
                process.kill()
            present = epochs_in(self.folder)
            if not present:
                continue
            epoch = present[-1]
            for number in present:
                read_checkpoint(self.folder / f"epoch-{number:08}.safetensors")
            others = {path.name for path in self.folder.iterdir()} - {f"epoch-{n:08}.safetensors" for n in present}
            self.assertLessEqual(len(others), 1, "what one write left")
        self.assertGreater(epoch, 0)


class KilledSwarm(WithTrainer):
    """Five trainers and their bootstrap node, all killed at once: they go on from their own checkpoints."""

    def test_goes_on_from_the_checkpoints(self):
        trainers = 5
        folders = [self.files / str(number) for number in range(trainers)]
        with contextlib.ExitStack() as swarm:
            self.start(swarm, folders)
            deadline = time.monotonic() + PATIENCE
            while any(max(epochs_in(folder), default=0) < 2 for folder in folders):
                self.assertLess(time.monotonic(), deadline, [epochs_in(folder) for folder in folders])
                time.sleep(0.1)
        reached = max(epochs_in(folder)[-1] for folder in folders)
        batches, missing = zip(*(self.progress(folder) for folder in folders))

        saves = [str(self.files / f"{number}.parameters") for number in range(trainers)]
        with contextlib.ExitStack() as swarm:
            flags = ["--resume", "--max-epochs", str(reached + 3)]
            processes = self.start(swarm, folders, *flags, saves=saves)
            downloads = []
            for process in processes:
                lines = process.stdout.read().splitlines()
                self.assertEqual(process.wait(PATIENCE), 0)
                resumed = next(line for line in lines if line.startswith("resumed"))
                self.assertGreaterEqual(int(resumed.split()[-1]), 2)
                summary = json.loads(lines[-1].removeprefix("summary "))
                self.assertGreaterEqual(summary["epoch"], reached + 3)
                self.assertAlmostEqual(summary["learning_rate"], 0.001 * 0.9 ** summary["epoch"], delta=1e-9)
                # One that is behind at the end takes the epoch of the others, in which it has made no step.
                downloads.append(summary["state_downloads"] + summary["states_followed"])
        for folder, before, downloaded in zip(folders, batches, downloads):
            now, missing_now = self.progress(folder)
            self.assertGreaterEqual(epochs_in(folder)[-1], reached + 3)
            # A donor may lag a step behind the epoch that others have announced, and that its newcomer enters.
            self.assertIn(missing_now, range(max(missing) + downloaded + 1), "steps of the first swarm count, too")
            self.assertGreater(now, before)
        compared = run("cohive-train", "--compare", *saves)
        self.assertEqual(compared.returncode, 0, compared.stdout)

    def progress(self, folder):
        """Of the newest checkpoint: the batches, and how many of the epochs had no step."""
        epoch = epochs_in(folder)[-1]
        metadata, tensors = read_checkpoint(folder / f"epoch-{epoch:08}.safetensors")
        self.assertEqual(int(metadata["cohive.epoch"]), epoch)
        (steps,) = struct.unpack("<f", tensors["optimizer.0.step"])
        return int(metadata["user.batches"]), epoch - int(steps)

    def start(self, swarm, folders, *flags, saves=()):
        _, line = swarm.enter_context(bootstrap())
        processes = []
        for number, folder in enumerate(folders):
            own = ["--save", saves[number]] if saves else []
            processes.append(swarm.enter_context(started(
                "cohive-train", *self.narrow, "--target-batch-size", "16000", "--checkpoint-dir", str(folder),
                "--checkpoint-every", "1epochs", "--lr-schedule", "exponential", "--lr-gamma", "0.9", "--initial-peers", *line["initial_peers"], *flags, *own)))
        return processes


if __name__ == "__main__":
    shell.main()
