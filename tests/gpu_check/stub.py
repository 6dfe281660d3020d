#!/usr/bin/env python3
"""Prints the output of meshtrain, emulated_gpu_tests or kernels_benchmark, whichever name it has. GPU_CHECK_STUB_FAULT
names its fault."""

import json
import os
import sys
from pathlib import Path

FAULT = os.environ.get("GPU_CHECK_STUB_FAULT", "")
TESTS = """[==========] Running 3 tests from 1 test suite.
[       OK ] AdamWOnGpu.IsAsOnTheHost (7 ms)
[==========] 3 tests from 1 test suite ran. (20 ms total)
[  PASSED  ] 3 tests.
"""
SKIPPED = """[==========] Running 3 tests from 1 test suite.
[  SKIPPED ] AdamWOnGpu.IsAsOnTheHost (0 ms)
[==========] 3 tests from 1 test suite ran. (20 ms total)
[  PASSED  ] 2 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] AdamWOnGpu.IsAsOnTheHost
"""
NONE = """[==========] Running 0 tests from 0 test suites.
[==========] 0 tests from 0 test suites ran. (0 ms total)
[  PASSED  ] 0 tests.
"""
RATES = """NVIDIA H200 (sm_90), 139.7 GiB
copy on the device: 4000 GB/s

| kernel | dtype | us | GB/s | of the copy |
|---|---|---|---|---|
| swiglu | BFloat16 | 230.1 | 3500 | 88 % |
| squared norm | Float | 160.0 | 3200 | 80 % |

| attention, causal | dtype | forward TFLOP/s | backward TFLOP/s |
|---|---|---|---|
| cudnn 8 x 4096, heads 32 / 32 of 64 | BFloat16 | 500 | 400 |
"""
EQUAL = "                 2 ranks   1 rank   difference\n" \
        "equal: loss, gradient norm, 20 gradients and 20 weight updates are within their bounds\n"
DIFFERENT = "DIFFERENT: gradient norm; 20 of 20 gradients; 20 of 20 weight updates\n"


def google_test():
    if FAULT == "failed test":
        print("[  FAILED  ] AdamWOnGpu.IsAsOnTheHost (7 ms)")
        return 1
    print({"skipped test": SKIPPED, "no test": NONE}.get(FAULT, TESTS))
    return 3 if FAULT == "status" else 0


def rates(fault):
    return {"no rate": RATES.replace("3500", "inf"), "zero": RATES.replace("| 500 | 400 |", "| 0 | 0 |"),
            "no table": "", "one table": RATES.split("\n\n| attention")[0]}.get(fault, RATES)


def kernels():
    print(rates(FAULT))
    return 2 if FAULT == "no GPU" else 0


def attention():
    kernel = "flash" if FAULT == "flash" else "cudnn"
    print(f"attention by {kernel}: 1,024 queries, 1,024 keys, causal, 4 heads of 64 over 4 KV heads, BFloat16")
    if FAULT != "no block":
        print(f"attention by {kernel}: 1,024 queries, 2,048 keys, 4 heads of 64 over 4 KV heads, BFloat16")


def verify(words):
    if FAULT == "silent":
        return 0
    wrong = ("--inject" in words) != (FAULT in ("different", "blind"))
    print(DIFFERENT if wrong else EQUAL)
    attention()
    return 1 if wrong else 0


def settings_of(words):
    recipe = Path(words[1]).read_text()
    settings = dict(word.split("=", 1) for word in words if "=" in word and "." in word or word.startswith("device="))
    if "train.steps" not in settings:  # a recipe of gpu_train.py
        settings["train.steps"] = recipe.split("steps: ")[1].split(",")[0]
        settings["train.cuda_graph"] = "true" if "cuda_graph: true" in recipe else "false"
        settings["device"] = "cuda"
    return settings


def train(words):
    settings = settings_of(words)
    run_dir = Path(words[words.index("--run-dir") + 1])
    run_dir.mkdir(parents=True)
    graph, cuda = settings.get("train.cuda_graph") == "true", settings["device"] == "cuda"
    factor = 1.0
    if run_dir.name == "graph_false_1":
        factor += 1e-5  # runs without a graph are not the same every time
    if graph:
        factor += {"graph": 1e-4, "small graph": 3e-5}.get(FAULT, 0)
        if FAULT == "other graph":
            factor = 1.1
        print("train.cuda_graph: " + ("no graph, because CPUs have none" if FAULT == "no graph" else
                                      "steps are recorded as one graph"))
    if FAULT == f"other with {run_dir.name}":
        factor += 1e-4
    if FAULT == "other than the CPU" and cuda:
        factor = 1.01
    count = int(settings["train.steps"])
    with open(run_dir / "metrics.jsonl", "w") as file:
        for step in range(1, count + (0 if FAULT == "a step short" else 1)):
            loss = float("nan") if FAULT == "no number" and step == 3 else factor * (6 - 0.1 * step)
            peak = (100 << 20) + (step if FAULT == "grows" else 0)
            memory = {} if FAULT == "no memory" else {"device_allocated_peak_bytes": peak, "device_reserved_peak_bytes": peak}
            file.write(json.dumps({"step": step, "loss": loss, "grad_norm": factor, "step_seconds": 0.1,
                                   "memory": memory}) + "\n")
    if cuda:
        attention()
    print("GPU memory: tensors took 100 MiB at most")
    if FAULT == "train ends":
        print("meshtrain: step 3: out of memory", file=sys.stderr)
        return 1
    return 0


def main():
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    if "LD_LIBRARY_PATH" in os.environ or "LD_PRELOAD" in os.environ:
        return 9  # no plain environment
    if name == "kernels_benchmark":
        return kernels()
    if name == "emulated_gpu_tests":
        return google_test()
    return verify(words) if words[0] == "verify" else train(words)


if __name__ == "__main__":
    sys.exit(main())
