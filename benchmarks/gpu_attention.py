#!/usr/bin/env python3
"""Measures flash attention and cuDNN's side by side, as PyTorch calls them, forward and backward, and prints a table: for
the choice in context_parallel/attention_choice.cpp.

  python3 benchmarks/gpu_attention.py [--dtype bfloat16]      needs python3's torch and a GPU

Rates are in TFLOP/s. A step has 32,768 tokens, and causal attention counts half of the pairs."""

import argparse

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

TOKENS = 32768
KERNELS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def seconds(action, repetitions=10):
    for _ in range(3):
        action()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repetitions):
        action()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repetitions / 1e3


def rates(kernel, dtype, heads, kv_heads, head_dim, length, causal):
    def made(count):
        return torch.randn(TOKENS // length, length, count, head_dim, device="cuda", dtype=dtype).transpose(1, 2)

    q, k, v = (made(count).requires_grad_() for count in (heads, kv_heads, kv_heads))
    grad = made(heads)
    operations = 4 * TOKENS * heads * length * head_dim / (2 if causal else 1)

    def attend():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    with sdpa_kernel(kernel):
        out = attend()
        forward = seconds(attend)
        backward = seconds(lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))
    return f"{operations / forward / 1e12:.0f} / {2.5 * operations / backward / 1e12:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024])
    arguments = parser.parse_args()
    dtype = getattr(torch, arguments.dtype)
    print(f"| {arguments.dtype}, forward / backward | " + " | ".join(f"{length:,}" for length in arguments.lengths) + " |")
    print("|---" * (1 + len(arguments.lengths)) + "|")
    for heads, kv_heads, head_dim in ((32, 32, 64), (32, 8, 64), (32, 8, 128), (16, 8, 128)):
        for causal in (True, False):
            for name, kernel in KERNELS.items():
                cells = [rates(kernel, dtype, heads, kv_heads, head_dim, length, causal) for length in arguments.lengths]
                print(f"| {heads} / {kv_heads} heads of {head_dim}, {'causal' if causal else 'all pairs'}: {name} | " +
                      " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
