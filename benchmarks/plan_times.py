#!/usr/bin/env python3
"""Compares the step times that `meshtrain plan` predicts with those of runs, on this machine, in one go.

  python3 benchmarks/plan_times.py [--ranks 2] [--steps 12] [--set KEY=VALUE]... RECIPE...

Calibrates for each recipe under mpirun, then trains a few steps on every possible mesh. A run's time is the median of its
steps but the first three."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

here = pathlib.Path(__file__).resolve().parent.parent
meshtrain = here / "build/release/meshtrain"


def run(ranks, *words):
    command = [here / "tools/ranks", str(ranks), meshtrain, *words]
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def measured_seconds(recipe, ranks, mesh, sets, steps, folder):
    run_dir = folder / ("run-" + mesh.replace(",", "-").replace("=", ""))
    subprocess.run(["rm", "-rf", run_dir], check=True)
    run(ranks, "train", recipe, "--mesh", mesh, "--run-dir", run_dir, *sets, "--set", f"train.steps={steps}")
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(line["step_seconds"] for line in lines[3:])


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("recipes", nargs="+")
    arguments.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    arguments.add_argument("--steps", type=int, default=12)
    arguments.add_argument("--set", action="append", default=[])
    asked = arguments.parse_args()
    sets = [word for text in asked.set for word in ("--set", text)]
    errors = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for recipe in asked.recipes:
            for ranks in asked.ranks:
                machine = folder / "machine.yaml"
                run(ranks, "plan", recipe, "--calibrate", "--out", machine, *sets)
                plan = folder / "plan.json"
                run(1, "plan", recipe, "--ranks", ranks, "--machine", machine, "--json", plan, *sets)
                rows = []
                for mesh in json.loads(plan.read_text())["meshes"]:
                    measured = measured_seconds(recipe, ranks, mesh["mesh"], sets, asked.steps, folder)
                    error = mesh["seconds"] / measured - 1
                    errors.append(abs(error))
                    rows.append((measured, mesh["mesh"], mesh["seconds"], error))
                    parts = {k: round(v, 3) for k, v in mesh["seconds_by_part"].items() if isinstance(v, float)}
                    exposed = {k: round(v, 3) for k, v in mesh["seconds_by_part"]["exposed"].items()}
                    print(f"{pathlib.Path(recipe).stem:12} {ranks} {mesh['mesh']:18} predicted {mesh['seconds']:7.3f} s"
                          f"  measured {measured:7.3f} s  {100 * error:+6.1f} %  {parts} {exposed}", flush=True)
                best = min(rows)[1]
                place = sorted((row[2], row[1]) for row in rows).index((min(rows)[2], best)) + 1
                print(f"  the fastest, {best}, is number {place} of the plan")
    print(f"mean error {100 * statistics.mean(errors):.1f} %, worst {100 * max(errors):.1f} %")


main()
