"""Runs the training loops of other projects over gloo, each as its documentation has it, and compares what
`meshtrain verify --against` says of their first steps.

    tests/against/loops.py MESHTRAIN [CASE...]

Needs what steps.py needs, and accelerate and deepspeed for the cases that they name; cases of a package that is not
installed are left out, and named."""
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

import torch

os.environ.setdefault("DS_ACCELERATOR", "cpu")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from steps import SAMPLES, StepDump, make_model, samples  # noqa: E402

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


def accelerate(ranks, folder, *, micro_batches=1, plugin=None, masked=False, precision="no"):
    """The loop of accelerate's guide to gradient accumulation, with the mean of each micro-batch as its loss."""
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro_batches, mixed_precision=precision,
                              **({} if plugin is None else plugin()))
    model = make_model()
    loader = torch.utils.data.DataLoader(Rows(masked), batch_size=SAMPLES // ranks // micro_batches)
    model, optimizer, loader = accelerator.prepare(model, adamw(model), loader)
    dump = StepDump(folder, model)
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


def deepspeed(ranks, folder, *, stage, micro_batches=1, masked=False, bf16=False):
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
    dump = StepDump(folder, engine)
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


def fsdp_plugin(version):
    def make():
        from accelerate import FullyShardedDataParallelPlugin
        return {"fsdp_plugin": FullyShardedDataParallelPlugin(
            fsdp_version=version, auto_wrap_policy="transformer_based_wrap", use_orig_params=True,
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"])}
    return make


CASES = {
    "accelerate_1": (1, None, dict(loop=accelerate, micro_batches=2)),
    "accelerate_ddp_2": (2, None, dict(loop=accelerate, micro_batches=2)),
    "accelerate_masked_2": (2, "the mean of the micro-batches' means", dict(loop=accelerate, micro_batches=2, masked=True)),
    "accelerate_bf16": (1, None, dict(loop=accelerate, precision="bf16")),
    "accelerate_fsdp1_2": (2, None, dict(loop=accelerate, plugin=fsdp_plugin(1))),
    "accelerate_fsdp2_2": (2, None, dict(loop=accelerate, plugin=fsdp_plugin(2))),
    "trainer_2": (2, None, dict(loop=transformers, micro_batches=2)),
    "trainer_zero3_2": (2, None, dict(loop=transformers, micro_batches=2, deepspeed=ZERO3)),
    "trainer_one_rank_counts_2": (2, "the mean of the ranks' means", dict(
        loop=transformers, micro_batches=2, average_tokens_across_devices=False)),
    **{f"deepspeed_zero{stage}_2": (2, None, dict(loop=deepspeed, stage=stage, micro_batches=2)) for stage in range(4)},
    "deepspeed_zero2_bf16_2": (2, None, dict(loop=deepspeed, stage=2, bf16=True)),
    "deepspeed_zero3_bf16_2": (2, None, dict(loop=deepspeed, stage=3, bf16=True)),
    "deepspeed_masked_2": (2, "the mean of the ranks' means", dict(loop=deepspeed, stage=2, masked=True)),
}


def run(program, name):
    """Returns whether the verdict on a case is the expected one. Ranks are started as users start them."""
    ranks, expected, _ = CASES[name]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "step"
        trained = subprocess.run([*(launcher if ranks > 1 else [sys.executable]), __file__, "--train", name, folder],
                                 capture_output=True, text=True, check=False)
        ended = subprocess.run([program, "verify", "--against", folder], capture_output=True, text=True, check=False)
    words = ended.stdout + ended.stderr
    good = trained.returncode == 0 and (ended.returncode == 0 if expected is None
                                        else ended.returncode == 1 and expected in words)
    print(f"{name:28} {'right' if expected is None else 'fault'} {'ok' if good else 'WRONG'}", flush=True)
    if not good:
        print(trained.stdout + trained.stderr if trained.returncode else words, flush=True)
    return good


def main():
    if sys.argv[1] == "--train":
        name, folder = sys.argv[2:]
        ranks, _, settings = CASES[name]
        torch.set_num_threads(1)
        settings.pop("loop")(ranks, folder, **settings)
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
