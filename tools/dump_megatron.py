"""Writes one training step of a GPT model of Megatron-core, for `meshtrain verify --against FOLDER` (docs/against.md).

    dump = MegatronDump("step", model, config)            # before the step; `model` as get_model() returns it
    ...                                                   # in forward_step, on ranks that have the batch:
    dump.batch(tokens, labels, loss_mask)
    losses = forward_backward_func(...)
    dump.gradients(loss, optimizer.get_loss_scale().item())
    _, norm, _ = optimizer.step()
    dump.finish(optimizer, grad_norm=norm, clip_norm=args.clip_grad)

`config`: what Hugging Face's config.json has for the model, a dict. Every rank makes the same calls, except batch().
For dp, tp, cp and pp, with and without the distributed optimizer. Layers with experts are refused.
"""
import re

import torch
import torch.distributed as dist

from dump_step import StepDump, plain_name

OUTER = {"embedding.word_embeddings.weight": "model.embed_tokens.weight",
         "output_layer.weight": "lm_head.weight",
         "decoder.final_layernorm.weight": "model.norm.weight"}
NORMS = {"input_layernorm.weight": "input_layernorm.weight",
         "self_attention.linear_qkv.layer_norm_weight": "input_layernorm.weight",  # of Transformer Engine
         "self_attention.q_layernorm.weight": "self_attn.q_norm.weight",
         "self_attention.k_layernorm.weight": "self_attn.k_norm.weight",
         "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
         "mlp.linear_fc1.layer_norm_weight": "post_attention_layernorm.weight"}
ROW_PARALLEL = {"self_attention.linear_proj": "self_attn.o_proj", "mlp.linear_fc2": "mlp.down_proj"}


def huggingface_tensors(name, shards, config):
    """Returns the tensors that Hugging Face has for the parameter `name`, whose layers are numbered through all
    stages. `shards`: those of the tp ranks, in their order; one, where every rank has the complete parameter."""
    if name in OUTER:
        return {OUTER[name]: torch.cat(shards)[:config["vocab_size"]] if "layernorm" not in name else shards[0]}
    found = re.fullmatch(r"decoder\.layers\.(\d+)\.((.+)\.(weight|bias)|.+)", name)
    if not found:
        raise ValueError(f"dump_megatron: {name} is not a parameter of a dense GPT model")
    block, inner, module, kind = f"model.layers.{found[1]}.", found[2], found[3], found[4]
    if inner in NORMS:
        return {block + NORMS[inner]: shards[0]}
    if module in ROW_PARALLEL:
        return {f"{block}{ROW_PARALLEL[module]}.{kind}": torch.cat(shards, dim=1) if kind == "weight" else shards[0]}
    if module == "self_attention.linear_qkv":  # each group: its query heads, its key head, its value head
        heads = config["num_attention_heads"]
        groups = config.get("num_key_value_heads") or heads
        size = config.get("head_dim") or config["hidden_size"] // heads
        fused = torch.cat(shards)
        fused = fused.reshape(groups, heads // groups + 2, size, *fused.shape[1:])
        parts = {"q": fused[:, :-2], "k": fused[:, -2:-1], "v": fused[:, -1:]}
        return {f"{block}self_attn.{part}_proj.{kind}": rows.flatten(0, 2) for part, rows in parts.items()}
    if module == "mlp.linear_fc1" and len(shards) * shards[0].shape[0] == 2 * config["intermediate_size"]:
        halves = [shard.chunk(2) for shard in shards]  # each rank: its rows of gate, then those of up
        return {f"{block}mlp.{part}_proj.{kind}": torch.cat([half[i] for half in halves])
                for i, part in enumerate(("gate", "up"))}
    raise ValueError(f"dump_megatron: {name} is not a parameter of a dense GPT model with a gated feed-forward")


class MegatronDump(StepDump):
    """`options`: those of StepDump."""

    def __init__(self, folder, model, config, **options):
        from megatron.core import parallel_state
        self.groups, self.chunks = parallel_state, model if isinstance(model, (list, tuple)) else [model]
        self.scale = 1
        sizes = {"dp": parallel_state.get_data_parallel_world_size(),
                 "tp": parallel_state.get_tensor_model_parallel_world_size(),
                 "cp": parallel_state.get_context_parallel_world_size(),
                 "pp": parallel_state.get_pipeline_model_parallel_world_size()}
        self.tied = config.get("tie_word_embeddings", False)
        sizes = {axis: size for axis, size in sizes.items() if size > 1}
        super().__init__(folder, self.chunks[0], mesh=sizes or {"dp": 1},
                         data_rank=parallel_state.get_data_parallel_rank(), config=config,
                         convert=lambda name, shards: huggingface_tensors(name, shards, config), **options)

    def batch(self, tokens, labels, loss_mask=None):
        """Complete sequences; `labels`: the tokens after each, as Megatron's data has them."""
        super().batch(tokens, labels if loss_mask is None else labels.masked_fill(loss_mask == 0, -100), shifted=True)

    def gradients(self, loss=None, loss_scale=1):
        self.scale = loss_scale
        for buffer in self._buffers():  # the distributed optimizer has reduced this rank's shards alone
            for bucket in buffer.buckets if buffer.ddp_config.use_distributed_optimizer else ():
                own = bucket.grad_data.chunk(buffer.data_parallel_group.size())[buffer.data_parallel_group.rank()]
                dist.all_gather_into_tensor(bucket.grad_data, own.clone(), group=buffer.data_parallel_group)
        super().gradients(loss)

    def _buffers(self):
        lists = [chunk.buffers for chunk in self.chunks if not callable(chunk.buffers)]  # of Megatron's DDP
        return [buffer for buffers in lists for buffer in buffers]

    def _writes(self, parameter, turn):
        cut = getattr(parameter, "tensor_model_parallel", False)
        writer = turn % self.groups.get_tensor_model_parallel_world_size() if cut else 0
        return (self.groups.get_data_parallel_rank(with_context_parallel=True) == 0
                and self.groups.get_tensor_model_parallel_rank() == writer)

    def _parameters(self, kind):
        for chunk in self.chunks:
            numbers = {plain_name(name): module.layer_number - 1 for name, module in chunk.named_modules()
                       if re.fullmatch(r"decoder\.layers\.\d+", plain_name(name))}
            for name, parameter in chunk.named_parameters():
                name = plain_name(name)
                name = re.sub(r"^decoder\.layers\.\d+", lambda found: f"decoder.layers.{numbers[found[0]]}", name)
                if not (name == "output_layer.weight" and self.tied):  # the last stage's copy of the embedding
                    yield name, parameter

    def _shards(self, parameter, tensor):
        if not getattr(parameter, "tensor_model_parallel", False):
            return [tensor]
        shards = [torch.empty_like(tensor) for _ in range(self.groups.get_tensor_model_parallel_world_size())]
        dist.all_gather(shards, tensor.contiguous(), group=self.groups.get_tensor_model_parallel_group())
        return shards

    def _weight(self, parameter):
        main = getattr(parameter, "main_param", None)  # fp32, which the optimizer updates
        if getattr(parameter, "main_param_sharded", False):
            main = self._unsharded(parameter, main)
        return self._shards(parameter, (parameter if main is None else main).detach())

    def _unsharded(self, parameter, main):
        for buffer in self._buffers():
            if parameter not in buffer.param_index_map:
                continue
            begin, end, bucket = buffer.param_index_map[parameter]
            bucket, group = buffer.buckets[bucket], buffer.data_parallel_group
            size = bucket.grad_data.numel() // group.size()
            first = max(begin, bucket.offset + group.rank() * size)
            full = torch.zeros(2, end - begin, dtype=torch.float32, device=parameter.device)
            if main is not None:
                full[0, first - begin:first - begin + main.numel()] = main.detach().view(-1)
                full[1, first - begin:first - begin + main.numel()] = 1
            dist.all_reduce(full, group=group)
            return full[0].view(parameter.shape) if full[1].all() else None  # None: the optimizer has no such copy
        raise ValueError("dump_megatron: a parameter of the distributed optimizer is not in any buffer")

    def _gradient(self, parameter):
        gradient = getattr(parameter, "main_grad", parameter.grad)
        return None if gradient is None else self._shards(parameter, gradient.detach() / self.scale)

    def _describe(self, optimizer):
        names = {id(parameter): self.names[name] for name, parameter in self._parameters("names")}
        groups, updates, name = [], 0, ""
        for part in getattr(optimizer, "chained_optimizers", [optimizer]):
            inner = getattr(part, "optimizer", part)
            name = type(inner).__name__
            lists = [getattr(part, of) for of in ("float16_groups", "fp32_from_fp32_groups", "model_float16_groups",
                                                  "model_fp32_groups") if hasattr(part, of)]
            for i, group in enumerate(inner.param_groups):
                members = sum((list(of[i]) for of in lists), []) or group["params"]
                groups.append({"parameters": sum((names[id(p)] for p in members if id(p) in names), []),
                               **{key: group[key] for key in ("lr", "betas", "eps", "weight_decay", "momentum")
                                  if key in group}})
            steps = [float(of["step"]) for of in [*inner.state.values(), *inner.param_groups] if "step" in of]
            updates = max([updates, *steps])
        stages = self._gather((groups, updates))
        return {"name": name, "groups": [group for of, _ in stages for group in of if group["parameters"]],
                "updates": max(of for _, of in stages)}
