#!/usr/bin/env python3
"""Generates with this program and with transformers, in turn, and prints tokens a second side by side.

  pip install torch==2.11.0 transformers safetensors numpy
  tools/build release meshtrain && python3 benchmarks/generate_peers.py

The model is a Llama with random weights, fp32, GQA; a prompt of --prompt tokens, then --tokens greedy ones. Both run with
--threads threads, in turn, and numbers are medians over --repetitions. "bound" is what reading every weight once for each
token would allow at the bandwidth that a sum over a large tensor reaches on the same threads. The tokens must be the
same, else the exit status is 1.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "benchmarks"
PROGRAM = ROOT / "build/release/meshtrain"


def make_model(arguments):
    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=arguments.width,
        intermediate_size=4 * arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.width // 64,
        num_key_value_heads=max(1, arguments.width // 256),
        vocab_size=32000,
        max_position_embeddings=4096,
        initializer_range=0.1,  # far from ties
        tie_word_embeddings=False,
    )
    folder = WORK / f"generate_{arguments.width}_{arguments.layers}"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return folder, model


def ours(arguments, folder, prompt):
    words = [PROGRAM, "generate", folder, "--tokens", ",".join(map(str, prompt)), "--ignore-eos", "--json"]
    words += ["--max-tokens", arguments.tokens]
    environment = dict(os.environ, OMP_NUM_THREADS=str(arguments.threads))
    result = subprocess.run([str(w) for w in words], check=True, capture_output=True, text=True, env=environment)
    prefill, decode = re.findall(r"\(([\d.]+) tok/s\)", result.stderr)
    return json.loads(result.stdout)["tokens"], float(prefill), float(decode)


def theirs(arguments, model, prompt):
    """The prompt's time is that of one token; the rest is for the others."""
    ids = torch.tensor([prompt])

    def seconds(count):
        begin = time.perf_counter()
        out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
                             pad_token_id=0)
        return time.perf_counter() - begin, out[0, len(prompt):].tolist()

    first, _ = seconds(1)
    whole, tokens = seconds(arguments.tokens)
    return tokens, len(prompt) / first, (arguments.tokens - 1) / (whole - first)


def bandwidth():
    """Bytes a second."""
    values = torch.ones(64 << 20)
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        values.sum()
        times.append(time.perf_counter() - begin)
    return values.nbytes / statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder, model = make_model(arguments)
    weights = sum(p.nbytes for name, p in model.named_parameters() if "embed_tokens" not in name)
    prompt = torch.randint(3, 32000, (arguments.prompt,), generator=torch.Generator().manual_seed(2)).tolist()
    rows = {"meshtrain": [], "transformers": []}
    same = True
    with torch.no_grad():
        for _ in range(arguments.repetitions):
            a, b = ours(arguments, folder, prompt), theirs(arguments, model, prompt)
            same = same and a[0] == b[0]
            rows["meshtrain"].append(a[1:])
            rows["transformers"].append(b[1:])
    medians = {name: [statistics.median(column) for column in zip(*runs)] for name, runs in rows.items()}
    limit = bandwidth() / weights
    print(f"{weights / 2**20:.0f} MiB of weights a token, {arguments.threads} thread(s)")
    print(f"{'':14} {'prompt tok/s':>13} {'decode tok/s':>13} {'of bound':>9}")
    for name, (prefill, decode) in medians.items():
        print(f"{name:14} {prefill:13.1f} {decode:13.2f} {decode / limit:9.2f}")
    ratios = [a / b for a, b in zip(*medians.values())]
    print(f"{'ratio':14} {ratios[0]:13.2f} {ratios[1]:13.2f}")
    print(f"bound {limit:.1f} tok/s at {limit * weights / 1e9:.1f} GB/s; tokens are "
          f"{'the same' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
