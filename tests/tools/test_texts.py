"""What cohive-train takes for a text: files of any size, folders with links of all kinds, pipes; and what it refuses.

Usage: test_texts.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import resource
import signal
import subprocess
import tempfile
import threading
import zipfile

import shell
from shell import PATIENCE, environment, run, small_trainer

SENTENCE = b"In the beginning was the Word, and the Word was with others. "


class WithFolder(shell.TrainerTest):
    def setUp(self):
        super().setUp()
        self.corpus = self.folder / "corpus"
        self.corpus.mkdir()

    def file(self, name, size):
        path = self.corpus / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((SENTENCE * (size // len(SENTENCE) + 1))[:size])
        return path

    def command(self, text, *arguments):
        return [str(shell.BIN / "cohive-train"), "--dry-run", "--json", "--context", "16", "--text", str(text), *arguments]

    def assert_size(self, size, result):
        """Returns what was told on the way."""
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads(result.stdout)
        self.assertEqual(plan["training_size"] + plan["held_out_size"], size)
        return result.stderr

    def look(self, text, **options):
        return subprocess.run(self.command(text), env=environment, capture_output=True, timeout=PATIENCE, **options)

    def refused(self, says, text, **options):
        with self.subTest(text=text, says=says):
            result = self.look(text, **options)
            self.assertEqual((result.returncode, result.stdout), (2, b""), result.stderr)
            lines = [line for line in result.stderr.decode().splitlines() if line.startswith("cohive-train: ")]
            self.assertEqual(len(lines), 1)
            self.assertIn(says, lines[0])


class LargeTexts(WithFolder):
    def test_a_text_may_be_larger_than_the_memory(self):
        large = self.corpus / "large"
        with large.open("wb") as file:
            file.write(SENTENCE * 1000)
            file.truncate(200 << 30)
        self.assert_size(200 << 30, self.look(large))
        small = small_trainer(self.folder)
        small[small.index("--text") + 1] = str(large)
        result = run("cohive-train", *small, "--max-epochs", "2")
        self.assertEqual(result.returncode, 0, result.stderr)
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        self.assertLess(most, 1 << 20, "KiB")
        (self.corpus / "other").write_bytes(SENTENCE * 100)
        self.assert_size((200 << 30) + 100 * len(SENTENCE), self.look(self.corpus))

    def test_a_folder_of_more_files_than_may_be_open(self):
        sizes = [self.file(f"{number % 7}/{number}", 100 + number).stat().st_size for number in range(500)]
        summaries = []
        joined = self.folder / "joined"
        joined.write_bytes(b"".join(path.read_bytes() for path in sorted(path for path in self.corpus.rglob("*") if path.is_file())))
        small = small_trainer(self.folder)
        for text in (self.corpus, joined):
            small[small.index("--text") + 1] = str(text)
            saved = self.folder / "saved"
            result = subprocess.run(["bash", "-c", 'ulimit -n 200; exec "$@"', "bash", shell.BIN / "cohive-train", *small, "--seed", "1", "--max-epochs", "3",
                                     "--save", saved], env=environment, capture_output=True, timeout=PATIENCE)
            self.assertEqual(result.returncode, 0, result.stderr)
            summaries.append(saved.read_bytes())
        self.assertEqual(sum(sizes), joined.stat().st_size)
        self.assertEqual(*summaries, "the same text, whether it is one file or five hundred")

    def test_a_text_that_is_cut_meanwhile_costs_no_results(self):
        text, save = self.file("text", 20_000), self.folder / "params"
        small = small_trainer(self.folder)
        small[small.index("--text") + 1] = str(text)
        process = subprocess.Popen([shell.BIN / "cohive-train", *small, "--save", save], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(process.kill)
        next(line for line in process.stdout if line.startswith("epoch"))
        os.truncate(text, 1000)
        _, said = process.communicate(timeout=PATIENCE)
        self.assertEqual(process.returncode, 1)
        self.assertIn(f"cohive-train: --text: {text} has become shorter since the start\n", said)
        self.assertGreater(save.stat().st_size, 0)


class Folders(WithFolder):
    def test_links_are_followed_once(self):
        outside = self.folder / "outside"
        outside.mkdir()
        (outside / "b.txt").write_bytes(b"b" * 300)
        (outside / "back").symlink_to(self.corpus)
        self.file("a.txt", 1000)
        (self.corpus / "linked").symlink_to(outside)
        (self.corpus / "linked_again").symlink_to("linked")
        (self.corpus / "up").symlink_to("..")
        (self.corpus / "here").symlink_to(".")
        (self.corpus / "a_again.txt").symlink_to("a.txt")
        said = self.assert_size(1300, self.look(self.corpus))
        self.assertEqual(said, b"")
        self.assert_size(1300, self.look(self.corpus / "here"))

    def test_what_cannot_be_followed_is_told_and_left_out(self):
        self.file("a.txt", 1000)
        (self.corpus / "self").symlink_to("self")
        (self.corpus / "ping").symlink_to("pong")
        (self.corpus / "pong").symlink_to("ping")
        (self.corpus / "dangling").symlink_to("nowhere")
        os.mkfifo(self.corpus / "fifo")
        (self.corpus / "empty").touch()
        said = self.assert_size(1000, self.look(self.corpus)).decode()
        for name in ("self", "ping", "pong", "dangling", "fifo"):
            self.assertEqual(said.count(f"{self.corpus}/{name} is left out: "), 1, said)
        self.assertEqual(said.count("\n"), 5)
        for number in range(30):
            (self.corpus / f"loop{number}").symlink_to(f"loop{number}")
        said = self.assert_size(1000, self.look(self.corpus)).decode()
        self.assertEqual(said.count("\n"), 11)
        self.assertIn("and 25 more paths are left out", said)
        self.refused("Too many levels of symbolic links", self.corpus / "self")
        self.refused("No such file", self.corpus / "dangling")

    def test_images(self):
        (self.corpus / "train-labels-idx1-ubyte").write_bytes(b"")
        for name in ("train-images-idx3-ubyte", "data_batch_1.bin"):
            (self.corpus / name).symlink_to(name)
            result = run("cohive-train", "--dry-run", "--model", "cnn", "--data", str(self.corpus))
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
            self.assertIn("symbolic links", result.stderr)
            (self.corpus / name).unlink()
        (self.corpus / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"x"))
        for path in (self.corpus, self.corpus / "self"):
            (self.corpus / "self").unlink(missing_ok=True)
            (self.corpus / "self").symlink_to("self")
            result = run("cohive-train", "--dry-run", "--model", "cnn", "--data", str(path))
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
        self.assertIn("gunzip them first", run("cohive-train", "--dry-run", "--model", "cnn", "--data", str(self.corpus)).stderr)


class Pipes(WithFolder):
    def test_of_all_kinds(self):
        text = self.file("text", 200_000)
        with text.open("rb") as file:
            self.assert_size(200_000, self.look("/dev/stdin", stdin=file))
        self.assert_size(200_000, self.look("/dev/stdin", input=text.read_bytes()))
        self.assert_size(200_000, self.look("/dev/fd/0", input=text.read_bytes()))
        substituted = subprocess.run(["bash", "-c", f'"$@" --text <(cat {text})', "bash", shell.BIN / "cohive-train", "--dry-run", "--json", "--context", "16"],
                                     env=environment, capture_output=True, timeout=PATIENCE)
        self.assert_size(200_000, substituted)
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        writer = threading.Thread(target=lambda: fifo.write_bytes(text.read_bytes()))
        writer.start()
        self.assert_size(200_000, self.look(fifo))
        writer.join(PATIENCE)

    def test_one_is_trained_on(self):
        small = small_trainer(self.folder)
        small[small.index("--text") + 1] = "/dev/stdin"
        result = subprocess.run([shell.BIN / "cohive-train", *small, "--max-epochs", "2"], input=SENTENCE * 500, env=environment, capture_output=True,
                                timeout=PATIENCE)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([name for name in os.listdir(tempfile.gettempdir()) if name.startswith("cohive-text")], [])

    def test_what_comes_too_short_or_finds_no_room(self):
        self.refused("holds only 5 bytes", "/dev/stdin", input=b"short")
        self.refused("holds only 0 bytes", "/dev/stdin", input=b"")
        disk = self.folder / "disk"
        disk.mkdir()
        mount = ["unshare", "-rm", "bash", "-c", f'mount -t tmpfs -o size=64k none {disk} && exec "$@"', "full"]
        if subprocess.run([*mount, "true"], capture_output=True).returncode != 0:
            self.skipTest("no file system of its own may be mounted here")
        result = subprocess.run([*mount, *self.command("/dev/stdin")], env={**environment, "TMPDIR": str(disk)}, input=SENTENCE * 5000, capture_output=True,
                                timeout=PATIENCE)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(f"it cannot be kept in {disk}: No space left on device; $TMPDIR names another folder", result.stderr.decode())

    def test_devices(self):
        for device in ("/dev/zero", "/dev/null", "/dev/full"):
            self.refused("it is a device, and no text", device)

    def test_a_signal_while_one_waits_for_its_writer(self):
        fifo = self.folder / "fifo"
        os.mkfifo(fifo)
        small = small_trainer(self.folder)
        small[small.index("--text") + 1] = str(fifo)
        process = subprocess.Popen([shell.BIN / "cohive-train", *small], env=environment, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        self.assertIn(f"reading {fifo} to its end", process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(PATIENCE), 0)
        process.stderr.close()


class CompressedTexts(WithFolder):
    def test_are_refused_with_what_helps(self):
        plain, archive = SENTENCE * 500, io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("text.txt", plain)
        rest = os.urandom(2000)
        for name, tool, content in (("gzip", "zcat", gzip.compress(plain)), ("bzip2", "bzcat", bz2.compress(plain)), ("xz", "xzcat", lzma.compress(plain)),
                                    ("zip", "unzip -p", archive.getvalue()), ("zstd", "zstdcat", b"\x28\xb5\x2f\xfd" + rest),
                                    ("lz4", "lz4cat", b"\x04\x22\x4d\x18" + rest), ("compress", "zcat", b"\x1f\x9d" + rest),
                                    ("7z", "7z x -so", b"7z\xbc\xaf\x27\x1c" + rest), ("lzip", "lzip -dc", b"LZIP\x01" + rest)):
            packed = self.corpus / "any_name.txt"
            packed.write_bytes(content)
            self.refused(f"{packed}: it is compressed ({name}); {tool} {packed} | cohive-train --text /dev/stdin", packed)
            self.file("a.txt", 1000)
            self.refused(f"{packed}: it is compressed ({name})", self.corpus)
            self.refused(f"it is compressed ({name}); let {tool} come before it", "/dev/stdin", input=content)

    def test_what_the_advice_says_works(self):
        packed = self.corpus / "text.gz"
        packed.write_bytes(gzip.compress(SENTENCE * 500))
        result = subprocess.run(["bash", "-c", f'zcat {packed} | "$@"', "bash", *self.command("/dev/stdin")], env=environment, capture_output=True,
                                timeout=PATIENCE)
        self.assert_size(500 * len(SENTENCE), result)

    def test_texts_that_only_look_a_little_like_it(self):
        for head in (b"BZh is how this begins", b"PK is, too", b"7zip and", b"LZIP, the program"):
            path = self.corpus / "text.txt"
            path.write_bytes(head + SENTENCE * 50)
            self.assert_size(len(head) + 50 * len(SENTENCE), self.look(path))


if __name__ == "__main__":
    shell.main()
