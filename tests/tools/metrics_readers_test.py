"""What TensorBoard's own reader, W&B and MLflow get of a run is what metrics.jsonl has, over a resume too. W&B and MLflow
are stubs; TensorBoard's test is skipped where its Python package is not installed."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

BUILD = pathlib.Path(os.environ["MESHTRAIN_BUILD"])
SEND = pathlib.Path(__file__).resolve().parents[2] / "tools" / "send_metrics"
RECIPE = """
model: {family: llama, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 4,
  num_key_value_heads: 4, vocab_size: 64, tie_word_embeddings: true}
data: {tokens: tokens.bin, dtype: uint8, layout: records}
train: {sequence_length: 16, global_batch: 4, steps: 6, tensorboard: true}
optimizer: {learning_rate: 1.0e-2}
checkpoint: {every: 2}
"""
STUB = """
import json, os
def keep(**what):
    with open(os.environ["KEPT"], "a") as file:
        file.write(json.dumps(what) + "\\n")
"""
WANDB = STUB + """
class Run:
    def define_metric(self, *names, **more): keep(metric=names, **more)
    def log(self, values): keep(values=values)
    def finish(self): keep(end=True)
def init(**what):
    keep(**what)
    return Run()
"""
MLFLOW = STUB + """
def set_experiment(name): keep(project=name)
def start_run(run_name): keep(name=run_name)
def log_metrics(values, step): keep(values=dict(values, step=step))
def end_run(): keep(end=True)
"""


def flat(entry, path=""):
    for key, value in entry.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{key}/")
        elif value is not None and path + key not in ("step", "time"):
            yield path + key, float(value)


class MetricsReaders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.scratch.name)
        cls.run_dir = cls.folder / "mine"
        (cls.folder / "tokens.bin").write_bytes(bytes(i % 50 for i in range(100 * 17)))
        (cls.folder / "tiny.yaml").write_text(RECIPE)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
        command = [BUILD / "meshtrain", "train", cls.folder / "tiny.yaml", "--run-dir", cls.run_dir]

        def train(*arguments, status):
            done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=60)
            assert done.returncode == status, done.stderr

        train(status=0)
        cls.first = cls.metrics()
        train("--resume-step", "2", "--set", "optimizer.learning_rate=1.0e-3", status=0)   # steps 3 to 6 once more

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    @classmethod
    def metrics(cls):
        return [json.loads(line) for line in (cls.run_dir / "metrics.jsonl").read_text().splitlines()]

    def test_tensorboard_reads_each_number_of_each_step_once(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            self.skipTest("the Python package tensorboard is not installed")
        self.assertEqual(len(list((self.run_dir / "tensorboard").iterdir())), 2)
        read = EventAccumulator(str(self.run_dir / "tensorboard"), size_guidance={"scalars": 0})
        read.Reload()
        expected = {}
        for entry in self.metrics():
            for name, value in flat(entry):
                tag = name if "/" in name else "train/" + name
                expected.setdefault(tag, []).append((entry["step"], value))
        self.assertEqual(set(read.Tags()["scalars"]), set(expected))
        self.assertIn("seconds/data", expected)
        for tag, values in expected.items():
            events = read.Scalars(tag)
            self.assertEqual([event.step for event in events], [step for step, _ in values], tag)
            for event, (_, value) in zip(events, values):
                self.assertAlmostEqual(event.value, value, delta=1e-6 * abs(value), msg=tag)
        for event, entry in zip(read.Scalars("train/loss"), self.metrics()):
            self.assertAlmostEqual(event.wall_time, entry["time"], delta=1e-3)

    def send(self, service, stub, lines=None):
        """Returns what a stub of the service got of the run's metrics, or of `lines` of them."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / (service + ".py")).write_text(textwrap.dedent(stub))
            environment = {**os.environ, "PYTHONPATH": str(folder), "KEPT": str(folder / "kept")}
            done = subprocess.run([sys.executable, SEND, self.run_dir, "--to", service, "--project", "meshes"],
                                  env=environment, capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            return [json.loads(line) for line in (folder / "kept").read_text().splitlines()]

    def expect_sent(self, kept):
        expected = [{**dict(flat(entry)), "step": entry["step"]} for entry in self.metrics()]
        self.assertEqual([entry["values"] for entry in kept if "values" in entry], expected)
        self.assertEqual(kept[-1], {"end": True})

    def test_wandb_gets_each_step(self):
        kept = self.send("wandb", WANDB)
        self.assertEqual(kept[0], {"project": "meshes", "name": "mine"})
        self.expect_sent(kept)

    def test_mlflow_gets_each_step(self):
        kept = self.send("mlflow", MLFLOW)
        self.assertEqual(kept[:2], [{"project": "meshes"}, {"name": "mine"}])
        self.expect_sent(kept)

    def test_lines_that_were_cut_back_are_sent_again(self):
        script = SEND.read_text()
        parts = {"__name__": "send_metrics"}
        exec(compile(script.replace("\nsys.exit(main())\n", "\n"), str(SEND), "exec"), parts)
        file, sent = self.folder / "followed.jsonl", []

        def write(*steps, rest=""):
            file.write_text("".join(json.dumps({"step": step, "loss": loss}) + "\n" for step, loss in steps) + rest)

        stages = [lambda: write((1, 1.0), (2, 2.0), (3, 3.0), rest='{"step": 4, "lo'),   # a line that is being written
                  lambda: write((1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)),
                  lambda: write((1, 1.0), (2, 2.5), (3, 3.5), (4, 4.5), (5, 5.5))]        # resumed after step 1

        def sleep(_):
            if not stages:
                raise KeyboardInterrupt
            stages.pop(0)()

        parts["time"] = type("Clock", (), {"sleep": staticmethod(sleep)})
        with self.assertRaises(KeyboardInterrupt):
            parts["send"](file, lambda step, values: sent.append((step, values["loss"])), follow=True)
        again = [(1, 1.0), (2, 2.5), (3, 3.5), (4, 4.5), (5, 5.5)]
        self.assertEqual(sent, [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), *again])

    def test_says_what_to_install(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "wandb.py").write_text("raise ImportError('as if it were not there')")
            done = subprocess.run([sys.executable, SEND, self.run_dir, "--to", "wandb"], capture_output=True, text=True,
                                  env={**os.environ, "PYTHONPATH": folder}, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("the Python package wandb is not installed: pip install wandb", done.stderr)


if __name__ == "__main__":
    unittest.main()
