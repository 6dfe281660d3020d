#!/usr/bin/env python3
"""Tests the rows, the ratio and the peer of benchmarks/gpu_train.py. With torch and transformers, on the CPU,
torch.compile sees the peer's causal attention without a mask, and its losses are those of transformers' attention."""

import importlib.util
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu_train  # noqa: E402

MISSING = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
NAME = "scaled_dot_product_attention"

# A substitute for meshtrain: its steps are faster with more thread blocks. It refuses a recipe for one GPU.
PROGRAM = """#!/usr/bin/env python3
import json, os, pathlib, sys
recipe = pathlib.Path(sys.argv[2]).read_text()
if not all(part in recipe for part in ("global_batch: 4, micro_batch: 2", "mode: full_shard")):
    sys.exit("not for two GPUs: " + recipe)
if os.environ["OMPI_COMM_WORLD_RANK"] == "0":
    run_dir = pathlib.Path(sys.argv[4])
    run_dir.mkdir()
    step = {"step_seconds": 1 / int(os.environ.get("NCCL_MAX_CTAS", 4)), "loss": 6.0}
    (run_dir / "metrics.jsonl").write_text(8 * (json.dumps(step) + chr(10)))
    print("steps are recorded as one graph")
"""


class SeveralGpus(unittest.TestCase):
    def run_benchmark(self, *more):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        program, rows = folder / "meshtrain", folder / "rows.json"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        ended = subprocess.run([sys.executable, BENCHMARKS / "gpu_train.py", "--program", program, "--models", "tiny",
                                "--sequences", "64", "--tokens", "128", "--steps", "8", "--log", folder / "log",
                                "--json", rows, *more], capture_output=True, text=True)
        return ended, json.loads(rows.read_text()) if rows.exists() else []

    def test_thread_blocks(self):
        ended, rows = self.run_benchmark("--ranks", "2", "--no-peer", "--blocks", "8", "16", "32")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertEqual({row["program"]: row["tokens_per_second"] for row in rows},
                         {"meshtrain": 4 * 256, "meshtrain, as a graph": 4 * 256, "meshtrain, 8 blocks a queue": 8 * 256,
                          "meshtrain, 16 blocks a queue": 16 * 256, "meshtrain, 32 blocks a queue": 32 * 256})

    def test_refusals(self):
        for words, why in ((["--ranks", "2"], "add --no-peer"), (["--no-peer", "--blocks", "8"], "--ranks of 2"),
                           (["--ranks", "2", "--no-peer", "--blocks", "0"], "numbers of 1 and more")):
            ended, rows = self.run_benchmark(*words)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(why, ended.stderr)
            self.assertFalse(rows)


class Ratio(unittest.TestCase):
    def test_needs_fused_attention_in_the_peer(self):
        row = {"tokens_per_second": 30.0, "attention": ["math"]}
        for kernels, wanted in ((["cudnn"], 1.5), (["flash"], 1.5), (["cudnn", "flash"], 1.5), ([], None),
                                (["math"], None), (["efficient"], None), (["cudnn", "efficient"], None)):
            peer = {"tokens_per_second": 20.0, "attention": kernels}
            self.assertEqual(gpu_train.ratio(row, peer), wanted, kernels)
            self.assertIsNone(gpu_train.ratio(peer, peer))
        self.assertIsNone(gpu_train.ratio(row, None))


@unittest.skipIf(MISSING, f"this python3 has no {' and no '.join(MISSING)}")
class Attention(unittest.TestCase):
    def setUp(self):
        import gpu_train_peer
        import torch
        self.peer, self.torch = gpu_train_peer, torch
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.write({})
        self.peer.draw(self.folder, "cpu")
        torch.manual_seed(2)
        tokens = torch.randint(0, gpu_train.TINY["vocab_size"], (2, 65))
        self.batch = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def write(self, more):
        (self.folder / "config.json").write_text(json.dumps({**gpu_train.TINY, **more}))

    def step(self, loss_of, model):
        model.zero_grad()
        loss = loss_of(*self.batch)
        loss.backward()
        return loss.item(), self.torch.cat([each.grad.flatten() for each in model.parameters()])

    def test_the_graph_has_no_mask(self):
        for mixed in (False, True):
            graphs = []
            model = self.peer.load(self.folder, self.torch.float32, "cpu")
            loss_of = self.peer.loss_function(model, "cpu", mixed)

            def record(module, _):
                graphs.append(module)
                return module.forward

            self.torch.compiler.reset()
            compiled, _ = self.step(self.torch.compile(loss_of, backend=record), model)
            self.assertEqual(len(graphs), 1, "the graph breaks")
            nodes = list(graphs[0].graph.nodes)
            names = [getattr(node.target, "__name__", str(node.target)) for node in nodes]
            calls = [node for node, name in zip(nodes, names) if name == NAME]
            self.assertEqual(len(calls), gpu_train.TINY["num_hidden_layers"])
            for call in calls:
                self.assertEqual(len(call.args), 3, "query, key, value")
                self.assertIsNone(call.kwargs.get("attn_mask"))
                self.assertIs(call.kwargs["is_causal"], True)
                self.assertIs(call.kwargs["enable_gqa"], True)
                heads = [node.meta["example_value"].shape[1] for node in call.args]
                self.assertEqual(heads, [4, 2, 2], "KV heads are not repeated")
            self.assertFalse({"le", "ge", "tril", "where", "masked_fill"} & set(names), "a mask is made")
            self.assertAlmostEqual(compiled, self.step(loss_of, model)[0], delta=1e-3 if mixed else 1e-6)

    def test_losses_are_those_of_its_own_attention(self):
        model = self.peer.load(self.folder, self.torch.float32, "cpu")
        loss_of = self.peer.loss_function(model, "cpu", mixed=False)
        loss, gradient = self.step(loss_of, model)
        for name in ("sdpa", "eager"):
            model.set_attn_implementation(name)
            other_loss, other_gradient = self.step(loss_of, model)
            self.assertAlmostEqual(loss, other_loss, delta=1e-6)
            self.assertLess((gradient - other_gradient).norm(), 1e-5 * gradient.norm())

    def test_windows_are_refused(self):
        self.write({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True,
                    "sliding_window": 16, "max_window_layers": 1, "head_dim": 16})
        with self.assertRaises(SystemExit) as refusal:
            self.peer.load(self.folder, self.torch.float32, "cpu")
        self.assertIn("layers with sliding_attention", str(refusal.exception))


if __name__ == "__main__":
    unittest.main(verbosity=2)
