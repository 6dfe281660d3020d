#include <algorithm>
#include <cstdlib>
#include <string>

#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/megatron.h"
#include "runtime/program/yaml/scalar_text.h"

namespace meshtrain {
namespace {

/// Returns the sizes of a batch that grows by --rampup-batch-size START INCREMENT SAMPLES: by as much after each of as
/// many samples, up to `global` (RampupBatchsizeNumMicroBatchesCalculator). None where the sizes do not lead there.
std::optional<std::string> ramp_of(Conversion& from, int64_t global, int64_t length) {
  std::vector<int64_t> ramp;
  for (const std::string& number : from.list("--rampup-batch-size")) ramp.push_back(std::atoll(number.c_str()));
  if (ramp.size() != 3 || ramp[1] <= 0 || global <= ramp[0] || (global - ramp[0]) % ramp[1] != 0) return std::nullopt;
  const int64_t increments = (global - ramp[0]) / ramp[1];
  std::string sizes;
  for (int64_t i = 0; i < increments; ++i) {
    const int64_t samples = ((i + 1) * ramp[2] + increments - 1) / increments;
    sizes += "{until: " + std::to_string(samples * length) + ", size: " + std::to_string(ramp[0] + i * ramp[1]) + "}, ";
  }
  return "[" + sizes + "{size: " + std::to_string(global) + "}]";
}

std::optional<int64_t> take_batches(Conversion& from, const std::optional<int64_t>& global) {
  const int64_t micro = from.whole("--micro-batch-size").value_or(1);
  from.set("train.micro_batch", micro);
  const auto length = from.whole("--seq-length");
  const auto ramp =
      global && length && !from.has("--train-samples") ? ramp_of(from, *global, *length) : std::optional<std::string>();
  if (ramp) {
    from.set("train.global_batch", *ramp, "rampup-batch-size, in tokens");
  } else if (global) {
    from.set("train.global_batch", *global);
    from.refuse("--rampup-batch-size",
                "train.global_batch takes a list of sizes and tokens (docs/recipe.md, \"A batch that grows\")");
  }
  from.need("train.global_batch", std::to_string(micro) + " x the dp ranks: Megatron's default");
  if (length) from.set("train.sequence_length", *length);
  from.need("train.sequence_length", "the length of its samples: --seq-length is absent");
  const std::optional<int64_t> steps = megatron_steps(from, "train", global);
  if (steps) from.set("train.steps", *steps, from.has("--train-samples") ? "train-samples / global-batch-size" : "");
  from.need("train.steps",
            from.has("--train-samples") ? "train-samples / train.global_batch" : "the number of updates");
  return steps;
}

void take_data(Conversion& from) {
  const std::vector<std::string> paths = from.list("--data-path");
  const bool is_blend = !paths.empty() && paths.size() % 2 == 0;
  if (!is_blend) from.set("data.shuffle", true, "as Megatron does, in another order");
  if (paths.size() == 1) {
    from.set("data.tokens", paths[0] + ".bin");
    from.set("data.dtype", std::string("megatron"));
  } else if (is_blend) {
    std::string mixture;
    for (size_t i = 0; i < paths.size(); i += 2) {
      mixture += (i == 0 ? "{tokens: " : ", {tokens: ") + scalar_text(paths[i + 1] + ".bin") +
                 ", dtype: megatron, shuffle: true, weight: " + paths[i] + "}";
    }
    from.set("data.mixture", "[" + mixture + "]");
  } else {
    from.set("data.layout", std::string("stream"));
    from.need("data.tokens",
              "NAME.bin of --data-path NAME, with data.dtype: megatron; or tokens that meshtrain data "
              "prepare --text ... --tokenizer ... writes");
  }
  from.ignore("--mock-data");
  const bool is_apart = from.is_on("--reset-attention-mask") || from.is_on("--reset-position-ids");
  if (is_apart && from.is_set("data.tokens")) from.set("data.documents", std::string("index"));
  if (is_apart && !from.is_set("data.tokens")) {
    from.need("data.documents",
              "index, for files of Megatron, or the id that ends a document: until then attention "
              "crosses documents");
  }
  from.ignore_all("--reset-attention-mask --reset-position-ids");
  from.refuse("--eod-mask-loss", "data.boundary_labels: ignored is similar");
  const char* const held_out = "held-out samples are a file of their own, evaluate.tokens";
  from.refuse("--split", held_out);
  for (const char* evaluation : {"--valid-data-path", "--eval-interval", "--eval-iters"}) {
    from.leave_out(evaluation,
                   "evaluate.every and evaluate.samples set when and how much of evaluate.tokens is evaluated");
  }
  for (const char* tokenizer : {"--tokenizer-model", "--vocab-file", "--merge-file"}) {
    from.leave_out(tokenizer, "texts become tokens before the run; data.tokenizer names it for generate and export");
  }
  from.ignore("--tokenizer-type");
}

void take_record(Conversion& from) {
  if (const auto every = from.whole("--log-interval"); every && *every > 0) from.set("train.log_every", *every);
  if (const auto every = from.whole("--save-interval"); every && *every > 0) from.set("checkpoint.every", *every);
  const auto seed = from.whole("--seed");
  from.set("train.seed", seed.value_or(1234), seed ? "" : from.by_default());
  if (const auto minutes = from.number("--exit-duration-in-mins")) from.set("train.time_limit", 60 * *minutes);
  if (const auto minutes = from.number("--distributed-timeout-minutes")) from.set("parallel.timeout", 60 * *minutes);
  if (from.has("--tensorboard-dir")) from.set("train.tensorboard", true);
  from.ignore("--tensorboard-dir");
  from.leave_out("--save", "it is an option: --run-dir");
  from.refuse("--load", "it is an option: --resume; meshtrain checkpoint import begins a run with weights");
  for (const char* wandb : {"--wandb-project", "--wandb-exp-name", "--wandb-entity", "--wandb-save-dir"}) {
    from.leave_out(wandb, "tools/send_metrics sends RUN_DIR/metrics.jsonl");
  }
  if (from.is_on("--profile")) {
    const int64_t first = from.whole("--profile-step-start").value_or(10),
                  end = from.whole("--profile-step-end").value_or(12);
    from.set("train.profile.from", std::max<int64_t>(first, 1));
    from.set("train.profile.steps", std::max<int64_t>(end - first, 1));
    if (const auto ranks = from.list("--profile-ranks"); !ranks.empty()) {
      std::string text;
      for (const std::string& rank : ranks) text += (text.empty() ? "" : ", ") + rank;
      from.set("train.profile.ranks", "[" + text + "]");
    }
  }
  from.ignore_all("--profile --profile-step-start --profile-step-end --profile-ranks");
}

void ignore_others(Conversion& from) {
  from.ignore_all(
      "--nproc-per-node --nnodes --node-rank --master-addr --master-port --rdzv-id --rdzv-backend --rdzv-endpoint "
      "--use-mcore-models --transformer-impl --attention-backend --use-flash-attn --no-masked-softmax-fusion "
      "--no-bias-gelu-fusion --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-rope-fusion "
      "--no-gradient-accumulation-fusion --no-async-tensor-model-parallel-allreduce --no-persist-layer-norm "
      "--cross-entropy-loss-fusion --cross-entropy-fusion-impl --calculate-per-token-loss --manual-gc "
      "--manual-gc-interval --manual-gc-eval --empty-unused-memory-level --log-throughput --log-params-norm "
      "--log-num-zeros-in-grad --log-validation-ppl-to-tensorboard --log-timers-to-tensorboard "
      "--log-memory-to-tensorboard --tensorboard-queue-size --tensorboard-log-interval --timing-log-level "
      "--ckpt-format --ckpt-fully-parallel-load --ckpt-fully-parallel-save --use-dist-ckpt --dist-ckpt-format "
      "--dist-ckpt-strictness --ckpt-assume-constant-structure --async-save --auto-detect-ckpt-format "
      "--no-save-optim --no-save-rng --no-load-optim --no-load-rng --use-checkpoint-args --distributed-backend "
      "--num-workers --dataloader-type --num-dataset-builder-threads --data-cache-path "
      "--no-create-attention-mask-in-dataloader --no-mmap-bin-files --overlap-grad-reduce --overlap-param-gather "
      "--overlap-param-gather-with-optimizer-step --delay-grad-reduce --tp-comm-overlap --ddp-bucket-size "
      "--ddp-num-buckets --ddp-average-in-collective --no-check-for-nan-in-loss-and-grad "
      "--check-for-nan-in-loss-and-grad --deterministic-mode --local-rank --lazy-mpu-init "
      "--clone-scatter-output-in-embedding --enable-experimental --te-rng-tracker");
}

}  // namespace

std::optional<int64_t> megatron_steps(Conversion& from, const std::string& name, const std::optional<int64_t>& batch) {
  if (const auto steps = from.whole("--" + name + "-iters")) return steps;
  const auto samples = from.whole("--" + name + "-samples");
  if (!samples || !batch || *batch < 1) return std::nullopt;
  return *samples / *batch;
}

void take_megatron_training(Conversion& from) {
  const std::optional<int64_t> batch = from.whole("--global-batch-size");
  take_data(from);
  take_megatron_optimizer(from, batch, take_batches(from, batch));
  take_record(from);
  ignore_others(from);
}

}  // namespace meshtrain
