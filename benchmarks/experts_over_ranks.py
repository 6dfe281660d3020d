"""The layers of experts_over_ranks.cpp by torch: gloo's all_to_all_single, a product for each expert, and FSDP2.

    tools/ranks 2 python benchmarks/experts_over_ranks.py    a layer
    tools/ranks 4 python benchmarks/experts_over_ranks.py    a chain of layers, ep of 2 and fully_shard over the others

Needs torch alone. Rows travel by torch.distributed.nn.functional.all_to_all_single, which has a backward; counts by one
exchange before. Of the products that torch has on CPUs, a loop over the experts is the fastest for fp32.
"""

import os
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

REPETITIONS = 7
CHAIN = 4
SHAPES = [(1024, 8, 2, 512, 768), (1024, 32, 4, 512, 256), (2048, 64, 8, 256, 128)]


def layer(x, logits, gate_up, down, slots, group=None):
    """Each token's experts, weighted by the softmax of their logits; experts are cut over the ranks of the group."""
    group = group or dist.group.WORLD
    ranks, own = dist.get_world_size(group), gate_up.shape[0]
    weights, choices = logits.softmax(-1).topk(slots, -1)
    weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
    order = choices.flatten().argsort(stable=True)
    counts = choices.flatten().bincount(minlength=own * ranks)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    sent, received = counts.view(ranks, own).sum(1).tolist(), arriving.view(ranks, own).sum(1).tolist()
    rows = x[order // slots]
    arrived = dist_nn.all_to_all_single(rows.new_empty(sum(received), x.shape[1]), rows, received, sent, group)
    expert_of = torch.arange(own).repeat(ranks).repeat_interleave(arriving)
    by_expert = expert_of.argsort(stable=True)
    parts = arrived[by_expert].split(expert_of.bincount(minlength=own).tolist())
    results = []
    for expert, part in enumerate(parts):
        gate, up = torch.nn.functional.linear(part, gate_up[expert]).chunk(2, -1)
        results.append(torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, down[expert]))
    computed = torch.cat(results)
    back = torch.empty_like(computed).index_copy(0, by_expert, computed)
    returned = dist_nn.all_to_all_single(rows.new_empty(rows.shape), back, sent, received, group)
    weighted = returned * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, order // slots, weighted)


def leaf(dtype, *shape):
    made = (torch.randn(shape) * 0.05).to(dtype).requires_grad_()
    made.grad = torch.zeros_like(made)
    return made


class Layer(torch.nn.Module):
    def __init__(self, dtype, num_experts, slots, width, features, group):
        super().__init__()
        own = num_experts // dist.get_world_size(group)
        self.gate_up = torch.nn.Parameter(leaf(dtype, own, 2 * features, width).detach())
        self.down = torch.nn.Parameter(leaf(dtype, own, width, features).detach())
        self.slots, self.group = slots, group

    def forward(self, x, logits):
        return x + layer(x, logits, self.gate_up, self.down, self.slots, self.group)


class Chain(torch.nn.Module):
    def __init__(self, mesh, *shape):
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(*shape, mesh.get_group("ep")) for _ in range(CHAIN))
        for each in self.layers:
            fully_shard(each, mesh=mesh["edp"])
        fully_shard(self, mesh=mesh["edp"])

    def forward(self, x, logits):
        for each, of_layer in zip(self.layers, logits):
            x = each(x, of_layer)
        return x


def step_of(mesh, dtype, tokens, num_experts, slots, width, features):
    """A function that computes forward and backward: of a layer over all ranks, or of the chain on `mesh`."""
    x, dy = leaf(dtype, tokens, width), torch.randn(tokens, width).to(dtype)
    if mesh is None:
        own = num_experts // dist.get_world_size()
        gate_up, down = leaf(dtype, own, 2 * features, width), leaf(dtype, own, width, features)
        logits = torch.randn(tokens, num_experts).requires_grad_()
        return lambda: layer(x, logits, gate_up, down, slots).backward(dy)
    chain = Chain(mesh, dtype, num_experts, slots, width, features)
    all_logits = [torch.randn(tokens, num_experts).requires_grad_() for _ in range(CHAIN)]
    return lambda: chain(x, all_logits).backward(dy)


def main():
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("edp", "ep")) if ranks >= 4 else None
    if rank == 0:
        print("| dtype | tokens of a rank, experts x slots, M, F | ms |\n|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        for tokens, num_experts, slots, width, features in SHAPES:
            torch.manual_seed(1 + rank)
            step = step_of(mesh, dtype, tokens, num_experts, slots, width, features)
            best = float("inf")
            for _ in range(REPETITIONS):
                dist.barrier()
                start = time.perf_counter()
                step()
                best = min(best, time.perf_counter() - start)
            slowest = torch.tensor([best])
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if rank == 0:
                name = "Float" if dtype == torch.float32 else "BFloat16"
                print(f"| {name} | {tokens}, {num_experts} x {slots}, {width}, {features} | "
                      f"{slowest.item() * 1e3:.1f} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
