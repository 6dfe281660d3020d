"""A configuration with another LibTorch than the wanted one is refused, in one message."""
import pathlib
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).parent.parent.parent


def header(version):
    return f'#define TORCH_VERSION_MAJOR {version.split(".")[0]}\n\n#define TORCH_VERSION \\\n  "{version}"\n'


class LibTorch(unittest.TestCase):
    def configure(self, text):
        """Configures with a LibTorch whose version header is `text`; returns status and error message."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "torch/lib").mkdir(parents=True)
            (root / "torch/lib/libtorch_cpu.so").touch()
            if text is not None:
                (root / "torch/include/torch/headeronly").mkdir(parents=True)
                (root / "torch/include/torch/headeronly/version.h").write_text(text)
            (root / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(some NONE)\n"
                "function(target_precompile_headers)\nendfunction()\n"  # of a language, of which there is none
                f'include("{SOURCE}/cmake/LibTorch.cmake")\nmessage(STATUS "accepted")\n')
            result = subprocess.run(["cmake", "-S", root, "-B", root / "build", f"-DMESHTRAIN_LIBTORCH={root}/torch"],
                                    capture_output=True, text=True)
            said = " ".join((result.stdout + result.stderr).replace(str(root), "ROOT").split())
        return "accepted" in said, said

    def test_the_wanted_version(self):
        for version in ("2.11.0", "2.11.1"):
            accepted, said = self.configure(header(version))
            self.assertTrue(accepted, said)

    def test_other_versions(self):
        for version in ("2.10.0", "2.1.11", "12.11.0", "2.110.0"):
            accepted, said = self.configure(header(version))
            self.assertFalse(accepted, said)
            self.assertIn(f"LibTorch 2.11 is required, but ROOT/torch has version {version}: run tools/setup", said)

    def test_one_without_a_version(self):
        accepted, said = self.configure(None)
        self.assertFalse(accepted, said)
        self.assertIn("has no version: there is no ROOT/torch/include/torch/headeronly/version.h", said)
        accepted, said = self.configure("#pragma once\n")
        self.assertFalse(accepted, said)
        self.assertIn("has no TORCH_VERSION in ROOT/torch/include/torch/headeronly/version.h", said)


if __name__ == "__main__":
    unittest.main()
