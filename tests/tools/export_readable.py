#!/usr/bin/env python3
"""Proves by hand that transformers reads what `train.export` and `checkpoint export` write (the tests themselves need no
Python).

  pip install torch==2.11.0 transformers safetensors numpy
  python3 tests/tools/export_readable.py                            # every fixture model, on one rank
  python3 tests/tools/export_readable.py --ranks 8 --mesh dp=2,tp=2,cp=2 --sharding full_shard qwen3

Trains a fixture model for a few steps with this program and with transformers, on the same tokens in fp32. The folders
that the run exports, and those made of its checkpoint and of an import of that, must be the same and load without a missing, unexpected or mismatched tensor, state the shape of the model it came from, and give
the logits of the model that transformers trained.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
SEQUENCE, BATCH, STEPS = 16, 4, 5
TOLERANCE = 1e-4  # of the largest logit
RATE, DECAY = 1e-3, 0.1

# Keys that may differ for the same model.
FREE_KEYS = set(
    "_name_or_path transformers_version architectures dtype bos_token_id eos_token_id pad_token_id use_cache".split()
)


def recipe(arguments, model, tokens, export):
    return {
        "model": {"hf": str(model), "init": "pretrained"},
        "data": {"tokens": str(tokens), "dtype": "uint16", "layout": "records"},
        "train": {
            "sequence_length": SEQUENCE,
            "global_batch": BATCH,
            "steps": STEPS,
            "precision": "fp32",
            "clip_norm": 1.0,
            "export": str(export),
        },
        "optimizer": {"name": "adamw", "learning_rate": RATE, "weight_decay": DECAY, "decay": "all"},
        "checkpoint": {"every": STEPS},
        "parallel": {"fsdp": {"mode": arguments.sharding}},
        "device": "cpu",
    }


def run(*command):
    result = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=os.environ)
    if result.returncode:
        sys.exit(f"export_readable: meshtrain ended with {result.returncode}:\n{result.stderr[-2000:]}")


def files(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def train_ours(arguments, model, tokens, folder):
    """The exported folder."""
    file = folder / "recipe.yaml"
    file.write_text(json.dumps(recipe(arguments, model, folder / "tokens.bin", folder / "export"), indent=1))
    tokens.to(torch.uint16).numpy().tofile(folder / "tokens.bin")
    run(ROOT / "tools" / "ranks", arguments.ranks, arguments.program, "train", file, "--mesh", arguments.mesh,
        "--run-dir", folder / "run")
    checkpoint = [arguments.program, "checkpoint"]
    run(*checkpoint, "export", folder / "run", folder / "converted")
    run(*checkpoint, "import", folder / "converted", file, "--run-dir", folder / "next")
    run(*checkpoint, "export", folder / "next", folder / "again")
    assert files(folder / "export") == files(folder / "converted") == files(folder / "again")
    return folder / "again"


def train_theirs(model, tokens):
    model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    for batch in tokens.split(BATCH):
        optimizer.zero_grad()
        logits = model(input_ids=batch[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def load_strictly(folder):
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    complaints = {key: value for key, value in info.items() if value}
    assert not complaints, f"loading {folder} complains of {complaints}"
    return model.eval()


def settings(folder):
    config = AutoConfig.from_pretrained(folder).to_dict()
    if config.get("head_dim") is None:
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    return config


def different_settings(original, exported):
    first, second = settings(original), settings(exported)
    keys = (first.keys() | second.keys()) - FREE_KEYS
    return {key: (first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)}


def check(arguments, name):
    model = FIXTURES / name
    tokens = torch.randint(0, 97, (STEPS * BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(7))
    with tempfile.TemporaryDirectory() as folder:
        export = train_ours(arguments, model, tokens, Path(folder))
        exported = load_strictly(export)
        different = different_settings(model, export)
    expected = train_theirs(model, tokens)
    untrained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        ours, theirs, before = (m(input_ids=tokens[:BATCH, :-1]).logits for m in (exported, expected, untrained))
    difference = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    moved = ((before - theirs).abs().max() / theirs.abs().max()).item()
    good = difference <= TOLERANCE < moved and not different
    print(f"{name:15} logits differ by {difference:.1e} (training moved them by {moved:.1e})"
          f"{f', config.json: {different}' if different else ''}  {'ok' if good else 'WRONG'}", flush=True)
    return good


def main():
    models = sorted(folder.parent.name for folder in FIXTURES.glob("*/config.json"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(models)} (default: all)")
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "release" / "meshtrain")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--mesh", default="dp=1")
    parser.add_argument("--sharding", default="auto")
    arguments = parser.parse_args()
    unknown = set(arguments.models) - set(models)
    if unknown:
        parser.error(f"no fixture is called {', '.join(unknown)}")
    torch.set_num_threads(1)
    return not all([check(arguments, name) for name in arguments.models or models])


if __name__ == "__main__":
    sys.exit(main())
