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
import re
import zlib

import torch
import torch.distributed as dist
from safetensors.torch import save_file

WRAPPERS = {"module", "_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module"}


def plain_name(name):
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def number(value):
    return None if value is None else float(full(value.detach()) if torch.is_tensor(value) else value)


def block_of(name):
    found = re.search(r"\blayers\.(\d+)\.", name)
    return int(found[1]) if found else None


class StepDump:
    """`mesh`: the sizes of the axes. `data_rank`: the number of this rank's samples: ranks along tp and cp, which have
    the same samples, have the same number. `config`: a dict, or an object with to_dict(). `convert(name, tensor)`: a
    dict of the tensors that Hugging Face has for one of the model, by name; for weights and gradients alike.

    For large models: `layers`, such as [0, 1, "last"], whose gradients and updates are written (and those outside of
    layers); `sample`: the maximum number of elements written for a tensor. All weights before the step are written.
    Sharded tensors are gathered one at a time (FSDP1: one unit), and their ranks take turns in writing them into
    `folder`, which all ranks must see. Where ranks have copies, rank 0 writes its own."""

    def __init__(self, folder, model, mesh=None, data_rank=None, config=None, layers=None, sample=None,
                 convert=None, max_file_bytes=1 << 30):
        self.folder, self.model, self.max_file_bytes = pathlib.Path(folder), model, max_file_bytes
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.data_rank = self.rank if data_rank is None else data_rank
        self.mesh = mesh or {"dp": self.ranks}
        self.batches, self.loss, self.sample, self.has_samples = [], None, sample, False
        self.finished = False  # calls in later steps do nothing
        self.convert, self.names = convert or (lambda name, tensor: {name: tensor}), {}
        config = config or getattr(getattr(model, "module", model), "config", None)
        config = config if isinstance(config, dict) else config.to_dict()
        last = config.get("num_hidden_layers", 0) - 1
        self.layers = layers and sorted({last if layer == "last" else int(layer) for layer in layers})
        self._save("before", self._weight)
        if self.rank == 0:
            (self.folder / "before" / "config.json").write_text(json.dumps(config, indent=1, default=str))

    def batch(self, input_ids, labels, shifted=False, documents=None):
        """`labels`: as for a model of transformers, which shifts them; `shifted`: labels[i] is the token after
        input_ids[i]. -100 does not count. `documents`: for packed sequences, the number of each token's document, in
        which attention stays and positions begin at 0; as input_ids. All are complete sequences, before context
        parallelism cuts them. Samples must not be padded on the left."""
        if self.finished:
            return
        input_ids, labels = input_ids.detach().cpu().long(), labels.detach().cpu().long()
        documents = torch.zeros_like(input_ids) if documents is None else documents.detach().cpu().long()
        if not shifted:
            labels = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], dim=1)
        self.batches.append((self.data_rank, len(self.batches), input_ids, labels, documents))

    def gradients(self, loss=None):
        """`loss`: the one that the program reports for the step, over all ranks and micro-batches, unless finish() has
        it."""
        if self.finished:
            return
        self.loss = loss
        self._save("gradients", self._gradient)

    def finish(self, optimizer, grad_norm=None, clip_norm=0, loss=None):
        if self.finished:
            return
        self.finished = True
        self._save("after", self._weight)
        gathered = self._gather(self.batches)
        loss, grad_norm = number(self.loss if loss is None else loss), number(grad_norm)  # DTensors: on every rank
        optimizer = self._describe(optimizer)
        if self.rank != 0:
            return
        if loss is None:
            raise ValueError("no loss: give the one that the program reports for the step to gradients() or finish()")
        unique = {(rank, micro): rest for of_rank in gathered for rank, micro, *rest in of_rank}
        keys = sorted(unique)
        rows = [len(unique[key][0]) for key in keys]
        save_file({"input_ids": torch.cat([unique[key][0] for key in keys]).contiguous(),
                   "labels": torch.cat([unique[key][1] for key in keys]).contiguous(),
                   "documents": torch.cat([unique[key][2] for key in keys]).contiguous(),
                   "rank": torch.tensor([rank for (rank, _), n in zip(keys, rows) for _ in range(n)]),
                   "micro_batch": torch.tensor([micro for (_, micro), n in zip(keys, rows) for _ in range(n)])},
                  self.folder / "batch.safetensors")
        step = {"loss": loss, "grad_norm": grad_norm, "clip_norm": clip_norm, "mesh": self.mesh,
                "layers": self.layers, "sample": self.sample if self.has_samples else None,
                "optimizer": optimizer}
        (self.folder / "step.json").write_text(json.dumps(step, indent=1))

    def _describe(self, optimizer):
        inner, members = optimizer, None
        while True:  # those of accelerate and DeepSpeed have others inside
            for groups in ("bit16_groups", "bf16_groups", "trainable_param_groups"):  # ZeRO's own groups are flat
                members = getattr(inner, groups, members)
            if not hasattr(inner, "optimizer"):
                break
            inner = inner.optimizer
        names = {id(p): self.names[plain_name(name)] for name, p in self.model.named_parameters()}
        keys = ("lr", "betas", "eps", "weight_decay", "momentum", "nesterov", "amsgrad", "maximize")
        groups = []
        for group, of in zip(inner.param_groups, members or inner.param_groups):
            parameters = of["params"] if isinstance(of, dict) else of
            groups.append({"parameters": sum((names[id(p)] for p in parameters if id(p) in names), []),
                           **{key: group[key] for key in keys if key in group}})
        steps = [float(of["step"]) for of in [*inner.state.values(), *inner.param_groups] if "step" in of]
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

    def _gather(self, value):
        gathered = [value]
        if self.ranks > 1:
            gathered = [None] * self.ranks
            dist.all_gather_object(gathered, value)
        return gathered

    def _save(self, kind, value):
        """Writes value(parameter) of each parameter. Ranks take turns; each holds at most one file."""
        files, samples = _Files(self.folder / kind, self), _Files(self.folder / "sample", self)
        for turn, (name, parameter) in enumerate(self._parameters(kind)):
            layer = block_of(name)
            if kind != "before" and self.layers and layer is not None and layer not in self.layers:
                continue
            tensor = value(parameter)  # a collective
            if kind == "before":
                self.names[name] = list(self.convert(name, tensor))
            if tensor is None or not self._writes(parameter, turn):
                continue
            for name, part in self.convert(name, tensor).items():
                if kind != "before" and self.sample and part.numel() > self.sample:
                    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
                    elements = torch.randint(part.numel(), (self.sample,), generator=generator).unique()
                    part = part.detach().reshape(-1)[elements.to(part.device)]
                    samples.add(name, elements)
                files.add(name, part)
        files.finish()
        if self.sample and kind == "gradients":
            self.has_samples = samples.finish()

    def _writes(self, parameter, turn):
        """Returns whether this rank writes a parameter. Ranks that gather it from the same shards as rank 0 take turns;
        copies of other ranks may differ, which must not be mixed."""
        if hasattr(parameter, "placements"):  # DTensor
            place, places = 0, 1
            for at, size, of in zip(parameter.device_mesh.get_coordinate(), parameter.device_mesh.shape,
                                    parameter.placements):
                if of.is_replicate() and at != 0:
                    return False
                if not of.is_replicate():
                    place, places = place * size + at, places * size
            return 0 in parameter.device_mesh.mesh and turn % places == place
        if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):  # ZeRO
            return turn % self.ranks == self.rank
        return self.rank in self.gathering and turn % len(self.gathering) == self.gathering.index(self.rank)

    def _parameters(self, kind):
        """Yields names and parameters of the model; those of FSDP1 while their unit is gathered."""
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
        modules = dict(self.model.named_modules())
        units = {prefix: unit for prefix, unit in modules.items() if isinstance(unit, FSDP)}
        self.gathering = [0]  # ranks that have plain parameters from the same shards as rank 0
        if not units:
            yield from ((plain_name(name), parameter) for name, parameter in self.model.named_parameters())
            return
        inside = {prefix: max((unit for unit in units if f"{prefix}.".startswith(unit and f"{unit}.")), key=len,
                              default=None) for prefix in modules}
        for unit in [None, *units]:
            self.gathering = [0]
            if unit is not None and units[unit].sharding_strategy != ShardingStrategy.NO_SHARD:
                ranks = dist.get_process_group_ranks(units[unit].process_group)
                self.gathering = ranks if 0 in ranks else []
            seen = set()  # a tied weight has two names
            with contextlib.nullcontext() if unit is None else FSDP.summon_full_params(
                    units[unit], recurse=False, writeback=False, with_grads=kind == "gradients"):
                for prefix, module in modules.items():
                    for name, parameter in module._parameters.items() if inside[prefix] == unit else ():
                        if parameter is not None and id(parameter) not in seen:
                            seen.add(id(parameter))
                            yield plain_name(f"{prefix}.{name}".lstrip(".")), parameter


class _Files:
    """The files of one rank in a folder, and with finish() on all ranks their index."""

    def __init__(self, folder, dump):
        self.folder, self.dump, self.pending, self.size, self.index = folder, dump, {}, 0, {}

    def add(self, name, tensor):
        self.pending[name] = tensor.detach().cpu().contiguous().clone()
        self.size += tensor.numel() * tensor.element_size()
        if self.size >= self.dump.max_file_bytes:
            self.write()

    def write(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        file = f"rank-{self.dump.rank:05}-{len(set(self.index.values())):05}.safetensors"
        save_file(self.pending, self.folder / file, metadata={"format": "pt"})
        self.index |= dict.fromkeys(self.pending, file)
        self.pending, self.size = {}, 0

    def finish(self):
        if self.pending:
            self.write()
        index = {name: file for of_rank in self.dump._gather(self.index) for name, file in of_rank.items()}
        if self.dump.rank == 0 and index:
            text = json.dumps({"metadata": {}, "weight_map": index}, indent=1)
            (self.folder / "model.safetensors.index.json").write_text(text)
        return bool(index)
