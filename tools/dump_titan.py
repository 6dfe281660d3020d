"""Writes the first step of a torchtitan Trainer, for `meshtrain verify --against FOLDER` (docs/against.md).

    trainer = Trainer(config)
    dump_titan(trainer, "step", config_json)
    trainer.train()

`config_json`: the content of Hugging Face's config.json for the model, a dict, with torchtitan's rms_norm_eps and RoPE.
Names and the order of rows are those of the model's own state_dict_adapter. Every rank makes the call. Works with
dp, tp and cp. `options`: those of StepDump.
"""
import torch
from torchtitan import trainer as titan

from dump_step import StepDump


def dump_titan(trainer, folder, config_json, **options):
    FirstStep(trainer, folder, config_json, options)


class FirstStep:
    def __init__(self, trainer, folder, config_json, options):
        dims = trainer.parallel_dims
        if dims.pp_enabled:
            raise ValueError("dump_titan: pipeline parallelism cannot be dumped yet")
        self.trainer, self.folder, self.config_json, self.options = trainer, folder, config_json, options
        self.dump, self.loss, self.norm = None, 0, None
        self.adapter = trainer.config.model_spec.state_dict_adapter(trainer.model_config, None)
        self.compute, self.clip = trainer.forward_backward_step, titan.dist_utils.clip_grad_norm_
        self.update = trainer.optimizers.step
        trainer.forward_backward_step, trainer.optimizers.step = self.forward_backward_step, self.step
        titan.dist_utils.clip_grad_norm_ = self.clip_grad_norm_

    def forward_backward_step(self, *, input_dict, labels, **keywords):
        dims = self.trainer.parallel_dims
        if self.dump is None:  # the checkpoint has been loaded
            sizes = {"dp": dims.dp_replicate * dims.dp_shard, "tp": dims.tp, "cp": dims.cp}
            self.dump = StepDump(self.folder, self.trainer.model_parts[0], config=self.config_json,
                                 mesh={axis: size for axis, size in sizes.items() if size > 1} or {"dp": 1},
                                 data_rank=dims.get_mesh("batch").get_local_rank() if dims.dp_enabled else 0,
                                 convert=self.convert, **self.options)
        positions = input_dict.get("positions")
        if positions is not None and (positions[:, 1:] <= positions[:, :-1]).any():
            raise ValueError("dump_titan: several documents in one row cannot be compared yet")
        self.dump.batch(input_dict["input"], labels, shifted=True)
        loss = self.compute(input_dict=input_dict, labels=labels, **keywords)
        self.loss = self.loss + loss.detach()
        return loss

    def convert(self, name, tensor):
        state = {name: tensor}
        prefix, _, last = name.rpartition("wqkv.")
        if last and prefix:
            module = self.trainer.model_parts[0].get_submodule(f"{prefix}wqkv".rpartition(".")[0])
            module._split_qkv_on_save(module, state, prefix, None)
        return self.adapter.to_hf(state)

    def clip_grad_norm_(self, *arguments, **keywords):
        self.dump.gradients()
        self.norm = self.clip(*arguments, **keywords)
        return self.norm

    def step(self, *arguments, **keywords):
        result = self.update(*arguments, **keywords)
        dims, loss = self.trainer.parallel_dims, self.loss  # each rank's: its sum over all labels that count
        if dims.dp_cp_enabled:
            loss = titan.dist_utils.dist_sum(loss, dims.get_optional_mesh("loss"))
        optimizer, = self.trainer.optimizers.optimizers
        self.dump.finish(optimizer, grad_norm=self.norm, clip_norm=self.trainer.config.training.max_norm, loss=loss)
        del self.trainer.forward_backward_step, self.trainer.optimizers.step  # those of the classes are back
        titan.dist_utils.clip_grad_norm_ = self.clip
        return result
