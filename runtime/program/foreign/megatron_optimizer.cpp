#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "runtime/program/foreign/conversion.h"
#include "runtime/program/foreign/megatron.h"
#include "runtime/program/yaml/scalar_text.h"

namespace meshtrain {
namespace {

// Defaults are those of core_v0.19.0: megatron/training/arguments.py and config/training_config.py,
// megatron/core/optimizer_param_scheduler.py and optimizer/emerging_optimizers.py.
/// Sets the steps of the warm-up and its first rate, --lr-warmup-init. `all`: the steps of the schedule.
void take_warmup(Conversion& from, const std::optional<int64_t>& batch, const std::optional<int64_t>& all,
                 double peak) {
  const std::optional<int64_t> steps = megatron_steps(from, "lr-warmup", batch);
  if (const auto share = from.number("--lr-warmup-fraction"); share && all) {
    from.set("schedule.warmup_steps", static_cast<int64_t>(std::llround(*share * static_cast<double>(*all))),
             "lr-warmup-fraction x the steps of the decay");
  } else if (share) {
    from.need("schedule.warmup_steps",
              scalar_text(*share) + " of the steps of the schedule; until then the recipe has 0");
  } else if (!steps && from.has("--lr-warmup-samples")) {
    from.need("schedule.warmup_steps", "lr-warmup-samples / train.global_batch; until then the recipe has 0");
  } else {
    from.set("schedule.warmup_steps", steps.value_or(0), steps ? "" : from.by_default());
    if (steps.value_or(0) == 0) return;
  }
  const double first = from.number("--lr-warmup-init").value_or(0);
  from.set("schedule.first_ratio", peak > 0 ? first / peak : 0.0,
           first > 0 ? "lr-warmup-init / lr" : "Megatron's first step has no learning rate");
}

void take_schedule(Conversion& from, const std::optional<int64_t>& batch, const std::optional<int64_t>& run_steps,
                   double peak) {
  const std::string style = from.word("--lr-decay-style").value_or("linear");
  static const std::map<std::string, std::string> names = {
      {"constant", "constant"}, {"linear", "linear"}, {"cosine", "cosine"}, {"WSD", "wsd"}};
  if (names.contains(style)) {
    from.set("schedule.name", names.at(style), from.has("--lr-decay-style") ? "" : from.by_default());
  } else {
    from.refuse("--lr-decay-style", "schedule.name has constant, cosine, linear and wsd");
  }
  const std::optional<int64_t> total = megatron_steps(from, "lr-decay", batch);
  if (total && total != run_steps) from.set("schedule.total_steps", *total);
  if (!total && from.has("--lr-decay-samples")) {
    from.need("schedule.total_steps", "lr-decay-samples / train.global_batch; until then the recipe has train.steps");
  }
  take_warmup(from, batch, total ? total : run_steps, peak);
  const double least = from.number("--min-lr").value_or(0);
  if (style != "constant" && (peak > 0 || least == 0)) {
    from.set("schedule.min_ratio", least == 0 ? 0 : std::min(least / peak, 1.0),
             least == 0 ? from.by_default() : "min-lr / lr");
  }
  if (style != "WSD") return;
  const auto decay = megatron_steps(from, "lr-wsd-decay", batch);
  if (decay) from.set("schedule.decay_steps", *decay);
  from.need("schedule.decay_steps", "the length of the decay: --lr-wsd-decay-iters is absent");
  if (const std::string shape = from.word("--lr-wsd-decay-style").value_or("exponential"); shape != "linear") {
    from.refuse_absent("--lr-wsd-decay-style: " + shape + ": the decay of wsd is linear");
  }
}

void take_decoupled_rate(Conversion& from, double peak) {
  const auto rate = from.number("--decoupled-lr");
  if (!rate || peak <= 0) return;
  const std::string factor = ", learning_rate_factor: " + scalar_text(*rate / peak) + "}";
  std::string groups = "[{pattern: model.embed_tokens.weight" + factor;
  if (from.is_on("--untie-embeddings-and-output-weights")) groups += ", {pattern: lm_head.weight" + factor;
  from.set("optimizer.groups", groups + "]", "decoupled-lr / lr");
  from.refuse("--decoupled-min-lr",
              "a learning_rate_factor applies to all steps: the rate ends at min-lr x decoupled-lr / lr");
}

void take_muon(Conversion& from, double peak) {
  static const std::map<std::string, std::string> scales = {
      {"spectral", "spectral"}, {"unit_rms_norm", "unit_rms_norm"}, {"shape_scaling", "original"}};
  const auto mode = from.word("--muon-scale-mode"), coefficients = from.word("--muon-coefficient-type");
  const std::string scale = mode.value_or("spectral"), polynomial = coefficients.value_or("quintic");
  if (scales.contains(scale)) {
    from.set("optimizer.muon.scale", scales.at(scale), mode ? "" : from.by_default());
  } else {
    from.refuse("--muon-scale-mode", "optimizer.muon.scale has spectral, unit_rms_norm and original");
  }
  if (polynomial == "quintic" || polynomial == "simple" || polynomial == "polar_express") {
    from.set("optimizer.muon.coefficients", polynomial, coefficients ? "" : from.by_default());
  } else {
    from.refuse("--muon-coefficient-type", "optimizer.muon.coefficients has simple, quintic and polar_express");
  }
  from.set_number("--muon-extra-scale-factor", "optimizer.muon.scale_factor", 1);
  from.set_number("--muon-momentum", "optimizer.momentum", 0.9);
  const auto steps = from.whole("--muon-num-ns-steps");
  from.set("optimizer.muon.newton_schulz_steps", steps.value_or(5), steps ? "" : from.by_default());
  const bool is_nesterov = from.is_on("--muon-nesterov");
  from.set("optimizer.muon.nesterov", is_nesterov, is_nesterov ? "" : from.by_default());
  if (peak > 0) from.set("optimizer.muon.adamw_learning_rate", peak, "all parameters have the same lr");
  from.ignore_all("--muon-nesterov --muon-fp32-matmul-prec --muon-use-syrk");
  from.refuse("--muon-no-split-qkv", "q, k and v are orthogonalised separately");
  if (from.is_on("--swiglu")) {
    from.refuse_absent("--swiglu: Megatron orthogonalises gate and up as one matrix, meshtrain separately");
  }
  const std::string parts = from.word("--muon-tp-mode").value_or("blockwise");
  if (parts == "blockwise" && from.whole("--tensor-model-parallel-size").value_or(1) > 1) {
    from.refuse_absent(
        "--muon-tp-mode: blockwise: Megatron orthogonalises each tp rank's part, meshtrain the complete matrix");
  }
  if (from.word("--muon-scalar-optimizer").value_or("adam") != "adam") {
    from.refuse("--muon-scalar-optimizer", "the other parameters use adamw");
  }
}

void take_optimizer(Conversion& from, double peak) {
  const std::string name = from.word("--optimizer").value_or("adam");
  const bool is_muon = name == "muon" || name == "dist_muon";
  if (name == "adam" || name == "sgd" || is_muon) {
    from.set("optimizer.name", std::string(is_muon ? "muon" : name == "sgd" ? "sgd" : "adamw"));
  } else {
    from.refuse("--optimizer", "optimizer.name has adamw, sgd and muon");
  }
  if (peak > 0) from.set("optimizer.learning_rate", peak);
  from.need("optimizer.learning_rate", "--lr is absent");
  from.set_number("--weight-decay", "optimizer.weight_decay", 0.01);
  for (const char* change : {"--weight-decay-incr-style", "--start-weight-decay", "--end-weight-decay"}) {
    if (from.word(change) != "constant") from.refuse(change, "the weight decay is one number");
  }
  from.set("optimizer.decay", std::string("matrices"), "as Megatron does: neither norms nor biases decay");
  from.refuse("--apply-wd-to-qk-layernorm", "with optimizer.decay: matrices, norms do not decay");
  from.set_number("--clip-grad", "train.clip_norm", 1);
  if (is_muon) take_muon(from, peak);
  if (name == "sgd") {
    from.set_number("--sgd-momentum", "optimizer.momentum", 0.9);
  } else {
    from.set_number("--adam-eps", "optimizer.eps", 1e-8);
    const auto first = from.number("--adam-beta1"), second = from.number("--adam-beta2");
    from.set("optimizer.betas",
             "[" + scalar_text(first.value_or(0.9)) + ", " + scalar_text(second.value_or(0.999)) + "]",
             first && second ? "" : from.by_default());
  }
  from.refuse("--main-params-dtype", "trained weights are in fp32");
  take_decoupled_rate(from, peak);
}

}  // namespace

void take_megatron_optimizer(Conversion& from, const std::optional<int64_t>& batch,
                             const std::optional<int64_t>& steps) {
  const double peak = from.number("--lr").value_or(0);
  take_optimizer(from, peak);
  take_schedule(from, batch, steps, peak);
}

}  // namespace meshtrain
