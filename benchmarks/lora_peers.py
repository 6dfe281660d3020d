#!/usr/bin/env python3
"""Trains LoRA adapters with this program and with PEFT, in turn, and prints tokens per second side by side.

  pip install torch transformers peft safetensors numpy
  tools/build && python3 benchmarks/lora_peers.py

The base is a Llama of --width (512) with 8 layers and a vocabulary of 8,192, in fp32. A step has four sequences of 256 tokens,
AdamW and clipped gradients; one thread. "adapters" are of rank 16 on all linear layers; "frozen" has no adapters and trains
the norm before the first layer alone, so that the backward goes through all layers, as with adapters, without gradients of
weights. Both programs start from the same base and adapters and see the same tokens. Each repetition runs every contestant
once, one after the other. A contestant's number is the median over repetitions of (tokens of the steps after the warm-up) /
(their time). The losses of a row's contestants must agree step by step, else the exit status is 1.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BATCH, SEQUENCE, VOCABULARY, LAYERS, RANK, LEARNING_RATE = 4, 256, 8192, 8, 16, 3e-4
TRAINED = "model.layers.0.input_layernorm.weight"  # of "frozen"
FROZEN = ["*embed_tokens*", "*_proj.weight", "*post_attention_layernorm*", "model.norm*", "lm_head*",
          f"model.layers.[1-{LAYERS - 1}].input_layernorm*"]
LOSS_TOLERANCE = 1e-5


def write_inputs(folder, steps, width):
    """The base, the adapters' first values in a folder of PEFT, and the tokens."""
    import numpy as np
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=width, intermediate_size=43 * width // 16, num_hidden_layers=LAYERS, num_attention_heads=width // 64,
        num_key_value_heads=width // 64,
        vocab_size=VOCABULARY, max_position_embeddings=SEQUENCE, tie_word_embeddings=False))
    model.save_pretrained(folder / "base")
    config = LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
    get_peft_model(model, config).save_pretrained(folder / "adapters")
    ids = np.random.default_rng(0).exponential(VOCABULARY / 8, size=steps * BATCH * (SEQUENCE + 1)).astype(np.int64)
    (ids % VOCABULARY).astype("<u2").tofile(folder / "tokens.bin")


def train_peer(folder, mode, steps):
    """Prints losses and seconds of steps, as JSON. Runs in a process of its own."""
    import time

    import numpy as np
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    if mode == "adapters":
        model = PeftModel.from_pretrained(model, folder / "adapters", is_trainable=True)
    else:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name == TRAINED)
    trained = [parameter for parameter in model.train().parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.1, fused=True)
    ids = torch.from_numpy(np.fromfile(folder / "tokens.bin", "<u2").astype(np.int64)).view(steps, BATCH, SEQUENCE + 1)
    losses, seconds = [], []
    for step in range(steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        logits = model(input_ids=ids[step, :, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[step, :, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    print(json.dumps([losses, seconds]))


def run(command):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"lora_peers: a contestant failed:\n{result.stderr[-3000:]}")
    return result.stdout


def run_peer(folder, mode, steps, _):
    return json.loads(run([sys.executable, __file__, "--peer", mode, "--folder", folder, "--steps", steps]))


def run_ours(folder, mode, steps, arguments):
    settings = {"model.hf": folder / "base", "data.tokens": folder / "tokens.bin", "train.sequence_length": SEQUENCE,
                "train.global_batch": BATCH, "train.micro_batch": BATCH, "train.steps": steps, "train.precision": "fp32"}
    if mode == "adapters":
        settings["adapter"] = json.dumps({"from": str(folder / "adapters")})
    else:
        settings["train.freeze"] = json.dumps(FROZEN)
    with tempfile.TemporaryDirectory() as directory:
        command = [arguments.program, "train", ROOT / "benchmarks" / "peers.yaml", "--run-dir", Path(directory) / "run"]
        run(command + [word for key, value in settings.items() for word in ("--set", f"{key}={value}")])
        metrics = [json.loads(line) for line in (Path(directory) / "run" / "metrics.jsonl").read_text().splitlines()]
    return [step["loss"] for step in metrics], [step["step_seconds"] for step in metrics]


def race(folder, arguments):
    """Speeds of all repetitions, and losses, by mode and contestant."""
    everyone = {(mode, name): runner for mode in ("adapters", "frozen")
                for name, runner in (("peft" if mode == "adapters" else "transformers", run_peer), ("meshtrain", run_ours))}
    speeds, losses = {key: [] for key in everyone}, {}
    for repetition in range(arguments.repetitions):
        for key, runner in everyone.items():
            losses[key], seconds = runner(folder, key[0], arguments.steps, arguments)
            timed = seconds[arguments.warm_up:]
            speeds[key].append(BATCH * SEQUENCE * len(timed) / sum(timed))
            print(f"{repetition + 1}/{arguments.repetitions}  {' '.join(key):24}{speeds[key][-1]:9.1f} tokens/s",
                  file=sys.stderr, flush=True)
    return speeds, losses


def ratio(speeds, upper, lower):
    """Of medians, and the range of those of single repetitions."""
    each = [a / b for a, b in zip(speeds[upper], speeds[lower], strict=True)]
    return f"{statistics.median(speeds[upper]) / statistics.median(speeds[lower]):.2f} ({min(each):.2f}–{max(each):.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "release" / "meshtrain")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--width", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--peer", choices=["adapters", "frozen"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        return train_peer(arguments.folder, arguments.peer, arguments.steps)
    with tempfile.TemporaryDirectory() as directory:
        write_inputs(Path(directory), arguments.steps, arguments.width)
        speeds, losses = race(Path(directory), arguments)
    print("| | tokens/s | range | loss of the last step |\n|---|---|---|---|")
    for (mode, name), found in speeds.items():
        print(f"| {name}, {mode} | {statistics.median(found):.0f} | {min(found):.0f}–{max(found):.0f} | "
              f"{losses[mode, name][-1]:.5f} |")
    print("\nmeshtrain / PEFT with adapters:", ratio(speeds, ("adapters", "meshtrain"), ("adapters", "peft")))
    for name, base in (("peft", "transformers"), ("meshtrain", "meshtrain")):
        print(f"adapters / frozen, {name}:", ratio(speeds, ("adapters", name), ("frozen", base)))
    worst = 0
    for mode, peer in (("adapters", "peft"), ("frozen", "transformers")):
        pairs = zip(losses[mode, "meshtrain"], losses[mode, peer], strict=True)
        worst = max([worst] + [abs(ours / theirs - 1) for ours, theirs in pairs])
    print(f"Losses agree to {worst:.1e}.")
    return worst > LOSS_TOLERANCE


if __name__ == "__main__":
    sys.exit(main())
