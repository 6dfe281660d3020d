"""Runs programs on the GPU that computes nothing and records their calls."""

import os
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = Path(os.environ.get("MESHTRAIN_BUILD", ROOT / "build/release"))
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
SECONDS = 600  # the limit for one program


@dataclass
class Record:
    """The result of a program, and the calls of all its ranks."""
    status: int
    output: str
    counts: Counter = field(default_factory=Counter)  # launches, products, waits, allocations
    refused: list = field(default_factory=list)  # calls that CUDA would not accept


def read_log(record, lines):
    """Adds the events of a process. A copy that waits, and LibTorch's second wait after it, count as one."""
    counts, before = record.counts, ""
    names = {"launch": "launches", "product": "products", "graph": "attention", "synchronise": "waits"}
    for line in lines:
        what, _, detail = line.partition(" ")
        if what == "refused":
            record.refused.append(detail)
        elif what == "allocate":
            counts[detail.split()[0] + " memory"] += 1
        elif (before, line) != ("synchronise cudaMemcpyAsync", "synchronise cudaStreamSynchronize"):
            counts[names[what]] += 1
        counts["slow products"] += what == "product" and "not in words" in detail
        before = line


def run(words, ranks=1, gpus=1):
    """Runs a program on a number of ranks and GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        variables = dict(os.environ, MESHTRAIN_BUILD=str(BUILD), MESHTRAIN_NULL_GPU_LOG=folder,
                         MESHTRAIN_EMULATED_GPUS=str(gpus), MESHTRAIN_SOURCE=str(ROOT))
        variables.pop("CUDA_VISIBLE_DEVICES", None)
        command = [ROOT / "tests/null_gpu/run", ROOT / "tools/ranks", ranks, *words]
        result = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, errors="replace", env=variables, timeout=SECONDS)
        record = Record(result.returncode, COLOURS.sub("", result.stdout))
        for file in Path(folder).glob("*.log"):
            read_log(record, file.read_text(errors="replace").splitlines())
    return record


def attention_of(output):
    """Returns the kernels that computed attention, as meshtrain names them."""
    return ", ".join(sorted(set(re.findall(r"attention by (\w+):", output))))
