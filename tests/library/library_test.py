"""A project of its own builds against the installed library and trains modules that know nothing of it.

MESHTRAIN_BUILD is the folder that libmeshtrain.so was built in, MESHTRAIN_LIBTORCH the LibTorch that it was built with."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ["MESHTRAIN_BUILD"])
LIBTORCH = pathlib.Path(os.environ["MESHTRAIN_LIBTORCH"])
NOT_LINKED = ("libyaml", "libspdlog", "libfmt", "libsentencepiece", "libcpp-httplib", "libisal", "libgtest")


def run(*command, **options):
    result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            **options)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: status {result.returncode}\n{result.stdout}")
    return result.stdout


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        root = cls.root = pathlib.Path(cls.scratch.name)
        run("cmake", "--install", BUILD, "--prefix", root / "first")
        (root / "first").rename(root / "prefix")  # an installation can be moved
        shutil.copytree(SOURCE / "tests/library", root / "project")
        shutil.copy(SOURCE / "tests/fsdp/modules.h", root / "project")
        cls.environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHTRAIN_")}
        run("cmake", "-G", "Ninja", "-S", root / "project", "-B", root / "build", f"-DCMAKE_PREFIX_PATH={root}/prefix",
            f"-DMESHTRAIN_LIBTORCH={LIBTORCH}", "-DCMAKE_CXX_FLAGS=-O1", env=cls.environment)
        run("cmake", "--build", root / "build", env=cls.environment)

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_nothing_of_the_repository_is_seen(self):
        commands = run("ninja", "-C", self.root / "build", "-t", "commands")
        read = run("ninja", "-C", self.root / "build", "-t", "deps")
        self.assertIn(str(self.root / "prefix/include/meshtrain/fsdp/fsdp.h"), read)
        for text in (commands, read):
            self.assertNotIn(str(SOURCE), text)
            self.assertNotIn(str(BUILD), text)

    def test_nothing_of_a_recipe_is_linked(self):
        program = self.root / "build/train_modules"
        linked = run("ldd", program) + run("ninja", "-C", self.root / "build", "-t", "commands")
        self.assertIn("libmeshtrain.so", linked)
        for name in NOT_LINKED:
            self.assertNotIn(name, linked)
        read = run("ninja", "-C", self.root / "build", "-t", "deps")
        for folder in ("runtime/program", "runtime/text", "runtime/training/model", "runtime/training/data"):
            self.assertNotIn(f"include/meshtrain/{folder}", read)
            self.assertFalse((self.root / "prefix/include/meshtrain" / folder).exists(), folder)

    def test_the_logger_is_hidden(self):
        # A program with another version of spdlog would else share its functions with the library.
        names = run("nm", "--dynamic", "--defined-only", self.root / "prefix/lib/libmeshtrain.so")
        self.assertIn("meshtrain11log_warning", names)
        self.assertNotIn("spdlog", names)

    def test_the_installation_names_no_folder_of_this_machine(self):
        library = self.root / "prefix/lib/libmeshtrain.so"
        self.assertNotRegex(run("readelf", "-d", library), "RPATH|RUNPATH")
        for folder in (SOURCE, BUILD, LIBTORCH, pathlib.Path.home()):
            self.assertNotIn(f"{folder}/".encode(), library.read_bytes())
        program = BUILD / "meshtrain"  # its rpath names LibTorch's folder
        for folder in (SOURCE, BUILD) if program.exists() else ():
            self.assertNotIn(f"{folder}/".encode(), program.read_bytes())
        for file in (self.root / "prefix/lib/cmake").rglob("*.cmake"):
            for folder in (SOURCE, BUILD, LIBTORCH, pathlib.Path.home()):
                self.assertNotIn(str(folder), file.read_text(), file)

    def test_sibling_folders_of_a_project_find_it(self):
        siblings = self.root / "siblings"
        for name in ("first", "second"):
            (siblings / name).mkdir(parents=True)
            (siblings / name / "CMakeLists.txt").write_text(
                f"find_package(meshtrain REQUIRED)\nadd_library({name} OBJECT ../../project/main.cpp)\n"
                f"target_link_libraries({name} PRIVATE meshtrain::meshtrain)\n")
        (siblings / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(siblings LANGUAGES CXX)\n"
                                                 "add_subdirectory(first)\nadd_subdirectory(second)\n")
        run("cmake", "-S", siblings, "-B", self.root / "siblings-build", f"-DCMAKE_PREFIX_PATH={self.root}/prefix",
            f"-DMESHTRAIN_LIBTORCH={LIBTORCH}", env=self.environment)

    def test_a_project_adds_the_folder_of_meshtrain(self):
        project = self.root / "subdirectory"
        shutil.copytree(SOURCE / "tests/library/subdirectory", project)
        shutil.copy(SOURCE / "tests/library/main.cpp", project)
        (project / "meshtrain").symlink_to(SOURCE)
        # The library takes minutes to build: a file with its headers is compiled, and the program's commands are read.
        included = re.findall(r'#include "\w+/.*"', (SOURCE / "tests/library/train.h").read_text())
        (project / "headers.cpp").write_text("\n".join([*included, ""]))
        with (project / "CMakeLists.txt").open("a") as file:
            file.write("add_library(headers OBJECT headers.cpp)\ntarget_link_libraries(headers PRIVATE meshtrain::meshtrain)\n")
        run("cmake", "-G", "Ninja", "-S", project, "-B", project / "build", f"-DMESHTRAIN_LIBTORCH={LIBTORCH}",
            "-DCMAKE_CXX_FLAGS_RELEASE=-O0", "-DCMAKE_BUILD_TYPE=Release", env=self.environment)
        commands = run("ninja", "-C", project / "build", "-t", "commands", "train_modules")
        self.assertIn("libmeshtrain.so", commands)
        self.assertNotIn("runtime/program", commands)
        run("cmake", "--build", project / "build", "--target", "headers", env=self.environment)

    def test_a_folder_without_libtorch_is_refused(self):
        result = subprocess.run(["cmake", "-S", self.root / "project", "-B", self.root / "refused",
                                 f"-DCMAKE_PREFIX_PATH={self.root}/prefix", f"-DMESHTRAIN_LIBTORCH={self.root}"],
                                capture_output=True, text=True, env=self.environment)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(f"No LibTorch in {self.root}: point -DMESHTRAIN_LIBTORCH at a LibTorch 2.11, or name its folder in "
                      "CMAKE_PREFIX_PATH", " ".join(result.stderr.split()))

    def test_training_equals_one_rank_and_resumes_on_other_numbers_of_ranks(self):
        for ranks in ((1, 2, 4), (4, 1, 2), (2, 4, 1)):
            with tempfile.TemporaryDirectory(dir=self.root) as folder:
                for i, number in enumerate(ranks):
                    run(SOURCE / "tools/ranks", number, self.root / "build/train_modules", folder, 2 * i, 2 * i + 2,
                        env=self.environment)

    def test_an_exception_is_one_line_and_a_status(self):
        with tempfile.TemporaryDirectory(dir=self.root) as folder:
            run(self.root / "build/train_modules", folder, 0, 1, env=self.environment)
            (pathlib.Path(folder) / "vit-0/step-00000001/manifest.json").write_text("{}")
            for ranks in (1, 2):
                result = subprocess.run([SOURCE / "tools/ranks", str(ranks), self.root / "build/train_modules", folder, "1",
                                         "2"], capture_output=True, text=True, env=self.environment)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(result.stderr.count("manifest.json"), 1, result.stderr)
                self.assertNotIn("terminate called", result.stderr)

    def test_the_document_shows_this_program(self):
        shown = re.findall(r"```(?:cpp|cmake)\n(.*?)```", (SOURCE / "docs/library.md").read_text(), re.DOTALL)
        texts = [(SOURCE / "tests/library" / name).read_text() for name in ("train.h", "main.cpp", "CMakeLists.txt",
                                                                      "subdirectory/CMakeLists.txt")]
        self.assertGreaterEqual(len(shown), 3)
        for block in shown:
            self.assertTrue(any(block in text for text in texts), block)


if __name__ == "__main__":
    unittest.main()
