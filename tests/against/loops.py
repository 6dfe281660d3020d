"""Runs the training loops of other projects over gloo, each as its documentation has it, and compares what
`meshtrain verify --against` says of their first steps.

    tests/against/loops.py MESHTRAIN [CASE...]

Needs what steps.py needs, and accelerate, deepspeed, megatron-core and torchtitan for the cases that they name. Cases
of a package that is not installed are left out, and named."""
import contextlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import types

import torch
import torch.overrides

os.environ.setdefault("DS_ACCELERATOR", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from steps import LENGTH, PARTIAL, SAMPLES, VOCABULARY, StepDump, make_model, samples  # noqa: E402

CLIP, RATE, DECAY = 1.0, 1e-3, 0.1


class Rows(torch.utils.data.Dataset):
    def __init__(self, masked=True):
        self.ids, self.labels = samples(masked)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)


def mean_over_ranks(value):
    if torch.distributed.is_initialized():
        value = value.clone()
        torch.distributed.all_reduce(value)
        value /= torch.distributed.get_world_size()
    return value


def accelerate(ranks, folder, *, micro_batches=1, fsdp=False, masked=False, precision="no", partial=None):
    """The loop of accelerate's guide to gradient accumulation, with the mean of each micro-batch as its loss."""
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro_batches, mixed_precision=precision)
    if fsdp:  # which accelerate chooses on GPUs alone
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"])
    model = make_model()
    loader = torch.utils.data.DataLoader(Rows(masked), batch_size=SAMPLES // ranks // micro_batches)
    model, optimizer, loader = accelerator.prepare(model, adamw(model), loader)
    assert fsdp == ("FSDP" in type(model).__name__), type(model)
    dump = StepDump(folder, model, **(partial or {}))
    reported = torch.zeros(())
    for batch in loader:
        with accelerator.accumulate(model):
            dump.batch(batch["input_ids"], batch["labels"])
            loss = model(**batch).loss
            accelerator.backward(loss)
            reported += loss.detach() / micro_batches
            norm = None
            if accelerator.sync_gradients:
                dump.gradients(mean_over_ranks(reported))
                norm = accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            if norm is not None:
                dump.finish(optimizer, grad_norm=norm, clip_norm=CLIP)
            optimizer.zero_grad()


def deepspeed(ranks, folder, *, stage, micro_batches=1, masked=False, bf16=False, partial=None):
    """The loop of DeepSpeed's guide: the engine scales losses, averages gradients and clips."""
    import deepspeed as ds
    model = make_model()
    config = {"train_micro_batch_size_per_gpu": SAMPLES // ranks // micro_batches,
              "gradient_accumulation_steps": micro_batches, "gradient_clipping": CLIP,
              "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True,
              "bf16": {"enabled": bf16}}
    engine, optimizer, _, _ = ds.initialize(model=model, optimizer=adamw(model), config=config)
    loader = torch.utils.data.DataLoader(Rows(masked), batch_size=SAMPLES // ranks // micro_batches,
                                         sampler=torch.utils.data.DistributedSampler(Rows(), shuffle=False))
    dump = StepDump(folder, engine, **(partial or {}))
    reported = torch.zeros(())
    for batch in loader:
        dump.batch(batch["input_ids"], batch["labels"])
        loss = engine(**batch).loss
        engine.backward(loss)
        reported += loss.detach() / micro_batches
        last = engine.is_gradient_accumulation_boundary()
        if last:
            dump.gradients(mean_over_ranks(reported))
        engine.step()
        if last:
            dump.finish(optimizer, grad_norm=engine.get_global_grad_norm(), clip_norm=CLIP)


def transformers(ranks, folder, *, micro_batches=1, masked=True, **settings):
    """Trainer counts the labels of a step over ranks and micro-batches, so that masks change nothing."""
    from transformers import Trainer, TrainingArguments
    from dump_trainer import dump_trainer
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(make_model(), TrainingArguments(
            scratch, use_cpu=True, per_device_train_batch_size=SAMPLES // ranks // micro_batches,
            gradient_accumulation_steps=micro_batches, learning_rate=RATE, weight_decay=DECAY, max_grad_norm=CLIP,
            max_steps=2, save_strategy="no", report_to=[], disable_tqdm=True, lr_scheduler_type="constant", **settings),
            train_dataset=Rows(masked))
        dump_trainer(trainer, folder)
        trainer.train()


ZERO3 = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
         "zero_optimization": {"stage": 3}, "zero_allow_untested_optimizer": True}


class OnCpu(torch.overrides.TorchFunctionMode):
    """Megatron-core names the device "cuda" in many places, and looks for its tensors there."""

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords = dict(keywords or {})
        if str(keywords.get("device", "")).startswith("cuda"):
            keywords["device"] = "cpu"
        if function is torch.Tensor.cuda:
            return arguments[0]
        result = function(*arguments, **keywords)
        names_type = function is torch.Tensor.type and isinstance(result, str)
        return result.replace("torch.", "torch.cuda.") if names_type else result


def megatron_norm(_, config, hidden_size, eps, **unused):
    """Apex's, marked for the sum over tp as sequence parallel needs it; Megatron-core's own for the CPU is not."""
    norm = torch.nn.RMSNorm(hidden_size, eps)
    norm.weight.sequence_parallel = config.sequence_parallel
    return norm


def megatron(ranks, folder, *, tp=1, pp=1, tied=False, sequence_parallel=False, distributed=False, bf16=False, masked=False,
             per_token=True, fault=None, partial=None):
    """The schedule, DDP and optimizer of Megatron-core, with the loss function of its pretrain_gpt.py."""
    from megatron.core import parallel_state, pipeline_parallel, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig, torch_norm
    from dump_megatron import MegatronDump
    torch.cuda.current_device, torch.cuda.synchronize = lambda: "cpu", lambda: None
    torch_norm.WrappedTorchNorm.__new__ = megatron_norm
    tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *unused: contextlib.nullcontext()
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp)
    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=2, hidden_size=32, ffn_hidden_size=64, num_attention_heads=4, num_query_groups=2,
        normalization="RMSNorm", gated_linear_unit=True, add_bias_linear=False, init_method_std=0.1,
        activation_func=torch.nn.functional.silu, hidden_dropout=0.0, attention_dropout=0.0, layernorm_epsilon=1e-6,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, sequence_parallel=sequence_parallel, calculate_per_token_loss=per_token,
        use_cpu_initialization=True, bias_activation_fusion=False, masked_softmax_fusion=False,
        bias_dropout_fusion=False, apply_rope_fusion=False, gradient_accumulation_fusion=False,
        bf16=bf16, params_dtype=torch.bfloat16 if bf16 else torch.float32, pipeline_dtype=torch.float32)
    model = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=VOCABULARY,
                     max_sequence_length=LENGTH, position_embedding_type="rope",
                     share_embeddings_and_output_weights=tied, pre_process=parallel_state.is_pipeline_first_stage(),
                     post_process=parallel_state.is_pipeline_last_stage())
    if fault == "norms_not_marked":
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.sequence_parallel = False
    if bf16:
        from megatron.core.transformer.module import Float16Module
        model = Float16Module(config, model)
    model = DistributedDataParallel(
        config, DistributedDataParallelConfig(use_distributed_optimizer=distributed, grad_reduce_in_fp32=True), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer="adam", lr=RATE, min_lr=RATE, weight_decay=DECAY, clip_grad=CLIP, bf16=bf16,
        params_dtype=config.params_dtype, use_distributed_optimizer=distributed), [model])
    config.finalize_model_grads_func = finalize_model_grads
    ids, labels = samples(masked)
    rank, share = parallel_state.get_data_parallel_rank(), SAMPLES * tp * pp // ranks
    ids, labels = ids[rank * share:(rank + 1) * share], labels[rank * share:(rank + 1) * share]
    counted = torch.nn.functional.pad(labels[:, 1:] != -100, (0, 1))
    given = torch.nn.functional.pad(ids[:, 1:], (0, 1))
    llama = make_model(tied).config.to_dict()
    dump = MegatronDump(folder, [model], llama, **(partial or {}))
    future = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)

    def forward_step(batches, model):
        tokens, labels, mask = next(batches)
        dump.batch(tokens, labels, mask)
        output = model(tokens, torch.arange(LENGTH).expand_as(tokens), future, labels=labels)

        def loss_of(output):
            loss, tokens = (output.float() * mask).sum(), mask.sum()
            return loss, tokens.int(), {"loss": torch.stack([loss.detach(), tokens.float()])}
        return output, loss_of

    losses = pipeline_parallel.get_forward_backward_func()(
        forward_step_func=forward_step, data_iterator=iter(zip(ids.chunk(2), given.chunk(2), counted.chunk(2))),
        model=[model], num_microbatches=2, seq_length=LENGTH, micro_batch_size=share // 2, forward_only=False)
    loss = torch.stack([torch.zeros(2), *(loss["loss"] for loss in losses)]).sum(0)  # of the last stage
    for group in (parallel_state.get_data_parallel_group(), parallel_state.get_pipeline_model_parallel_group()):
        torch.distributed.all_reduce(loss, group=group)
    dump.gradients(loss[0] / loss[1], optimizer.get_loss_scale().item())
    _, norm, _ = optimizer.step()
    dump.finish(optimizer, grad_norm=norm, clip_norm=CLIP)


def torchtitan(ranks, folder, *, tp=1, partial=None, fault=None):
    """The train_step() of torchtitan's Trainer. Its constructor asks for a GPU, and FlexAttention has no backward on
    CPUs, so the parts are made here as it makes them, with attention by torch's own function."""
    torch._utils._get_available_device_type = lambda: "cpu"
    from torch.distributed.fsdp import FSDPModule
    from torchtitan import trainer as titan
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.components.optimizer.optimizer import default_adamw
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.models import llama3
    from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from dump_titan import dump_titan
    torch.distributed.init_process_group("gloo")
    llama3.get_attention_config = lambda backend: ScaledDotProductAttention.Config()
    normal, ones = {"weight": lambda w: torch.nn.init.normal_(w, std=0.1)}, {"weight": torch.nn.init.ones_}
    shape = llama3.Llama3Model.Config(
        dim=32, vocab_size=VOCABULARY, norm=RMSNorm.Config(normalized_shape=32, eps=1e-6, param_init=ones),
        tok_embeddings=Embedding.Config(num_embeddings=VOCABULARY, embedding_dim=32, param_init=normal),
        lm_head=Linear.Config(in_features=32, out_features=VOCABULARY, param_init=normal),
        layers=llama3._build_llama3_layers(
            n_layers=2, dim=32, n_heads=4, n_kv_heads=2, hidden_dim=64, attn_backend="",
            rope=ComplexRoPE.Config(dim=8, max_seq_len=64, theta=10000.0)))
    for layer in shape.layers:
        layer.attention_norm.eps = layer.ffn_norm.eps = 1e-6
    trainer = object.__new__(titan.Trainer)
    trainer.config = config = titan.Trainer.Config(
        model_spec=llama3.ModelSpec("llama3", "tiny", shape, llama3.parallelize_llama, None, None,
                                    llama3.Llama3StateDictAdapter),
        parallelism=ParallelismConfig(tensor_parallel_degree=tp), optimizer=default_adamw(lr=RATE),
        loss=CrossEntropyLoss.Config(global_vocab_size=VOCABULARY), activation_checkpoint=None,
        training=TrainingConfig(seq_len=LENGTH, steps=1, disable_cuda_graphs=True, mixed_precision_param="float32"))
    trainer.parallel_dims = dims = ParallelDims.from_config(config.parallelism, ranks)
    titan.dist_utils.set_spmd_backend(config.parallelism.spmd_backend)
    shape.update_from_config(config=config)
    trainer.model_config, trainer.device = shape, torch.device("cpu")
    with torch.device("meta"):
        model = shape.build()
    model = config.model_spec.parallelize_fn(
        model, parallel_dims=dims, training=config.training, parallelism=config.parallelism,
        compile_config=CompileConfig(), ac_config=None, dump_folder=str(folder))
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    model.train()
    trainer.model_parts, trainer.loss_fn = [model], config.loss.build(compile_config=CompileConfig())
    trainer.optimizers = config.optimizer.build(model_parts=[model])
    trainer.lr_schedulers = config.lr_scheduler.build(optimizers=trainer.optimizers, training_steps=10)
    trainer.metrics_processor = types.SimpleNamespace(should_log=lambda step: False)
    trainer.checkpointer = types.SimpleNamespace(maybe_wait_for_staging=lambda: None)
    trainer.gradient_accumulation_steps, trainer.num_pipeline_parallel_microbatches = 2, 1
    trainer.step, trainer.ntokens_seen = 1, 0
    trainer.train_context = titan.dist_utils.get_spmd_context(parallel_dims=dims, spmd_typechecking=False)
    trainer.fwd_bwd_fn = trainer._forward_backward_body
    if fault == "ranks_counted_alone":
        titan.dist_utils.dist_sum_tensor = lambda tokens, mesh: tokens * mesh.size()
    ids, labels = samples(masked=True)
    rank, share = dims.get_mesh("batch").get_local_rank() if dims.dp_enabled else 0, SAMPLES * tp // ranks
    ids, labels = ids[rank * share:(rank + 1) * share], labels[rank * share:(rank + 1) * share]
    given = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
    dump_titan(trainer, folder, make_model().config.to_dict(), **(partial or {}))
    trainer.train_step(iter([({"input": x, "positions": torch.arange(LENGTH).expand(len(x), -1)}, y)
                             for x, y in zip(ids.chunk(2), given.chunk(2))]))


CASES = {
    "accelerate_1": (1, None, dict(loop=accelerate, micro_batches=2)),
    "accelerate_ddp_2": (2, None, dict(loop=accelerate, micro_batches=2)),
    "accelerate_masked_2": (2, "the mean of the micro-batches' means", dict(
        loop=accelerate, micro_batches=2, masked=True)),
    "accelerate_masked_partial_2": (2, "the mean of the micro-batches' means", dict(
        loop=accelerate, micro_batches=2, masked=True, partial=PARTIAL)),
    "accelerate_bf16": (1, None, dict(loop=accelerate, precision="bf16")),
    "accelerate_fsdp2_2": (2, None, dict(loop=accelerate, fsdp=True)),
    "accelerate_fsdp2_partial_2": (2, None, dict(loop=accelerate, fsdp=True, partial=PARTIAL)),
    "trainer_2": (2, None, dict(loop=transformers, micro_batches=2)),
    "trainer_zero3_2": (2, None, dict(loop=transformers, micro_batches=2, deepspeed=ZERO3)),
    "trainer_one_rank_counts_2": (2, "the mean of the ranks' means", dict(
        loop=transformers, micro_batches=2, average_tokens_across_devices=False)),
    **{f"deepspeed_zero{stage}_2": (2, None, dict(loop=deepspeed, stage=stage, micro_batches=2)) for stage in range(4)},
    "deepspeed_zero2_bf16_2": (2, None, dict(loop=deepspeed, stage=2, bf16=True)),
    "deepspeed_zero3_bf16_2": (2, None, dict(loop=deepspeed, stage=3, bf16=True)),
    "deepspeed_zero3_partial_2": (2, None, dict(loop=deepspeed, stage=3, partial=PARTIAL)),
    "megatron_2": (2, None, dict(loop=megatron, masked=True)),
    "megatron_tp_2": (2, None, dict(loop=megatron, tp=2, masked=True)),
    "megatron_sp_4": (4, None, dict(loop=megatron, tp=2, sequence_parallel=True, masked=True)),
    "megatron_distributed_4": (4, None, dict(loop=megatron, tp=2, distributed=True, masked=True)),
    "megatron_distributed_bf16_2": (2, None, dict(loop=megatron, distributed=True, bf16=True)),
    "megatron_pp_2": (2, None, dict(loop=megatron, pp=2, masked=True)),
    "megatron_pp_tied_4": (4, None, dict(loop=megatron, pp=2, tied=True, distributed=True)),
    "megatron_bf16_partial_2": (2, None, dict(loop=megatron, tp=2, bf16=True, partial=PARTIAL)),
    "megatron_norms_not_marked_2": (2, "norms: a part is missing, as when a sum over tp=2 is missing", dict(
        loop=megatron, tp=2, sequence_parallel=True, fault="norms_not_marked")),
    "megatron_masked_2": (2, "the mean of the micro-batches' means", dict(loop=megatron, masked=True, per_token=False)),
    "torchtitan_fsdp_2": (2, None, dict(loop=torchtitan)),
    "torchtitan_fsdp_tp_4": (4, None, dict(loop=torchtitan, tp=2)),
    "torchtitan_partial_4": (4, None, dict(loop=torchtitan, tp=2, partial=PARTIAL)),
    "torchtitan_ranks_counted_alone_2": (2, "the mean of the ranks' means", dict(
        loop=torchtitan, fault="ranks_counted_alone")),
    "deepspeed_masked_2": (2, "the mean of the ranks' means", dict(loop=deepspeed, stage=2, masked=True)),
}


def run(program, name):
    """Returns whether the verdict on a case is the expected one. Ranks are started as users start them."""
    ranks, expected, settings = CASES[name]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "step"
        trained = subprocess.run([*(launcher if ranks > 1 else [sys.executable]), __file__, "--train", name, folder],
                                 capture_output=True, text=True, check=False)
        ended = subprocess.run([program, "verify", "--against", folder], capture_output=True, text=True, check=False)
    words = ended.stdout + ended.stderr
    good = trained.returncode == 0 and (ended.returncode == 0 if expected is None
                                        else ended.returncode == 1 and expected in words)
    good = good and ("\n  left out" in words) == ("partial" in settings)
    print(f"{name:28} {'right' if expected is None else 'fault'} {'ok' if good else 'WRONG'}", flush=True)
    if not good:
        print(trained.stdout + trained.stderr if trained.returncode else words, flush=True)
    return good


def main():
    if sys.argv[1] == "--train":
        name, folder = sys.argv[2:]
        ranks, _, settings = CASES[name]
        torch.set_num_threads(1)
        loop = settings.pop("loop")
        with OnCpu() if loop is megatron else contextlib.nullcontext():
            loop(ranks, folder, **settings)
        return 0
    program, wanted, failed = sys.argv[1], sys.argv[2:], []
    for name in wanted or CASES:
        package = CASES[name][2]["loop"].__name__
        if importlib.util.find_spec(package) is None:
            print(f"{name:28} left out: {package} is not installed")
        elif not run(program, name):
            failed.append(name)
    print(f"{len(failed)} wrong: {', '.join(failed)}" if failed else "all as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
