"""Writes one training step of a torch program, for `meshtrain verify --against FOLDER` (docs/against.md).

    dump = StepDump("step", model, mesh={"dp": 2, "tp": 2}, data_rank=dp_rank)   # before the step
    ...                                                                          # for each micro-batch:
    dump.batch(input_ids, labels)                                                #   what the model is given
    ...                                                                          # after the last backward:
    dump.gradients(loss)                                                         #   before clipping
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    dump.finish(optimizer, grad_norm=norm, clip_norm=1.0)

Every rank makes the same calls. Works with plain modules, DDP, FSDP1 (use_orig_params), FSDP2, DTensor and DeepSpeed.
Needs torch and safetensors alone; `model.config` (transformers) or `config` gives config.json.
"""
import contextlib
import json
import pathlib

import torch
import torch.distributed as dist
from safetensors.torch import save_file

WRAPPERS = {"module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"}


def plain_name(name):
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


class StepDump:
    """`mesh`: the sizes of the axes. `data_rank`: the number of this rank's samples: ranks along tp and cp, which have
    the same samples, have the same number. `config`: a dict, or an object with to_dict()."""

    def __init__(self, folder, model, mesh=None, data_rank=None, config=None, max_file_bytes=2 << 30):
        self.folder, self.model, self.max_file_bytes = pathlib.Path(folder), model, max_file_bytes
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.data_rank = self.rank if data_rank is None else data_rank
        self.mesh = mesh or {"dp": dist.get_world_size() if dist.is_initialized() else 1}
        self.batches, self.loss = [], None
        config = config or getattr(getattr(model, "module", model), "config", None)
        self._save("before", lambda name, p: self._weight(p))
        if self.rank == 0:
            text = config if isinstance(config, dict) else config.to_dict()
            (self.folder / "before" / "config.json").write_text(json.dumps(text, indent=1, default=str))

    def batch(self, input_ids, labels, shifted=False):
        """`labels`: as for a model of transformers, which shifts them; `shifted`: labels[i] is the token after
        input_ids[i]. -100 does not count. The complete sequences, before context parallelism cuts them."""
        input_ids, labels = input_ids.detach().cpu().long(), labels.detach().cpu().long()
        if not shifted:
            labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], dim=1)
        self.batches.append((self.data_rank, len(self.batches), input_ids, labels))

    def gradients(self, loss=None):
        """`loss`: the one that the program reports for the step, unless finish() has it."""
        self.loss = loss
        self._save("gradients", lambda name, p: self._gradient(p))

    def finish(self, optimizer, grad_norm=None, clip_norm=0, loss=None):
        self._save("after", lambda name, p: self._weight(p))
        gathered = [self.batches]
        if dist.is_initialized():
            gathered = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, self.batches)
        if self.rank != 0:
            return
        unique = {(rank, micro): (ids, labels) for of_rank in gathered for rank, micro, ids, labels in of_rank}
        keys = sorted(unique)
        rows = [len(unique[key][0]) for key in keys]
        save_file({"input_ids": torch.cat([unique[key][0] for key in keys]).contiguous(),
                   "labels": torch.cat([unique[key][1] for key in keys]).contiguous(),
                   "rank": torch.tensor([rank for (rank, _), n in zip(keys, rows) for _ in range(n)]),
                   "micro_batch": torch.tensor([micro for (_, micro), n in zip(keys, rows) for _ in range(n)])},
                  self.folder / "batch.safetensors")
        number = lambda value: None if value is None else float(full(value.detach()) if torch.is_tensor(value) else value)
        step = {"loss": number(self.loss if loss is None else loss), "grad_norm": number(grad_norm), "clip_norm": clip_norm, "mesh": self.mesh,
                "optimizer": self._describe(optimizer)}
        (self.folder / "step.json").write_text(json.dumps(step, indent=1))

    def _describe(self, optimizer):
        inner, members = optimizer, None
        while True:  # those of accelerate and DeepSpeed have others inside
            for groups in ("bit16_groups", "bf16_groups", "trainable_param_groups"):  # ZeRO's own groups are flat
                members = getattr(inner, groups, members)
            if not hasattr(inner, "optimizer"):
                break
            inner = inner.optimizer
        names = {id(p): plain_name(name) for name, p in self.model.named_parameters()}
        keys = ("lr", "betas", "eps", "weight_decay", "momentum", "nesterov", "amsgrad", "maximize")
        groups = []
        for group, of in zip(inner.param_groups, members or inner.param_groups):
            parameters = of["params"] if isinstance(of, dict) else of
            groups.append({"parameters": [names[id(p)] for p in parameters if id(p) in names],
                           **{key: group[key] for key in keys if key in group}})
        steps = [float(state["step"]) for state in inner.state.values() if "step" in state]
        return {"name": type(inner).__name__, "groups": groups, "updates": max(steps, default=0)}

    def _weight(self, parameter):
        if hasattr(parameter, "_z3_optimizer") or hasattr(parameter, "_hp_mapping"):
            from deepspeed.utils import safe_get_full_fp32_param
            return safe_get_full_fp32_param(parameter)  # what the optimizer updates
        if hasattr(parameter, "ds_id"):
            import deepspeed
            with deepspeed.zero.GatheredParameters([parameter]):
                return parameter.detach().clone()
        return full(parameter.detach())

    def _gradient(self, parameter):
        if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):
            from deepspeed.utils import safe_get_full_grad
            return safe_get_full_grad(parameter)
        return None if parameter.grad is None else full(parameter.grad)

    def _save(self, kind, value):
        """Writes value(name, parameter) of each parameter: at most one file is in memory."""
        folder, pending, size, files = self.folder / kind, {}, 0, []
        if self.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
        with self._summoned(kind):
            for name, parameter in self.model.named_parameters():
                tensor = value(name, parameter)
                if tensor is None or self.rank != 0:
                    continue
                tensor = tensor.detach().cpu().contiguous().clone()
                pending[plain_name(name)] = tensor
                size += tensor.numel() * tensor.element_size()
                if size >= self.max_file_bytes:
                    files.append(pending)
                    self._write(folder, len(files), files)
                    pending, size = {}, 0
        if self.rank == 0:
            files.append(pending)
            self._write(folder, len(files), files)
            index = {name: f"part-{number:05}.safetensors" for number, of in enumerate(files, 1) for name in of}
            (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))

    @staticmethod
    def _write(folder, number, files):
        save_file(files[-1], folder / f"part-{number:05}.safetensors", metadata={"format": "pt"})
        files[-1] = list(files[-1])

    def _summoned(self, kind):
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        if not any(isinstance(module, FSDP) for module in self.model.modules()):
            return contextlib.nullcontext()
        return FSDP.summon_full_params(self.model, with_grads=kind == "gradients", writeback=False)
