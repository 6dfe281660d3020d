"""A run's exported folder becomes an ONNX file by the script in docs/checkpoints.md, with the logits of transformers and
the loss that `meshtrain evaluate` finds. Skipped where a Python package that the script needs is not installed."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")
SOURCE = pathlib.Path(__file__).resolve().parents[2]
MESHTRAIN = pathlib.Path(os.environ["MESHTRAIN_BUILD"]) / "meshtrain"
SAMPLES, LENGTH, VOCABULARY = 12, 16, 64
RECIPE = f"""
model: {{family: qwen3, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, head_dim: 8, vocab_size: {VOCABULARY}, tie_word_embeddings: true}}
data: {{tokens: tokens.bin, dtype: uint8, layout: records}}
train: {{sequence_length: {LENGTH}, global_batch: 4, steps: 3, export: weights}}
optimizer: {{learning_rate: 1.0e-2}}
device: cpu
"""


class Onnx(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        tokens = bytes(7 * i * i % VOCABULARY for i in range(SAMPLES * (LENGTH + 1)))
        (self.folder / "tokens.bin").write_bytes(tokens)
        (self.folder / "tiny.yaml").write_text(RECIPE)
        section = (SOURCE / "docs" / "checkpoints.md").read_text().split("### ONNX")[1]
        (self.folder / "to_onnx.py").write_text(re.search("```python\n(.*?)```", section, re.DOTALL)[1])

    def run_in_folder(self, *words):
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=280,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_has_the_logits_of_transformers_and_the_loss_of_evaluate(self):
        import numpy
        import onnxruntime
        import torch
        import transformers

        self.run_in_folder(MESHTRAIN, "train", "tiny.yaml", "--run-dir", "run")
        self.run_in_folder(sys.executable, "to_onnx.py", "weights", "tiny.onnx")
        session = onnxruntime.InferenceSession(self.folder / "tiny.onnx", providers=["CPUExecutionProvider"])
        model = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "weights", dtype=torch.float32).eval()

        samples = numpy.fromfile(self.folder / "tokens.bin", numpy.uint8).reshape(SAMPLES, -1).astype(numpy.int64)
        found = []
        for ids in (samples[:1, :-1], samples[1:4, :-1], samples[4:, :-1]):
            logits = session.run(["logits"], {"input_ids": ids})[0]
            with torch.no_grad():
                expected = model(input_ids=torch.tensor(ids)).logits.numpy()
            numpy.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4)
            found.append(torch.tensor(logits))
        loss = torch.nn.functional.cross_entropy(torch.cat(found).flatten(0, 1), torch.tensor(samples[:, 1:]).flatten())
        evaluated = json.loads(self.run_in_folder(
            MESHTRAIN, "evaluate", "weights", "--tokens", "tokens.bin", "--dtype", "uint8", "--layout", "records",
            "--sequence-length", str(LENGTH), "--json"))
        self.assertEqual(evaluated["samples"], SAMPLES)
        self.assertAlmostEqual(evaluated["loss"], loss.item(), delta=1e-4)


if __name__ == "__main__":
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        print("skipped: Python has no package " + ", ".join(missing))
        sys.exit(77)
    unittest.main()
