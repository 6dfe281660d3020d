"""The layer of experts.cpp by transformers: MixtralExperts on one thread, with each implementation that it has on CPUs.

    pip install torch==2.11.0 transformers
    build/release/benchmarks/experts_benchmark; python benchmarks/experts_peer.py

Gradients are added to existing ones, as in experts.cpp.
"""

import argparse
import time

import torch
from transformers.models.mixtral.configuration_mixtral import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralExperts

REPETITIONS = 7
SHAPES = [(1024, 8, 2, 512, 768), (1024, 32, 4, 512, 256), (2048, 64, 8, 256, 128), (512, 8, 2, 1024, 3584)]


def leaf(dtype, *shape):
    made = (torch.randn(shape) * 0.05).to(dtype).requires_grad_()
    made.grad = torch.zeros_like(made)
    return made


def milliseconds(implementation, dtype, tokens, num_experts, slots, width, features):
    config = MixtralConfig(hidden_size=width, intermediate_size=features, num_local_experts=num_experts,
                           num_experts_per_tok=slots)
    config._experts_implementation = implementation
    experts = MixtralExperts(config).to(dtype)
    for parameter in experts.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
        parameter.grad = torch.zeros_like(parameter)
    x, dy = leaf(dtype, tokens, width), torch.randn(tokens, width).to(dtype)
    logits = torch.randn(tokens, num_experts).requires_grad_()

    def step():
        weights, choices = logits.softmax(-1).topk(slots, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        experts(x, choices, weights.to(dtype)).backward(dy)

    best = float("inf")
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--implementations", nargs="+", default=["eager", "grouped_mm"],
                        help="batched_mm copies the weights of each row's expert, and needs much memory")
    names = parser.parse_args().implementations
    torch.set_num_threads(1)
    print("| dtype | tokens, experts x slots, M, F | " + " | ".join(f"ms, {each}" for each in names) + " |")
    print("|---|---|" + "---|" * len(names))
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            torch.manual_seed(1)
            tokens, num_experts, slots, width, features = shape
            times = [milliseconds(each, dtype, *shape) for each in names]
            print(f"| {'Float' if dtype == torch.float32 else 'BFloat16'} | {tokens}, {num_experts} x {slots}, {width}, "
                  f"{features} | " + " | ".join(f"{each:.1f}" for each in times) + " |", flush=True)


if __name__ == "__main__":
    main()
