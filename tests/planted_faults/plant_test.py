"""Every fault of the list can be planted, and `plant` says what becomes of faults in a repository of a few lines."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

PLANT = pathlib.Path(__file__).resolve().with_name("plant")

# Stands for a compiler, and for a test program that fails where the sum is not one.
BUILD = "#!/bin/sh\n! grep -q 'no C++' sum.cpp\n"
RANKS = """#!/bin/sh
case "$3" in *None*) echo 'Running 0 tests'; exit 0;; *Other*) exit 0;; esac
grep -q 'forever' sum.cpp && sleep 60
grep -q 'a + b' sum.cpp
"""


class TheList(unittest.TestCase):
    def test_is_of_this_repository(self):
        result = subprocess.run([sys.executable, PLANT, "--check"], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


class Plant(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        for name, text in {"sum.cpp": "return a + b;  // once\n", "tools/build": BUILD, "tools/ranks": RANKS,
                           ".gitignore": "/build/\n",
                           "tests/sums/sum_test.cpp": "TEST(Sum, IsOne) {\nTEST(Sum, Other) {\nTEST(Sum, None) {\n"}.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(text)
            (self.root / name).chmod(0o755)
        subprocess.run(["git", "init", "-q", self.root], check=True)

    def tearDown(self):
        self.folder.cleanup()

    def plant(self, new, tests=("IsOne",), old="a + b", arguments=()):
        """The status and what is printed for one fault."""
        folder = self.root / "tests" / "planted_faults"
        folder.mkdir(exist_ok=True)
        shutil.copy(PLANT, folder / "plant")
        texts = ", ".join(f'"sums 1 Sum.{name}"' for name in tests)
        (folder / "faults.toml").write_text(
            f'[[fault]]\nname = "one"\nbreaks = "The sum."\nfile = "sum.cpp"\nold = "{old}"\nnew = "{new}"\n'
            f"tests = [{texts}]\n")
        result = subprocess.run([sys.executable, folder / "plant", "--timeout", "1", *arguments], capture_output=True,
                                text=True)
        self.assertEqual(result.stderr, "")
        self.assertEqual((self.root / "sum.cpp").read_text(), "return a + b;  // once\n")
        copy = self.root / "build/planted_faults/tree/sum.cpp"
        if copy.exists():
            self.assertEqual(copy.read_text(), "return a + b;  // once\n")
        return result.returncode, result.stdout

    def test_a_fault_is_noticed_by_the_first_test_that_fails(self):
        status, text = self.plant("a - b", tests=("Other", "IsOne"))
        self.assertEqual(status, 0)
        self.assertIn("| one | The sum. | sums 1 Sum.IsOne |", text)
        self.assertIn("1 of 1 noticed", text)

    def test_a_fault_is_not_noticed(self):
        status, text = self.plant("a - b", tests=("Other",))
        self.assertEqual(status, 1)
        self.assertIn("| one | The sum. | NOT NOTICED |", text)

    def test_a_fault_does_not_build(self):
        status, text = self.plant("no C++")
        self.assertEqual(status, 1)
        self.assertIn("does not build", text)

    def test_a_fault_that_has_a_test_wait_for_ever_is_noticed(self):
        status, text = self.plant("forever a + b")
        self.assertEqual(status, 0)
        self.assertIn("Sum.IsOne (hangs)", text)

    def test_a_test_that_fails_without_a_fault_says_nothing(self):
        (self.root / "tools/ranks").write_text("#!/bin/sh\nexit 1\n")
        status, text = self.plant("a - b")
        self.assertEqual(status, 2)
        self.assertIn("sums 1 Sum.IsOne: fails without a fault", text)

    def test_a_filter_that_matches_nothing_says_nothing(self):
        status, text = self.plant("a - b", tests=("None",))
        self.assertEqual(status, 2)
        self.assertIn("matches no test without a fault", text)

    def test_a_text_that_is_not_there_once_is_refused(self):
        for old, count in (("a * b", 0), (" ", 6)):
            status, text = self.plant("a - b", old=old, arguments=("--check",))
            self.assertEqual(status, 2)
            self.assertIn(f"one: its old text is in sum.cpp {count} times, not once", text)

    def test_a_test_that_does_not_exist_is_refused(self):
        status, text = self.plant("a - b", tests=("Gone",), arguments=("--check",))
        self.assertEqual(status, 2)
        self.assertIn("tests/sums has no test Sum.Gone", text)


if __name__ == "__main__":
    unittest.main()
