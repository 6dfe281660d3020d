"""What is checked, in three parts. A check's function gets a session.Running."""

import importlib.util
import json
import sys
from pathlib import Path

import verdicts
from machine import lines_of, visible_gpus
from session import Check
from verdicts import Failed, NotHere

# Seconds that each part may take. A command on a lent machine has ten minutes.
BUDGETS = {"correctness": 510, "kernels": 300, "training": 510}

ALL_MESHES = {"dp=1": 1, "dp=2": 2, "tp=2": 2, "cp=2": 2, "dp=2,tp=2": 4}  # mesh: ranks
SOME_MESHES = {"dp=1": 1, "cp=2": 2, "dp=2,tp=2": 4}
MESHES = {"fp32": ALL_MESHES, "bf16_mixed": ALL_MESHES, "fp16_mixed": SOME_MESHES, "bf16": SOME_MESHES}
FLAT_STEPS = 1500

# Settings of quickstart.yaml. Long sequences are those for which cuDNN's kernels are chosen.
LONG = ["train.global_batch=4", "train.micro_batch=2", "train.sequence_length=1024"]
# A rehearsal computes on CPUs: the same checks, of a smaller model and fewer tokens.
SMALL = ["model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=4",
         "model.num_key_value_heads=2", "model.intermediate_size=48", "train.global_batch=2", "train.micro_batch=1",
         "train.sequence_length=64"]
SMALL_LONG = ["train.sequence_length=512"]


def settings(running, long=False):
    small = running.machine.emulated
    words = []
    for setting in (SMALL + SMALL_LONG * long) if small else LONG * long:
        words += ["--set", setting]
    return words


def tokens(running):
    """A file of tokens, one a byte, of the texts that lie beside the programs."""
    file = running.folder / "tokens.bin"
    if not file.exists():
        root = running.machine.root
        texts = sorted([*root.glob("recipes/**/*.yaml"), *root.glob("benchmarks/*.py")])
        data = b"".join(text.read_bytes() for text in texts)
        file.write_bytes(b"".join(bytes((byte, 0)) for byte in data))
    return file


def recipe(running):
    return running.machine.root / "recipes/quickstart.yaml"


def train(running, name, more, long=False, watch=None):
    """Trains the quickstart recipe; returns what it said, and the lines of its metrics."""
    words = [running.machine.programs["meshtrain"], "train", recipe(running), "--run-dir", name, "--set",
             f"data.tokens={tokens(running)}"] + settings(running, long)
    for setting in more:
        words += ["--set", setting]
    output = running.run(words, watch=watch)
    return output, running.metrics(name)


def as_on_cpu(running):
    runs, steps = [], 4 if running.machine.emulated else 10
    for device in ("cuda", "cpu"):
        _, metrics = train(running, device, [f"device={device}", f"train.steps={steps}", "train.precision=fp32",
                                              "schedule.warmup_steps=1"])
        runs.append(verdicts.steps_of(metrics, steps))
    return verdicts.as_on_cpu(*runs)


def cudnn(running):
    """Fused attention in the environment of a user who has set nothing: cuDNN finds what it compiles with."""
    output, metrics = train(running, "run", ["device=cuda", "train.steps=3", "schedule.warmup_steps=1",
                                             "train.precision=bf16_mixed"], long=True)
    verdicts.steps_of(metrics, 3)
    return verdicts.cudnn_attention(output)


def gpu_tests(running):
    only = ["--gtest_filter=*OnGpu.*-VerifyOnGpu.*:TrainOnGpu.*:FailureOnGpu.*"] if running.machine.emulated else []
    return verdicts.google_test(running.run([running.machine.programs["gpu_tests"]] + only))


def collectives(ranks, carrier):
    def run(running):
        if carrier != "staged" and not running.machine.can_use_nccl(ranks):
            raise NotHere(f"NCCL needs a GPU for each rank, and here are {running.machine.num_gpus}")
        filter_ = f"--gtest_filter=*DeviceCollectives.*/{carrier}"
        gpus = {"MESHTRAIN_EMULATED_GPUS": str(ranks)} if running.machine.emulated else {}
        return verdicts.google_test(running.run([running.machine.programs["matrix_tests"], filter_], ranks, gpus))
    return run


def verify_words(running, mesh, precision, long=False):
    return [running.machine.programs["meshtrain"], "verify", recipe(running), "--device", "cuda", "--mesh", mesh,
            "--precision", precision, "--set", f"data.tokens={tokens(running)}"] + settings(running, long)


def verify(ranks, mesh, precision, long=False):
    def run(running):
        output = running.run(verify_words(running, mesh, precision, long), ranks)
        verdicts.verification(output)
        return verdicts.cudnn_attention(output) if long else ""
    return run


def verify_sees_faults(running):
    words = verify_words(running, "dp=2", "fp32") + ["--inject", "skip-reduce:dp.gradients"]
    return verdicts.fault_found(*running.run(words, 2, any_status=True))


def graph(precision, long):
    """Steps as one CUDA graph against steps without, which are not the same every time themselves."""
    def run(running):
        steps, times_eager = (6, 2) if running.machine.emulated else (30, 3)
        runs = {"false": [], "true": []}
        for recorded, times in (("false", times_eager), ("true", 1)):
            for i in range(times):
                output, metrics = train(running, f"graph_{recorded}_{i}", [
                    "device=cuda", f"train.steps={steps}", f"train.precision={precision}",
                    f"train.cuda_graph={recorded}"], long)
                if recorded == "true" and "steps are recorded as one graph" not in output:
                    raise Failed("no graph was recorded: " + verdicts.complaint(output))
                runs[recorded].append(verdicts.steps_of(metrics, steps))
        return verdicts.graph(runs["false"], runs["true"])
    return run


def flat_memory(running):
    if running.machine.emulated:
        raise NotHere("nvidia-smi has no memory of the emulated GPU")
    samples = []

    def sample():
        metrics = running.metrics("run")
        used = lines_of(["nvidia-smi", *visible_gpus(), "--query-gpu=memory.used", "--format=csv,noheader,nounits"])
        if metrics and used:
            samples.append((metrics[-1]["step"], int(used[0])))

    train(running, "run", ["device=cuda", f"train.steps={FLAT_STEPS}", "train.precision=bf16_mixed"], watch=sample)
    (running.folder / "samples.json").write_text(json.dumps(samples))
    return verdicts.flat_memory(samples, FLAT_STEPS)


def correctness(options):
    checks = [Check("as_on_cpu", 120, as_on_cpu), Check("cudnn_in_plain_environment", 60, cudnn),
              Check("gpu_tests", 150, gpu_tests)]
    for ranks in (1, 2, 4):
        for carrier in ("staged", "nccl", "nccl_registered", "nccl_symmetric"):
            checks.append(Check(f"collectives_{ranks}_{carrier}", 40, collectives(ranks, carrier)))
    checks += [Check("verify_sees_faults", 40, verify_sees_faults),
               Check("verify_long_bf16_mixed", 60, verify(1, "dp=1", "bf16_mixed", long=True)),
               Check("verify_long_cp=2_bf16", 60, verify(2, "cp=2", "bf16", long=True)),
               Check("graph_fp32", 90, graph("fp32", long=False)),
               Check("graph_bf16_mixed", 90, graph("bf16_mixed", long=True)), Check("flat_memory", 60, flat_memory)]
    for precision, meshes in MESHES.items():
        for mesh, ranks in meshes.items():
            checks.append(Check(f"verify_{mesh}_{precision}", 40, verify(ranks, mesh, precision)))
    return checks


def kernel_rates(session):
    def run(running):
        program = running.machine.programs["kernels_benchmark"]
        if running.machine.emulated and not Path(program).exists():
            raise NotHere("the emulated GPU's rates are those of a CPU")
        status, output = running.run([program], any_status=True)
        session.add_table("## Kernels\n\n" + output)
        verdicts.ended_well(status, output)
        return verdicts.kernel_rates(output)
    return run


def kernels(options):
    return [Check("kernel_rates", 280, kernel_rates(options.session))]


def has_peer():
    return importlib.util.find_spec("transformers") is not None


def training_run(options):
    def run(running):
        machine = running.machine
        words = [sys.executable, machine.root / "benchmarks/gpu_train.py", "--program", machine.programs["meshtrain"],
                 "--log", running.folder / "programs.txt", "--json", running.folder / "rows.json"]
        with_peer = not machine.emulated and has_peer()  # without one peer_is_there is red, and this program is measured
        words += [] if with_peer else ["--no-peer"]
        if machine.emulated:
            words += ["--models", "tiny", "--sequences", "64", "--tokens", "128", "--steps", "8"]
        else:
            words += ["--models", options.model, "--sequences", *options.sequences, "--precision", options.precision]
        status, output = running.run(words + ["--seconds", max(1, running.seconds_left() - 20)], any_status=True)
        options.session.add_table("## Training on one GPU\n\n" + output)
        verdicts.ended_well(status, output)
        rows = json.loads((running.folder / "rows.json").read_text())
        notes = []
        for sequence in dict.fromkeys(row["sequence"] for row in rows) or [0]:
            note = verdicts.training([row for row in rows if row["sequence"] == sequence], peer_wanted=with_peer,
                                     attention_wanted=True)
            notes.append(f"at {sequence}: {note}")
        return f"{options.model if not machine.emulated else 'tiny'} " + "; ".join(notes)
    return run


def peer(running):
    if running.machine.emulated:
        raise NotHere("transformers under torch.compile has no emulated GPU to run on")
    if not has_peer():
        raise Failed(f"{sys.executable} has no transformers: pip install transformers")


def training(options):
    return [Check("peer_is_there", 30, peer), Check("training", BUDGETS["training"], training_run(options))]


PARTS = {"correctness": correctness, "kernels": kernels, "training": training}
