#include <map>
#include <string>

#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/megatron.h"

namespace meshtrain {
namespace {

/// Sets the stages of a pipeline of `pp` ranks. Megatron divides layers evenly; the first and the last stage may have
/// numbers of their own.
void take_stages(Conversion& from, int64_t pp) {
  const char *const layers_key = "--num-layers-per-virtual-pipeline-stage",
                    *const stages_key = "--num-virtual-stages-per-pipeline-rank";
  const int64_t layers = from.whole("--num-layers").value_or(0), of_stage = from.whole(layers_key).value_or(0);
  const int64_t stages = of_stage > 0 ? layers / pp / of_stage : from.whole(stages_key).value_or(1);
  if (stages > 1) from.set("parallel.pipeline.stages_per_rank", stages);
  for (const char* key : {"--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers",
                          "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
                          "--pipeline-model-parallel-layout"}) {
    from.leave_out(key, "set parallel.pipeline.layers, the number of layers of each stage");
  }
}

void take_mesh(Conversion& from) {
  const int64_t tp = from.whole("--tensor-model-parallel-size").value_or(1),
                cp = from.whole("--context-parallel-size").value_or(1),
                pp = from.whole("--pipeline-model-parallel-size").value_or(1);
  from.set("parallel.mesh", (pp > 1 ? "{pp: " + std::to_string(pp) + ", dp: auto, cp: " : "{dp: auto, cp: ") +
                                std::to_string(cp) + ", tp: " + std::to_string(tp) + "}");
  if (pp > 1) take_stages(from, pp);
  if (tp > 1 && !from.is_on("--sequence-parallel")) from.set("parallel.sequence_parallel", std::string("off"));
  from.ignore("--sequence-parallel");  // auto: on where tp divides the tokens
  static const std::map<std::string, std::string> algorithms = {
      {"p2p", "ring"}, {"a2a", "ulysses"}, {"allgather", "all_gather"}, {"all_gather", "all_gather"}};
  const char* const communication = "--cp-comm-type";
  if (const auto kind = from.word(communication); kind && !algorithms.contains(*kind)) {
    from.leave_out(communication, "parallel.context.algorithm has ring, all_gather and ulysses");
  } else if (cp > 1) {
    from.set("parallel.context.algorithm", algorithms.at(kind.value_or("p2p")), kind ? "" : from.by_default());
  }
}

void take_sharding(Conversion& from) {
  static const std::map<std::string, std::string> modes = {{"no_shard", "no_shard"},
                                                           {"optim", "shard_optimizer"},
                                                           {"optim_grads", "shard_grad_op"},
                                                           {"optim_grads_params", "full_shard"}};
  std::string mode = from.is_on("--use-distributed-optimizer") ? "shard_optimizer" : "no_shard";
  if (from.is_on("--use-torch-fsdp2")) mode = "full_shard";
  const std::string strategy = from.word("--data-parallel-sharding-strategy").value_or("optim_grads_params");
  if ((from.is_on("--use-megatron-fsdp") || from.is_on("--use-custom-fsdp")) && modes.contains(strategy)) {
    mode = modes.at(strategy);
  }
  from.set("parallel.fsdp.mode", mode);
  from.ignore_all("--use-distributed-optimizer --use-torch-fsdp2 --use-megatron-fsdp --use-custom-fsdp");
  if (from.whole("--num-distributed-optimizer-instances").value_or(1) > 1) {
    from.leave_out(
        "--num-distributed-optimizer-instances",
        "parallel.fsdp.mode: hybrid_shard with shard_size is the nearest: it cuts parameters and gradients too");
  }
  if (from.is_on("--optimizer-cpu-offload")) from.offload_to_host();
  from.ignore("--optimizer-cpu-offload");
}

void take_loss_scale(Conversion& from) {
  if (const double fixed = from.number("--loss-scale").value_or(0); fixed > 0) {
    return from.set("train.loss_scale.static", fixed);
  }
  from.set_number("--initial-loss-scale", "train.loss_scale.initial", 4294967296);
  from.set_number("--min-loss-scale", "train.loss_scale.min", 1);
  from.set_number("--loss-scale-window", "train.loss_scale.growth_interval", 1000);
  if (const int64_t hysteresis = from.whole("--hysteresis").value_or(2); hysteresis > 1) {
    from.refuse_absent("--hysteresis: " + std::to_string(hysteresis) +
                       ": meshtrain shrinks the scale at the first overflow, so different steps are skipped");
  }
}

void take_precision(Conversion& from) {
  const bool bf16 = from.is_on("--bf16"), fp16 = from.is_on("--fp16") && !bf16;
  from.set("train.precision", std::string(bf16 ? "bf16_mixed" : fp16 ? "fp16_mixed" : "fp32"));
  if (fp16) take_loss_scale(from);
  if (bf16 && from.is_on("--grad-reduce-in-bf16")) from.set("parallel.fsdp.reduce_dtype", std::string("bf16"));
  if (fp16 && !from.is_on("--accumulate-allreduce-grads-in-fp32")) {
    from.set("parallel.fsdp.reduce_dtype", std::string("fp16"), from.by_default());
  }
  if ((bf16 || fp16) && from.is_on("--fp32-residual-connection")) {
    from.set("train.residual_dtype", std::string("fp32"));
  }
  for (const char* dtype : {"--main-grads-dtype", "--exp-avg-dtype", "--exp-avg-sq-dtype"}) {
    if (from.word(dtype) != "fp32") from.refuse(dtype, "gradients and state of the optimizer are in fp32");
  }
  from.ignore_all(
      "--bf16 --fp16 --grad-reduce-in-bf16 --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32 "
      "--fp32-residual-connection --use-precision-aware-optimizer");
  for (const char* fp8 : {"--fp8-format", "--fp8-hybrid", "--fp8-e4m3"}) {
    from.refuse(fp8, "FP8 is not supported: layers compute in the dtype of train.precision");
  }
  from.ignore_all(
      "--fp8-amax-history-len --fp8-amax-compute-algo --fp8-param-gather --fp8-margin --fp8-recipe --fp8-interval");
}

void take_recomputation(Conversion& from) {
  const std::string granularity =
      from.word("--recompute-granularity").value_or(from.is_on("--recompute-activations") ? "selective" : "none");
  if (granularity == "full" || granularity == "selective") {
    from.set("train.activation_checkpointing.mode", granularity);
  } else if (granularity != "none") {
    from.leave_out("--recompute-granularity", "train.activation_checkpointing.mode has none, full and selective");
  }
  const auto num_layers = from.whole("--recompute-num-layers");
  if (from.word("--recompute-method") == "block" && granularity == "full") {
    from.set("train.activation_checkpointing.first", num_layers.value_or(1), "of each stage");
  } else if (num_layers.value_or(1) > 1) {
    from.leave_out("--recompute-num-layers",
                   "each block keeps its input; train.activation_checkpointing.every is different: it sets the share "
                   "of the blocks that keep only this");
  }
  from.ignore("--recompute-activations");
  from.leave_out("--cpu-offloading", "train.offload_activations is the nearest");
}

}  // namespace

void take_megatron_parallelism(Conversion& from) {
  take_mesh(from);
  take_sharding(from);
  take_precision(from);
  take_recomputation(from);
}

}  // namespace meshtrain
