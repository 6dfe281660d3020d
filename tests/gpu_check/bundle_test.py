#!/usr/bin/env python3
"""Packs tools/gpu_bundle's archive from the build in MESHTRAIN_BUILD and unpacks it elsewhere. Every program starts
without ssh and Open MPI in PATH: the archive has everything that its programs need except LibTorch."""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ["MESHTRAIN_BUILD"])
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|util|pthread|resolv|gcc_s|stdc\+\+))[-.].*")
NOT_LINKED = re.compile(r"mpi|ompi|orte|opal|prte|ssh|rsh")


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = Path(scratch.name)
        archive = cls.folder / "gpu.tar.gz"
        subprocess.run([ROOT / "tools/gpu/pack", BUILD, archive], check=True, stdout=subprocess.DEVNULL)
        cls.megabytes = archive.stat().st_size / 2**20
        with tarfile.open(archive) as file:
            file.extractall(cls.folder)
        cls.gpu = cls.folder / "gpu"
        cls.environment = cls.make_environment()

    @classmethod
    def make_environment(cls):
        """Makes a PATH without ssh and Open MPI, and a Python package torch with the emulated GPU's CUDA libraries."""
        programs, site = cls.folder / "bin", cls.folder / "site"
        programs.mkdir()
        for folder in os.environ["PATH"].split(":"):
            for program in Path(folder).glob("*"):
                if not NOT_LINKED.match(program.name) and not (programs / program.name).is_symlink():
                    (programs / program.name).symlink_to(program)
        (site / "torch-2.11.0.dist-info").mkdir(parents=True)
        (site / "torch-2.11.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cu130\n")
        for name in ("torch", "nvidia"):
            (site / name).symlink_to(BUILD / "emulated" / name)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
        return dict(kept, PATH=str(programs), PYTHONPATH=str(site))

    def run_program(self, *words, **more):
        return subprocess.run([str(word) for word in words], env=dict(self.environment, **more), cwd=self.folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)

    def test_libraries_and_ranks(self):
        result = self.run_program(sys.executable, self.gpu / "gpu_check", "results", "--only", "libraries", "--check", "[!p]*")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertRegex(result.stdout, "ranks_on_cpu +passed .* no ssh, and none is needed, no rsh, and none is needed")
        self.assertIn("2 passed, 0 failed", result.stdout)
        with tarfile.open(self.folder / "results/all.tar.gz") as logs:
            said = logs.extractfile("ranks_on_cpu/log.txt").read().decode()
        self.assertNotIn("Sorry!", said, "Open MPI's and PMIx's own complaints")
        self.programs_say_that_there_is_no_gpu()
        self.nothing_is_found_elsewhere()

    def programs_say_that_there_is_no_gpu(self):
        for program, why in (("tests/gpu_tests", "gpu_tests: nothing is tested: "),
                             ("benchmarks/kernels_benchmark", "kernels_benchmark: nothing is measured: ")):
            result = self.run_program(self.gpu / "build" / program)
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn(why, result.stdout)
        result = self.run_program(self.gpu / "build/tests/matrix_tests", "--gtest_list_tests")
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("DeviceCollectives", result.stdout)

    def nothing_is_found_elsewhere(self):
        """Open MPI's components, too, find their libraries in the archive. The test above linked libtorch-2.11.0/."""
        used = set()
        for file in self.gpu.rglob("*"):
            if not file.is_file() or file.is_symlink() or file.read_bytes()[:4] != b"\x7fELF":
                continue
            for name, place in re.findall(r"^\s*(\S+) => (.*?)(?: \(0x.*)?$", self.run_program("ldd", file).stdout, re.MULTILINE):
                used.add(name)
                if SYSTEM.fullmatch(name):
                    continue
                self.assertTrue(place.startswith(str(self.gpu)), f"{file}: {name} => {place}")
        for library in (self.gpu / "lib").iterdir():
            self.assertIn(library.name, used, "no program needs it")


if __name__ == "__main__":
    unittest.main()
