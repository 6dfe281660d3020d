"""The recipes of training runs on one or several GPUs."""

import json
from dataclasses import dataclass, field

from machine import ROOT

PRECISIONS = ["fp32", "bf16", "bf16_mixed", "fp16_mixed"]
SEPARATOR = 7  # the token that ends a document
TOKENS = bytes(byte for i in range(40000) for byte in ((i * i * 31 + i // 7) % 61, 0))

SHAPE = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=8,
             num_key_value_heads=4, head_dim=32, vocab_size=128)
# Folders of tests/fixtures, and the values of their configurations that must change to fit SHAPE.
WINDOW = dict(sliding_window=96)
FAMILIES = {"llama": {}, "llama_bias": {}, "llama3_rope": {}, "llama_yarn": {}, "mistral_window": WINDOW, "qwen2": {},
            "qwen2_window": WINDOW, "qwen3": {}, "olmo2": {}, "granite": {}, "smollm3": {}, "phi3": {}, "gemma2": WINDOW,
            "gemma3": WINDOW}


@dataclass
class TrainingRun:
    name: str
    settings: list = field(default_factory=list)
    family: str = "llama"
    mesh: str = ""
    ranks: int = 1
    gpus: int = 1
    attention: str = ""  # the kernels that must compute it
    waits: int = 1  # how often the host waits in a step


def config_of(family):
    """Returns a configuration of the family with the sizes of SHAPE."""
    config = json.loads((ROOT / "tests/fixtures" / family / "config.json").read_text())
    config.update(SHAPE, **FAMILIES[family])
    for name in {"layer_types", "no_rope_layers"} & set(config):  # one for each layer
        config[name] = (config[name] * SHAPE["num_hidden_layers"])[:SHAPE["num_hidden_layers"]]
    rope = config.get("rope_parameters") or {}
    pairs = int(SHAPE["head_dim"] * rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1))) // 2
    for name in {"short_factor", "long_factor"} & set(rope):
        rope[name] = (rope[name] * pairs)[:pairs]
    return config


def write_recipe(folder, family):
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config_of(family)))
    (folder / "tokens.bin").write_bytes(TOKENS)
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"""model: {{hf: {model}, init: random}}
data: {{tokens: {folder}/tokens.bin, dtype: uint16, layout: stream, tokenizer: bytes}}
train: {{sequence_length: 256, global_batch: 4, micro_batch: 2, steps: 2, precision: bf16_mixed}}
optimizer: {{learning_rate: 1.0e-3}}
device: cuda
""")
    return recipe


def training_runs():
    runs = []
    graph, long = ["train.cuda_graph=true"], ["train.sequence_length=1024"]
    for precision in PRECISIONS:
        kind, kernel = [f"train.precision={precision}"], "efficient" if precision == "fp32" else "cudnn"
        runs += [TrainingRun(precision, kind + long, attention=kernel),
                 TrainingRun(f"{precision}, graph", kind + long + graph, attention=kernel)]
    runs += [
        TrainingRun("short sequences", ["train.sequence_length=192"], attention="flash"),
        TrainingRun("documents", [f"data.documents={SEPARATOR}"] + long, attention="flash"),
        TrainingRun("documents, fp32", [f"data.documents={SEPARATOR}", "train.precision=fp32"], attention="efficient"),
        TrainingRun("documents, graph", [f"data.documents={SEPARATOR}"] + graph, attention="flash"),
        TrainingRun("checkpointing", ["train.activation_checkpointing=full"] + long, attention="cudnn"),
        TrainingRun("checkpointing, graph", ["train.activation_checkpointing=full"] + long + graph, attention="cudnn"),
        TrainingRun("stochastic rounding", ["train.precision=bf16", "train.stochastic_rounding=true"],
                    waits=3),  # the flag to skip, and then the number of steps
        TrainingRun("windows, fp32", ["train.precision=fp32"], "mistral_window"),
        TrainingRun("windows, graph", graph, "mistral_window"),
        TrainingRun("windows, documents", [f"data.documents={SEPARATOR}"], "mistral_window"),
        TrainingRun("soft caps, fp32", ["train.precision=fp32"], "gemma2"),
        TrainingRun("soft caps, graph", graph, "gemma2"),
    ]
    runs += [TrainingRun(f"family {family}", family=family) for family in FAMILIES]
    for mesh, ranks, more in (("dp=2", 2, ["parallel.fsdp.mode=full_shard"]), ("tp=2", 2, []), ("cp=2", 2, long),
                              ("dp=2,tp=2", 4, [])):
        runs.append(TrainingRun(f"{mesh}, nccl", more, mesh=mesh, ranks=ranks, gpus=ranks))
    runs.append(TrainingRun("dp=2, nccl, graph", graph, mesh="dp=2", ranks=2, gpus=2))
    return runs
