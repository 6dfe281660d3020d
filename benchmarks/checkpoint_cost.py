#!/usr/bin/env python3
"""What asynchronous checkpoints cost a run, and how fast they are written and read beside the disk itself.

  tools/build && tools/quickstart && python3 benchmarks/checkpoint_cost.py

A run of benchmarks/checkpoints.yaml saves every few steps. What a save costs is what the steps of the first half of the
time to the next save take more than those of the second half, in which it has been written: the median over the saves,
as a part of a step. The machine's drift is slower than that.

Then, several times in turn: a run of one short step that is saved at its end, so that it waits for the disk; files of the
same sizes written at once by as many processes and made durable (fsync); a run that goes on from the checkpoint on
another mesh, and the files read, both with nothing in memory. Medians.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

def train(arguments, folder, *words):
    command = [str(ROOT / "tools" / "ranks"), str(arguments.ranks), str(arguments.program), "train",
               str(ROOT / "benchmarks" / "checkpoints.yaml"), "--run-dir", str(folder), *words]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr}")
    return result.stdout + result.stderr


def costs(folder, every):
    """Of each save: seconds more than without it, and the seconds of a step."""
    with open(folder / "metrics.jsonl") as lines:
        seconds = [json.loads(line)["step_seconds"] for line in lines]
    half = every // 2
    found = []
    for save in range(every, len(seconds) - every + 1, every):
        first, second = seconds[save : save + half], seconds[save + half : save + 2 * half]
        found.append((sum(first) - sum(second), statistics.mean(second)))
    return found


def seconds_of(pattern, text):
    """The last that the log says."""
    return [float(found) for found in re.findall(pattern + r" in ([\d.e+-]+) s", text)][-1]


WRITE = """
import os, sys
block = os.urandom(1 << 22)
with open(sys.argv[1], "wb", buffering=0) as file:
    left = int(sys.argv[2])
    while left > 0:
        left -= file.write(block[:min(left, len(block))])
    os.fsync(file.fileno())
"""
READ = """
import sys
buffer = bytearray(1 << 22)
with open(sys.argv[1], "rb", buffering=0) as file:
    while file.readinto(buffer):
        pass
"""


def forget(folder):
    """Out of memory with what is durable, so that reading it reads the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def all_at_once(script, *words):
    start = time.monotonic()
    running = [subprocess.Popen([sys.executable, "-c", script, *each]) for each in words]
    if any(process.wait() for process in running):
        sys.exit("the disk's own rate could not be measured")
    return time.monotonic() - start


def disk_rates(folder, sizes):
    """Seconds to write files of `sizes` and to read them: the better of two times, as memory that no process has used
    for long costs more than writing does."""
    files = [str(folder / str(i)) for i in range(len(sizes))]
    writing, reading = [], []
    for _ in range(2):
        folder.mkdir()
        writing.append(all_at_once(WRITE, *[[file, str(size)] for file, size in zip(files, sizes)]))
        forget(folder)
        reading.append(all_at_once(READ, *[[file] for file in files]))
        shutil.rmtree(folder)
    return min(writing), min(reading)


def measure_rates(arguments, scratch):
    """Bytes and seconds by name."""
    folder = scratch / "run"
    short = ["--set", "train.sequence_length=16", "--set", "train.global_batch=2", "--set", "train.micro_batch=1"]
    log = train(arguments, folder, *short, "--set", "train.steps=1", "--set", "checkpoint.every=1")
    found = {"save": seconds_of(r"checkpoint of step 1 written", log)}
    sizes = [path.stat().st_size for path in (folder / "checkpoints" / "step-00000001").glob("*.safetensors")]
    found["bytes"] = sum(sizes)
    forget(folder)
    log = train(arguments, folder, *short, "--resume", "--mesh", f"tp={arguments.ranks}", "--set", "train.steps=2")
    found["load"] = seconds_of(r"resumed after step 1, from \S+", log)
    found["disk_write"], found["disk_read"] = disk_rates(scratch / "disk", sizes)
    shutil.rmtree(folder)
    return found


def measure_costs(arguments, scratch):
    folder = scratch / "run"
    train(arguments, folder, "--set", f"train.steps={arguments.every * (arguments.saves + 1)}",
          "--set", f"checkpoint.every={arguments.every}", "--set", "checkpoint.keep_last=1")
    return costs(folder, arguments.every)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--every", type=int, default=4, help="steps from one checkpoint to the next")
    parser.add_argument("--saves", type=int, default=15)
    parser.add_argument("--repetitions", type=int, default=9, help="of the rates")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build", help="folder on the disk to measure")
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "release" / "meshtrain")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        saves = measure_costs(arguments, Path(scratch))
    parts = sorted(cost / step for cost, step in saves)
    quarter = len(parts) // 4
    print(f"a step: {statistics.median(step for _, step in saves):.3f} s; a save costs "
          f"{100 * statistics.median(parts):.1f} % of one (quartiles {100 * parts[quarter]:.1f} and "
          f"{100 * parts[-1 - quarter]:.1f} %, {len(parts)} saves)")

    rounds = []
    for _ in range(arguments.repetitions):
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            rounds.append(measure_rates(arguments, Path(scratch)))
    print(f"a checkpoint of {rounds[0]['bytes'] / 2**20:.0f} MiB, {arguments.ranks} ranks")
    for ours, own, verb in (("save", "disk_write", "written"), ("load", "disk_read", "read")):
        rates = {name: sorted(each["bytes"] / each[name] / 1e6 for each in rounds) for name in (ours, own)}
        part = statistics.median(each[own] / each[ours] for each in rounds)
        text = {name: f"{statistics.median(all):.0f} MB/s ({all[0]:.0f} to {all[-1]:.0f})" for name, all in rates.items()}
        print(f"{verb} at {text[ours]}, the disk itself at {text[own]}: {part:.2f} of it")


if __name__ == "__main__":
    main()
