"""Runs steps of torch programs, right ones and ones with a fault, and compares what `meshtrain verify --against` says.

    tests/against/steps.py MESHTRAIN [--seeds N] [CASE...]

`--seeds N`: right cases of one rank alone, each with N seeds.

Needs torch, transformers and safetensors. Each case runs over gloo, dumps its step with tools/dump_step.py, and states
the words that the verdict must have."""
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from dump_step import StepDump  # noqa: E402

SAMPLES, LENGTH, VOCABULARY = 8, 24, 96


def make_model(tied=False, seed=0):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                         tie_word_embeddings=tied, attention_bias=False, initializer_range=0.1)
    return LlamaForCausalLM(config)


def samples(masked, seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=generator)
    labels = ids.clone()
    if masked:
        for i in range(SAMPLES):
            labels[i, :2 + i] = -100
    return ids, labels


def documents_of(ids):
    """Sample i has two documents, the second from 3 + i."""
    return torch.stack([torch.arange(LENGTH) >= 3 + i for i in range(len(ids))]).long()


def packed(ids, fault):
    """Returns positions and a mask for packed documents: [samples, 1, length, length], True: attends."""
    documents, positions = documents_of(ids), torch.arange(LENGTH).expand_as(ids)
    mask = torch.ones(len(ids), 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    if fault != "documents_ignored":
        begins = torch.where(documents == 1, (documents == 0).sum(1, keepdim=True), 0)
        positions = positions - begins
        if fault != "attention_across_documents":
            mask &= (documents.unsqueeze(1) == documents.unsqueeze(2)).unsqueeze(1)
    return {"position_ids": positions, "attention_mask": mask}


def loss_sum(logits, labels):
    return torch.nn.functional.cross_entropy(logits.float().reshape(-1, VOCABULARY), labels.reshape(-1),
                                             ignore_index=-100, reduction="sum")


def mean_loss(model, ids, labels, **given):
    # Under sequence parallel, transformers would count positions of a rank's part.
    given = given or {"position_ids": torch.arange(LENGTH).unsqueeze(0)}
    return loss_sum(model(input_ids=ids, **given).logits[:, :-1], labels[:, 1:])


class FirstStep(torch.optim.Optimizer):
    """The first step of AdamW, with a mistake; its name is told as AdamW's."""
    corrects, eps_inside = True, False

    def __init__(self, parameters, lr, weight_decay, **_):
        super().__init__(parameters, {"lr": lr, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            (beta1, beta2), eps = group["betas"], group["eps"]
            for p in group["params"]:
                first, second = p.grad, p.grad.square()
                if not self.corrects:
                    first, second = first * (1 - beta1), second * (1 - beta2)
                root = (second + eps).sqrt() if self.eps_inside else second.sqrt() + eps
                p.sub_(group["lr"] * (first / root + group["weight_decay"] * p))
                self.state[p]["step"] = 1


NoBiasCorrection = type("AdamW", (FirstStep,), {"corrects": False})
EpsilonInside = type("AdamW", (FirstStep,), {"eps_inside": True})


class Gathered(torch.autograd.Function):
    """The keys or values of all ranks of cp, in the order of their parts; the backward sums over ranks."""

    @staticmethod
    def forward(context, part):
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, 2)

    @staticmethod
    def backward(context, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size(), 2)[dist.get_rank()]


def gathered_attention(module, query, key, value, attention_mask, scaling=None, **_):
    key, value = (Gathered.apply(x).repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
    first = dist.get_rank() * query.shape[2]
    mask = torch.arange(key.shape[2]) <= first + torch.arange(query.shape[2]).unsqueeze(1)
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return output.transpose(1, 2).contiguous(), None


def train_context_parallel(rank, ranks, folder, *, fault=None, seed=0):
    """One step in which each rank has a part of every sequence, and gathers keys and values."""
    from transformers import AttentionInterface, AttentionMaskInterface
    AttentionInterface.register("gathered", gathered_attention)
    AttentionMaskInterface.register("gathered", lambda *_, **__: None)
    model = make_model(seed=seed)
    model.set_attn_implementation("gathered")
    ids, labels = samples(True, seed + 1)
    dump = StepDump(folder, model, mesh={"cp": ranks}, data_rank=0)
    dump.batch(ids, labels)
    shifted = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)
    positions = torch.arange(LENGTH).unsqueeze(0)
    own = slice(rank * LENGTH // ranks, (rank + 1) * LENGTH // ranks)
    given = positions[:, :LENGTH // ranks] if fault == "positions_restart" else positions[:, own]
    loss = loss_sum(model(input_ids=ids[:, own], position_ids=given).logits, shifted[:, own]) / (shifted != -100).sum()
    loss.backward()
    reported = loss.detach()
    for tensor in [reported] + [parameter.grad for parameter in model.parameters()]:
        dist.all_reduce(tensor)
    dump.gradients(reported)
    trained = torch.optim.AdamW(model.parameters(), lr=1e-3)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    trained.step()
    dump.finish(trained, grad_norm=norm, clip_norm=1.0)


def clip_gradients(model, norm, clip):
    for parameter in model.parameters():
        parameter.grad *= min(1.0, clip / (float(norm) + 1e-6))


def train(rank, ranks, folder, *, masked=False, tied=False, micro_batches=1, wrap=None, dtype=None, autocast=False,
          loss_of="tokens", fault=None, clip=1.0, decay=0.1, optimizer=torch.optim.AdamW, seed=0, tp=1,
          documents=False, partial=None):
    """One step of data parallelism by hand or by a wrapper, with the fault planted in it."""
    torch.manual_seed(seed)
    model = make_model(tied, seed)
    if dtype:
        model = model.to(dtype)
    data_ranks, mesh = ranks // tp, {"dp": ranks}
    if tp > 1:
        mesh = {"dp": data_ranks, "tp": tp}
        wrapped = wrap(model, data_ranks, tp)
    else:
        wrapped = model if wrap is None else wrap(model)
    rank, world, ranks = rank // tp, ranks, data_ranks
    groups = wrapped.parameters()
    if fault == "norms_decayed":
        groups = [{"params": [p for n, p in model.named_parameters() if "norm" not in n]},
                  {"params": [p for n, p in model.named_parameters() if "norm" in n], "weight_decay": 0}]
    trained = optimizer(groups, lr=1e-3, weight_decay=decay, foreach=tp == 1)
    ids, labels = samples(masked, seed + 1)
    share = SAMPLES // ranks
    ids, labels = ids[rank * share:(rank + 1) * share], labels[rank * share:(rank + 1) * share]
    counted = (labels[:, 1:] != -100).sum()
    total = counted.clone()
    if ranks > 1:
        dist.all_reduce(total)
        total //= tp
    dump = StepDump(folder, wrapped, mesh=mesh, data_rank=rank, **(partial or {}))
    reported = torch.zeros(())
    pieces = list(zip(ids.chunk(micro_batches), labels.chunk(micro_batches)))
    for number, (x, y) in enumerate(pieces):
        dump.batch(x, y, documents=documents_of(x) if documents else None)
        given = y
        if fault == "shifted_twice":
            given = torch.cat([y[:, 1:], torch.full_like(y[:, :1], -100)], 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = mean_loss(wrapped, x, given, **(packed(x, fault) if documents else {}))
        own = (given[:, 1:] != -100).sum()
        loss = loss.full_tensor() if hasattr(loss, "full_tensor") else loss
        if loss_of == "tokens":      # the mean over all labels that count: wrappers divide by ranks
            loss = loss * ranks / total
        elif loss_of == "all":       # masked labels too
            loss = loss / (SAMPLES * LENGTH)
        elif loss_of == "means":     # the mean of means
            loss = loss / own / micro_batches
        elif loss_of == "unscaled":  # accumulation without division
            loss = loss / own
        if fault == "last_micro_batch" and number + 1 < micro_batches:
            reported += loss.detach()
            continue
        loss.backward()
        reported += loss.detach()
    if fault == "clipped_before_sum":
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    if wrap is None and ranks > 1 and fault != "no_sum":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            if fault != "sum_not_mean":
                parameter.grad /= ranks
    if ranks > 1 and fault != "rank_loss":
        dist.all_reduce(reported)
        reported /= world
    if fault == "norms_not_summed":
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.grad *= 0.5
    if fault == "norms_of_one_rank":  # as when the sum over tp of replicated parameters is missing
        from torch.distributed.tensor import DTensor, Replicate
        for name, parameter in wrapped.named_parameters():
            if "norm" in name:
                own = parameter.grad.to_local()
                assert parameter.grad.placements[0].is_partial()
                parameter.grad = DTensor.from_local(own, parameter.grad.device_mesh, [Replicate()])
    if fault == "frozen_norms":
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.grad = None
    if fault == "clipped_already":
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    dump.gradients(reported)
    if fault == "clip_without_embedding":
        norm = torch.nn.utils.clip_grad_norm_([p for n, p in wrapped.named_parameters() if "embed" not in n], clip)
        for name, parameter in wrapped.named_parameters():
            if "embed" in name:
                parameter.grad *= min(1.0, clip / (float(norm) + 1e-6))
    elif fault == "tied_counted_twice":
        norm = torch.nn.utils.get_total_norm([p.grad for p in list(model.parameters()) + [model.lm_head.weight]])
        clip_gradients(model, norm, clip)
    elif fault == "not_clipped":
        norm = torch.nn.utils.get_total_norm([p.grad for p in wrapped.parameters()])
    elif tp > 1:  # torch's function does not take plain tensors next to those of DTensor
        grads = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in wrapped.parameters()]
        norm = torch.linalg.vector_norm(torch.stack([g.norm() for g in grads]))
        clip_gradients(wrapped, norm, clip)
    elif clip and hasattr(wrapped, "clip_grad_norm_") and fault != "local_norm":
        norm = wrapped.clip_grad_norm_(clip)
    elif clip:
        norm = torch.nn.utils.clip_grad_norm_(wrapped.parameters(), clip)
    else:
        norm = torch.nn.utils.get_total_norm([p.grad for p in wrapped.parameters()])
    told = [group["weight_decay"] for group in trained.param_groups]
    norms = {p: p.detach().clone() for n, p in model.named_parameters() if "norm" in n}
    for group in trained.param_groups:
        group["weight_decay"] = {"decay_skipped": 0, "norms_decayed": decay}.get(fault, group["weight_decay"])
    if fault != "no_step":
        trained.step()
    for group, value in zip(trained.param_groups, told):
        group["weight_decay"] = value
    if fault == "norms_not_decayed":
        for parameter, before in norms.items():
            parameter.detach().add_(before, alpha=1e-3 * decay)
    dump.finish(trained, grad_norm=norm, clip_norm=clip)


def ddp(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def fsdp2(model):
    from torch.distributed.fsdp import fully_shard
    for layer in model.model.layers:
        fully_shard(layer)
    return fully_shard(model)


def fsdp1(model):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    return FSDP(model, use_orig_params=True, device_id=torch.device("cpu"))


def tensor_parallel(sequence_parallel):
    def wrap(model, data_ranks, tp):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                                       SequenceParallel, parallelize_module)
        mesh = init_device_mesh("cpu", (data_ranks, tp), mesh_dim_names=("dp", "tp"))
        row = RowwiseParallel(output_layouts=Shard(1)) if sequence_parallel else RowwiseParallel()
        block = {"self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
                 "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": row, "mlp.gate_proj": ColwiseParallel(),
                 "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": row}
        outer = {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
                 "lm_head": ColwiseParallel(output_layouts=Replicate())}
        if sequence_parallel:
            block |= {"input_layernorm": SequenceParallel(), "post_attention_layernorm": SequenceParallel(),
                      "self_attn": PrepareModuleInput(input_kwarg_layouts={"hidden_states": Shard(1)},
                                                      desired_input_kwarg_layouts={"hidden_states": Replicate()}),
                      "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))}
            outer = {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                     "model.norm": SequenceParallel(),
                     "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}
        for layer in model.model.layers:
            parallelize_module(layer, mesh["tp"], block)
            layer.self_attn.config._attn_implementation = "sdpa"
        parallelize_module(model, mesh["tp"], outer)
        if data_ranks > 1:
            for layer in model.model.layers:
                fully_shard(layer, mesh=mesh["dp"])
            fully_shard(model, mesh=mesh["dp"])
        return model
    return wrap


RIGHT = {
    "tp_2": (2, dict(wrap=tensor_parallel(False), tp=2, masked=True)),
    "tp_sp_2": (2, dict(wrap=tensor_parallel(True), tp=2, masked=True)),
    "fsdp2_tp_4": (4, dict(wrap=tensor_parallel(False), tp=2)),
    "plain": (1, dict()),
    "masked": (1, dict(masked=True)),
    "tied": (1, dict(tied=True)),
    "accumulation": (1, dict(masked=True, micro_batches=4)),
    "by_hand_2": (2, dict(masked=True)),
    "ddp_2": (2, dict(wrap=ddp, masked=True)),
    "ddp_4": (4, dict(wrap=ddp, tied=True, micro_batches=2)),
    "fsdp2_2": (2, dict(wrap=fsdp2, masked=True)),
    "fsdp2_4": (4, dict(wrap=fsdp2)),
    "fsdp1_2": (2, dict(wrap=fsdp1)),
    "autocast": (1, dict(autocast=True, masked=True)),
    "sgd": (1, dict(optimizer=torch.optim.SGD)),
    "no_clipping": (1, dict(clip=0)),
    "documents": (1, dict(documents=True, masked=True)),
    "cp_2": (2, dict(train=train_context_parallel)),
}
FAULTS = {
    "sum_not_mean": (2, "gradients: summed over dp=2", dict(fault="sum_not_mean")),
    "no_sum": (2, "rank 0's samples alone", dict(fault="no_sum")),
    "mean_of_means": (2, "the mean of the ranks' means", dict(wrap=ddp, masked=True, loss_of="means")),
    "mean_of_micro_batches": (1, "the mean of the micro-batches' means",
                              dict(masked=True, micro_batches=4, loss_of="means")),
    "accumulation_not_divided": (1, "4 micro-batches", dict(micro_batches=4, loss_of="unscaled")),
    "last_micro_batch": (1, "the last micro-batch alone", dict(masked=True, micro_batches=4, fault="last_micro_batch")),
    "shifted_twice": (1, "labels: shifted twice", dict(fault="shifted_twice", loss_of="means")),
    "rank_loss": (2, "loss: rank 0's samples alone", dict(wrap=ddp, loss_of="means", fault="rank_loss")),
    "norms_not_summed": (2, "gradients of norms: divided once too often by dp=2", dict(fault="norms_not_summed")),
    "norms_of_one_rank": (2, "gradients of norms: a part is missing, as when a sum over tp=2 is missing",
                          dict(wrap=tensor_parallel(True), tp=2, fault="norms_of_one_rank")),
    "frozen_norms": (1, "no gradients: norms", dict(fault="frozen_norms")),
    "clip_without_embedding": (1, "norm: lacks the embedding", dict(fault="clip_without_embedding")),
    "local_norm": (2, "norm: only part of the gradients", dict(wrap=fsdp1, fault="local_norm")),
    "not_clipped": (1, "updates: gradients are not clipped", dict(fault="not_clipped", optimizer=torch.optim.SGD)),
    "decay_skipped": (1, "updates: weight decay is not applied", dict(fault="decay_skipped", decay=10.0)),
    "no_step": (1, "updates: none; the weights did not move", dict(fault="no_step")),
    "bf16_weights": (1, "updates: lost to the rounding of weights to bf16",
                     dict(dtype=torch.bfloat16, decay=0.0, autocast=False)),
    "norms_decayed": (1, "updates of norms: weight decay of another group is applied", dict(fault="norms_decayed")),
    "norms_not_decayed": (1, "updates of norms: weight decay is not applied", dict(fault="norms_not_decayed")),
    "no_bias_correction": (1, "updates: Adam's bias correction is missing", dict(optimizer=NoBiasCorrection)),
    "epsilon_inside_root": (1, "updates: Adam's epsilon is inside the square root", dict(optimizer=EpsilonInside)),
    "tied_counted_twice": (1, "norm: counts the tied embedding twice", dict(tied=True, fault="tied_counted_twice")),
    "clipped_before_sum": (2, "gradients: each rank's gradients are clipped before their sum",
                           dict(masked=True, fault="clipped_before_sum")),
    "clipped_already": (1, "gradients: already clipped", dict(fault="clipped_already")),
    "divided_by_all_tokens": (1, "gradients: divided by all tokens, not by those that count",
                              dict(masked=True, loss_of="all")),
    "documents_ignored": (1, "documents: ignored", dict(documents=True, fault="documents_ignored")),
    "attention_across_documents": (1, "documents: attention crosses them, although positions restart in each",
                                   dict(documents=True, fault="attention_across_documents")),
    "positions_restart": (2, "positions: they begin at 0 on each of cp=2 ranks, which have consecutive parts",
                          dict(train=train_context_parallel, fault="positions_restart")),
}


def fsdp1_blocks(model):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    policy = ModuleWrapPolicy({type(model.model.layers[0])})
    return FSDP(model, use_orig_params=True, device_id=torch.device("cpu"), auto_wrap_policy=policy)


PARTIAL = dict(layers=["last"], sample=300, max_file_bytes=4000)
RIGHT |= {
    "fsdp1_blocks_2": (2, dict(wrap=fsdp1_blocks, tied=True)),
    "fsdp1_partial_2": (2, dict(wrap=fsdp1_blocks, partial=PARTIAL)),
    "fsdp2_tp_partial_4": (4, dict(wrap=tensor_parallel(False), tp=2, partial=PARTIAL)),
}
CASES = {name: (ranks, None, settings) for name, (ranks, settings) in RIGHT.items()} | FAULTS


def start(rank, ranks, port, folder, name, seed=0):
    settings = {"train": train, **CASES[name][2], "seed": seed}
    torch.set_num_threads(1)
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    settings.pop("train")(rank, ranks, folder, **settings)
    if ranks > 1:
        dist.destroy_process_group()


def run(program, name, port, seed=0, quiet=False):
    ranks, expected, _ = CASES[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "step"
        if ranks > 1:
            mp.spawn(start, args=(ranks, port, folder, name, seed), nprocs=ranks)
        else:
            start(0, 1, port, folder, name, seed)
        ended = subprocess.run([program, "verify", "--against", folder], capture_output=True, text=True, check=False)
    words = ended.stdout + ended.stderr
    good = (ended.returncode == 0 if expected is None else ended.returncode == 1 and expected in words)
    if not quiet or not good:
        print(f"{name:28} {'right' if expected is None else 'fault'} {'ok' if good else 'WRONG'}", flush=True)
    if not good:
        print(words, flush=True)
    return good


def main():
    program, wanted = sys.argv[1], sys.argv[2:]
    port, failed = 29611, []
    if wanted and wanted[0] == "--seeds":
        seeds = int(wanted[1])
        names = wanted[2:] or [name for name, (ranks, settings) in RIGHT.items() if ranks == 1]
        failed = [name for name in names for seed in range(seeds) if not run(program, name, port, seed, quiet=True)]
        print(f"{len(names) * seeds - len(failed)} of {len(names) * seeds} right steps are called right")
        return 1 if failed else 0
    for name in wanted or CASES:
        port += 1
        if not run(program, name, port):
            failed.append(name)
    print(f"{len(failed)} wrong: {', '.join(failed)}" if failed else "all as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
