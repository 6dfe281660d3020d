"""Writes the first step of a transformers.Trainer, or of one derived from it (TRL's SFTTrainer), for
`meshtrain verify --against FOLDER` (docs/against.md).

    trainer = Trainer(...)
    dump_trainer(trainer, "step")
    trainer.train()

Every rank makes the call. Works with plain models, DDP, FSDP and DeepSpeed, as accelerate prepares them. `options` are
those of StepDump.
"""
import torch
import torch.distributed as dist
from transformers import TrainerCallback

from dump_step import StepDump


def dump_trainer(trainer, folder, **options):
    trainer.add_callback(FirstStep(trainer, folder, options))


class FirstStep(TrainerCallback):
    def __init__(self, trainer, folder, options):
        self.trainer, self.folder, self.options = trainer, folder, options
        self.dump, self.loss, self.norm = None, 0, None
        self.has_gradients = self.finished = False
        self.compute, self.clip = trainer.training_step, trainer.accelerator.clip_grad_norm_
        trainer.training_step, trainer.accelerator.clip_grad_norm_ = self.training_step, self.clip_grad_norm_

    def training_step(self, model, inputs, *arguments, **keywords):
        if self.dump is None:
            self.dump = StepDump(self.folder, model, **self.options)
            if hasattr(model, "is_gradient_accumulation_boundary"):  # DeepSpeed steps before Trainer would clip
                self.engine_step, model.step = model.step, self.step
        self.dump.batch(*batch_of(inputs))
        loss = self.compute(model, inputs, *arguments, **keywords)
        self.loss += loss.detach()
        return loss

    def gradients(self):
        if not self.has_gradients:
            self.dump.gradients()
            self.has_gradients = True

    def step(self, *arguments, **keywords):
        self.gradients()
        return self.engine_step(*arguments, **keywords)

    def clip_grad_norm_(self, *arguments, **keywords):
        self.gradients()
        self.norm = self.clip(*arguments, **keywords)
        return self.norm

    def on_optimizer_step(self, args, state, control, **unused):
        if self.finished:
            return
        self.finished = True
        vars(self.dump.model).pop("step", None)  # the methods of the classes are back
        del self.trainer.training_step, self.trainer.accelerator.clip_grad_norm_
        loss = self.loss.clone()
        if dist.is_initialized():  # as Trainer logs it
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
        self.dump.finish(self.trainer.optimizer, grad_norm=self.norm, clip_norm=args.max_grad_norm, loss=loss)


def batch_of(inputs):
    mask = inputs.get("attention_mask")
    if "position_ids" in inputs or (mask is not None and mask.dim() != 2):
        raise ValueError("dump_trainer: several documents in one row cannot be compared yet; turn packing off")
    if mask is not None and (mask[:, 1:] > mask[:, :-1]).any():
        raise ValueError("dump_trainer: rows are padded on the left; pad on the right, where no label sees it")
    return inputs["input_ids"], inputs["labels"]
