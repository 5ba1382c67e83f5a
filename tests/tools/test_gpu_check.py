"""tools/gpu-check.sh as it meets machines: without a GPU, with one, and with programs that fail. GPU and programs are scripts.

Usage: test_gpu_check.py FOLDER-OF-PROGRAMS [unittest options]. Needs nothing but Python and bash.
"""

import gzip
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

import shell

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60
PROGRAMS = {"alone": ["cohive_cuda_test", "cohive-bench", "cohive-bootstrap"], "torch": ["cohive-train", "cohive-bench"]}
MEASURED = {
    "copy": 1400.0,
    "codecs": {"FLOAT16": {**{what: {"rate": 1, "share": share} for what, share in (("encode", 0.91), ("decode", 0.7), ("accumulate", 0.8))},
                           "goal": 0.8, "reached": False}},
    "steps_of_parameters": {"adam": {"rate": 1, "share": 0.95}},
    "gradients_to_host": {"hidden_share": 0.97, "goal": 0.95},
    "steps": "this program is built without LibTorch's CUDA half",
}


class GpuCheck(unittest.TestCase):
    """A pack as --pack makes it, whose programs do what a test says."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.path = self.folder / "path"
        self.path.mkdir()
        self.pack = self.folder / "pack"
        for name in ("tools/gpu-check.sh", "tools/lib.sh", "benchmarks/convergence.py"):
            (self.pack / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.pack / name)
        self.script("path/nvidia-smi", "echo 'NVIDIA H0, 580.1, 80000 MiB'")
        self.script("path/compute-sanitizer", 'echo "$@" >>"$0.log"; shift 4; exec "$@"')
        self.bodies = {"alone/cohive-bench": f"cat <<'END'\n{json.dumps(MEASURED)}\nEND"}

    def script(self, name, body):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def run_it(self, *options, explicit=True):
        for folder, programs in PROGRAMS.items():
            for program in programs:
                self.script(f"programs/{folder}/{program}", self.bodies.get(f"{folder}/{program}", "exit 0"))
        (self.folder / "programs/torch/version").write_text("2.11\n")
        with tarfile.open(self.pack / "programs.tar.gz", "w:gz") as archive:
            for folder in PROGRAMS:
                archive.add(self.folder / "programs" / folder, folder)
        (self.pack / "text.gz").write_bytes(gzip.compress(b"In the beginning"))
        environment = {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}", "LIBTORCH_WHEEL": str(self.folder / "wheel")}
        of_pack = ["--prebuilt", "pack"] if explicit else []
        return subprocess.run([self.pack / "tools/gpu-check.sh", *of_pack, *options], env=environment, cwd=self.folder,
                              capture_output=True, text=True, timeout=PATIENCE)

    def test_a_machine_without_a_gpu_is_told_in_one_line(self):
        self.script("path/nvidia-smi", "exit 9")
        result = self.run_it()
        self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (2, "", 1), result.stderr)
        self.assertIn("no GPU", result.stderr)

    def test_a_gpu_without_a_driver_that_fits_is_no_success(self):
        self.bodies["alone/cohive-bench"] = "echo 'cohive-bench: no usable GPU' >&2; exit 2"
        result = self.run_it()
        self.assertEqual(result.returncode, 2, result.stdout)
        self.assertIn("no usable GPU", result.stderr)

    def test_the_summary_has_every_part_and_the_figures_beside_their_goals(self):
        result = self.run_it()
        self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
        summary = result.stdout[result.stdout.rindex("==> gpu-check.sh, "):]
        for line in ("NVIDIA H0", "tests                    passed", "memcheck                 passed", "initcheck                passed",
                     "bench                    passed", "train                    not run: no LibTorch",
                     "convergence              not run: no LibTorch", "FLOAT16 beside it: encode 91%, decode 70%, accumulate 80% (goal 80%: MISSED)",
                     "adam beside it: 95%", "hidden: 97% (goal 95%)"):
            self.assertIn(line, summary)
        tools = (self.path / "compute-sanitizer.log").read_text()
        for tool in ("memcheck", "racecheck", "synccheck", "initcheck"):
            self.assertIn(f"--tool {tool} --error-exitcode 9", tools)

    def test_what_fails_is_named_and_shown_and_the_rest_goes_on(self):
        self.bodies["alone/cohive_cuda_test"] = "echo 'byte 7 of 9' ; exit 1"
        result = self.run_it("--only", "tests", "bench")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("tests                    FAILED", result.stdout)
        self.assertIn("bench                    passed", result.stdout)
        self.assertIn("byte 7 of 9", result.stderr)
        self.assertNotIn("memcheck", result.stdout)

    def test_all_that_was_asked_for_and_passed_is_success(self):
        for explicit in (True, False):
            self.assertEqual(self.run_it("--only", "tests", "synccheck", explicit=explicit).returncode, 0)

    def test_trainers_run_with_a_libtorch_that_fits(self):
        library = self.folder / "wheel/torch/lib/libtorch_cuda.so"
        library.parent.mkdir(parents=True)
        shutil.copy2("/bin/true", library)  # ldd finds all that it loads
        (self.folder / "wheel/torch/version.py").write_text("__version__ = '2.11.0+cu130'\n")
        self.bodies["torch/cohive-train"] = f'echo "$LD_LIBRARY_PATH $*" >>{self.folder}/trained'
        result = self.run_it("--only", "train")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        trained = (self.folder / "trained").read_text()
        self.assertEqual(trained.count("--device cuda"), 8)
        self.assertIn(str(library.parent), trained)
        for flags in ("--offload-optimizer --offload-gradients-early --delay-optimizer-step", "--averager-rank 4", "--use-local-updates"):
            self.assertIn(flags, trained)
        (self.folder / "wheel/torch/version.py").write_text("__version__ = '2.9.0+cu130'\n")
        other = self.run_it("--only", "train")
        self.assertEqual(other.returncode, 3, other.stdout)
        self.assertIn("is not LibTorch 2.11", other.stdout)

    def test_bad_options_are_refused(self):
        for options, sentence in ((["--only", "everything"], "'everything' is none of"), (["--fast"], "unknown option '--fast'")):
            result = self.run_it(*options)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (1, 1), result.stderr)
            self.assertIn(sentence, result.stderr)


if __name__ == "__main__":
    shell.main()
