"""The checks, in parts. A check's function gets a session.CheckRun."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import verdicts
from session import Check
from verdicts import Failed, NotHere

# Seconds that each part may take, below ten minutes (docs/cuda.md, "The first hour").
BUDGETS = {"libraries": 60, "correctness": 460, "training": 500, "verify": 380, "kernels": 140}

ALL_MESHES = {"dp=1": 1, "dp=2": 2, "tp=2": 2, "cp=2": 2, "dp=2,tp=2": 4}  # mesh: ranks
SOME_MESHES = {"dp=1": 1, "cp=2": 2, "dp=2,tp=2": 4}
MESHES = {"fp32": ALL_MESHES, "bf16_mixed": ALL_MESHES, "fp16_mixed": SOME_MESHES, "bf16": SOME_MESHES}

# Settings of quickstart.yaml. cuDNN computes attention of 512 queries and more: LONG has as many in a sequence, RING in
# each block of the ring on two ranks, a quarter of a sequence.
LONG = ["train.global_batch=4", "train.micro_batch=2", "train.sequence_length=1024"]
RING = ["train.global_batch=2", "train.micro_batch=1", "train.sequence_length=4096"]
# A rehearsal computes on CPUs: the same checks with a smaller model and fewer tokens.
SMALL = ["model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=4",
         "model.num_key_value_heads=2", "model.intermediate_size=48", "train.global_batch=2", "train.micro_batch=1",
         "train.sequence_length=64"]
REHEARSED = {"short": SMALL, "long": SMALL + ["train.sequence_length=512"],
             "ring": SMALL + ["train.sequence_length=2048"]}
REAL = {"short": [], "long": LONG, "ring": RING}

# The data that leave the GPU, and their settings in a recipe.
OFFLOADS = {"host": ["parallel.fsdp.mode=full_shard", "parallel.fsdp.offload={to: host}"],
            "disk": ["parallel.fsdp.mode=full_shard", "parallel.fsdp.offload={to: disk, path: .}"],
            "state": ["parallel.fsdp.mode=full_shard", "parallel.fsdp.offload={to: host, parameters: false}"],
            "activations": ["parallel.fsdp.mode=full_shard", "train.offload_activations=true"]}
ADAPTER = ["adapter={kind: lora, rank: 8, dropout: 0.1, targets: [all-linear]}"]
# Runs of verify: name, mesh, precision, settings.
VARIANTS = [("host", "dp=2", "bf16_mixed", OFFLOADS["host"]), ("host", "dp=2,tp=2", "fp32", OFFLOADS["host"]),
            ("disk", "dp=2", "bf16_mixed", OFFLOADS["disk"]), ("state", "dp=2,tp=2", "bf16_mixed", OFFLOADS["state"]),
            ("activations", "dp=2", "bf16_mixed", OFFLOADS["activations"]),
            ("adapter", "dp=1", "bf16_mixed", ADAPTER), ("adapter", "dp=2,tp=2", "fp32", ADAPTER),
            ("adapter", "cp=2", "bf16_mixed", ADAPTER)]


def settings(running, length):
    words = []
    for setting in (REHEARSED if running.machine.emulated else REAL)[length]:
        words += ["--set", setting]
    return words


def tokens(running):
    """Makes a file of tokens, one for each byte, of the texts next to the programs."""
    file = running.folder / "tokens.bin"
    if not file.exists():
        root = running.machine.root
        texts = sorted([*root.glob("recipes/**/*.yaml"), *root.glob("benchmarks/*.py")])
        data = b"".join(text.read_bytes() for text in texts)
        file.write_bytes(b"".join(bytes((byte, 0)) for byte in data))
    return file


def recipe(running):
    return running.machine.root / "recipes/quickstart.yaml"


def train(running, name, more, length="short"):
    """Trains the quickstart recipe; returns its output, and the lines of its metrics."""
    words = [running.machine.programs["meshtrain"], "train", recipe(running), "--run-dir", name, "--set",
             f"data.tokens={tokens(running)}"] + settings(running, length)
    for setting in more:
        words += ["--set", setting]
    output = running.run(words)
    return output, running.metrics(name)


def as_on_cpu(running):
    runs, steps = [], 4 if running.machine.emulated else 10
    for device in ("cuda", "cpu"):
        _, metrics = train(running, device, [f"device={device}", f"train.steps={steps}", "train.precision=fp32",
                                              "schedule.warmup_steps=1"])
        runs.append(verdicts.steps_of(metrics, steps))
    return verdicts.as_on_cpu(*runs)


def cudnn(running):
    """Runs fused attention in a user's default environment: cuDNN must find its compiler."""
    output, metrics = train(running, "run", ["device=cuda", "train.steps=3", "schedule.warmup_steps=1",
                                             "train.precision=bf16_mixed"], "long")
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


def verify_words(running, mesh, precision, length="short", more=()):
    words = [running.machine.programs["meshtrain"], "verify", recipe(running), "--device", "cuda", "--mesh", mesh,
            "--precision", precision, "--set", f"data.tokens={tokens(running)}"] + settings(running, length)
    for setting in more:
        words += ["--set", setting]
    return words


def verify(ranks, mesh, precision, length="short", more=()):
    def run(running):
        output = running.run(verify_words(running, mesh, precision, length, more), ranks)
        verdicts.verification(output)
        return verdicts.cudnn_attention(output, "ring" if length == "ring" else "causal") if length != "short" else ""
    return run


def verify_sees_faults(running):
    words = verify_words(running, "dp=2", "fp32") + ["--inject", "skip-reduce:dp.gradients"]
    return verdicts.fault_found(*running.run(words, 2, any_status=True))


def graph(precision, length):
    """Compares steps as one CUDA graph with steps without it, which also differ from run to run."""
    def run(running):
        steps, times_eager = (6, 2) if running.machine.emulated else (30, 3)
        runs = {"false": [], "true": []}
        for recorded, times in (("false", times_eager), ("true", 1)):
            for i in range(times):
                output, metrics = train(running, f"graph_{recorded}_{i}", [
                    "device=cuda", f"train.steps={steps}", f"train.precision={precision}",
                    f"train.cuda_graph={recorded}"], length)
                if recorded == "true" and "steps are recorded as one graph" not in output:
                    raise Failed("no graph was recorded: " + verdicts.complaint(output))
                runs[recorded].append(verdicts.steps_of(metrics, steps))
        return verdicts.as_without("graph", runs["false"], runs["true"])
    return run


def offload(precision):
    """Compares steps with each kind of offload with steps without. A tied embedding would be summed in another order."""
    def run(running):
        steps, times_without = (6, 1) if running.machine.emulated else (30, 3)

        def losses(name, more):
            _, metrics = train(running, name, ["device=cuda", f"train.steps={steps}", f"train.precision={precision}",
                                               "model.tie_word_embeddings=false"] + more)
            return verdicts.steps_of(metrics, steps)

        without = [losses(f"without_{i}", ["parallel.fsdp.mode=full_shard"]) for i in range(times_without)]
        runs = {kind: losses(kind, more) for kind, more in OFFLOADS.items()}
        return "; ".join(verdicts.as_without(kind, without, [run]) for kind, run in runs.items())
    return run


def flat_memory(running):
    steps = 40 if running.machine.emulated else 1500
    _, metrics = train(running, "run", ["device=cuda", f"train.steps={steps}", "train.precision=bf16_mixed"])
    return verdicts.flat_memory(metrics, steps)


def libraries(running):
    """Checks that each program and the plug-in find their libraries."""
    machine = running.machine
    for file in [*dict.fromkeys(machine.programs.values()), machine.build / "libmeshtrain_cuda.so"]:
        if Path(file).exists():  # mpirun may be a name in PATH
            verdicts.libraries_found(Path(file).name, running.run(["ldd", file], any_status=True)[1])


def ranks_on_cpu(running):
    """Checks that Open MPI starts ranks, and that they compute what one does."""
    words = [running.machine.programs["meshtrain"], "verify", recipe(running), "--device", "cpu", "--mesh", "dp=2,tp=2",
             "--set", f"data.tokens={tokens(running)}"]
    for setting in SMALL:
        words += ["--set", setting]
    verdicts.verification(running.run(words, 4))
    return ", ".join(f"{name} is there" if shutil.which(name) else f"no {name}, and none is needed"
                     for name in ("ssh", "rsh"))


def has_peer():
    return importlib.util.find_spec("transformers") is not None


def peer(running):
    if running.machine.emulated:
        raise NotHere("transformers under torch.compile has no emulated GPU to run on")
    if not has_peer():
        raise Failed(f"{sys.executable} has no transformers: pip install transformers")
    running.run([sys.executable, "-c", "import numpy, safetensors, transformers"])


def libraries_part(options):
    return [Check("libraries", 30, libraries), Check("ranks_on_cpu", 60, ranks_on_cpu, slots=4),
            Check("peer_is_there", 60, peer)]


def correctness(options):
    checks = [Check("as_on_cpu", 120, as_on_cpu, alone=True),  # it also reads the libraries from the disk
              Check("graph_fp32", 120, graph("fp32", "short")), Check("graph_bf16_mixed", 120, graph("bf16_mixed", "long")),
              Check("cudnn_in_plain_environment", 150, cudnn), Check("flat_memory", 180, flat_memory),
              Check("offload_fp32", 120, offload("fp32")), Check("offload_bf16_mixed", 120, offload("bf16_mixed")),
              Check("gpu_tests", 200, gpu_tests, slots=4)]
    for ranks in (1, 2, 4):
        for carrier in ("staged", "nccl", "nccl_registered", "nccl_symmetric"):
            # NCCL's kernels of two jobs on the same GPUs would wait for each other.
            shares = ranks == 1 or carrier == "staged"
            checks.append(Check(f"collectives_{ranks}_{carrier}", 120, collectives(ranks, carrier), slots=ranks,
                                alone=not shares))
    return checks


def verify_part(options):
    def check(ranks, mesh, precision, length="short"):
        name = f"verify_{mesh}_{precision}" if length == "short" else f"verify_{length}_{mesh}_{precision}"
        return Check(name, 120, verify(ranks, mesh, precision, length), slots=ranks)

    all_checks = [check(ranks, mesh, precision) for mesh, ranks in ALL_MESHES.items()
                  for precision, meshes in MESHES.items() if mesh in meshes]
    all_checks += [Check(f"verify_{name}_{mesh}_{precision}", 120, verify(ALL_MESHES[mesh], mesh, precision, more=more),
                         slots=ALL_MESHES[mesh]) for name, mesh, precision, more in VARIANTS]
    all_checks += [check(1, "dp=1", "bf16_mixed", "long"), check(2, "cp=2", "bf16", "ring"),
                   Check("verify_sees_faults", 60, verify_sees_faults, slots=2)]
    return sorted(all_checks, key=lambda one: one.slots)  # one rank first


def kernel_rates(session):
    def run(running):
        rehearsal = running.machine.emulated
        words = [running.machine.programs["kernels_benchmark"]] + ["--quick"] * rehearsal
        status, output = running.run(words, any_status=True)
        session.add_table("## Kernels\n\n" + output)
        verdicts.ended_well(status, output)
        return verdicts.kernel_rates(output, rehearsal)
    return run


def kernels(options):
    return [Check("kernel_rates", BUDGETS["kernels"], kernel_rates(options.session), alone=True)]


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


def training(options):
    return [Check("training", BUDGETS["training"], training_run(options), alone=True)]


PARTS = {"libraries": libraries_part, "correctness": correctness, "training": training, "verify": verify_part,
         "kernels": kernels}
