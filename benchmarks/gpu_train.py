#!/usr/bin/env python3
"""Trains a model on one GPU with this program, its steps given to the GPU one kernel at a time and as one CUDA graph, and
with transformers under torch.compile, in turn, and prints all three; with --ranks this program alone on several GPUs.

  pip install torch==2.11.0 transformers safetensors numpy
  tools/build && python3 benchmarks/gpu_train.py --ranks 8 --blocks 8 16 32 --no-peer
  tools/build && python3 benchmarks/gpu_train.py --offload state activations host --tokens 32768
  tools/build && python3 benchmarks/gpu_train.py --adapter 16
  tools/build && python3 benchmarks/gpu_train.py [--models tiny --sequences 64 --tokens 128 --device cpu]

The models have the shapes in recipes/models and random weights in bf16, drawn once: all programs read the same, and the
same tokens. AdamW, gradients clipped to norm 1, the same number of tokens a step at every length. transformers runs its
own model (gpu_train_peer.py) with torch.compile, scaled_dot_product_attention without a mask, which chooses its own
kernel, the fused AdamW, and cross-entropy by PyTorch. A ratio needs cuDNN or flash attention there. In bf16_mixed both have weights, gradients and the optimizer's state in fp32 and
compute in bf16: meshtrain from a rounded copy of the weights, transformers under torch.autocast. In bf16 both have
everything in bf16. Each repetition runs all, one after the other, in processes of their own. The first steps, in which
kernels are compiled or a graph is recorded, are left out; numbers are medians over the repetitions of the median step.

With --ranks parameters are sharded over so many GPUs (full_shard), each with --tokens a step, without transformers.
--blocks 8 16 32 then adds a row for each number of thread blocks that NCCL's gathers, and its reductions beside them, may
take from computing (NCCL_MAX_CTAS, of each queue); "meshtrain" has those of mesh/backends/nccl/calls.cpp.

With --offload the rows are this program without offload and with each kind of it (docs/offload.md), and PyTorch's FSDP2
with CPUOffloadPolicy beside "host": its blocks are compiled, and its fused AdamW of the host has all cores. "waiting" is
the time in which a step is longer than without offload. --micro-batch divides a step's tokens; --checkpoint recomputes
blocks, in both programs.

With --adapter a LoRA adapter of this rank is trained on all linear layers, without dropout, beside PEFT. The base is in
bf16 in both, adapters in fp32. The operations of MFU are those of full training all the same.

Causal MFU is of --peak TFLOP/s (989: dense bf16 of an H100 or H200) with the 6 (P - V M) + 6 L Q S operations a token
that a causal model needs (P parameters, V vocabulary, M width, L layers, Q width of the query heads, S sequence; tied
heads count once). "products" is what the matrix products of a step alone take in bf16, without attention, one after the
other: no program that does them can be faster.
"""

import argparse
import array
import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEER = Path(__file__).resolve().parent / "gpu_train_peer.py"
TINY = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=64, intermediate_size=128,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=512, rms_norm_eps=1e-5,
            hidden_act="silu", max_position_embeddings=8192, tie_word_embeddings=True, rope_theta=10000.0,
            initializer_range=0.02)
WARMUP = 5  # steps
LEARNING_RATE = 3e-4
FUSED = {"cudnn", "flash"}  # kernels of causal attention; slower ones in transformers would flatter the ratio
OFFLOADS = {  # of a recipe: keys of parallel.fsdp, keys of train
    "none": ("", ""), "host": ("offload: {to: host}", ""), "disk": ("offload: {to: disk, path: SCRATCH}", ""),
    "state": ("offload: {to: host, parameters: false}", ""), "activations": ("", "offload_activations: true"),
    "host+activations": ("offload: {to: host}", "offload_activations: true"),
    "state+activations": ("offload: {to: host, parameters: false}", "offload_activations: true")}
HEADINGS = ["model", "sequence", "precision", "program", "tokens/s", "ratio", "causal MFU", "attention",
            "peak memory, GiB", "first loss", "last loss", "waiting, s"]


def ratio(row, peer):
    """Returns how many times as fast as transformers, or None unless that ran fused causal attention."""
    if peer is None or peer is row or not peer["attention"] or not set(peer["attention"]) <= FUSED:
        return None
    return row["tokens_per_second"] / peer["tokens_per_second"]


class NoTime(Exception):
    pass


def operations(config, sequence):
    """A token's, with the causal half of attention."""
    width, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    head = config.get("head_dim") or width // heads
    queries, keys = heads * head, config["num_key_value_heads"] * head
    matrices = layers * (width * (2 * queries + 2 * keys) + 3 * width * config["intermediate_size"])
    return 6 * (matrices + config["vocab_size"] * width) + 6 * layers * queries * sequence


class Bench:
    def __init__(self, arguments, scratch):
        self.arguments, self.scratch = arguments, scratch
        self.end = time.monotonic() + arguments.seconds
        self.rows = []
        self.peer_problem = None

    def run(self, words, environment=None):
        """Runs a program; its output. Its time is what is left."""
        words = [str(word) for word in words]
        left = min(self.arguments.limit, self.end - time.monotonic())
        if left < 5:
            raise NoTime
        with open(self.arguments.log, "a") as file:
            file.write(f"$ {' '.join(words)}\n")
            file.flush()
            try:
                result = subprocess.run(words, stdout=subprocess.PIPE, stderr=file, text=True, timeout=left,
                                        env={**os.environ, **(environment or {})})
            except subprocess.TimeoutExpired:
                if self.end - time.monotonic() < 5:
                    raise NoTime from None
                sys.exit(f"{words[0]} had not ended after {left:.0f} s: see {self.arguments.log}")
            file.write(result.stdout)
        if result.returncode != 0:
            told = [line for line in Path(self.arguments.log).read_text(errors="replace").splitlines() if line.strip()]
            sys.exit(f"{words[0]} ended with {result.returncode}: {told[-1][:300]}")
        return result.stdout

    def peer_words(self, *more):
        return [self.arguments.python, PEER, "--device", self.arguments.device, *more]

    def draw(self, name):
        """A folder with the model's shape and, where there is a peer to draw them, its first weights."""
        folder = self.scratch / name
        folder.mkdir()
        shape = json.dumps(TINY) if name == "tiny" else (ROOT / "recipes/models" / name / "config.json").read_text()
        (folder / "config.json").write_text(shape)
        if self.arguments.peer:
            try:
                self.run(self.peer_words("--draw", folder))
            except SystemExit as error:  # this program is measured all the same, from weights of its own
                self.peer_problem, self.arguments.peer = error, False
        return folder

    def tokens(self, vocabulary, batch, sequence):
        file = self.scratch / "tokens.bin"
        draw = random.Random(1)
        count = self.arguments.steps * self.arguments.ranks * batch * (sequence + 1)
        file.write_bytes(array.array("I", (draw.randrange(vocabulary) for _ in range(count))).tobytes())
        return file

    def ours(self, folder, tokens, batch, sequence, graph=False, blocks=None, offload=None):
        a = self.arguments
        fsdp, more = (text.replace("SCRATCH", str(self.scratch)) for text in OFFLOADS[offload or "none"])
        fsdp = ", ".join(filter(None, [f"mode: {'full_shard' if a.ranks > 1 or offload else 'auto'}", fsdp]))
        more = "".join(", " + key for key in (more, "activation_checkpointing: {mode: full}" * a.checkpoint) if key)
        adapter = f"adapter: {{kind: lora, rank: {a.adapter}, alpha: {2 * a.adapter}, targets: [all-linear]}}" if a.adapter else ""
        recipe = self.scratch / "recipe.yaml"
        recipe.write_text(f"""model: {{hf: {folder}, init: {'pretrained' if a.peer else 'random'}}}
data: {{tokens: {tokens}, dtype: uint32, layout: records}}
train: {{sequence_length: {sequence}, global_batch: {batch * a.ranks}, micro_batch: {self.micro(batch)}, steps: {a.steps},
  precision: {a.precision}, clip_norm: 1.0, cuda_graph: {str(graph).lower()}{more}}}
optimizer: {{name: adamw, learning_rate: {LEARNING_RATE}, betas: [0.9, 0.999], weight_decay: 0.1}}
device: {a.device}
parallel: {{fsdp: {{{fsdp}}}}}
{adapter}
""")
        with tempfile.TemporaryDirectory(dir=self.scratch) as run_dir:
            on_ranks = [*shlex.split(a.launcher), a.ranks] if a.ranks > 1 else []
            output = self.run([*on_ranks, a.program, "train", recipe, "--run-dir", Path(run_dir) / "run"],
                              {"NCCL_MAX_CTAS": str(blocks)} if blocks else None)
            metrics = (Path(run_dir) / "run/metrics.jsonl").read_text()
        if graph and a.device == "cuda" and "steps are recorded as one graph" not in output:
            sys.exit("no graph was recorded: " + (re.findall("train.cuda_graph: .*", output) or ["it said nothing"])[0])
        lines = [json.loads(line) for line in metrics.splitlines()]
        memory = re.search(r"GPU memory: tensors took (\d+) MiB", output)
        return {"seconds": statistics.median(line["step_seconds"] for line in lines[WARMUP:]),
                "memory": int(memory[1]) * 2**20 if memory else 0, "losses": [line["loss"] for line in lines],
                "attention": sorted(set(re.findall(r"attention by (\w+):", output)))}

    def micro(self, batch):
        return min(batch, self.arguments.micro_batch or batch)

    def theirs(self, folder, tokens, batch, sequence, offload=False):
        a = self.arguments
        words = self.peer_words("--train", folder, "--tokens", tokens, "--batch", batch, "--sequence", sequence,
                                "--steps", a.steps, "--warmup", WARMUP, "--precision", a.precision, "--learning-rate",
                                LEARNING_RATE, "--micro-batch", self.micro(batch), *([] if a.compile else ["--no-compile"]),
                                *["--offload"] * offload, *["--checkpoint"] * a.checkpoint,
                                *(["--adapter", a.adapter] if a.adapter else []))
        return json.loads(self.run(words).splitlines()[-1])

    def compare(self, name, folder, sequence):
        a = self.arguments
        config = json.loads((folder / "config.json").read_text())
        batch = max(1, a.tokens // sequence)
        tokens = self.tokens(config["vocab_size"], batch, sequence)
        shape = folder, tokens, batch, sequence
        programs = {"meshtrain": lambda: self.ours(*shape)}
        if a.offload:
            programs = {f"meshtrain, {kind}" if kind != "none" else "meshtrain":
                        lambda kind=kind: self.ours(*shape, offload=kind) for kind in a.offload}
        elif not a.adapter:
            programs["meshtrain, as a graph"] = lambda: self.ours(*shape, graph=True)
        for count in a.blocks:
            programs[f"meshtrain, {count} blocks a queue"] = lambda count=count: self.ours(*shape, blocks=count)
        if a.peer and "host" in a.offload:
            programs["FSDP2, CPUOffloadPolicy"] = lambda: self.theirs(*shape, offload=True)
        if a.peer and (not a.offload or "none" in a.offload):
            programs["PEFT" if a.adapter else "transformers"] = lambda: self.theirs(*shape)
        runs = {who: [] for who in programs}
        problem = None
        try:
            for _ in range(a.repetitions):
                for who, program in programs.items():
                    runs[who].append(program())
        except (NoTime, SystemExit) as error:  # what was measured before is told
            problem = error
        runs = {who: results for who, results in runs.items() if results}
        for who, results in runs.items():
            speed = a.ranks * batch * sequence / statistics.median(result["seconds"] for result in results)
            self.rows.append({"model": name, "sequence": sequence, "precision": a.precision, "program": who,
                              "tokens_per_second": speed, "attention": results[0]["attention"],
                              "causal_mfu": 100 * speed / a.ranks * operations(config, sequence) / a.peak / 1e12,
                              "memory": results[0]["memory"], "losses": results[0]["losses"]})
        for row in self.rows[len(self.rows) - len(runs):]:
            row["ratio"] = ratio(row, self._peer(name, sequence, row["program"]))
            row["waiting"] = self._waiting(row, batch * sequence * a.ranks)
            print_row(row)
        if "transformers" in runs:
            products = statistics.median(result["products"] for result in runs["transformers"])
            print(f"| {name} | {sequence} | bf16 | products | {batch * sequence / products:.0f} | | | | | | | |", flush=True)
        if problem:
            raise problem

    def _row(self, name, sequence, program):
        wanted = (name, sequence, program)
        return next((row for row in self.rows if (row["model"], row["sequence"], row["program"]) == wanted), None)

    def _peer(self, name, sequence, program):
        peer = "FSDP2, CPUOffloadPolicy" if program == "meshtrain, host" else "PEFT" if self.arguments.adapter else "transformers"
        return self._row(name, sequence, peer) if program.startswith("meshtrain") else None

    def _waiting(self, row, tokens):
        """Seconds of a step more than without offload, or None where that was not measured."""
        without = self._row(row["model"], row["sequence"], "meshtrain")
        if not row["program"].startswith("meshtrain, ") or not self.arguments.offload or without is None:
            return None
        return tokens / row["tokens_per_second"] - tokens / without["tokens_per_second"]


def print_row(row):
    times = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    cells = [row["model"], row["sequence"], row["precision"], row["program"], f"{row['tokens_per_second']:.0f}", times,
             f"{row['causal_mfu']:.1f} %", ", ".join(row["attention"]), f"{row['memory'] / 2**30:.1f}",
             f"{row['losses'][0]:.4f}", f"{row['losses'][-1]:.4f}",
             "" if row["waiting"] is None else f"{row['waiting']:.3f}"]
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["SmolLM2-1.7B", "Llama-3.2-1B", "Qwen3-0.6B"],
                        help="folders in recipes/models, or tiny")
    parser.add_argument("--sequences", type=int, nargs="+", default=[4096, 1024, 8192], help="in this order")
    parser.add_argument("--precision", choices=["bf16_mixed", "bf16"], default="bf16_mixed")
    parser.add_argument("--tokens", type=int, default=8192, help="of a step, on each GPU")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs of this machine")
    parser.add_argument("--launcher", default=shlex.quote(str(ROOT / "tools/ranks")),
                        help="words before the number of ranks")
    parser.add_argument("--blocks", type=int, nargs="+", default=[], help="thread blocks of a queue of NCCL")
    parser.add_argument("--offload", nargs="+", choices=list(OFFLOADS), default=[], help="kinds of offload, on one GPU")
    parser.add_argument("--adapter", type=int, default=0, metavar="RANK", help="train a LoRA adapter")
    parser.add_argument("--micro-batch", type=int, help="samples; all of a step by default")
    parser.add_argument("--checkpoint", action="store_true", help="full activation checkpointing")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True, help="transformers")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="the peer")
    parser.add_argument("--peak", type=float, default=989, help="TFLOP/s")
    parser.add_argument("--limit", type=float, default=300, help="seconds that one process may take")
    parser.add_argument("--seconds", type=float, default=1e9, help="for all; what is not measured then is named")
    parser.add_argument("--python", default=sys.executable, help="that has torch and transformers")
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/meshtrain")
    parser.add_argument("--log", type=Path, default=Path("gpu_train.log"), help="what the processes say")
    parser.add_argument("--json", type=Path, help="file of the rows")
    arguments = parser.parse_args()
    if arguments.steps <= WARMUP:
        parser.error(f"--steps: the first {WARMUP} are not measured; take more")
    if arguments.ranks > 1 and arguments.peer:
        parser.error("--ranks: transformers runs on one GPU here; add --no-peer")
    if arguments.blocks and (arguments.ranks < 2 or min(arguments.blocks) < 1):
        parser.error("--blocks: numbers of 1 and more, for --ranks of 2 and more")
    print("| " + " | ".join(HEADINGS) + " |\n" + "|---" * len(HEADINGS) + "|", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu_train_") as scratch:
        bench = Bench(arguments, Path(scratch))
        missing = [(name, sequence) for name in arguments.models for sequence in arguments.sequences]
        try:
            for name in arguments.models:
                folder = bench.draw(name)
                for sequence in arguments.sequences:
                    bench.compare(name, folder, sequence)
                    missing.remove((name, sequence))
        except NoTime:
            print("\nNot measured, as the time was over: " +
                  ", ".join(f"{name} at {sequence}" for name, sequence in missing), flush=True)
        finally:
            if arguments.json:
                arguments.json.write_text(json.dumps(bench.rows))
        if bench.peer_problem:
            raise bench.peer_problem


if __name__ == "__main__":
    main()
