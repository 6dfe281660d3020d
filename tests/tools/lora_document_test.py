"""The commands and the recipe of docs/lora.md, from a chat file to a text of the merged model, on a tiny base."""
import json
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
TESTS = SOURCE / "tests"
# What a tiny model changes in the document.
SMALLER = {"2048": "128", "precision: bf16_mixed": "precision: fp32", "steps: 300": "steps: 6", "every: 100": "every: 3",
           "learning_rate: 2.0e-4": "learning_rate: 2.0e-2"}
BASE = """
model: {family: llama, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, head_dim: 8, vocab_size: 1104, max_position_embeddings: 256}
data: {tokens: tokens.bin, dtype: uint8, layout: records, tokenizer: TOKENIZER}
train: {sequence_length: 16, global_batch: 1, steps: 1, export: EXPORT}
optimizer: {learning_rate: 1.0e-2}
"""


class LoraDocument(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        section = (SOURCE / "docs/lora.md").read_text().split("## From a chat file to a merged model\n")[1].split("\n## ")[0]
        for large, small in SMALLER.items():
            self.assertIn(large, section)
            section = section.replace(large, small)
        self.recipe = re.search("```yaml\n(.*?)```", section, re.DOTALL)[1]
        self.commands = [shlex.split(line, comments=True)
                         for line in re.search("```sh\n(.*?)```", section, re.DOTALL)[1].splitlines()]

    def run_in_folder(self, words):
        programs = {"meshtrain": [BUILD / "meshtrain"], "mpirun": [SOURCE / "tools/ranks"]}
        arguments = programs[words[0]] + words[1:]
        if words[0] == "mpirun":
            self.assertEqual(words[1:4:2], ["-n", "meshtrain"])
            arguments = programs["mpirun"] + [words[2]] + programs["meshtrain"] + words[4:]
        done = subprocess.run(arguments, cwd=self.folder, capture_output=True, text=True, timeout=280,
                              env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(done.returncode, 0, f"{words}\n{done.stdout}{done.stderr}")
        return done.stdout

    def make_base(self, path):
        """Writes a folder of random weights with a tokenizer and its chat template."""
        tokenizer = TESTS / "tokenizer/fixtures/llama3"
        (self.folder / "tokens.bin").write_bytes(bytes(range(170)))
        (self.folder / "base.yaml").write_text(BASE.replace("TOKENIZER", str(tokenizer)).replace("EXPORT", path))
        (self.folder / path).parent.mkdir()
        self.run_in_folder(["meshtrain", "train", "base.yaml", "--run-dir", "base_run"])
        shutil.copy(TESTS / "chat/fixtures/templates/llama3.jinja", self.folder / path / "chat_template.jinja")

    def test_commands_end_with_a_text_of_the_merged_model(self):
        base = re.search(r"hf: ([\w./-]+)", self.recipe)[1]
        self.make_base(base)
        (self.folder / "lora.yaml").write_text(self.recipe)
        chats = [{"messages": [{"role": "user", "content": "say " + "a " * n}, {"role": "assistant", "content": "yes"}]}
                 for n in range(40)]
        (self.folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
        texts = [self.run_in_folder(words) for words in self.commands]
        self.assertEqual([words[-1] for words in self.commands if words[0] == "mpirun"], ["runs/mine"])
        losses = [json.loads(line)["loss"]
                  for line in (self.folder / "runs/mine/metrics.jsonl").read_text().splitlines() if '"loss"' in line]
        self.assertEqual(len(losses), 6)
        self.assertLess(losses[-1], losses[0])
        self.assertTrue(texts[-1].strip())
        of_run = ["runs/mine" if word == "models/mine" else word for word in self.commands[-1]]
        self.assertEqual(self.run_in_folder(of_run), texts[-1], "adapters apart and merged say the same")


if __name__ == "__main__":
    unittest.main()
