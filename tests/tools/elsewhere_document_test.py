"""The lines of docs/elsewhere.md: each prints the verdict that stands below it."""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["MESHTRAIN_BUILD"])
DOCUMENT = (SOURCE / "docs/elsewhere.md").read_text()
PROGRAMS = {"meshtrain": [BUILD / "meshtrain"], "seq": ["seq"], "made_step": [BUILD / "tests/made_step"]}
DIFFERENT = 1


class ElsewhereDocument(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        introduction, *cls.sections = DOCUMENT.split("\n## ")
        for name, text in re.findall(r"`(\w+\.yaml)`\n\n```yaml\n(.*?)```", introduction, re.DOTALL):
            (cls.folder / name).write_text(text)
        for line in re.search("```sh\n(.*?)```", introduction, re.DOTALL)[1].splitlines():
            command, _, file = line.partition(" > ")
            output = cls.run_line(command)[1]
            if file:
                (cls.folder / file).write_text(output)

    @classmethod
    def run_line(cls, line):
        """Returns the exit status and the output of a line of the document."""
        words = shlex.split(line)
        ranks = []
        if words[0] == "mpirun":
            ranks, words = [SOURCE / "tools/ranks", words[2]], words[3:]
        done = subprocess.run(ranks + PROGRAMS[words[0]] + words[1:], cwd=cls.folder, capture_output=True, text=True,
                              timeout=200, check=False,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                                   "MESHTRAIN_SOURCE": str(SOURCE)})
        return done.returncode, done.stdout + done.stderr

    def run_block(self, block):
        """Runs the lines of a block that begin with $, and compares the others with what they print."""
        shutil.rmtree(self.folder / "step", ignore_errors=True)
        for lines in block.split("$ ")[1:]:
            command, *expected = lines.splitlines()
            status, output = self.run_line(command)
            different = any(not line.startswith("equal") for line in expected) and "verify" in command
            self.assertEqual(status, DIFFERENT if different else 0, f"{command}\n{output}")
            if command.startswith("made_step"):
                self.assertEqual(output, "")
            for line in expected:
                if line.endswith("..."):
                    self.assertIn("\n" + line[:-3], "\n" + output, command)
                else:
                    self.assertIn(line, output.splitlines(), f"{command}\n{output}")

    def test_each_line_prints_its_verdict(self):
        shown = 0
        for section in self.sections:
            title = section.splitlines()[0]
            blocks = re.findall(r"```\n(\$ .*?)```", section, re.DOTALL)
            self.assertTrue(blocks, title)
            self.assertRegex(section, r"https://github.com/\S+/(issues|pull)/\d+", title)
            shutil.rmtree(self.folder / "runs", ignore_errors=True)
            for block in blocks:
                with self.subTest(title, command=block.splitlines()[0]):
                    self.run_block(block)
                    shown += 1
        self.assertGreaterEqual(shown, 12)


if __name__ == "__main__":
    unittest.main()
