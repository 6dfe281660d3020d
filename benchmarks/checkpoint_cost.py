#!/usr/bin/env python3
"""What asynchronous checkpoints cost a run, and how fast they are written and read beside the disk itself.

  tools/build && tools/quickstart && python3 benchmarks/checkpoint_cost.py

Two runs of benchmarks/checkpoints.yaml take turns, without checkpoints and with one every few steps, and a third goes on
from the last checkpoint on another mesh. What a save costs is the difference of their mean steps, times the steps from
one save to the next, as a part of a step; the first steps, which warm up, are left out. The disk's own rate is that of
files of the same sizes that as many processes write at once and make durable (fsync), and read with nothing in memory.
Numbers are medians over the repetitions, of which each has all of them.
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
WARMUP = 4  # steps


def train(arguments, folder, *words):
    command = [str(ROOT / "tools" / "ranks"), str(arguments.ranks), str(arguments.program), "train",
               str(ROOT / "benchmarks" / "checkpoints.yaml"), "--run-dir", str(folder), *words]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr}")
    return result.stdout + result.stderr


def mean_step(folder):
    with open(folder / "metrics.jsonl") as lines:
        seconds = [json.loads(line)["step_seconds"] for line in lines]
    return statistics.mean(seconds[WARMUP:])


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
    """Seconds to write files of `sizes` and to read them."""
    folder.mkdir()
    files = [str(folder / str(i)) for i in range(len(sizes))]
    writing = all_at_once(WRITE, *[[file, str(size)] for file, size in zip(files, sizes)])
    forget(folder)
    reading = all_at_once(READ, *[[file] for file in files])
    shutil.rmtree(folder)
    return writing, reading


def measure(arguments, scratch):
    """One repetition: seconds by name."""
    plain, saving = scratch / "plain", scratch / "saving"
    every = f"checkpoint.every={arguments.every}"
    train(arguments, plain)
    log = train(arguments, saving, "--set", every, "--set", "checkpoint.keep_last=1")
    found = {"plain": mean_step(plain), "saving": mean_step(saving)}
    found["save"] = seconds_of(r"checkpoint of step \d+ written", log)
    newest = sorted((saving / "checkpoints").iterdir())[-1]
    sizes = [path.stat().st_size for path in newest.glob("*.safetensors")]
    found["bytes"] = sum(sizes)
    steps = int(newest.name.removeprefix("step-"))
    forget(saving)
    log = train(arguments, saving, "--resume", "--mesh", f"tp={arguments.ranks}", "--set", f"train.steps={steps + 1}")
    found["load"] = seconds_of(r"resumed after step \d+, from \S+", log)
    found["disk_write"], found["disk_read"] = disk_rates(scratch / "disk", sizes)
    shutil.rmtree(plain)
    shutil.rmtree(saving)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--every", type=int, default=8, help="steps from one checkpoint to the next")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=ROOT / "build", help="folder on the disk to measure")
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "release" / "meshtrain")
    arguments = parser.parse_args()

    rounds = []
    for _ in range(arguments.repetitions):
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            rounds.append(measure(arguments, Path(scratch)))

    def median(value):
        return statistics.median(value(each) for each in rounds)

    def rate(name):
        return median(lambda each: each["bytes"] / each[name]) / 1e6

    cost = median(lambda each: (each["saving"] / each["plain"] - 1) * arguments.every)
    print(f"a step: {median(lambda each: each['plain']):.3f} s without checkpoints, "
          f"{median(lambda each: each['saving']):.3f} s with one every {arguments.every} steps")
    print(f"a save of {rounds[0]['bytes'] / 2**20:.0f} MiB costs {100 * cost:.1f} % of a step")
    for ours, own, verb in (("save", "disk_write", "written"), ("load", "disk_read", "read")):
        part = median(lambda each: each[own] / each[ours])
        print(f"{verb} at {rate(ours):.0f} MB/s, the disk itself at {rate(own):.0f} MB/s: {part:.2f} of it")


if __name__ == "__main__":
    main()
