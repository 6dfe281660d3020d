#include <map>
#include <string>

#include "runtime/foreign/conversion.h"
#include "runtime/foreign/megatron.h"

namespace meshtrain {
namespace {

void take_mesh(Conversion& from) {
  const int64_t tp = from.whole("--tensor-model-parallel-size").value_or(1),
                cp = from.whole("--context-parallel-size").value_or(1);
  from.set("parallel.mesh", "{dp: auto, cp: " + std::to_string(cp) + ", tp: " + std::to_string(tp) + "}");
  if (tp > 1 && !from.is_on("--sequence-parallel")) from.set("parallel.sequence_parallel", std::string("off"));
  from.ignore("--sequence-parallel");  // auto: on where tp divides the tokens
  static const std::map<std::string, std::string> algorithms = {
      {"p2p", "ring"}, {"a2a", "ulysses"}, {"allgather", "all_gather"}, {"all_gather", "all_gather"}};
  if (const auto kind = from.word("--cp-comm-type"); kind && algorithms.contains(*kind)) {
    if (cp > 1) from.set("parallel.context.algorithm", algorithms.at(*kind));
  } else if (kind) {
    from.refuse("--cp-comm-type", "parallel.context.algorithm has ring, all_gather and ulysses");
  }
  for (const char* pipeline : {"--pipeline-model-parallel-size", "--num-layers-per-virtual-pipeline-stage",
                               "--num-virtual-stages-per-pipeline-rank"}) {
    if (from.whole(pipeline).value_or(1) > 1) {
      from.refuse(pipeline, "models are not cut into pipeline stages: these ranks are in dp");
    }
  }
}

void take_sharding(Conversion& from) {
  static const std::map<std::string, std::string> modes = {{"no_shard", "no_shard"},
                                                           {"optim", "shard_optimizer"},
                                                           {"optim_grads", "shard_grad_op"},
                                                           {"optim_grads_params", "full_shard"}};
  std::string mode = from.is_on("--use-distributed-optimizer") ? "shard_optimizer" : "no_shard";
  if (from.is_on("--use-torch-fsdp2")) mode = "full_shard";
  const std::string strategy = from.word("--data-parallel-sharding-strategy").value_or("no_shard");
  if ((from.is_on("--use-megatron-fsdp") || from.is_on("--use-custom-fsdp")) && modes.contains(strategy)) {
    mode = modes.at(strategy);
  }
  from.set("parallel.fsdp.mode", mode);
  for (const char* read :
       {"--use-distributed-optimizer", "--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp"}) {
    from.ignore(read);
  }
  if (from.whole("--num-distributed-optimizer-instances").value_or(1) > 1) {
    from.refuse(
        "--num-distributed-optimizer-instances",
        "parallel.fsdp.mode: hybrid_shard with shard_size is the nearest: it cuts parameters and gradients too");
  }
  if (from.is_on("--optimizer-cpu-offload")) from.offload_to_host();
  from.ignore("--optimizer-cpu-offload");
}

void take_precision(Conversion& from) {
  const bool bf16 = from.is_on("--bf16"), fp16 = from.is_on("--fp16");
  from.set("train.precision", std::string(bf16 ? "bf16_mixed" : fp16 ? "fp16_mixed" : "fp32"));
  if (fp16 && !bf16) {
    if (const double fixed = from.number("--loss-scale").value_or(0); fixed > 0) {
      from.set("train.loss_scale.static", fixed);
    } else {
      from.set("train.loss_scale.initial", from.number("--initial-loss-scale").value_or(4294967296));
      from.set("train.loss_scale.min", from.number("--min-loss-scale").value_or(1));
      from.set("train.loss_scale.growth_interval", from.whole("--loss-scale-window").value_or(1000));
      if (from.whole("--hysteresis").value_or(2) > 1) {
        from.refuse_absent("--hysteresis: the scale shrinks with the first step that overflows");
      }
    }
  }
  if (bf16 && from.is_on("--grad-reduce-in-bf16")) from.set("parallel.fsdp.reduce_dtype", std::string("bf16"));
  for (const char* read : {"--bf16", "--fp16", "--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32",
                           "--attention-softmax-in-fp32"}) {
    from.ignore(read);
  }
  for (const char* fp8 : {"--fp8-format", "--fp8-hybrid", "--fp8-e4m3"}) {
    from.refuse(fp8, "there is no FP8: layers compute in the dtype of train.precision");
  }
  for (const char* detail : {"--fp8-amax-history-len", "--fp8-amax-compute-algo", "--fp8-param-gather", "--fp8-margin",
                             "--fp8-recipe", "--fp8-interval"}) {
    from.ignore(detail);
  }
}

void take_recomputation(Conversion& from) {
  const std::string granularity =
      from.word("--recompute-granularity").value_or(from.is_on("--recompute-activations") ? "selective" : "none");
  if (granularity == "full" || granularity == "selective") {
    from.set("train.activation_checkpointing.mode", granularity);
  } else if (granularity != "none") {
    from.refuse("--recompute-granularity", "train.activation_checkpointing.mode has none, full and selective");
  }
  if (from.word("--recompute-method").value_or("uniform") != "uniform") {
    from.refuse("--recompute-method", "every block is computed again, or one of every");
  }
  if (from.whole("--recompute-num-layers").value_or(1) > 1) {
    from.refuse("--recompute-num-layers",
                "each block keeps its input: train.activation_checkpointing.every is another "
                "thing, the part of the blocks that keep no more than that");
  }
  from.ignore("--recompute-activations");
  from.refuse("--cpu-offloading", "train.offload_activations is the nearest");
}

}  // namespace

void take_megatron_parallelism(Conversion& from) {
  take_mesh(from);
  take_sharding(from);
  take_precision(from);
  take_recomputation(from);
}

}  // namespace meshtrain
