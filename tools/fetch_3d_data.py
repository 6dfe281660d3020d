#!/usr/bin/env python3
"""Fetches what the documented configurations (recipes/hf_3d) train on: weights, and the token file.

  pip install huggingface_hub datasets transformers numpy
  python3 tools/fetch_3d_data.py                        # SmolLM2-1.7B: 3.4 GB of weights, about 9 MB of tokens
  python3 tools/fetch_3d_data.py --model Llama-3.2-1B   # the example's alternative
  python3 tools/fetch_3d_data.py --only tokens

Everything is fetched at a fixed revision, so that it stays the same: the one in REVISIONS below, or that of
--revision REPOSITORY=HASH, once for each repository. Without a revision nothing is downloaded.

Weights go to recipes/models/MODEL/, next to the config.json kept there, which must agree with the published one.
Tokens go to data/: records of 1025 ids, little-endian, in the order in which transformers' examples/3D_parallel.py
reads them. That example packs in 60 processes: each takes one contiguous part of the stories, joins each 1000 of them
and drops what does not fill a record, and the records are then shuffled with NumPy's generator. The same is done here
in one process, so that the file does not depend on the machine.
"""

import argparse
import json
import re
import sys
from itertools import chain
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SEQUENCE = 1024
RECORD = SEQUENCE + 1
PACKERS, ROWS_AT_ONCE, SHUFFLE_SEED = 60, 1000, 42
DATASET, SPLIT = "roneneldan/TinyStories", "train[:1%]"

MODELS = {  # name: where it is published, width of a token, token file
    "SmolLM2-1.7B": ("HuggingFaceTB/SmolLM2-1.7B", "<u2", "tinystories_1025.bin"),
    "Llama-3.2-1B": ("unsloth/Llama-3.2-1B", "<u4", "tinystories_1025_llama3.bin"),
}

# The commit of each repository that is downloaded, 40 hexadecimal digits: a branch changes. None: not chosen yet;
# https://huggingface.co/REPOSITORY/commits/main lists them, datasets/REPOSITORY for a data set.
REVISIONS = {
    "HuggingFaceTB/SmolLM2-1.7B": None,
    "unsloth/Llama-3.2-1B": None,
    "roneneldan/TinyStories": None,
}

# What a config.json says that changes the numbers; the rest may differ between versions of transformers.
SHAPE_KEYS = (
    "model_type hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size "
    "rms_norm_eps tie_word_embeddings hidden_act rope_theta rope_scaling"
).split()


def parts(rows, count):
    """`rows` cut into `count` contiguous parts, the first ones longer by one row where it does not divide."""
    size, longer = divmod(len(rows), count)
    first = 0
    for part in range(count):
        last = first + size + (part < longer)
        yield rows[first:last]
        first = last


def pack(stories):
    """Lists of token ids -> records [n, 1025] in the example's order."""
    records = []
    for part in parts(stories, min(PACKERS, len(stories))):
        for first in range(0, len(part), ROWS_AT_ONCE):
            tokens = np.fromiter(chain.from_iterable(part[first : first + ROWS_AT_ONCE]), np.int64)
            whole = len(tokens) // RECORD
            records.append(tokens[: whole * RECORD].reshape(whole, RECORD))
    records = np.concatenate(records)
    return records[np.random.default_rng(SHUFFLE_SEED).permutation(len(records))]


def tokenize(texts, tokenizer):
    """The token ids of each story, cut to 1024, nothing added but what the tokenizer adds by itself."""
    ids = []
    for first in range(0, len(texts), ROWS_AT_ONCE):
        ids += tokenizer(texts[first : first + ROWS_AT_ONCE], truncation=True, max_length=SEQUENCE)["input_ids"]
    return ids


def choose_revisions(asked, needed):
    """The revision of each repository of `needed`: as `asked`, a list of "REPOSITORY=HASH", or REVISIONS says."""
    revisions = dict(REVISIONS)
    for text in asked:
        repository, _, revision = text.partition("=")
        if repository not in REVISIONS:
            sys.exit(f"fetch_3d_data: --revision {text}: the repositories are {', '.join(REVISIONS)}")
        revisions[repository] = revision
    for repository in needed:
        revision = revisions[repository]
        if revision is None or not re.fullmatch("[0-9a-f]{40}", revision):
            found = "it has no revision" if revision is None else f"{revision!r} is not a commit (40 hexadecimal digits)"
            sys.exit(
                f"fetch_3d_data: {repository}: {found}; choose one of its commits on huggingface.co and set it in "
                f"REVISIONS or by --revision {repository}=HASH"
            )
    return revisions


def write_tokens(repository, revisions, width, path):
    from datasets import load_dataset
    from transformers import AutoTokenizer

    texts = load_dataset(DATASET, split=SPLIT, revision=revisions[DATASET])["text"]
    tokenizer = AutoTokenizer.from_pretrained(repository, revision=revisions[repository])
    records = pack(tokenize(list(texts), tokenizer))
    if records.max() > np.iinfo(width).max:
        sys.exit(f"fetch_3d_data: id {records.max()} does not fit {width}")
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".partial")
    records.astype(width).tofile(beside)
    beside.rename(path)
    print(f"{path}: {len(texts)} stories, {len(records)} records of {RECORD}, {path.stat().st_size:,} bytes")


def different_keys(kept, published):
    """The keys of SHAPE_KEYS on which two config.json files disagree, whichever transformers wrote them."""

    def value(config, key):
        rope = config.get("rope_parameters") or {}
        if key == "rope_theta":
            return float(config.get(key, rope.get(key, 10000.0)))
        if key == "rope_scaling":
            scaling = dict(config.get(key) or rope)
            scaling["rope_type"] = scaling.pop("rope_type", scaling.pop("type", "default"))
            scaling.pop("type", None)
            scaling.pop("rope_theta", None)
            return None if scaling["rope_type"] == "default" else scaling
        return config.get(key)

    return [key for key in SHAPE_KEYS if value(kept, key) != value(published, key)]


def fetch_weights(repository, revision, folder):
    from huggingface_hub import hf_hub_download, snapshot_download

    published = json.loads(Path(hf_hub_download(repository, "config.json", revision=revision)).read_text())
    different = different_keys(json.loads((folder / "config.json").read_text()), published)
    if different:
        sys.exit(f"fetch_3d_data: {folder}/config.json and the one published differ in {', '.join(different)}")
    weights = ["*.safetensors", "*.safetensors.index.json"]
    snapshot_download(repository, revision=revision, local_dir=folder, allow_patterns=weights)
    files = sorted(folder.glob("*.safetensors"))
    print(f"{folder}: {len(files)} weight file(s), {sum(file.stat().st_size for file in files):,} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="SmolLM2-1.7B")
    parser.add_argument("--only", choices=["weights", "tokens"], help="fetch only the weights or only the tokens")
    parser.add_argument(
        "--revision", action="append", default=[], metavar="REPOSITORY=HASH", help="replaces the revision in REVISIONS"
    )
    arguments = parser.parse_args()
    repository, width, tokens = MODELS[arguments.model]
    needed = [repository] if arguments.only == "weights" else [repository, DATASET]
    revisions = choose_revisions(arguments.revision, needed)
    if arguments.only != "tokens":
        fetch_weights(repository, revisions[repository], ROOT / "recipes" / "models" / arguments.model)
    if arguments.only != "weights":
        write_tokens(repository, revisions, width, ROOT / "data" / tokens)


if __name__ == "__main__":
    main()
