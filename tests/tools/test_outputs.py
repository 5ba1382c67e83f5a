"""What the programs write: tried before the work begins, and each for itself at its end.

Usage: test_outputs.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python.
"""

import json
import os
import signal
import stat
import subprocess
import threading

import shell
from shell import PATIENCE, bootstrap, environment, run, small_trainer


class WithTrainer(shell.TrainerTest):
    def setUp(self):
        super().setUp()
        self.small = small_trainer(self.folder)

    def bash(self, script, *arguments, **options):
        """A trainer as "$@" of a script."""
        command = [shell.BIN / "cohive-train", *self.small, "--max-epochs", "2", *arguments]
        return subprocess.run(["bash", "-c", script, "bash", *map(str, command)], env=environment, capture_output=True, text=True,
                              timeout=PATIENCE, **options)


class OutputsAtTheStart(WithTrainer):
    """A path that cannot be written is one line and exit code 2, before any work, and changes nothing."""

    def refused(self, says, *arguments, program="cohive-train", dry_runs=(["--dry-run"], [])):
        needed = self.small if program == "cohive-train" else ["--host-maddrs", "/ip4/127.0.0.1/tcp/0"]
        for dry in dry_runs if program == "cohive-train" else ([],):
            with self.subTest(program=program, arguments=arguments, dry=dry):
                before = sorted(os.listdir(self.folder))
                result = run(program, *needed, *dry, *map(str, arguments))
                self.assertEqual((result.returncode, result.stdout), (2, ""), result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
                self.assertIn(says, result.stderr)
                self.assertEqual(sorted(os.listdir(self.folder)), before)

    def bad_paths(self):
        """Paths, and what is said of them."""
        (self.folder / "dangling").symlink_to("/nowhere/at/all")
        (self.folder / "missing_target").symlink_to("not_there")
        (self.folder / "self").symlink_to("self")
        os.mkfifo(self.folder / "fifo")
        paths = {self.folder: "folder", f"{self.folder}/new/": "no such folder", self.folder / "no/such": "No such file",
                 self.folder / "text.txt/below": "Not a directory", "/dev/full": "No space left", self.folder / "dangling": "link to nowhere",
                 self.folder / "missing_target": "link to nowhere", self.folder / "self": "levels of symbolic links",
                 self.folder / "fifo": "nobody reads", self.folder / ("x" * 300): "name too long"}
        if os.geteuid() != 0:
            locked = self.folder / "locked"
            locked.mkdir(mode=0o500)
            paths[locked / "file"] = "Permission denied"
        return paths

    def test_of_a_trainer(self):
        for path, says in self.bad_paths().items():
            self.refused(f"--save: cannot write {path}: ", "--save", path)
            for flag in ("--summary", "--trace", "--log-file"):
                self.refused(says, flag, path, dry_runs=[["--dry-run"]])
        for path in (self.folder / "text.txt", self.folder / "dangling", self.folder / "text.txt/below", "/dev/full"):
            self.refused("--checkpoint-dir: cannot write in", "--checkpoint-dir", path)

    def test_of_a_bootstrap_node(self):
        for path in self.bad_paths():
            for flag in ("--state-path", "--trace", "--log-file"):
                self.refused(f"{flag}: cannot write {path}: ", flag, path, program="cohive-bootstrap")
        self.refused("it is no file", "--state-path", "/dev/null", program="cohive-bootstrap")
        self.refused("name the same file", "--state-path", self.folder / "one", "--trace", self.folder / "one", program="cohive-bootstrap")

    def test_of_a_monitor(self):
        for path in self.bad_paths():
            for flag, command in (("--history", ["serve"]), ("--output", ["plot", "any"]), ("--output", ["merge-traces", "any"])):
                with self.subTest(path=path, command=command):
                    result = run("cohive-monitor", *command, flag, path)
                    self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1), result.stderr)
                    self.assertIn(f"{flag}: cannot write {path}: ", result.stderr)

    def refused_history(self, says, *arguments):
        with self.subTest(arguments=arguments):
            result = run("cohive-monitor", "serve", *map(str, arguments))
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
            self.assertIn(says, result.stderr)

    def test_a_history_is_a_file_of_its_own(self):
        taken, fifo = self.folder / "taken", self.folder / "fifo"
        taken.write_text("kept")
        for flag in ("--log-file", "--metrics-token-file", "--identity-path", "--secret-file", "--members"):
            self.refused_history("name the same file", "--history", taken, flag, taken)
        self.assertEqual(taken.read_text(), "kept")
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        for path in (fifo, "/dev/null"):  # what is read of these never ends, or is nothing
            self.refused_history("it is no file", "--history", path)

    def test_a_key_is_no_log(self):
        key = self.folder / "key"
        key.write_text("kept")
        for program, *command in (["cohive-dht", "peers"], ["cohive-monitor", "--once"]):
            result = run(program, *command, "--initial-peers", f"/ip4/127.0.0.1/tcp/1/p2p/{shell.NOBODY}", "--identity-path", key, "--log-file", key)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
            self.assertIn("--log-file and --identity-path name the same file", result.stderr)
        self.assertEqual(key.read_text(), "kept")

    def test_one_file_for_two_purposes(self):
        one, link = self.folder / "one", self.folder / "link"
        self.refused("name the same file", "--save", one, "--summary", one)
        self.refused("name the same file", "--save", one, "--summary", f"{self.folder}/./one")
        one.write_text("kept")
        link.symlink_to(one)
        os.link(one, self.folder / "hard")
        for other in (link, self.folder / "hard"):
            self.refused("name the same file", "--save", one, "--summary", other)
        self.refused("--save and --text name the same file", "--save", self.folder / "text.txt")
        self.refused("--log-file and --summary name the same file", "--log-file", one, "--summary", one)
        self.assertEqual(one.read_text(), "kept")

    def test_a_dry_run_leaves_what_there_is(self):
        old = self.folder / "old"
        old.write_text("kept")
        before = sorted(os.listdir(self.folder))
        result = run("cohive-train", *self.small, "--dry-run", "--save", str(old), "--summary", str(self.folder / "new"),
                     "--checkpoint-dir", str(self.folder / "checkpoints"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(os.listdir(self.folder)), before)
        self.assertEqual(old.read_text(), "kept")


class OutputsAtTheEnd(WithTrainer):
    def mounted(self):
        """A disk of 64 KiB, and how to start a program that sees it."""
        disk = self.folder / "disk"
        disk.mkdir(exist_ok=True)
        mount = ["unshare", "-rm", "bash", "-c", f'mount -t tmpfs -o size=64k none {disk} && exec "$@"', "full"]
        if subprocess.run([*mount, "true"], capture_output=True).returncode != 0:
            self.skipTest("no file system of its own may be mounted here")
        return disk, mount

    def train(self, mount, *arguments, small=None, **options):
        return subprocess.run([*mount, shell.BIN / "cohive-train", *(small or self.small), *map(str, arguments)], env=environment,
                              capture_output=True, text=True, timeout=PATIENCE, **options)

    def told(self, result, flag):
        """Exit code 1, and one line of the program, which names the flag."""
        lines = [line for line in result.stderr.splitlines() if line.startswith("cohive-train: ")]
        self.assertEqual((result.returncode, len(lines)), (1, 1), result.stderr)
        self.assertIn(flag, lines[0])
        self.assertIn("No space left on device", lines[0])

    def test_a_full_disk_of_checkpoints_costs_nothing_else(self):
        disk, mount = self.mounted()
        save, summary = self.folder / "params", self.folder / "summary.json"
        with bootstrap() as (_, hub):
            common = [*small_trainer(self.folder, width=64, target=30000), "--initial-peers", *hub["initial_peers"], "--max-epochs", "2"]
            with shell.started("cohive-train", *common) as other:
                result = self.train(mount, "--checkpoint-dir", disk, "--save", save, "--summary", summary, small=common)
                other.kill()
        self.told(result, "--checkpoint-dir")
        self.assertGreater(save.stat().st_size, 64 << 10)
        self.assertEqual(json.loads(summary.read_text())["epoch"], 2)

    def test_so_at_a_signal(self):
        disk, mount = self.mounted()
        save, summary = self.folder / "params", self.folder / "summary.json"
        process = subprocess.Popen([*mount, shell.BIN / "cohive-train", *small_trainer(self.folder, width=64), "--checkpoint-dir", disk, "--save",
                                    save, "--summary", summary], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        next(line for line in process.stdout if line.startswith("epoch"))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        self.told(subprocess.CompletedProcess([], process.returncode, out, err), "--checkpoint-dir")
        self.assertGreater(save.stat().st_size, 64 << 10)
        self.assertIn("epoch", json.loads(summary.read_text()))

    def test_each_other_output_fails_alone(self):
        disk, mount = self.mounted()
        old, summary = disk / "params", self.folder / "summary.json"
        script = f'echo kept > {old}; "$@"; code=$?; cat {old}; ls -A {disk}; exit $code'
        result = subprocess.run([*mount, "bash", "-c", script, "bash", shell.BIN / "cohive-train", *small_trainer(self.folder, width=64),
                                 "--max-epochs", "1", "--save", old, "--summary", summary], env=environment, capture_output=True, text=True, timeout=PATIENCE)
        self.told(result, "--save")
        self.assertEqual(result.stdout.splitlines()[-2:], ["kept", "params"], "the old file stays, and nothing else")
        self.assertEqual(json.loads(summary.read_text())["epoch"], 1)

    def test_lines_of_the_log_that_are_lost(self):
        log = self.folder / "log"
        log.write_text("x" * 1000)
        command = ["bash", "-c", 'ulimit -f 1; exec "$@"', "bash", shell.BIN / "cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0",
                   "--refresh-period", "1", "--log-file", log]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        said = [next(line for line in process.stderr if "lines are missing in the log file: " in line)]
        self.assertIn("File too large", said[0])
        said += [process.stderr.readline() for _ in range(6)]
        process.send_signal(signal.SIGTERM)
        said += process.communicate(timeout=PATIENCE)[1].splitlines()
        self.assertEqual(process.returncode, 1)
        self.assertEqual(sum("lines are missing" in line for line in said), 1)

    def test_a_trace_and_what_is_printed(self):
        disk, mount = self.mounted()
        save = self.folder / "params"
        fill = f'head -c 61440 /dev/zero > {disk}/filler; "$@"'
        result = self.train([*mount, "bash", "-c", fill, "bash"], "--trace", disk / "trace", "--save", save, "--seconds", "4",
                            small=small_trainer(self.folder, target=64))
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.count("cannot be written: No space left"), 1, result.stderr[-2000:])
        self.assertGreater(save.stat().st_size, 0)
        with open("/dev/full", "w") as full:
            for arguments in (["--max-epochs", "1", "--save", save], ["--dry-run"]):
                result = subprocess.run([shell.BIN / "cohive-train", *self.small, *map(str, arguments)], env=environment, stdout=full,
                                        stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
                self.assertEqual(result.returncode, 1, "what was printed is lost")
                self.assertEqual(result.stderr.count("the standard output is lost from here on: No space left"), 1)

    def test_a_state_that_is_not_saved(self):
        disk, mount = self.mounted()
        script = f'"$@" & sleep 1; head -c 1000000 /dev/zero > {disk}/filler; kill -TERM $!; wait $!'
        result = subprocess.run([*mount, "bash", "-c", script, "bash", shell.BIN / "cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0",
                                 "--state-path", disk / "state"], env=environment, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("the state is not saved: ", result.stderr)

    def test_a_disk_that_is_full_at_the_start_may_have_room_later(self):
        """Not 2, after which a service manager would never start the program again."""
        disk, mount = self.mounted()
        script = f'head -c 1000000 /dev/zero > {disk}/filler 2>/dev/null; exec "$@"'
        for flag in ("--state-path", "--trace", "--log-file"):
            node = [shell.BIN / "cohive-bootstrap", "--host-maddrs", "/ip4/127.0.0.1/tcp/0", flag, disk / "file"]
            result = subprocess.run([*mount, "bash", "-c", script, "bash", *node], env=environment,
                                    capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
            self.assertIn(f"{flag}: cannot write {disk}/file: No space left on device", result.stderr)

    def test_what_is_no_file(self):
        result = self.bash('"$@"', "--summary", "/dev/stdout", "--save", "/dev/null")
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(json.loads(lines[-1].removeprefix("summary ")), json.loads(lines[-2]))
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/null").st_mode))
        self.assertIn('"epoch":2', self.bash(f'"$@" --summary >(cat > {self.folder}/piped) >/dev/null; wait $!; cat {self.folder}/piped').stdout)
        appended = self.folder / "all"
        self.assertEqual(self.bash(f'"$@" > {appended}', "--summary", "/dev/stdout").returncode, 0)
        self.assertIn("peer ", appended.read_text(), "what was printed before stays")
        fifo, read = self.folder / "fifo", []
        os.mkfifo(fifo)
        reader = threading.Thread(target=lambda: read.append(fifo.read_text()))
        reader.start()
        self.assertEqual(self.bash('"$@"', "--summary", fifo).returncode, 0)
        reader.join(PATIENCE)
        self.assertEqual(json.loads(read[0])["epoch"], 2)

    def test_a_file_is_replaced_as_a_whole_and_stays_what_it_was(self):
        kept, link = self.folder / "summary.json", self.folder / "link"
        kept.write_text("x" * 100_000)
        kept.chmod(0o640)
        link.symlink_to(kept)
        self.assertEqual(self.bash('"$@"', "--summary", link, "--save", self.folder / "new").returncode, 0)
        self.assertTrue(link.is_symlink())
        self.assertEqual(json.loads(kept.read_text())["epoch"], 2)
        self.assertEqual(stat.S_IMODE(kept.stat().st_mode), 0o640)
        umask = os.umask(0)
        os.umask(umask)
        self.assertEqual(stat.S_IMODE((self.folder / "new").stat().st_mode), 0o666 & ~umask)
        self.assertFalse([name for name in os.listdir(self.folder) if name.startswith(".cohive")])


if __name__ == "__main__":
    shell.main()
