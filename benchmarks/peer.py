"""One process of a PyTorch peer: trains the benchmark's model and prints its losses and step times as JSON on rank 0.

Started by train_peers.py with torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). Every mode has the
fastest settings that keep its arithmetic: scaled_dot_product_attention, the fused AdamW, gradients freed rather than
zeroed, DDP's buckets as gradient views and its static graph, a vocabulary-parallel loss under tensor parallelism, and
no value read before the clock of a step has stopped; DDP's static graph not where it accumulates. Under context
parallelism DDP sums the gradients. FSDP1 and FSDP2 have their defaults: parameters are given back after the forward,
the next unit's are gathered ahead. In bf16_mixed FSDP1 and FSDP2 have their policies of bf16 with reductions in fp32,
everything else has autocast.
"""

import argparse
import contextlib
import json
import os
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import parallel as tp
from transformers import AutoModelForCausalLM

import peer_attention

MODES = ("single", "ddp", "fsdp1", "fsdp2", "hsdp", "tp", "tp_sp", "fsdp2_tp", "cp", "pp")
PRECISIONS = ("fp32", "bf16_mixed", "bf16")
SHARDED_BY_FSDP = ("fsdp1", "fsdp2", "hsdp", "fsdp2_tp")
TENSOR_RANKS = 2  # of fsdp2_tp; and ranks that share a copy of the model under hsdp


def tensor_parallel(model, mesh, sequence_parallel):
    """Cuts projections, embedding and head over `mesh`; with sequence_parallel the residual stream and norms too."""
    stream = Shard(1) if sequence_parallel else Replicate()
    plan = {
        "model.embed_tokens": tp.RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "lm_head": tp.ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False),
        "model.layers.*.self_attn.o_proj": tp.RowwiseParallel(output_layouts=stream),
        "model.layers.*.mlp.down_proj": tp.RowwiseParallel(output_layouts=stream),
    }
    for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        plan[f"model.layers.*.{name}"] = tp.ColwiseParallel()
    if sequence_parallel:
        for name in ("model.norm", "model.layers.*.input_layernorm", "model.layers.*.post_attention_layernorm"):
            plan[name] = tp.SequenceParallel()
        plan["model.layers.*.self_attn"] = tp.PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": stream}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
        )
        plan["model.layers.*.mlp"] = tp.PrepareModuleInput(
            input_layouts=(stream,), desired_input_layouts=(Replicate(),)
        )
    return tp.parallelize_module(model, mesh, plan)


def sharded(model, mesh, precision):
    """FSDP2 over `mesh`: each layer a unit, and the rest; of two axes the first has the replicas."""
    options = {"mesh": mesh}
    if precision == "bf16_mixed":
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


class Stage(torch.nn.Module):
    """As many layers of `model` on each rank; the first has the embedding, the last the norm and the head."""

    def __init__(self, model, rank, world):
        super().__init__()
        each = len(model.model.layers) // world
        self.embedding = model.model.embed_tokens if rank == 0 else None
        self.layers = model.model.layers[rank * each : (rank + 1) * each]
        self.rotary = model.model.rotary_emb
        self.norm = model.model.norm if rank == world - 1 else None
        self.head = model.lm_head if rank == world - 1 else None

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        rotary = self.rotary(x, torch.arange(x.shape[1]).unsqueeze(0))
        for layer in self.layers:
            x = layer(x, position_embeddings=rotary)
        return x if self.head is None else self.head(self.norm(x))


class Pipeline:
    """1F1B over gloo with one stage on each rank."""

    def __init__(self, arguments, rank, world):
        model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, attn_implementation="sdpa")
        self.stage = Stage(model.train(), rank, world)
        self.is_last = rank == world - 1
        stage = PipelineStage(self.stage, rank, world, torch.device("cpu"))
        loss = lambda logits, labels: F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        self.schedule = Schedule1F1B(stage, arguments.batch // arguments.at_once, loss_fn=loss)
        self.rank = rank

    def update(self, optimizer, inputs, labels):
        """One optimizer step; returns the mean loss, on the last rank."""
        optimizer.zero_grad(set_to_none=True)
        losses = []
        if self.is_last:
            self.schedule.step(*((inputs,) if self.rank == 0 else ()), target=labels, losses=losses)
        else:
            self.schedule.step(inputs)
        parameters = list(self.stage.parameters())
        square = torch.nn.utils.get_total_norm([p.grad for p in parameters]) ** 2
        dist.all_reduce(square)
        torch.nn.utils.clip_grads_with_norm_(parameters, 1.0, square.sqrt())
        optimizer.step()
        return torch.stack(losses).mean().detach() if losses else torch.zeros(())


def train_pipeline(arguments, rank, world):
    pipeline = Pipeline(arguments, rank, world)
    optimizer = torch.optim.AdamW(pipeline.stage.parameters(), lr=arguments.learning_rate, weight_decay=0.1, fused=True)
    losses, seconds = [], []
    for inputs, labels, _ in batches(arguments, rank, world):
        start = time.perf_counter()
        loss = pipeline.update(optimizer, inputs, labels)
        seconds.append(time.perf_counter() - start)
        dist.all_reduce(loss)
        losses.append(loss.item())
    return {"losses": losses, "seconds": seconds}


def by_kind(parameters):
    """Parameters of different meshes, and plain ones, apart: neither the fused AdamW nor a norm takes a mixture."""
    groups = {}
    for parameter in parameters:
        groups.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
    return list(groups.values())


def clip_gradients(groups, limit):
    """clip_grad_norm_ over all groups together."""
    norms = [torch.nn.utils.get_total_norm([p.grad for p in group]) for group in groups]
    norm = torch.stack([n.full_tensor() if isinstance(n, DTensor) else n for n in norms]).norm()
    for group in groups:
        torch.nn.utils.clip_grads_with_norm_(group, limit, norm)


def assemble(arguments, world):
    """The model in the dress of its mode."""
    attention = "context" if arguments.mode == "cp" else "sdpa"
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=dtype, attn_implementation=attention)
    model.train()
    if arguments.mode in ("ddp", "cp"):
        static = not arguments.at_once  # a static graph has no no_sync()
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True, static_graph=static)
    elif arguments.mode == "fsdp1":
        policy = ModuleWrapPolicy({type(model.model.layers[0])})
        mixed = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        model = FullyShardedDataParallel(
            model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"),
            mixed_precision=mixed if arguments.precision == "bf16_mixed" else None,
        )
    elif arguments.mode == "fsdp2":
        model = sharded(model, dist.device_mesh.init_device_mesh("cpu", (world,)), arguments.precision)
    elif arguments.mode in ("hsdp", "fsdp2_tp"):
        axes = ("replicas", "shards") if arguments.mode == "hsdp" else ("dp", "tp")
        shape = (world // TENSOR_RANKS, TENSOR_RANKS)
        mesh = dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=axes)
        if arguments.mode == "fsdp2_tp":
            model = tensor_parallel(model, mesh["tp"], sequence_parallel=False)
            mesh = mesh["dp"]
        model = sharded(model, mesh, arguments.precision)
    elif arguments.mode != "single":
        mesh = dist.device_mesh.init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
        model = tensor_parallel(model, mesh, sequence_parallel=arguments.mode == "tp_sp")
    return torch.compile(model) if arguments.compile else model


def batches(arguments, rank, world):
    """Each step's inputs, labels and positions: the same sequences in every mode, the ranks of DDP taking some of them,
    those of context parallelism some positions of each."""
    tokens = torch.from_numpy(np.fromfile(arguments.tokens, np.uint16).astype(np.int64))
    samples = tokens.view(-1, arguments.sequence + 1)
    positions = torch.arange(arguments.sequence).unsqueeze(0)
    for step in range(arguments.steps):
        batch = samples[step * arguments.batch : (step + 1) * arguments.batch]
        if arguments.mode in ("ddp", "fsdp1", "fsdp2", "hsdp"):
            batch = batch.chunk(world)[rank]
        elif arguments.mode == "fsdp2_tp":
            batch = batch.chunk(world // TENSOR_RANKS)[rank // TENSOR_RANKS]
        parts = batch[:, :-1], batch[:, 1:], positions
        yield [(peer_attention.take(part) if arguments.mode == "cp" else part).contiguous() for part in parts]


def update(model, optimizer, inputs, labels, positions, autocast, at_once):
    """One optimizer step; returns the mean loss of this process's tokens."""
    optimizer.zero_grad(set_to_none=True)
    total, count = 0, len(inputs) // at_once
    for i, (some, wanted) in enumerate(zip(inputs.split(at_once), labels.split(at_once))):
        with contextlib.nullcontext() if i + 1 == count or count == 1 else model.no_sync():
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                logits = model(input_ids=some, position_ids=positions, use_cache=False).logits
            cut = isinstance(logits, DTensor)
            with tp.loss_parallel() if cut else contextlib.nullcontext():
                loss = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten()) / count
                loss.backward()
        total = total + loss.detach()
    clip(model, [group["params"] for group in optimizer.param_groups], 1.0)
    optimizer.step()
    return total


def whole(loss, mode, world):
    """The loss over the tokens of all ranks."""
    if isinstance(loss, DTensor):
        loss = loss.full_tensor()
    if mode not in ("single", "tp", "tp_sp"):
        dist.all_reduce(loss)
        loss = loss / world
    return loss.item()


def clip(model, groups, limit):
    """FSDP1 knows alone what of a flat parameter lies where."""
    if isinstance(model, FullyShardedDataParallel):
        model.clip_grad_norm_(limit)
    else:
        clip_gradients(groups, limit)


def train(arguments, rank, world):
    if arguments.mode == "pp":
        return train_pipeline(arguments, rank, world)
    model = assemble(arguments, world)
    groups = [{"params": group} for group in by_kind(model.parameters())]
    optimizer = torch.optim.AdamW(groups, lr=arguments.learning_rate, weight_decay=0.1, fused=True)
    autocast = arguments.precision == "bf16_mixed" and arguments.mode not in SHARDED_BY_FSDP
    losses, seconds = [], []
    for inputs, labels, positions in batches(arguments, rank, world):
        start = time.perf_counter()
        loss = update(model, optimizer, inputs, labels, positions, autocast, arguments.at_once or len(inputs))
        seconds.append(time.perf_counter() - start)
        losses.append(whole(loss, arguments.mode, world))
    return {"losses": losses, "seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, required=True)
    parser.add_argument("--model", required=True, help="Hugging Face folder")
    parser.add_argument("--tokens", required=True, help="uint16 records of sequence + 1")
    parser.add_argument("--sequence", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="sequences a step, over all ranks")
    parser.add_argument("--at-once", type=int, default=0, help="sequences in a micro-batch; 0: all of a process")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    result = train(arguments, rank, world)
    if rank == 0:
        print(json.dumps(result), flush=True)
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
