#!/usr/bin/env python3
"""tools/gpu_check turns red for every fault, and is green without faults. Programs that only print
(stub.py) test each verdict; those of the emulated GPU, in MESHTRAIN_EMULATED, test the rehearsal from end to end."""

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import types
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(ROOT / "tools/gpu"), str(HERE)]

import checks  # noqa: E402
import machine  # noqa: E402
import stub  # noqa: E402
import verdicts  # noqa: E402
from session import Check, Session  # noqa: E402


def script(file, text):
    file.write_text(text)
    file.chmod(0o755)


class Rehearsal(unittest.TestCase):
    def setUp(self):
        self.enterContext(contextlib.redirect_stdout(io.StringIO()))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.programs = self.folder / "programs"
        self.programs.mkdir()

    def rehearse(self, part, pattern="*", programs=None):
        """Runs checks. Returns whether they are green, and their lines by name."""
        found = machine.emulated(ROOT, programs or self.programs)
        results = self.folder / "results"
        session = Session(found, results, pattern)
        options = types.SimpleNamespace(session=session, model="tiny", sequences=["64"], precision="bf16_mixed")
        session.run_part(part, checks.PARTS[part](options), checks.BUDGETS[part])
        green = session.finish()
        lines = (results / "summary.txt").read_text().splitlines()
        self.assertEqual(lines[-1].split(":")[0], "GREEN" if green else "RED")
        return green, {line.split()[0]: line for line in lines}


class Stubs(Rehearsal):
    """Programs that print the same as the real ones."""

    def setUp(self):
        super().setUp()
        (self.programs / "benchmarks").mkdir()
        for name in ("meshtrain", "emulated_gpu_tests", "benchmarks/kernels_benchmark"):
            shutil.copy(HERE / "stub.py", self.programs / name)
        self.addCleanup(os.environ.pop, "GPU_CHECK_STUB_FAULT", None)

    def expect_red(self, fault, part, check, why):
        os.environ["GPU_CHECK_STUB_FAULT"] = fault
        green, lines = self.rehearse(part, check)
        with self.subTest(fault=fault, check=check):
            self.assertFalse(green)
            self.assertIn("FAILED", lines[check])
            self.assertIn(why, lines[check])

    def test_green_without_a_fault(self):
        os.environ["LD_LIBRARY_PATH"] = "/nowhere"  # a check may not be helped by it
        self.addCleanup(os.environ.pop, "LD_LIBRARY_PATH")
        for part, pattern, count in (("libraries", "*", 2), ("correctness", "[!c]*", 7), ("correctness", "c*_1_*", 4),
                                     ("verify", "verify_*dp=1*", 6), ("verify", "verify_ring_*", 1), ("kernels", "*", 1),
                                     ("training", "*", 1)):
            green, lines = self.rehearse(part, pattern)
            self.assertTrue(green, lines)
            self.assertIn(f"{count} passed, 0 failed", lines["GREEN:"])

    def test_correctness(self):
        for fault, why in (("skipped test", "1 tests were skipped: AdamWOnGpu.IsAsOnTheHost"), ("no test", "no test ran"),
                           ("failed test", "status 1: [  FAILED  ] AdamWOnGpu"), ("status", "status 3")):
            self.expect_red(fault, "correctness", "gpu_tests", why)
        self.expect_red("skipped test", "correctness", "collectives_1_nccl", "skipped")
        for fault, why in (("different", "status 1: DIFFERENT: gradient norm"), ("silent", "did not say 'equal'")):
            self.expect_red(fault, "verify", "verify_dp=1_fp16_mixed", why)
        self.expect_red("flash", "verify", "verify_long_dp=1_bf16_mixed", "causal blocks was not computed by cudnn, but by flash")
        self.expect_red("flash", "verify", "verify_ring_cp=2_bf16", "ring blocks was not computed by cudnn, but by flash")
        self.expect_red("no block", "verify", "verify_ring_cp=2_bf16", "but by no kernel that it names")
        self.expect_red("flash", "correctness", "cudnn_in_plain_environment", "but by flash")
        self.expect_red("different", "libraries", "ranks_on_cpu", "status 1: DIFFERENT: gradient norm")
        self.expect_red("blind", "verify", "verify_sees_faults", "ended with 0")
        self.expect_red("grows", "correctness", "flat_memory", "tensors: 100 MiB after step 4, 100 MiB at the end (36 bytes more)")
        self.expect_red("no memory", "correctness", "flat_memory", "no memory.device_allocated_peak_bytes of steps 4 and 40")
        self.expect_red("other than the CPU", "correctness", "as_on_cpu", "from the CPU's")
        self.expect_red("train ends", "correctness", "as_on_cpu", "status 1: meshtrain: step 3: out of memory")

    def test_graph(self):
        os.environ["GPU_CHECK_STUB_FAULT"] = "small graph"  # within the noise of runs without a graph
        self.assertTrue(self.rehearse("correctness", "graph_fp32")[0])
        for fault, why in (("graph", "graph 1.0e-04 from without, without 1.0e-05 from itself"), ("a step short", "5 of 6 steps"),
                           ("no graph", "no graph was recorded"), ("no number", "step 3 has loss nan")):
            self.expect_red(fault, "correctness", "graph_fp32", why)

    def test_offload(self):
        for fault in ("host", "activations"):
            self.expect_red(f"other with {fault}", "correctness", "offload_fp32", f"{fault} 1.0e-04 from without")

    def test_kernels(self):
        for fault, why in (("no rate", "no rate in: swiglu"), ("zero", "no rate in: cudnn"), ("no table", "there is no table"),
                           ("one table", "a table is missing"), ("no GPU", "status 2")):
            if fault in ("no rate", "zero"):  # of a real GPU
                with self.assertRaisesRegex(verdicts.Failed, why):
                    verdicts.kernel_rates(stub.rates(fault))
            else:
                self.expect_red(fault, "kernels", "kernel_rates", why)

    def test_training(self):
        for fault, why in (("train ends", "status 1: "), ("other graph", "meshtrain, as a graph: first loss"),
                           ("no number", "a loss is not a number")):
            self.expect_red(fault, "training", "training", why)

    def test_results_are_three_files(self):
        self.rehearse("kernels")
        results = self.folder / "results"
        self.assertEqual(sorted(file.name for file in results.iterdir()), ["all.tar.gz", "summary.txt", "table.md"])
        self.assertIn("| swiglu | BFloat16 |", (results / "table.md").read_text())
        with tarfile.open(results / "all.tar.gz") as archive:
            self.assertEqual(sorted(archive.getnames()), ["kernel_rates/log.txt", "summary.txt"])


class Verdicts(Rehearsal):
    """Results that no emulated GPU can show."""

    def test_time(self):
        session = Session(machine.Machine(ROOT, {}, ROOT, True, 1, dict(os.environ)), self.folder / "results")
        begin = time.monotonic()
        session.run_part("part", [Check("slow", 1, lambda running: running.run(["sleep", "60"]))], 60)
        self.assertLess(time.monotonic() - begin, 10)
        session.run_part("late", [Check("never", 1, lambda running: self.fail())], 5)
        self.assertFalse(session.finish())
        text = (self.folder / "results/summary.txt").read_text()
        self.assertRegex(text, "slow +FAILED .* it had not ended after its time")
        self.assertRegex(text, "never +NOT RUN .* the part's time is over: counts as failed")
        self.assertIn("RED: 0 passed, 2 failed", text)

    def test_what_a_machine_cannot_run_is_not_red(self):
        real = machine.Machine(ROOT, {"matrix_tests": "/bin/false"}, ROOT, False, 1, dict(os.environ))
        session = Session(real, self.folder / "results")
        session.run_part("part", [Check("nccl", 9, checks.collectives(2, "nccl"))], 60)
        self.assertEqual((session.num_failed, session.num_not_here), (0, 1))
        self.assertFalse(session.finish(), "nothing passed")
        session = Session(real, self.folder / "results")
        session.run_part("part", [Check("nccl", 9, checks.collectives(1, "nccl"))], 60)
        self.assertFalse(session.finish())
        self.assertEqual(session.num_failed, 1)

    def test_libraries_lie_as_setup_leaves_them(self):
        for site in ("first", "second"):  # a folder that was carried over has links to nowhere
            (self.folder / site / "torch/lib").mkdir(parents=True)
            (self.folder / site / "nvidia/cu13/lib").mkdir(parents=True)
            machine.link(self.folder / "libtorch-2.11.0", self.folder / site / "torch")
            for folder in ("torch/lib", "nvidia/cu13/lib"):
                self.assertTrue((self.folder / "libtorch-2.11.0" / folder).samefile(self.folder / site / folder))
            shutil.rmtree(self.folder / site)

    def test_checks_run_beside_each_other(self):
        found = machine.Machine(ROOT, {}, ROOT, True, 1, dict(os.environ), cores=8)
        self.assertEqual(found.slots, 4)
        together, running, alone, threads = threading.Barrier(3), [], [], {}

        def check(name, slots=1, alone_=False):
            def run(self_):
                running.append(name)
                alone.append(name) if len(running) == 1 else None
                if name in ("a", "b", "two"):
                    together.wait(30)
                threads[name] = int(self_.run(["sh", "-c", "echo $OMP_NUM_THREADS"]))
                if len(running) > 1 and name in alone:
                    alone.remove(name)
                running.remove(name)
            return Check(name, 30, run, slots, alone_)

        session = Session(found, self.folder / "results")
        session.run_part("part", [check("a"), check("b"), check("two", 2), check("alone", alone_=True), check("c"),
                                  check("nine", 9)], 60)
        self.assertTrue(session.finish())
        self.assertLessEqual({"alone", "nine"}, set(alone))
        self.assertEqual(threads, {"a": 2, "b": 2, "two": 4, "alone": 8, "c": 2, "nine": 8})

    def test_ended_from_outside(self):
        found = machine.Machine(ROOT, {}, ROOT, True, 1, dict(os.environ), cores=8)
        session, begin = Session(found, self.folder / "results"), time.monotonic()

        class Interrupt(BaseException):
            pass

        def end(*_):
            raise Interrupt
        previous = signal.signal(signal.SIGALRM, end)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        signal.setitimer(signal.ITIMER_REAL, 1)
        with self.assertRaises(Interrupt):
            session.run_part("part", [Check(name, 60, lambda running: running.run(["sleep", "60"])) for name in "abcdef"], 60)
        self.assertLess(time.monotonic() - begin, 20, "programs are ended")
        self.assertFalse(session.finish(complete=False))

    def test_memory(self):
        def lines(*peaks):
            return [{"step": step, "memory": {"device_allocated_peak_bytes": tensors, "device_reserved_peak_bytes": all_}}
                    for step, tensors, all_ in peaks]
        verdicts.flat_memory(lines((1, 5, 6), (10, 7, 8), (100, 7, 8)), 100)
        for samples in (lines((10, 7, 8), (100, 8, 8)), lines((10, 7, 8), (100, 7, 9)), lines((10, 7, 8)), [{"step": 10}], []):
            with self.assertRaises(verdicts.Failed):
                verdicts.flat_memory(samples, 100)

    def test_the_half_hour_of_the_documentation_adds_up(self):
        section = (ROOT / "docs/cuda.md").read_text().split("### The first hour")[1].split("\n## ")[0]
        rows = re.findall(r"^\| (.*) \| ([\d,]+) \|$", section, re.MULTILINE)
        seconds = [int(number.replace(",", "")) for _, number in rows]
        self.assertEqual(rows[-1][0], "sum")
        self.assertEqual((sum(seconds[:-1]), seconds[-1]), (1800, 1800))
        parts = []
        for (text, _), number in zip(rows, seconds):
            if only := re.search(r"--only ([a-z ]+)`", text):
                parts += only[1].split()
                self.assertEqual(number, sum(checks.BUDGETS[part] for part in only[1].split()), text)
                self.assertLess(number, 600, "a call has ten minutes")
        self.assertEqual(parts, list(checks.PARTS))

    def test_the_line_that_says_most(self):
        said = "MPI_ABORT was invoked\nwith errorcode 1.\nrank 1 of 2: Suite.Test/a failed at test.cpp:80\nlast\n"
        self.assertEqual(verdicts.complaint(said), "rank 1 of 2: Suite.Test/a failed at test.cpp:80")
        self.assertEqual(verdicts.complaint("first\n\nlast\n"), "last")
        self.assertEqual(verdicts.complaint(""), "it said nothing")

    def test_libraries(self):
        verdicts.libraries_found("meshtrain", "\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\tlinux-vdso.so.1 (0x1)\n")
        with self.assertRaisesRegex(verdicts.Failed, "meshtrain does not find libisal.so.2, libz.so.1"):
            verdicts.libraries_found("meshtrain", "\tlibisal.so.2 => not found\n\tlibz.so.1 => not found\n")
        old = "meshtrain: /lib/libc.so.6: version `GLIBC_2.36' not found (required by lib/libevent_core-2.1.so.7)\n"
        with self.assertRaisesRegex(verdicts.Failed, "meshtrain does not find GLIBC_2.36"):
            verdicts.libraries_found("meshtrain", 2 * old)

    def test_a_context_is_held(self):
        source, driver = self.folder / "driver.c", self.folder / "driver"
        driver.mkdir()
        source.write_text("int cuInit(unsigned f) { return 0; }\nint cuDeviceGetCount(int* n) { *n = 2; return 0; }\n"
                          "int cuDeviceGet(int* d, int i) { *d = i; return 0; }\n"
                          "char* getenv(const char* name);\n"
                          "int cuDeviceGetAttribute(int* v, int a, int d) { *v = getenv(\"EXCLUSIVE\") ? 3 : 0; return 0; }\n"
                          "int cuDevicePrimaryCtxRetain(void** c, int d) { return 0; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", driver / "libcuda.so.1", source], check=True)
        real = machine.Machine(ROOT, {}, ROOT, False, 2, dict(os.environ, LD_LIBRARY_PATH=str(driver)))
        with machine.held_gpus(real) as line:
            self.assertEqual(line, "a context is held on each GPU: 2")
        real.environment["EXCLUSIVE"] = "1"
        with machine.held_gpus(real) as line:
            self.assertEqual(line, "no context is held: GPU 0 has compute mode 3 and would be held from the programs")
        real.environment["LD_LIBRARY_PATH"] = str(self.folder)
        (self.folder / "libcuda.so.1").write_text("no library")
        with machine.held_gpus(real) as line:
            self.assertRegex(line, "no context is held: .*libcuda.so.1")

    def test_peer(self):
        def row(program, **more):
            return {"program": program, "tokens_per_second": 9.0, "causal_mfu": 1.0, "attention": ["cudnn"],
                    "losses": [6.0, 5.0], **more}
        ours = [row("meshtrain"), row("meshtrain, as a graph")]
        self.assertIn("no ratio: transformers ran attention by math, not by cudnn or flash alone",
                      verdicts.training([row("transformers", attention=["math"]), *ours], True, True))
        note = verdicts.training([row("transformers"), row("meshtrain", ratio=1.25), ours[1]], True, True)
        self.assertIn("meshtrain 9 tokens/s, 1.0 % MFU, 1.25 times transformers'", note)
        self.assertNotIn("no ratio", note)
        for wrong in ([], [row("transformers", losses=[6.1, 5.0])], [row("transformers", losses=[6.0, 5.5])],
                      [row("transformers", attention=[])], [row("transformers", tokens_per_second=float("nan"))]):
            with self.subTest(wrong=wrong), self.assertRaises(verdicts.Failed):
                verdicts.training([*wrong, *ours], True, True)


@unittest.skipUnless("MESHTRAIN_EMULATED" in os.environ, "MESHTRAIN_EMULATED names no programs")
class Emulated(Rehearsal):
    """The program itself with device: cuda, without a fault and with one."""

    def setUp(self):
        super().setUp()
        self.real = Path(os.environ["MESHTRAIN_EMULATED"])

    def wrap(self, name, lines):
        """Makes a program that runs the real one with other arguments."""
        for each in ("meshtrain", "emulated_gpu_tests"):
            script(self.programs / each, f'#!/bin/bash\nexec {self.real}/{each} "$@"\n')
        script(self.programs / name, f"#!/bin/bash\n{lines}\n")
        return self.programs

    def test_some_of_each_part_is_green(self):
        for part, check in (("correctness", "as_on_cpu"), ("correctness", "cudnn_in_plain_environment"),
                            ("correctness", "collectives_2_nccl"), ("correctness", "flat_memory"),
                            ("correctness", "graph_fp32"), ("correctness", "offload_bf16_mixed"),
                            ("verify", "verify_adapter_cp=2_bf16_mixed"), ("verify", "verify_sees_faults"), ("libraries", "libraries"),
                            ("libraries", "ranks_on_cpu"),
                            ("verify", "verify_ring_cp=2_bf16"), ("verify", "verify_dp=2,tp=2_fp16_mixed"),
                            ("training", "training"), ("kernels", "kernel_rates")):
            green, lines = self.rehearse(part, check, self.real)
            self.assertTrue(green, lines)
            self.assertIn("passed", lines[check])

    def test_what_cannot_run_is_listed(self):
        _, lines = self.rehearse("libraries", "peer_is_there", self.real)
        self.assertIn("NOT RUN", lines["peer_is_there"])

    def test_a_sum_that_is_missing(self):
        programs = self.wrap("meshtrain", f'[ "$1" = verify ] && set -- "$@" --inject skip-reduce:dp\n'
                                          f'exec {self.real}/meshtrain "$@"')
        green, lines = self.rehearse("verify", "verify_dp=2_bf16_mixed", programs)
        self.assertFalse(green)
        self.assertIn("status 1: DIFFERENT: ", lines["verify_dp=2_bf16_mixed"])

    def test_tests_that_do_not_run(self):
        programs = self.wrap("emulated_gpu_tests", f'exec {self.real}/emulated_gpu_tests "--gtest_filter=None.*"')
        green, lines = self.rehearse("correctness", "gpu_tests", programs)
        self.assertFalse(green)
        self.assertIn("no test ran", lines["gpu_tests"])

    def test_a_graph_that_computes_something_else(self):
        programs = self.wrap("meshtrain", f'[[ "$*" = *cuda_graph=true* ]] && set -- "$@" --set optimizer.learning_rate=2e-3\n'
                                          f'exec {self.real}/meshtrain "$@"')
        green, lines = self.rehearse("correctness", "graph_fp32", programs)
        self.assertFalse(green)
        self.assertIn(" from without, without 0.0e+00 from itself", lines["graph_fp32"])

    def test_training_that_computes_something_else(self):
        programs = self.wrap("meshtrain", f'grep -q "cuda_graph: true" "$2" && set -- "$@" --set train.seed=7\n'
                                          f'exec {self.real}/meshtrain "$@"')
        green, lines = self.rehearse("training", "training", programs)
        self.assertFalse(green)
        self.assertIn("meshtrain, as a graph: first loss", lines["training"])


if __name__ == "__main__":
    unittest.main()
