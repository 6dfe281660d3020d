#!/usr/bin/env python3
"""Runs programs with the complete LibTorch on a GPU that computes nothing. They must end without an exception, and CUDA
would have accepted all their calls. Their numbers mean nothing. Prints a table of the programs.

  tools/test --null-gpu                                       MESHTRAIN_NULL_GPU_TABLE=FILE: gets the table too
"""

import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))

import machine  # noqa: E402
import training_runs  # noqa: E402
from machine import BUILD, ROOT  # noqa: E402

PROGRAM = BUILD / "meshtrain"
# Each run is made with both numbers of steps, and the difference is measured. A graph is recorded in the fourth step.
STEPS = (6, 10)
CARRIERS = ["staged", "nccl", "nccl_registered", "nccl_symmetric"]
COLUMNS = ["launches", "attention", "products", "slow products", "waits", "device memory", "pinned memory"]
TRAINING = ["| training | attention by | launches a step | graphs of cuDNN | products | not in words of 16 bytes | waits "
            "| later allocations | of pinned memory |", "|---|---|---|---|---|---|---|---|---|"]
PROGRAMS = ["| program | attention by | launches in all | graphs of cuDNN | products | not in words of 16 bytes |",
            "|---|---|---|---|---|---|"]


def tearDownModule():
    table = "\n".join(TRAINING + [""] + PROGRAMS)
    print(table)
    if "MESHTRAIN_NULL_GPU_TABLE" in os.environ:
        Path(os.environ["MESHTRAIN_NULL_GPU_TABLE"]).write_text(table + "\n")


class OnNullGpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def accept(self, record, statuses=(0,)):
        """Checks that the program ended as expected and that CUDA would have accepted its calls."""
        self.assertEqual(record.refused, [], record.output[-3000:])
        self.assertIn(record.status, statuses, record.output[-3000:])
        self.assertNotIn("terminate called", record.output)

    def train(self, of, steps, run_dir=None):
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            recipe = training_runs.write_recipe(Path(folder), of.family)
            words = [PROGRAM, "train", recipe, "--run-dir", run_dir or Path(folder) / "run"]
            words += ["--mesh", of.mesh] if of.mesh else []
            for setting in [*of.settings, f"train.steps={steps}"]:
                words += ["--set", setting]
            return machine.run(words, of.ranks, of.gpus)


class Training(OnNullGpu):
    def check(self, of):
        first, second = (self.train(of, steps) for steps in STEPS)
        for record in (first, second):
            self.accept(record)
        if of.attention:
            self.assertEqual(machine.attention_of(second.output), of.attention)
        if "train.cuda_graph=true" in of.settings:
            self.assertIn("steps are recorded as one graph", second.output)
        steps = (STEPS[1] - STEPS[0]) * of.ranks
        rates = {name: (second.counts[name] - first.counts[name]) / steps for name in COLUMNS}
        TRAINING.append(f"| {of.name} | {machine.attention_of(second.output)} | "
                        + " | ".join(f"{rates[name]:g}" for name in COLUMNS) + " |")
        self.assertEqual(rates["waits"], of.waits, "waits of the host in a step")
        self.assertEqual(rates["device memory"], 0, "allocations after the first steps")
        # The number varies a little: it depends on how early the stream frees a block of pinned memory.
        self.assertLess(rates["pinned memory"], 1, "allocations after the first steps")

    def test_runs(self):
        for of in training_runs.training_runs():
            if not re.search(os.environ.get("MESHTRAIN_NULL_GPU_RUNS", ""), of.name):
                continue
            with self.subTest(of.name):
                self.check(of)


class Programs(OnNullGpu):
    """The programs that tools/gpu_bundle ships, and the commands of meshtrain that compute."""

    def accept_tests(self, record):
        """Accepts failed tests, since numbers are wrong, but no exception."""
        self.accept(record, (0, 1))
        self.assertRegex(record.output, r"\[==========\] [1-9]\d* tests? from .* ran", record.output[-3000:])
        self.assertNotIn("C++ exception with description", record.output)

    def note(self, name, record):
        numbers = " | ".join(str(record.counts[column]) for column in COLUMNS[:4])
        PROGRAMS.append(f"| {name} | {machine.attention_of(record.output)} | {numbers} |")

    def test_generate(self):
        of = training_runs.TrainingRun("generate", ["train.precision=fp32", "checkpoint.every=2"])
        self.accept(self.train(of, 2, run_dir=self.folder / "run"))
        for ranks, gpus in ((1, 1), (2, 1)):
            record = machine.run([PROGRAM, "generate", self.folder / "run", "--device", "cuda", "--prompt", "once upon",
                                  "--prompt", "a", "--max-tokens", 20, "--temperature", 0.8], ranks, gpus)
            self.accept(record)
            self.note(f"generate, {ranks} ranks", record)

    def test_verify(self):
        recipe = training_runs.write_recipe(self.folder, "llama")
        for mesh in ("dp=2", "tp=2", "cp=2"):
            for precision in ("fp32", "bf16_mixed"):
                with self.subTest(f"{mesh} {precision}"):
                    record = machine.run([PROGRAM, "verify", recipe, "--mesh", mesh, "--device", "cuda", "--precision",
                                          precision], ranks=2)
                    self.accept(record, (0, 1))
                    self.assertRegex(record.output, r"(?m)^(equal|DIFFERENT): ")
                    self.note(f"verify {mesh} {precision}", record)

    def test_gpu_tests(self):
        record = machine.run([BUILD / "tests/gpu_tests"])
        self.accept_tests(record)
        self.note("gpu_tests", record)

    def test_collectives(self):
        for carrier in CARRIERS:
            with self.subTest(carrier):
                record = machine.run([BUILD / "tests/matrix_tests", f"--gtest_filter=*DeviceCollectives.*/{carrier}"])
                self.accept_tests(record)
                self.note(f"matrix_tests, {carrier}", record)

    def test_collectives_of_two_ranks(self):
        """Runs one test at a time: with several ranks the first failure ends the program."""
        program = BUILD / "tests/matrix_tests"
        names = machine.run([program, "--gtest_list_tests", "--gtest_filter=*DeviceCollectives.*/staged"]).output
        names = re.findall(r"(?m)^  (\w+)/staged", names)
        self.assertTrue(names)
        for carrier, gpus in (("staged", 1), ("nccl", 2)):
            for name in names:
                with self.subTest(f"{name}, {carrier}"):
                    record = machine.run([program, f"--gtest_filter=*DeviceCollectives.{name}/{carrier}"], 2, gpus)
                    self.accept(record, range(128))
                    self.assertIn("[ RUN      ]", record.output)
                    self.assertNotIn("C++ exception with description", record.output)

    def test_kernels_benchmark(self):
        record = machine.run([BUILD / "benchmarks/kernels_benchmark"])
        self.accept(record)
        self.assertEqual(len(re.findall(r"(?m)^\| (kernel|attention, causal|packed documents) \|", record.output)), 3)
        self.note("kernels_benchmark", record)

    def test_gpu_train(self):
        record = machine.run([sys.executable, ROOT / "benchmarks/gpu_train.py", "--no-peer", "--program", PROGRAM,
                              "--models", "tiny", "--sequences", 1024, "--tokens", 2048, "--steps", 8, "--log",
                              self.folder / "log.txt"])
        self.accept(record)
        self.assertIn("| meshtrain, as a graph |", record.output)
        self.note("gpu_train.py", record)


class Planted(OnNullGpu):
    """The faults of null_gpu_planted are noticed."""

    def noticed(self, fault, refusal):
        record = machine.run([BUILD / "null_gpu/null_gpu_planted", fault])
        self.assertEqual(record.status, 1, record.output)
        self.assertRegex("\n".join(record.refused), refusal)
        return record.output

    def test_without_a_fault(self):
        self.accept(machine.run([BUILD / "null_gpu/null_gpu_planted", "none"]))

    def test_a_tensor_argument_too_many(self):
        self.assertIn("with a wrong signature", self.noticed("argument", "^$"))

    def test_a_capture_with_a_synchronisation(self):
        self.noticed("capture", "cudaStreamSynchronize during a capture")

    def test_misaligned_pointers(self):
        self.noticed("kernel_pointer", "invalid launch: parameter 0 .* not a multiple of 4 bytes")
        self.noticed("words", "invalid launch: parameter 0 .* not a multiple of 16 bytes")
        self.noticed("product_pointer", "invalid product: .* not a multiple of 4 bytes")
        self.noticed("cudnn_pointer", "invalid graph of cuDNN: .* not a multiple of 16 bytes")

    def test_launches_beyond_their_limits(self):
        self.noticed("grid", "a grid beyond CUDA's limits")
        self.noticed("block", "a block of 129 threads, where its __launch_bounds__ are 128")
        self.noticed("shared_memory", "49153 bytes of dynamic shared memory, where 49152 were allowed")


if __name__ == "__main__":
    unittest.main(verbosity=2)
