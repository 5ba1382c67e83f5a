"""cohive-train as a person at a shell meets it.

Usage: test_trainer.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import contextlib
import json
import math
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

import shell
from shell import NOBODY, PATIENCE, bootstrap, environment, programs, run, started
from test_checkpoints import read_checkpoint


class TrainerTest(unittest.TestCase):
    """A trainer with a small model and a text."""

    def setUp(self):
        if not programs("cohive-train"):
            self.skipTest("built without LibTorch")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = self.file("text.txt", b"In the beginning was the Word, and the Word was with others. " * 200)
        self.small = ["--text", self.text, "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--width", "16", "--layers", "1",
                      "--context", "16", "--batch-size", "32", "--matchmaking-time", "1"]

    def file(self, name, content):
        path = Path(self.folder.name, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return str(path)

    def dry_run(self, *arguments, env=None):
        result = run("cohive-train", "--dry-run", "--json", *arguments, env={**environment, **(env or {})})
        self.assertEqual(result.returncode, 0, result.stderr)
        (line,) = result.stdout.splitlines()
        plan = json.loads(line)
        self.assertEqual(plan["event"], "dry_run")
        return plan

    def refused(self, says, *arguments, env=None):
        with self.subTest(says=says):
            result = run("cohive-train", "--dry-run", *arguments, env={**environment, **(env or {})})
            self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(says, result.stderr)


def idx(*sizes, values=None):
    """An IDX file of unsigned bytes: as many as the sizes say, unless other ones are given."""
    count = math.prod(sizes)
    return bytes([0, 0, 8, len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes) + (values or bytes(n % 10 for n in range(count)))


class TrainerModels(TrainerTest):
    def test_a_transformer_has_the_size_that_was_named_and_what_flags_change(self):
        parameters = self.dry_run("--text", self.text, "--size", "3m")["parameters"]
        self.assertAlmostEqual(parameters / 3e6, 1, delta=0.2)
        fewer = self.dry_run("--text", self.text, "--layers", "2", "--size", "3m")
        self.assertLess(fewer["parameters"], 0.7 * parameters)
        self.assertIn("2 layers", fewer["model"])
        self.refused("--size", "--text", self.text, "--size", "4m")
        self.refused("--heads", "--text", self.text, "--width", "32", "--heads", "5")

    def test_texts_of_different_characters_make_the_same_model(self):
        other = self.file("other.txt", bytes(range(256)) * 40)
        self.assertEqual(*(self.dry_run("--text", text)["parameters"] for text in (self.text, other)))

    def test_a_network_learns_classes_of_images(self):
        summary = self.folder.name + "/summary.json"
        result = run("cohive-train", "--model", "cnn", "--channels", "4", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", "--batch-size", "32",
                     "--target-batch-size", "128", "--learning-rate", "0.01", "--max-epochs", "12", "--seed", "1", "--summary", summary)
        self.assertEqual(result.returncode, 0, result.stderr)
        written = json.loads(Path(summary).read_text())
        self.assertEqual(written["eval_predictions"], 1000)
        self.assertGreater(written["eval_accuracy"], 0.5)  # by chance: 0.1
        self.assertLess(written["eval_loss"], 2.3)

    def test_files_of_mnist(self):
        self.file("mnist/train-images-idx3-ubyte", idx(40, 28, 28))
        self.file("mnist/train-labels-idx1-ubyte", idx(40))
        folder = self.folder.name + "/mnist"
        plan = self.dry_run("--model", "cnn", "--data", folder)
        self.assertEqual((plan["training_size"], plan["held_out_size"]), (36, 4))
        self.file("mnist/t10k-images-idx3-ubyte", idx(30, 28, 28))
        self.file("mnist/t10k-labels-idx1-ubyte", idx(30))
        plan = self.dry_run("--model", "cnn", "--data", folder)
        self.assertEqual((plan["training_size"], plan["held_out_size"]), (40, 30))
        self.file("mnist/t10k-images-idx3-ubyte", idx(30, 20, 28))
        self.refused("another shape", "--model", "cnn", "--data", folder)

    def test_files_of_cifar(self):
        records = b"".join(bytes([label]) + bytes(3072) for label in range(10))
        for name in ("data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"):
            self.file("cifar/" + name, records)
        folder = self.folder.name + "/cifar"
        plan = self.dry_run("--model", "cnn", "--data", folder)
        self.assertEqual((plan["training_size"], plan["held_out_size"]), (20, 10))
        self.file("cifar/test_batch.bin", records[:-1])
        self.refused("test_batch.bin", "--model", "cnn", "--data", folder)
        self.file("cifar/test_batch.bin", bytes([10]) + bytes(3072))
        self.refused("label above 9", "--model", "cnn", "--data", folder)

    def test_image_files_that_are_none(self):
        labels = idx(40)
        for says, images in {"no IDX file": b"PNG" * 100,
                             "gunzip": b"\x1f\x8b" + bytes(100),
                             "one to four dimensions": idx(1, 1, 1, 40, 8, 8),
                             "unsigned bytes": b"\0\0\x0d" + idx(40, 8, 8)[3:],
                             "should hold 2560 values, and holds 2559": idx(40, 8, 8)[:-1],
                             "a dimension that cannot be": idx(2**32 - 1, 2**32 - 1, 2**32 - 1, values=b"x"),
                             "cannot be": idx(0, 8, 8, values=b"x"),
                             "pixels": idx(40, 7, 8),
                             "one label for each of the 41 images": idx(41, 8, 8)}.items():
            images = self.file("bad/train-images-idx3-ubyte", images)
            self.file("bad/train-labels-idx1-ubyte", labels)
            self.refused(says, "--model", "cnn", "--data", str(Path(images).parent))
        self.refused("no such folder", "--model", "cnn", "--data", self.folder.name + "/missing")
        self.refused("has neither", "--model", "cnn", "--data", self.folder.name)

    def test_flags_of_the_other_model(self):
        self.refused("--text goes with --model gpt", "--model", "cnn", "--text", self.text)
        self.refused("--blocks goes with --model cnn", "--text", self.text, "--blocks", "2")
        self.refused("--text is required", "--model", "gpt")

    def test_devices_that_there_are_not(self):
        self.refused("cpu, cuda or cuda:N", "--model", "cnn", "--device", "gpu")
        self.refused("cpu, cuda or cuda:N", "--model", "cnn", "--device", "cuda:-1")
        self.refused("--device cuda:127", "--model", "cnn", "--device", "cuda:127")

    def test_a_rank_takes_the_gpu_of_its_number(self):
        result = run("cohive-train", "--model", "cnn", "--device", "cuda",
                     env={**environment, "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "6", "MASTER_PORT": "1"})
        self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        self.assertIn("--device cuda:5: ", result.stderr)

    def test_measurements_on_a_device_that_there_is_not_end_at_once(self):
        bench = Path(__file__).resolve().parents[2] / "benchmarks/convergence.py"
        learns = subprocess.run([sys.executable, bench, "--bin", shell.BIN, "--text", self.text, "--device", "cuda:127"],
                                capture_output=True, text=True, timeout=PATIENCE)
        steps = [run(name, "--device", "cuda:127") for name in programs("cohive-bench-steps")]
        for result in (learns, *steps):
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
            self.assertIn("--device cuda:127", result.stderr)

    def test_ways_to_step_are_measured_beside_each_other(self):
        if not programs("cohive-bench-steps"):
            self.skipTest("not built")
        result = run("cohive-bench-steps", "--megabytes", "1", "--side", "64", "--seconds", "0.1", "--threads", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        measured = json.loads(result.stdout)
        for way in ("libtorch", "libtorch_offloaded", "cohive", "cohive_delayed", "cohive_offloaded", "cohive_offloaded_delayed"):
            self.assertIsInstance(measured[way], float)


class TrainerSettings(TrainerTest):
    def test_a_flag_goes_before_the_file_and_the_file_before_the_environment(self):
        config = self.file("run.toml", b'text = "' + self.text.encode() + b'"\nbatch_size = 24\ntarget-batch-size = 96\n')
        env = {"COHIVE_TRAIN_BATCH_SIZE": "20", "COHIVE_TRAIN_TARGET_BATCH_SIZE": "80", "COHIVE_TRAIN_RUN_ID": "from_environment"}
        plan = self.dry_run("--config", config, "--batch_size", "28", env=env)
        self.assertEqual((plan["batch_size"], plan["target_batch_size"], plan["run_id"]), (28, 96, "from_environment"))

    def test_lists_in_the_environment_are_separated_by_commas(self):
        peers = [f"/ip4/127.0.0.1/tcp/{port}/p2p/{NOBODY}" for port in (1, 2)]
        env = {"COHIVE_TRAIN_INITIAL_PEERS": ",".join(peers), "COHIVE_TRAIN_TEXT": self.text, "COHIVE_TRAIN_OFFLOAD_OPTIMIZER": "true"}
        self.assertEqual(self.dry_run(env=env)["initial_peers"], peers)

    def test_settings_that_are_none(self):
        text = ["--text", self.text]
        self.refused("no_such_option", "--config", self.file("unknown", b"no_such_option = 1\n"), *text)
        self.refused("batch-size", "--config", self.file("range", b"batch-size = 0\n"), *text)
        self.refused("missing.toml", "--config", self.folder.name + "/missing.toml", *text)
        self.refused("COHIVE_TRAIN_NO_SUCH", *text, env={"COHIVE_TRAIN_NO_SUCH": "1"})
        self.refused("--batch-size", *text, env={"COHIVE_TRAIN_BATCH_SIZE": "many"})

    def test_flags_that_nothing_would_look_at(self):
        model = ["--model", "cnn"]
        for flag, value, goes_with in (
                ("--momentum", "0.9", ["--optimizer", "sgd"]),
                ("--lr-gamma", "0.9", ["--lr-schedule", "exponential"]),
                ("--lr-least", "0.1", ["--lr-schedule", "cosine", "--max-epochs", "9"]),
                ("--schedule-epochs", "9", ["--lr-schedule", "one-cycle"]),
                ("--trim", "0.3", ["--aggregation", "trimmed-mean"]),
                ("--clip-radius", "2", ["--aggregation", "centered-clip"]),
                ("--clip-iterations", "3", ["--aggregation", "centered-clip"]),
                ("--clip-factor", "2", ["--local-steps", "--agreed-compression", "sparse2"]),
                ("--density", "0.1", ["--agreed-compression", "top_k"]),
                ("--min-compression-ratio", "0.3", ["--averager-rank", "4"])):
            self.refused(f"{flag} goes with ", *model, flag, value)
            with self.subTest(flag=flag, goes_with=goes_with):
                self.dry_run(*model, flag, value, *goes_with)
        self.refused("--density goes with ", *model, "--density", "0.1", "--agreed-compression", "block4")
        config = self.file("momentum.toml", b"momentum = 0.5\n")
        self.refused("--momentum goes with --optimizer sgd or muon", *model, "--config", config)
        least = {"COHIVE_TRAIN_LR_LEAST": "0.1"}
        self.refused("--lr-least goes with --lr-schedule linear or cosine", *model, env=least)

    def test_no_gradients_are_averaged_with_local_updates(self):
        local = ["--model", "cnn", "--use-local-updates"]
        for flag, *values in (
                ("--averager-rank", "4"), ("--agreed-compression", "block4"), ("--grad-compression", "float16"),
                ("--clip-radius", "2", "--aggregation", "centered-clip")):
            self.refused(f"{flag} is about gradients", *local, flag, *values)
        self.refused("--grad-compression is about gradients", *local, "--fp16")
        for flags in (["--aggregation", "centered-clip"], ["--clip-grad-norm", "1"]):
            self.dry_run(*local, *flags)
        self.dry_run("--model", "cnn", "--local-steps", "--agreed-compression", "block4", "--clip-grad-norm", "1")

    def test_a_dry_run_reads_and_joins_nothing_else(self):
        result = run("cohive-train", "--dry-run", "--text", self.text, "--initial-peers", f"/ip4/127.0.0.1/tcp/1/p2p/{NOBODY}")
        self.assertEqual(result.returncode, 0, result.stderr)
        for words in ("gpt: 2 layers", "bytes to train on", "1024 per epoch", "1 address"):
            self.assertIn(words, result.stdout)


class TrainerOutput(TrainerTest):
    def test_json_lines(self):
        result = run("cohive-train", *self.small, "--json", "--target-batch-size", "128", "--max-epochs", "2")
        self.assertEqual(result.returncode, 0, result.stderr)
        events = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual((events[0]["event"], events[-1]["event"]), ("started", "summary"))
        self.assertRegex(events[0]["initial_peers"][0], "/p2p/" + events[0]["peer_id"])
        reports = [event for event in events if event["event"] == "progress"]
        self.assertTrue(reports)
        self.assertEqual(reports[0]["target_batch_size"], 128)
        self.assertEqual(events[-1]["epoch"], 2)
        self.assertGreater(events[-1]["eval_predictions"], 0)

    def test_looks_at_the_held_out_data_on_the_way(self):
        result = run("cohive-train", *self.small, "--json", "--target-batch-size", "64", "--max-epochs", "5", "--eval-every", "2")
        self.assertEqual(result.returncode, 0, result.stderr)
        events = [json.loads(line) for line in result.stdout.splitlines()]
        looks = [event for event in events if event["event"] == "evaluation"]
        self.assertEqual([look["epoch"] for look in looks], [2, 4])
        self.assertLess(looks[-1]["loss"], 6)  # by chance: 5.5
        self.assertTrue(0 <= looks[-1]["accuracy"] <= 1)  # of so small a model nothing more is sure

    def test_a_terminal_shows_a_bar(self):
        ours, its = pty.openpty()
        with subprocess.Popen([shell.BIN / "cohive-train", *self.small, "--target-batch-size", "256", "--max-epochs", "20"], env=environment,
                              stdout=its, stderr=subprocess.DEVNULL) as process:
            os.close(its)
            shown = b""
            with contextlib.suppress(OSError):  # how a terminal ends whose program has gone
                while piece := os.read(ours, 4096):
                    shown += piece
            self.assertEqual(process.wait(PATIENCE), 0)
        os.close(ours)
        self.assertRegex(shown.decode(), r"\repoch +\d+ \[#*\.*\] +\d+%.*samples/s.*loss.*peer")
        self.assertIn("ETA ", shown.decode())

    def test_the_second_interrupt_ends_it_at_once(self):
        # A batch takes so long that the first one alone could not have ended it yet.
        slow = [flag if flag != "32" else "8192" for flag in self.small] + ["--target-batch-size", "1000000"]
        with started("cohive-train", *slow) as process:
            for line in process.stdout:
                if line.startswith("epoch"):
                    break
            while process.poll() is None:
                process.send_signal(signal.SIGINT)
            self.assertEqual(process.returncode, 130)


class Trainer(TrainerTest):
    def test_trains_alone_and_writes_what_it_learned(self):
        save, summary = self.folder.name + "/params", self.folder.name + "/summary.json"
        result = run("cohive-train", *self.small, "--target-batch-size", "512", "--max-epochs", "3", "--save", save, "--summary", summary)
        self.assertEqual(result.returncode, 0, result.stderr)
        written = json.loads(Path(summary).read_text())
        self.assertEqual(written["epoch"], 3)
        self.assertLess(written["loss_end"], written["loss_start"])
        self.assertEqual(run("cohive-train", "--compare", save, save).returncode, 0)

    def test_trains_in_half_precision_and_keeps_the_scale_of_the_loss(self):
        common = [*self.small, "--target-batch-size", "64", "--seed", "1"]
        for precision in ("float16", "bfloat16"):
            with self.subTest(precision=precision):
                folder = f"{self.folder.name}/{precision}"
                flags = [*common, "--mixed-precision", precision, "--checkpoint-dir", folder, "--resume", "--json"]
                for epochs in (40, 42):
                    result = run("cohive-train", *flags, "--max-epochs", str(epochs))
                    self.assertEqual(result.returncode, 0, result.stderr)
                summary = json.loads(result.stdout.splitlines()[-1])
                self.assertLess(summary["loss_end"], 5)  # at first: above 5.5
                newest = Path(folder, "epoch-00000042.safetensors").read_bytes()
                self.assertEqual(b"user.loss_scale" in newest, precision == "float16")
                if precision == "float16":
                    self.assertIn(str(int(summary["loss_scale"])).encode(), newest)
        self.refused("--mixed-precision", "--text", self.text, "--mixed-precision", "float8")

    def test_checkpoints_keep_the_scale_that_the_next_batch_has(self):
        folder = self.folder.name + "/checkpoints"
        result = run("cohive-train", *self.small, "--target-batch-size", "64", "--mixed-precision", "float16", "--seed", "1",
                     "--no-delay-state-averaging", "--checkpoint-dir", folder, "--checkpoint-every", "1epochs", "--max-epochs", "6")
        self.assertEqual(result.returncode, 0, result.stderr)
        grown = {}
        for path in Path(folder).glob("*.safetensors"):
            strings, _ = read_checkpoint(path)
            grown[int(path.stem.partition("-")[2])] = int(strings["user.loss_scale_growth"])
        first, last = min(grown), max(grown)  # the last one is written after the update that follows its step
        self.assertLess(first, last)
        self.assertEqual(grown[last] - grown[first], last - first, grown)

    def test_a_loss_that_is_no_number_is_left_out_of_the_mean(self):
        summary = self.folder.name + "/summary.json"
        # One step of this length, and half precision has no number for what the network says.
        result = run("cohive-train", *self.small, "--target-batch-size", "256", "--seconds", "5", "--mixed-precision", "float16",
                     "--optimizer", "sgd", "--learning-rate", "1e6", "--summary", summary)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("the loss of a batch is ", result.stderr)
        written = json.loads(Path(summary).read_text())
        self.assertIsInstance(written["loss_end"], float)
        self.assertIsInstance(written["loss_start"], float)

    def test_a_loss_that_is_no_number_is_in_the_metrics(self):
        """Of half precision, too, once several batches in a row have such a loss."""
        for precision in ([], ["--mixed-precision", "float16"]):
            flags = [*self.small, *precision, "--json", "--target-batch-size", "32", "--optimizer", "sgd", "--learning-rate", "1e6",
                     "--metrics-address", "127.0.0.1:0"]
            with self.subTest(precision=precision), started("cohive-train", *flags) as trainer:
                urls = json.loads(trainer.stdout.readline())
                give_up = time.monotonic() + PATIENCE
                no_number = re.compile(r"^cohive_train_loss\{run_id=.* (nan|[+-]inf)$", re.IGNORECASE | re.MULTILINE)
                while not no_number.search(text := self.read(urls["metrics"])):
                    self.assertLess(time.monotonic(), give_up, text)
                    time.sleep(0.05)
                status = json.loads(self.read(urls["page"] + "status"), parse_constant=self.fail)
                self.assertIsNone(status["runs"][0]["loss"])

    @staticmethod
    def read(url):
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def test_ranks_of_one_machine_are_one_peer(self):
        save, summary, folder = (f"{self.folder.name}/{name}" for name in ("params", "summary.json", "checkpoints"))
        flags = [*self.small, "--target-batch-size", "256", "--max-epochs", "3", "--save", save, "--summary", summary,
                 "--checkpoint-dir", folder, "--resume"]
        ranks = [{**environment, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "COHIVE_LOCAL_MEETING": self.folder.name + "/ranks"}
                 for rank in range(2)]
        for epochs in ("3", "5"):  # the second time from the checkpoint of rank 0
            flags[flags.index("--max-epochs") + 1] = epochs
            with started("cohive-train", *flags, env=ranks[1]) as second:
                result = run("cohive-train", *flags, env=ranks[0])
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(second.stdout.read(), "rank 1 of 2: rank 0 speaks for this machine\n")
                self.assertEqual(second.wait(PATIENCE), 0)
            written = json.loads(Path(summary).read_text())
            self.assertEqual((written["epoch"], written["ranks"]), (int(epochs), 2))
        self.assertLess(written["batches"], 5 * 256 / 32, "those of one rank: the other one counts, too")
        self.assertGreater(os.path.getsize(save), 0)
        self.assertIn("resumed at epoch 3", result.stdout)
        for flag in ("--use-local-updates", "--reuse-grad-buffers", "--mixed-precision=float16"):
            self.refused(flag.partition("=")[0], "--text", self.text, flag, env=ranks[0])
        self.refused("LOCAL_RANK", "--text", self.text, env={"LOCAL_RANK": "first", "LOCAL_WORLD_SIZE": "2"})

    def test_a_signal_to_any_rank_ends_all(self):
        ranks = [{**environment, "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "COHIVE_LOCAL_MEETING": self.folder.name + "/ranks"}
                 for rank in range(2)]
        folder = self.folder.name + "/checkpoints"
        with started("cohive-train", *self.small, env=ranks[1]) as second, \
                started("cohive-train", *self.small, "--checkpoint-dir", folder, env=ranks[0]) as first:
            for line in first.stdout:
                if line.startswith("epoch"):
                    break
            second.send_signal(signal.SIGTERM)
            first.stdout.read()
            self.assertEqual((first.wait(PATIENCE), second.wait(PATIENCE)), (0, 0))
        self.assertTrue(list(Path(folder).glob("*.safetensors")))

    def test_sigterm_ends_the_run_with_its_results(self):
        save = self.folder.name + "/params"
        with started("cohive-train", *self.small, "--save", save) as process:
            for line in process.stdout:
                if line.startswith("epoch"):
                    break
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(PATIENCE), 0)
        self.assertGreater(os.path.getsize(save), 0)

    def test_two_trainers_end_with_the_same_parameters(self):
        self.end_with_the_same_parameters()

    def test_two_trainers_with_robust_averages_and_four_bits_do_so_too(self):
        flags = ["--agreed-compression", "block4", "--aggregation", "trimmed-mean", "--trim", "0.3"]
        for summary in self.end_with_the_same_parameters(*flags):
            self.assertGreater(summary["grad_rounds_agreed"], 0)

    def end_with_the_same_parameters(self, *flags):
        """Returns the summaries of both trainers."""
        saves = [f"{self.folder.name}/{n}.params" for n in range(2)]
        summaries = [f"{self.folder.name}/{n}.json" for n in range(2)]
        with bootstrap() as (_, line):
            # An epoch lasts some seconds, so that both take part.
            common = [*self.small, *flags, "--target-batch-size", "30000", "--initial-peers", *line["initial_peers"],
                      "--max-epochs", "3"]
            with started("cohive-train", *common, "--save", saves[0], "--summary", summaries[0]) as first:
                result = run("cohive-train", *common, "--save", saves[1], "--summary", summaries[1])
                self.assertEqual(result.returncode, 0, result.stderr)
                first.stdout.read()
                self.assertEqual(first.wait(PATIENCE), 0)
        compared = run("cohive-train", "--compare", *saves)
        self.assertEqual(compared.returncode, 0, compared.stdout)
        return [json.loads(Path(summary).read_text()) for summary in summaries]


if __name__ == "__main__":
    shell.main()
