"""The layer of experts_over_ranks.cpp by torch: gloo's all_to_all_single and a product for each expert.

    tools/ranks 2 python benchmarks/experts_over_ranks.py

Needs torch alone. Rows travel by torch.distributed.nn.functional.all_to_all_single, which has a backward; counts by one
exchange before. Of the products that torch has on CPUs, a loop over the experts is the fastest for fp32.
"""

import os
import time

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dist_nn

REPETITIONS = 7
SHAPES = [(1024, 8, 2, 512, 768), (1024, 32, 4, 512, 256), (2048, 64, 8, 256, 128)]


def layer(x, logits, gate_up, down, slots):
    """Each token's experts, weighted by the softmax of their logits; experts are cut over the ranks."""
    ranks, own = dist.get_world_size(), gate_up.shape[0]
    weights, choices = logits.softmax(-1).topk(slots, -1)
    weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
    order = choices.flatten().argsort(stable=True)
    counts = choices.flatten().bincount(minlength=own * ranks)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    sent, received = counts.view(ranks, own).sum(1).tolist(), arriving.view(ranks, own).sum(1).tolist()
    rows = x[order // slots]
    arrived = dist_nn.all_to_all_single(rows.new_empty(sum(received), x.shape[1]), rows, received, sent)
    expert_of = torch.arange(own).repeat(ranks).repeat_interleave(arriving)
    by_expert = expert_of.argsort(stable=True)
    parts = arrived[by_expert].split(expert_of.bincount(minlength=own).tolist())
    results = []
    for expert, part in enumerate(parts):
        gate, up = torch.nn.functional.linear(part, gate_up[expert]).chunk(2, -1)
        results.append(torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, down[expert]))
    computed = torch.cat(results)
    back = torch.empty_like(computed).index_copy(0, by_expert, computed)
    returned = dist_nn.all_to_all_single(rows.new_empty(rows.shape), back, sent, received)
    weighted = returned * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, order // slots, weighted)


def main():
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    if rank == 0:
        print("| dtype | tokens of a rank, experts x slots, M, F | ms |\n|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        for tokens, num_experts, slots, width, features in SHAPES:
            torch.manual_seed(1 + rank)

            def leaf(*shape):
                made = (torch.randn(shape) * 0.05).to(dtype).requires_grad_()
                made.grad = torch.zeros_like(made)
                return made

            own = num_experts // ranks
            gate_up, down, x = leaf(own, 2 * features, width), leaf(own, width, features), leaf(tokens, width)
            dy, logits = torch.randn(tokens, width).to(dtype), torch.randn(tokens, num_experts).requires_grad_()
            best = float("inf")
            for _ in range(REPETITIONS):
                dist.barrier()
                start = time.perf_counter()
                layer(x, logits, gate_up, down, slots).backward(dy)
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
