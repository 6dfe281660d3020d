#!/usr/bin/env python3
"""The peer of gpu_train.py, in processes of its own: draws a model's first weights, and trains it with transformers.

  gpu_train_peer.py --draw FOLDER       config.json gets a model.safetensors beside it, in bf16
  gpu_train_peer.py --train FOLDER ...  prints one line of JSON at the end
"""

import argparse
import json
import re
import statistics
import time
from pathlib import Path

import numpy
import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM

ATTENTION = "sdpa_causal"


def causal_attention(_module, query, key, value, _mask, dropout=0.0, scaling=None, **_options):
    """[B, H, S, D] as transformers calls an attention. Its own "sdpa" makes a dense mask under torch.compile, and then
    neither cuDNN nor flash attention can run. For an attention of another name it makes none."""
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scaling,
                                                           is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, causal_attention)


def load(folder, dtype, device):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=ATTENTION).to(device)
    kinds = set(getattr(model.config, "layer_types", None) or []) - {"full_attention"}
    if kinds:
        raise SystemExit(f"{folder}: layers with {', '.join(sorted(kinds))}: {ATTENTION} sees all tokens before; "
                         "choose a model without windows")
    return model.train()


def loss_function(model, device, mixed):
    def loss_of(ids, labels):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=mixed):
            logits = model(input_ids=ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
    return loss_of


def offloaded(model, device, compile_blocks):
    """The model with fp32 shards, gradients and optimizer's state on the host, in FSDP2's units: blocks, and the rest."""
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
    from torch.distributed.device_mesh import init_device_mesh

    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore())
    options = {"mesh": init_device_mesh(device, (1,)), "offload_policy": CPUOffloadPolicy(pin_memory=device == "cuda"),
               "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for block in model.model.layers:
        if compile_blocks:
            block.compile()
        fully_shard(block, **options)
    return fully_shard(model, **options)


def adapted(model, rank):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(2)
    config = LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    return get_peft_model(model, config)  # adapters in fp32, as autocast_adapter_dtype is True


def draw(folder, device):
    torch.manual_seed(1)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    config = (folder / "config.json").read_bytes()
    model.save_pretrained(folder, max_shard_size="100GB")
    (folder / "config.json").write_bytes(config)  # as both programs know it


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def median_seconds(call, device, repetitions=10):
    times = []
    for _ in range(repetitions + 2):
        wait(device)
        begin = time.perf_counter()
        call()
        wait(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


def product_seconds(config, tokens, device):
    """Of a step's matrix products in bf16: each forward, and both of its backward."""
    width, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    head, features = config.get("head_dim") or width // heads, config["intermediate_size"]
    queries, keys = heads * head, config["num_key_value_heads"] * head
    shapes = [(width, queries + 2 * keys, layers), (queries, width, layers), (width, 2 * features, layers),
              (features, width, layers), (width, config["vocab_size"], 1)]
    total = 0.0
    for inputs, outputs, times in shapes:
        x = torch.randn(tokens, inputs, device=device, dtype=torch.bfloat16)
        w = torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16)
        y = torch.randn(tokens, outputs, device=device, dtype=torch.bfloat16)
        for product in (lambda: x @ w.t(), lambda: y @ w, lambda: y.t() @ x):
            total += times * median_seconds(product, device)
    return total


def attention_kernels(step, device):
    """Which of scaled_dot_product_attention's kernels a step calls, by the names of its operators."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        step()
        wait(device)
    found, names = set(), {event.key for event in profile.key_averages()}
    for name in names:
        match = re.search(r"_scaled_dot_product_(?:fused_)?(\w+?)_?attention(?:_math)?(?:_for_cpu)?(?:_backward)?$", name)
        if match:
            found.add(match[1])
        elif "_scaled_dot_product_attention_math" in name:
            found.add("math")
    kernels = sorted(name for name in names if re.search(r"sdpa|flash|fmha|attention", name, re.IGNORECASE))
    print("operators and kernels of attention: " + ", ".join(kernels), flush=True)
    return sorted(found)


def train(arguments):
    folder, device = arguments.train, arguments.device
    config = json.loads((folder / "config.json").read_text())
    mixed = arguments.precision == "bf16_mixed"
    dtype = torch.float32 if mixed and not arguments.adapter else torch.bfloat16
    model = load(folder, dtype, "cpu" if arguments.offload else device)
    if arguments.checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if arguments.adapter:
        model = adapted(model, arguments.adapter)
    if arguments.offload:
        model = offloaded(model, device, arguments.compile)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=arguments.learning_rate, weight_decay=0.1, fused=True)
    loss_of = loss_function(model, device, mixed and not arguments.offload)  # FSDP2 rounds the parameters itself
    compiled = torch.compile(loss_of) if arguments.compile and not arguments.offload else loss_of
    records = torch.from_numpy(numpy.fromfile(arguments.tokens, dtype=numpy.uint32).astype("int64"))
    seconds, losses = [], []

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        parts = batch.split(arguments.micro_batch or arguments.batch)
        losses = []
        for part in parts:
            loss = compiled(part[:, :-1].contiguous(), part[:, 1:].contiguous()) / len(parts)
            loss.backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        return sum(losses)

    for batch in records.view(arguments.steps, arguments.batch, arguments.sequence + 1):
        batch = batch.to(device)
        wait(device)
        begin = time.perf_counter()
        loss = step(batch)
        wait(device)
        seconds.append(time.perf_counter() - begin)
        losses.append(loss.item())
    memory = torch.cuda.max_memory_allocated() if device == "cuda" else 0
    attention = attention_kernels(lambda: step(batch), device)
    del model, optimizer, trained, compiled, loss, step
    if device == "cuda":
        torch.cuda.empty_cache()
    products = product_seconds(config, arguments.batch * arguments.sequence, device)
    print(json.dumps({"seconds": statistics.median(seconds[arguments.warmup:]), "memory": memory, "losses": losses,
                      "products": products, "attention": attention}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=Path)
    parser.add_argument("--precision", default="bf16_mixed")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--offload", action="store_true", help="by FSDP2's CPUOffloadPolicy")
    parser.add_argument("--checkpoint", action="store_true", help="recompute blocks")
    parser.add_argument("--adapter", type=int, help="the rank of PEFT's LoRA adapters")
    for number in ("--batch", "--micro-batch", "--sequence", "--steps", "--warmup"):
        parser.add_argument(number, type=int)
    arguments = parser.parse_args()
    if arguments.draw:
        draw(arguments.draw, arguments.device)
    else:
        train(arguments)


if __name__ == "__main__":
    main()
