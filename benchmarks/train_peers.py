#!/usr/bin/env python3
"""Trains models with this program and with PyTorch, in turn, and prints tokens per second side by side.

  pip install torch==2.11.0 transformers safetensors numpy
  tools/build && python3 benchmarks/train_peers.py

The models are Llamas of width 512, AdamW, gradients clipped to norm 1. There are five tables: "training", two sequences
a step and 8 layers; "context", one long sequence a step and 4 layers; "sharding", four sequences a step and 8 layers;
"pipeline", eight sequences a step, one at a time, and 8 layers; and "meshes", this program alone on one to eight ranks,
eight short sequences a step and 4 layers. --wide makes the model 1,024 wide with a vocabulary of 16,384. Everyone in a
table starts from the same weights, sees the same sequences in the same steps, and has --threads threads a process. In
bf16_mixed peers compute under autocast, FSDP1 and FSDP2 with their policy of bf16; in bf16 everything is bf16. Each
repetition runs every contestant once, one after the other, so that a machine that slows down slows all of them. A
contestant's number is the median over repetitions of (tokens of the steps after the warm-up) / (their time). Peak
memory is the most that its processes were seen with together, five times a second, divided by their number: pages that
several share count once (PSS). Counting them takes time, so memory has a first round of its own, of a few steps whose
speed does not count. The losses of all in a table must agree step by step, else the exit status is 1.

--before PROGRAM is for those who change this program: each of its rows has a second one of another build of it, such as
build/release/meshtrain of a clone of an older commit, by which it is divided.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "benchmarks"
LEARNING_RATE, SAMPLES = 3e-4, 512
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16_mixed": 1e-2, "bf16": 2e-2}
MEMORY_STEPS = 3  # the optimizer's state is there from the second on


@dataclass
class Contestant:
    name: str
    ranks: int
    mode: str  # a mode of peer.py, or a mesh
    against: str = ""  # whom its speed is divided by
    at_once: int = 0  # sequences in a micro-batch; 0: all of a rank
    stages: int = 1  # on each rank of a pipeline
    compile: bool = False
    before: bool = False  # runs with --before's program
    speeds: list = field(default_factory=list)
    memory: float = 0
    losses: list = field(default_factory=list)

    @property
    def ours(self):
        return "=" in self.mode


@dataclass
class Table:
    name: str  # also that of the folder with its model and tokens
    layers: int
    sequence: int
    batch: int  # sequences a step, over all ranks
    everyone: list
    wide: bool
    flops: float = 0  # of a token, as docs/metrics.md counts them

    @property
    def folder(self):
        return WORK / (self.name + "-wide" * self.wide)

    @property
    def vocabulary(self):
        return 16384 if self.wide else 4096


def tables(arguments):
    """Those that are asked for, with the contestants that are."""
    training = [
        Contestant("transformers", 1, "single"),
        Contestant("transformers + DDP", 2, "ddp"),
        Contestant("transformers + parallelize_module", 2, "tp"),
        Contestant("transformers + parallelize_module, sequence parallel", 2, "tp_sp"),
        Contestant("transformers + all-gather attention + DDP, cp=2", 2, "cp"),
        Contestant("meshtrain", 1, "dp=1", against="single"),
        Contestant("meshtrain dp=2", 2, "dp=2 no_shard", against="ddp"),
        Contestant("meshtrain tp=2", 2, "tp=2", against="tp tp_sp"),
        Contestant("meshtrain cp=2", 2, "cp=2", against="cp"),
    ]
    context = [
        Contestant("transformers", 1, "single"),
        Contestant("transformers + all-gather attention + DDP, cp=2", 2, "cp"),
        Contestant("transformers + all-gather attention + DDP, cp=4", 4, "cp"),
        Contestant("meshtrain", 1, "dp=1", against="single"),
        Contestant("meshtrain cp=2", 2, "cp=2", against="cp"),
        Contestant("meshtrain cp=4", 4, "cp=4", against="cp"),
    ]
    sharding = [
        Contestant("transformers + DDP", 2, "ddp"),
        Contestant("transformers + FSDP1", 2, "fsdp1"),
        Contestant("transformers + FSDP2", 2, "fsdp2"),
        Contestant("transformers + FSDP2 x TP", 4, "fsdp2_tp"),
        Contestant("transformers + HSDP (FSDP2)", 4, "hsdp"),
        Contestant("meshtrain no_shard dp=2", 2, "dp=2 no_shard", against="ddp"),
        Contestant("meshtrain shard_grad_op dp=2", 2, "dp=2 shard_grad_op", against="fsdp1 fsdp2"),
        Contestant("meshtrain full_shard dp=2", 2, "dp=2 full_shard", against="fsdp1 fsdp2"),
        Contestant("meshtrain full_shard dp=2,tp=2", 4, "dp=2,tp=2 full_shard", against="fsdp2_tp"),
        Contestant("meshtrain hybrid_shard dp=4", 4, "dp=4 hybrid_shard", against="hsdp"),
    ]
    meshes = [
        Contestant(f"meshtrain {mesh}", ranks, mesh)
        for mesh, ranks in {"dp=1": 1, "dp=2": 2, "tp=2": 2, "cp=2": 2, "dp=4": 4, "tp=4": 4, "cp=4": 4, "dp=2,tp=2": 4,
                            "dp=2,cp=2": 4, "cp=2,tp=2": 4, "dp=8": 8, "tp=8": 8, "dp=2,cp=2,tp=2": 8}.items()
    ]
    pipeline = [
        Contestant("transformers + DDP, accumulation", 2, "ddp", at_once=1),
        Contestant("transformers + torch.distributed.pipelining, 1F1B", 2, "pp", at_once=1),
        Contestant("meshtrain dp=2, accumulation", 2, "dp=2 no_shard", against="ddp", at_once=1),
        Contestant("meshtrain pp=2, 1F1B", 2, "pp=2", against="pp", at_once=1),
        Contestant("meshtrain pp=2, interleaved, 2 stages a rank", 2, "pp=2", against="pp", at_once=1, stages=2),
    ]
    if arguments.compile:
        training.append(Contestant("transformers, torch.compile", 1, "single", compile=True))
    everything = [
        Table("training", 8, 512, 2, training, arguments.wide),
        Table("context", 4, 2048, 1, context, arguments.wide),
        Table("sharding", 8, 512, 4, sharding, arguments.wide),
        Table("pipeline", 8, 512, 8, pipeline, arguments.wide),
        Table("meshes", 4, 256, 8, meshes, arguments.wide),
    ]
    for table in everything:
        if arguments.table not in (None, table.name):
            table.everyone = []
        table.everyone = [c for c in table.everyone if re.search(arguments.only, f"{c.name} {c.mode}")]
        if arguments.before:
            table.everyone = [other for c in table.everyone if c.ours
                              for other in (Contestant(f"{c.name}, before", c.ranks, c.mode, before=True), c)]
    return [table for table in everything if table.everyone]


# ---- what everyone trains


def write_model(table):
    """A randomly initialised model and its tokens; kept between calls."""
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    table.folder.mkdir(parents=True, exist_ok=True)
    if not (table.folder / "model" / "model.safetensors").exists():
        torch.manual_seed(0)
        config = LlamaConfig(
            hidden_size=1024 if table.wide else 512,
            intermediate_size=2752 if table.wide else 1376,
            num_hidden_layers=table.layers,
            num_attention_heads=16 if table.wide else 8,
            num_key_value_heads=16 if table.wide else 8,
            vocab_size=table.vocabulary,
            max_position_embeddings=table.sequence,
            tie_word_embeddings=False,
        )
        LlamaForCausalLM(config).save_pretrained(table.folder / "model")
    # Skewed ids, so that there is something to learn.
    ids = np.random.default_rng(0).exponential(table.vocabulary / 8, size=SAMPLES * (table.sequence + 1)).astype(np.int64)
    (ids % table.vocabulary).astype("<u2").tofile(table.folder / "tokens.bin")


# ---- runs


def family(pid):
    """The process and all that it started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid] + [one for child in children for one in family(int(child))]


def proportional_bytes(pid):
    """Of its memory, where several processes share a page its part of it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


class ContestantFailed(Exception):
    """With the end of what it wrote."""


def finish(processes, log, watched):
    """Waits for all; the most memory, in bytes, that they and those they started were seen with together, if watched."""
    running, peak = {process.pid: process for process in processes}, 0
    while running:
        if watched:
            peak = max(peak, sum(proportional_bytes(pid) for first in running for pid in family(first)))
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.2)
            continue
        running.pop(pid).returncode = os.waitstatus_to_exitcode(status)
        if status != 0:
            for process in running.values():
                process.kill()
                process.wait()
            raise ContestantFailed(f"train_peers: a contestant failed:\n{log.read_text()[-3000:]}")
    return peak


def run_peer(contestant, table, arguments, folder, steps, watched):
    command = [sys.executable, ROOT / "benchmarks" / "peer.py", "--mode", contestant.mode]
    command += ["--model", table.folder / "model", "--tokens", table.folder / "tokens.bin"]
    command += ["--sequence", table.sequence, "--batch", table.batch]
    command += ["--steps", steps, "--learning-rate", LEARNING_RATE]
    command += ["--precision", arguments.precision, "--threads", arguments.threads]
    command += ["--at-once", contestant.at_once] if contestant.at_once else []
    command += ["--compile"] if contestant.compile else []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = dict(WORLD_SIZE=str(contestant.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    world["OMP_NUM_THREADS"] = str(arguments.threads)
    with open(folder / "log", "w") as log, open(folder / "result.json", "w") as output:
        processes = []
        for rank in range(contestant.ranks):
            environment = os.environ | world | {"RANK": str(rank)}
            processes.append(subprocess.Popen([str(c) for c in command], env=environment, stdout=output, stderr=log))
        memory = finish(processes, folder / "log", watched)
    result = json.loads((folder / "result.json").read_text())
    return result["losses"], result["seconds"], memory


def run_ours(contestant, table, arguments, folder, steps, watched):
    mesh, _, sharding = contestant.mode.partition(" ")
    dp = int(dict(axis.split("=") for axis in mesh.split(",")).get("dp", 1))
    program = arguments.before if contestant.before else arguments.program
    command = [ROOT / "tools" / "ranks", contestant.ranks, program, "train"]
    command += [ROOT / "benchmarks" / "peers.yaml", "--mesh", mesh, "--run-dir", folder / "run"]
    settings = {
        "model.hf": table.folder / "model",
        "data.tokens": table.folder / "tokens.bin",
        "train.sequence_length": table.sequence,
        "train.global_batch": table.batch,
        "train.micro_batch": contestant.at_once or table.batch // dp,
        "train.steps": steps,
        "train.precision": arguments.precision,
    }
    if sharding:
        settings["parallel.fsdp.mode"] = sharding
    if contestant.stages > 1:
        settings["parallel.pipeline.stages_per_rank"] = contestant.stages
    if sharding == "hybrid_shard":
        settings["parallel.fsdp.shard_size"] = 2
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    with open(folder / "log", "w") as log:
        environment = os.environ | {"OMP_NUM_THREADS": str(arguments.threads)}
        process = subprocess.Popen([str(c) for c in command], env=environment, stdout=log, stderr=log)
        memory = finish([process], folder / "log", watched)
    steps = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    table.flops = steps[-1]["flops_per_rank"] * contestant.ranks / steps[-1]["tokens_per_second"]
    return [s["loss"] for s in steps], [s["step_seconds"] for s in steps], memory


def run_again_once(run):
    """`run`, and once more if it fails: processes of PyTorch crash at exit at times."""

    def run_twice(*arguments):
        try:
            return run(*arguments)
        except ContestantFailed as failure:
            print(f"{failure}\nonce more", file=sys.stderr, flush=True)
            return run(*arguments)

    return run_twice


def race(table, arguments, folder):
    for repetition in range(arguments.repetitions + 1):
        watched = repetition == 0
        steps = MEMORY_STEPS if watched else arguments.steps
        for number, contestant in enumerate(table.everyone):
            here = folder / f"{repetition}-{number}"
            here.mkdir()
            run = run_ours if contestant.ours else run_again_once(run_peer)
            losses, seconds, memory = run(contestant, table, arguments, here, steps, watched)
            if watched:
                contestant.memory = memory / contestant.ranks
                found = f"{contestant.memory / 2**20:9.1f} MiB a process"
            else:
                timed = seconds[arguments.warm_up :]
                contestant.speeds.append(table.batch * table.sequence * len(timed) / sum(timed))
                contestant.losses = losses
                found = f"{contestant.speeds[-1]:9.1f} tokens/s  loss {losses[0]:.6f} -> {losses[-1]:.6f}"
            print(f"{repetition}/{arguments.repetitions}  {contestant.name:52}{found}", file=sys.stderr, flush=True)


# ---- the table


def median(contestant):
    return statistics.median(contestant.speeds)


def divisors(contestant, everyone):
    """The peers that split the work the same way, or the other build."""
    if any(c.before for c in everyone):
        return [c for c in everyone if c.before and not contestant.before and c.mode == contestant.mode]
    return [p for p in everyone if not p.ours and not p.compile and p.ranks == contestant.ranks
            and p.mode in contestant.against.split()]


def rows(everyone):
    """A row each; ours divided by the fastest of its divisors."""
    lines = ["| | processes | tokens/s | range | ratio | peak memory of a process | loss of the last step |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for contestant in everyone:
        peers = divisors(contestant, everyone)
        ratio = f"{median(contestant) / max(map(median, peers)):.2f}" if peers else ""
        speeds, memory = contestant.speeds, contestant.memory / 2**20
        lines.append(f"| {contestant.name} | {contestant.ranks} | {median(contestant):.0f} | {min(speeds):.0f}–"
                     f"{max(speeds):.0f} | {ratio} | {memory:.0f} MiB | {contestant.losses[-1]:.5f} |")
    return "\n".join(lines)


def disagreement(everyone):
    """The largest relative difference of a step's loss from the first contestant's."""
    first = everyone[0].losses
    return max(abs(loss / expected - 1) for c in everyone for loss, expected in zip(c.losses, first, strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "release" / "meshtrain")
    parser.add_argument("--before", type=Path, metavar="PROGRAM", help="another build of it, in turn with it")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=2, help="first steps that are not timed (default: 2)")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--table", choices=["training", "context", "sharding", "pipeline", "meshes"], help="this one alone")
    parser.add_argument("--only", default="", metavar="REGEX", help="contestants whose name and mode match it")
    parser.add_argument("--compile", action="store_true", help="transformers under torch.compile as well")
    parser.add_argument("--precision", choices=list(LOSS_TOLERANCE), default="fp32")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--wide", action="store_true", help="a model of width 1,024 with a vocabulary of 16,384")
    arguments = parser.parse_args()
    if not 0 <= arguments.warm_up < arguments.steps <= SAMPLES // 2:
        parser.error(f"warm-up < steps <= {SAMPLES // 2}")
    asked = tables(arguments)
    if not asked:
        parser.error(f"no contestant matches {arguments.only!r}")
    agree = True
    for table in asked:
        write_model(table)
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            try:
                race(table, arguments, Path(folder))
            except ContestantFailed as failure:
                sys.exit(str(failure))
        difference = disagreement(table.everyone)
        agree = agree and difference <= LOSS_TOLERANCE[arguments.precision]
        print(rows(table.everyone))
        print(f"\nLosses agree to {difference:.1e}; {arguments.repetitions} repetitions of {arguments.steps} steps, "
              f"{arguments.warm_up} of them warm-up, {table.batch} x {table.sequence} tokens a step; "
              f"{table.flops / 1e6:.0f} MFLOP a token.\n", flush=True)
    return not agree


if __name__ == "__main__":
    sys.exit(main())
