"""Runs the commands of docs/tutorial.md in their order, with fewer steps, and those of README.md whose output it shows."""
import contextlib
import json
import math
import os
import pathlib
import re
import shlex
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["MESHTRAIN_BUILD"])
# What the test changes: fewer steps and conversations, and any free port.
SMALLER = {"steps: 300": "steps: 24", "every: 50": "every: 8", "warmup_steps: 10": "warmup_steps: 2", "steps: 40": "steps: 6",
           "every: 20": "every: 6", "seq 200": "seq 20", "--watch\n": "--watch 0\n"}
STOPPED = 75
DIFFERENT = 1
LIMIT = 120  # seconds


def begin(block, folder, **options):
    """Starts the lines of a block in a shell."""
    variables = {"PATH": f"{BUILD}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    default = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where ctest runs in the background
    return subprocess.Popen(["bash", "-euo", "pipefail", "-c", block], cwd=folder, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, env={**os.environ, **variables}, preexec_fn=default, **options)


class Document(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("docs", "recipes", "tests", "tools"):
            (self.folder / name).symlink_to(SOURCE / name)
        (self.folder / "data").mkdir()

    def run_block(self, block, status=0):
        done = begin(block, self.folder)
        output = done.communicate(timeout=LIMIT)[0]
        self.assertEqual(done.returncode, status, f"{block}\n{output}")
        return output


class Tutorial(Document):
    def begin_run(self, block):
        """Starts training, and returns when it has made a step."""
        process = begin("exec " + block, self.folder)
        metrics, end = self.folder / "runs/tutorial/metrics.jsonl", time.monotonic() + LIMIT
        while not (metrics.exists() and metrics.stat().st_size):
            self.assertTrue(process.poll() is None and time.monotonic() < end, "no step was made")
            time.sleep(0.05)
        return process

    def ask_page(self, block):
        """Asks for the page of a report that follows a run."""
        process = begin("exec " + block, self.folder)
        try:
            address = re.search(r"http://\S+?(?=[,\s]|$)", process.stdout.readline())[0].rstrip("/")
            with contextlib.closing(urllib.request.urlopen(address + "/report.json", timeout=LIMIT)) as answer:
                self.assertIn("tutorial", json.dumps(json.load(answer)))
        finally:
            process.kill()
            process.communicate()

    def test_every_command_runs(self):
        text = (SOURCE / "docs/tutorial.md").read_text()
        for large, small in SMALLER.items():
            self.assertIn(large, text)
            text = text.replace(large, small)
        for name, recipe in re.findall(r"`(\w+\.yaml)`[^`]*```yaml\n(.*?)```", text, re.DOTALL):
            (self.folder / name).write_text(recipe)
        outputs, stopped = {}, None
        for kind, block in re.findall(r"```sh ?(\w*)\n(.*?)```", text, re.DOTALL):
            if kind == "stopped":  # it runs until the next block has been run
                stopped = self.begin_run(block)
            elif kind == "served":
                self.ask_page(block)
            else:
                outputs[block] = self.run_block(block, DIFFERENT if kind == "different" else 0)
            if stopped is not None and kind != "stopped":
                stopped.send_signal(signal.SIGINT)
                self.assertIn("step", stopped.communicate(timeout=LIMIT)[0])
                self.assertEqual(stopped.returncode, STOPPED)
                stopped = None

        def of(words):
            return next(output for block, output in outputs.items() if words in block)

        self.assertIn("resumed after step", of("--mesh pp=2,dp=2"))
        self.assertIn("eval_loss", (self.folder / "runs/tutorial/metrics.jsonl").read_text())
        self.assertRegex(of("verify tutorial.yaml --mesh dp=2,tp=2,cp=2"), r"\nequal: ")
        self.assertIn("dp", of("--inject"))
        texts = [self.run_block(command + " 2>/dev/null") for command in re.findall(r"^meshtrain generate .*tutorial.*", text, re.M)]
        self.assertEqual(len(texts), 2)
        self.assertEqual(texts[0], texts[1], "a run and its export write the same")
        steps = [json.loads(line) for line in (self.folder / "runs/tutorial/metrics.jsonl").read_text().splitlines()]
        self.assertEqual([step["step"] for step in steps], list(range(1, 25)))
        self.assertLess(steps[-1]["loss"], steps[0]["loss"])
        self.assertTrue((self.folder / "models/chat/model.safetensors").exists())
        self.assertTrue((self.folder / "adapters/chat/adapter_model.safetensors").exists())

    def test_has_no_command_that_is_not_run(self):
        text = (SOURCE / "docs/tutorial.md").read_text()
        unread = re.sub(r"```(?:sh|text|yaml).*?```", "", text, flags=re.DOTALL)
        self.assertEqual(re.findall(r"```\n(.*?)```", unread, re.DOTALL), ["export PATH=$PWD/build/release:$PATH\n"])


class Readme(Document):
    def assert_words_agree(self, shown, printed):
        """Compares words; numbers may differ by rounding."""
        self.assertEqual(len(shown), len(printed), f"{shown}\n{printed}")
        for left, right in zip(shown, printed):
            try:
                numbers = float(left), float(right)
            except ValueError:
                self.assertEqual(left, right)
                continue
            self.assertTrue(math.isclose(*numbers, rel_tol=1e-9) or max(map(abs, numbers)) <= 1e-10, f"{left}, {right}")

    def without_the_worst(self, shown, printed):
        """Leaves out what depends on which parameter is the worst: rounding decides it, so another processor has another."""
        if shown[0] != "worst":
            return shown, printed
        *_, difference, bound, name = printed
        self.assertLess(float(difference), float(bound))
        self.assertRegex(name, r"^model\.[\w.]+\.weight$")
        beginning = shown.index(next(word for word in shown if word[0].isdigit()))
        return shown[:beginning] + shown[-2:-1], printed[:beginning] + printed[-2:-1]

    def test_prints_what_it_shows(self):
        blocks = re.findall(r"```\n\$ (.*?)```", (SOURCE / "README.md").read_text(), re.DOTALL)
        self.assertTrue(blocks)
        for block in blocks:
            command, *shown = block.splitlines()
            output = self.run_block(command.replace("build/release/", "")).splitlines()
            for line in (line for line in shown if line != "..."):
                beginning = line.split()[:2]
                near = [printed for printed in output if printed.split()[:2] == beginning]
                self.assertEqual(len(near), 1, f"{line}\n" + "\n".join(output))
                self.assert_words_agree(*self.without_the_worst(line.split(), near[0].split()))

    def test_its_commands_exist(self):
        for name in re.findall(r"`?tools/(\w+)", (SOURCE / "README.md").read_text()):
            self.assertTrue(os.access(SOURCE / "tools" / name, os.X_OK), name)

    def test_the_version_stands_in_one_place(self):
        version = re.search(r"project\(meshtrain VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]
        self.assertEqual(self.run_block("meshtrain --version"), f"meshtrain {version}\n")

    def test_its_pictures_are_those_of_the_script(self):
        self.run_block(shlex.join([str(SOURCE / "tools/draw_pictures"), "--check"]))


if __name__ == "__main__":
    unittest.main()
