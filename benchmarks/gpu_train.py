#!/usr/bin/env python3
"""Trains models on one GPU with this program, its steps given to the GPU one kernel at a time and as one CUDA graph, and
with transformers under torch.compile, in turn, and prints all three.

  pip install torch==2.11.0 transformers safetensors numpy
  tools/build && python3 benchmarks/gpu_train.py [--device cpu --models tiny --sequences 64]

The models have the shapes in recipes/models and random weights, in bf16 (weights, gradients and the optimizer's state),
AdamW, gradients clipped to norm 1. A step has the same number of tokens at every length. transformers runs its own model
with torch.compile, scaled_dot_product_attention (flash or cuDNN, whichever it chooses), the fused AdamW, and cross-entropy
by PyTorch. All see the same tokens; each repetition runs all, one after the other, in processes of their own. The first
steps, in which kernels are compiled or a graph is recorded, are left out; numbers are medians over the repetitions of the median step.

Utilisation is of --peak TFLOP/s (989: dense bf16 of an H100 or H200): 6 (P - V M) + 12 L Q S operations a token with the
whole square of attention, half of its term with what a causal model needs (P parameters, V vocabulary, M width, L layers,
Q width of the query heads, S sequence). "products" is what the matrix products of a step alone take, without attention,
one after the other: no program that does them can be faster.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TINY = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=64, intermediate_size=128,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=512, rms_norm_eps=1e-5,
            hidden_act="silu", max_position_embeddings=8192, tie_word_embeddings=True, rope_theta=10000.0)
WARMUP = 5  # steps
LEARNING_RATE = 3e-4


def shape_of(config):
    heads = config["num_attention_heads"]
    width = config["hidden_size"]
    head = config.get("head_dim") or width // heads
    return dict(M=width, F=config["intermediate_size"], L=config["num_hidden_layers"], V=config["vocab_size"],
                Q=heads * head, K=config["num_key_value_heads"] * head)


def operations(config, sequence):
    """A token's, with the whole square of attention and with its causal half."""
    s = shape_of(config)
    matrices = s["L"] * (s["M"] * (2 * s["Q"] + 2 * s["K"]) + 3 * s["M"] * s["F"]) + s["V"] * s["M"]
    attention = 12 * s["L"] * s["Q"] * sequence
    return 6 * matrices + attention, 6 * matrices + attention / 2


def samples(arguments, config):
    import numpy
    records = numpy.random.default_rng(1).integers(
        0, config["vocab_size"], (arguments.steps * arguments.batch, arguments.sequence + 1), numpy.uint32)
    return records


# The peer, in a process of its own.


def product_seconds(config, tokens, device):
    """Of a step's matrix products: each forward, and both of its backward."""
    import torch
    s = shape_of(config)
    shapes = [(s["M"], s["Q"] + 2 * s["K"], s["L"]), (s["Q"], s["M"], s["L"]), (s["M"], 2 * s["F"], s["L"]),
              (s["F"], s["M"], s["L"]), (s["M"], s["V"], 1)]
    total = 0.0
    for width, features, times in shapes:
        x = torch.randn(tokens, width, device=device, dtype=torch.bfloat16)
        w = torch.randn(features, width, device=device, dtype=torch.bfloat16)
        y = torch.randn(tokens, features, device=device, dtype=torch.bfloat16)
        for product in (lambda: x @ w.t(), lambda: y @ w, lambda: y.t() @ x):
            total += times * median_seconds(product, device)
    return total


def median_seconds(call, device, repetitions=10):
    import time
    import torch
    times = []
    for _ in range(repetitions + 2):
        wait(device)
        begin = time.perf_counter()
        call()
        wait(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def wait(device):
    import torch
    if device == "cuda":
        torch.cuda.synchronize()


def peer(arguments):
    import time
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    config = json.loads((Path(arguments.peer) / "config.json").read_text())
    device = arguments.device
    torch.manual_seed(1)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(arguments.peer), dtype=torch.bfloat16,
                                                 attn_implementation="sdpa")
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1, fused=True)

    def loss_of(ids, labels):
        logits = model(input_ids=ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    compiled = torch.compile(loss_of) if arguments.compile else loss_of
    records = torch.from_numpy(samples(arguments, config).astype("int64")).view(arguments.steps, arguments.batch, -1)
    seconds, losses = [], []
    for batch in records:
        batch = batch.to(device)
        wait(device)
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = compiled(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        wait(device)
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    del model, optimizer, compiled, loss
    if device == "cuda":
        torch.cuda.empty_cache()
    products = product_seconds(config, arguments.batch * arguments.sequence, device)
    print(json.dumps({"seconds": statistics.median(seconds[WARMUP:]), "memory": memory, "losses": losses,
                      "products": products}))


# The rest.


def run(words, log, limit):
    words = [str(word) for word in words]
    with open(log, "a") as file:
        file.write(f"$ {' '.join(words)}\n")
        file.flush()
        result = subprocess.run(words, stdout=subprocess.PIPE, stderr=file, text=True, timeout=limit)
        file.write(result.stdout)
    if result.returncode != 0:
        sys.exit(f"{' '.join(words)} ended with {result.returncode}: see {log}")
    return result.stdout


def ours(arguments, folder, scratch, graph):
    tokens = scratch / "tokens.bin"
    config = json.loads((folder / "config.json").read_text())
    samples(arguments, config).tofile(tokens)
    recipe = scratch / "recipe.yaml"
    recipe.write_text(f"""model: {{hf: {folder}, init: random}}
data: {{tokens: {tokens}, dtype: uint32, layout: records}}
train: {{sequence_length: {arguments.sequence}, global_batch: {arguments.batch}, micro_batch: {arguments.batch},
  steps: {arguments.steps}, precision: bf16, clip_norm: 1.0,
  cuda_graph: {str(graph).lower()}}}
optimizer: {{name: adamw, learning_rate: {LEARNING_RATE}, betas: [0.9, 0.999], weight_decay: 0.1}}
device: {arguments.device}
""")
    run_dir = scratch / "run"
    output = run([arguments.program, "train", recipe, "--run-dir", run_dir], arguments.log, arguments.limit)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    found = re.search(r"GPU memory: tensors took (\d+) MiB", output)
    return {"seconds": statistics.median(line["step_seconds"] for line in lines[WARMUP:]),
            "memory": int(found[1]) * 2**20 if found else 0, "losses": [line["loss"] for line in lines]}


def compare(arguments, name, folder):
    config = json.loads((folder / "config.json").read_text())
    mine, recorded, theirs = [], [], []
    for _ in range(arguments.repetitions):
        for rows, graph in ((mine, False), (recorded, True)):
            with tempfile.TemporaryDirectory() as scratch:
                rows.append(ours(arguments, folder, Path(scratch), graph))
        words = [arguments.python, __file__, "--peer", folder, "--device", arguments.device, "--sequence",
                 arguments.sequence, "--batch", arguments.batch, "--steps", arguments.steps]
        words += [] if arguments.compile else ["--no-compile"]
        theirs.append(json.loads(run(words, arguments.log, arguments.limit).splitlines()[-1]))
    tokens = arguments.batch * arguments.sequence
    full, causal = operations(config, arguments.sequence)
    speeds = {}
    for who, rows in (("transformers", theirs), ("meshtrain", mine), ("meshtrain, as a graph", recorded)):
        seconds = statistics.median(row["seconds"] for row in rows)
        speeds[who] = tokens / seconds
        ratio = f"{speeds[who] / speeds['transformers']:.2f}" if who != "transformers" else ""
        utilisation = [100 * speeds[who] * each / arguments.peak / 1e12 for each in (full, causal)]
        print(f"| {name} | {arguments.sequence} | {who} | {speeds[who]:.0f} | {ratio} | {utilisation[0]:.1f} % | "
              f"{utilisation[1]:.1f} % | {rows[0]['memory'] / 2**30:.1f} | {rows[0]['losses'][-1]:.4f} |", flush=True)
    products = statistics.median(row["products"] for row in theirs)
    print(f"| {name} | {arguments.sequence} | products | {tokens / products:.0f} | | | | | |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=["SmolLM2-1.7B", "Llama-3.2-1B"],
                        help="folders in recipes/models, or tiny")
    parser.add_argument("--sequences", type=int, nargs="*", default=[1024, 4096, 8192])
    parser.add_argument("--tokens", type=int, default=8192, help="of a step")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="the peer")
    parser.add_argument("--peak", type=float, default=989, help="TFLOP/s")
    parser.add_argument("--limit", type=float, default=300, help="seconds that one process may take")
    parser.add_argument("--python", default=sys.executable, help="that has torch and transformers")
    parser.add_argument("--program", type=Path, default=ROOT / "build/release/meshtrain")
    parser.add_argument("--log", type=Path, default=Path("gpu_train.log"), help="what the processes say")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--sequence", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        return peer(arguments)
    print("| model | sequence | | tokens/s | ratio | utilisation, full | causal | peak memory, GiB | last loss |\n"
          "|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "config.json").write_text(json.dumps(TINY))
        for name in arguments.models:
            folder = Path(scratch) if name == "tiny" else ROOT / "recipes/models" / name
            for arguments.sequence in arguments.sequences:
                arguments.batch = max(1, arguments.tokens // arguments.sequence)
                compare(arguments, name, folder)


if __name__ == "__main__":
    main()
