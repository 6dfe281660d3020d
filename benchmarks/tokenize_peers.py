#!/usr/bin/env python3
"""Tokenises text with this program and with Hugging Face's `tokenizers` package, in turn, and prints MB/s side by side.

  pip install tokenizers==0.23.3
  tools/build release tokenize_benchmark && python3 benchmarks/tokenize_peers.py

The text is Python's standard library and installed packages, each .py, .md, .rst and .txt file a document, up to
--megabytes. The tokenizers have the pre-tokenizers and normalizers of four known families and a vocabulary of 32,000,
trained on a part of that text. The package is asked in the faster of its ways, encode_batch_fast() without offsets. Each repetition runs both,
one after the other; numbers are medians. Both have to give as many tokens, else the exit status is 1.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "benchmarks"
PROGRAM = ROOT / "build/release/benchmarks/tokenize_benchmark"


def text_files(megabytes):
    left, files = megabytes * 1_000_000, []
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix not in (".py", ".md", ".rst", ".txt") or not path.is_file() or path.is_symlink():
                continue
            size = path.stat().st_size
            if 0 < size <= left:
                files.append(path)
                left -= size
    return files


def train(name, files):
    sys.path.insert(0, str(ROOT / "tests/tokenizer/fixtures"))
    from generate import SETUPS
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    normalizer, pre_tokenizer, processor, added, _, _, options = SETUPS[name]
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator((path.read_text(errors="replace") for path in files[::4]), trainers.BpeTrainer(
        vocab_size=32_000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer.add_tokens(added)
    tokenizer.post_processor = processor(tokenizer.token_to_id)
    document = json.loads(tokenizer.to_str())
    document["model"].update(options)
    path = WORK / f"tokenizer_{name}.json"
    path.write_text(json.dumps(document))
    return path


def package(arguments):
    """In a process of its own, whose number of threads is set by its environment."""
    from tokenizers import Tokenizer
    texts = [Path(line).read_bytes().decode(errors="replace")
             for line in Path(arguments.list).read_text().splitlines()]
    tokenizer = Tokenizer.from_file(arguments.package)
    begin = time.perf_counter()
    encodings = tokenizer.encode_batch_fast(texts)
    seconds = time.perf_counter() - begin
    print(f"{seconds:.4f} {len(texts)} 0 {sum(len(encoding) for encoding in encodings)}")


def run(words, threads=1):
    environment = dict(os.environ, RAYON_NUM_THREADS=str(threads), TOKENIZERS_PARALLELISM="true")
    output = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True, env=environment)
    seconds, documents, size, tokens = output.stdout.split()
    return float(seconds), int(size), int(tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--package", help=argparse.SUPPRESS)
    parser.add_argument("--list", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.package:
        return package(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    files = text_files(arguments.megabytes)
    listing = WORK / "tokenize_files.txt"
    listing.write_text("".join(f"{path}\n" for path in files))
    print("| tokenizer | threads | tokenizers, MB/s | meshtrain, MB/s | ratio | bytes a token |\n|---|---|---|---|---|---|")
    for name in ("gpt2", "llama3", "smollm2", "qwen"):
        tokenizer = train(name, files)
        for threads in arguments.threads:
            seconds = {"package": [], "ours": []}
            for _ in range(arguments.repetitions):
                theirs = run([sys.executable, __file__, "--package", tokenizer, "--list", listing], threads)
                ours = run([PROGRAM, tokenizer, listing, threads])
                if ours[2] != theirs[2]:
                    sys.exit(f"{name}: {ours[2]} tokens here, {theirs[2]} there")
                seconds["package"].append(theirs[0])
                seconds["ours"].append(ours[0])
            rate = {key: ours[1] / 1e6 / statistics.median(values) for key, values in seconds.items()}
            print(f"| {name} | {threads} | {rate['package']:.1f} | {rate['ours']:.1f} | {rate['ours'] / rate['package']:.1f} "
                  f"| {ours[1] / ours[2]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
