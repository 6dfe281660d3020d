#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "runtime/foreign/conversion.h"
#include "runtime/foreign/megatron.h"
#include "runtime/yaml/scalar_text.h"

namespace meshtrain {
namespace {

const char* const kDefault = "Megatron's default";

void take_schedule(Conversion& from, const std::optional<int64_t>& batch, const std::optional<int64_t>& run_steps,
                   double peak) {
  const std::string style = from.word("--lr-decay-style").value_or("linear");
  static const std::map<std::string, std::string> names = {
      {"constant", "constant"}, {"linear", "linear"}, {"cosine", "cosine"}, {"WSD", "wsd"}};
  if (names.contains(style)) {
    from.set("schedule.name", names.at(style), from.has("--lr-decay-style") ? "" : kDefault);
  } else {
    from.refuse("--lr-decay-style", "schedule.name has constant, cosine, linear and wsd");
  }
  const std::optional<int64_t> total = megatron_steps(from, "lr-decay", batch);
  if (total && total != run_steps) from.set("schedule.total_steps", *total);
  const std::optional<int64_t> all = total ? total : run_steps;
  if (const auto share = from.number("--lr-warmup-fraction"); share && all) {
    from.set("schedule.warmup_steps", static_cast<int64_t>(std::llround(*share * static_cast<double>(*all))),
             "lr-warmup-fraction of the decay");
  } else if (share) {
    from.need("schedule.warmup_steps",
              scalar_text(*share) + " of the steps of the schedule; until then the recipe has 0");
  } else if (const auto warmup = megatron_steps(from, "lr-warmup", batch)) {
    from.set("schedule.warmup_steps", *warmup);
  }
  const double least = from.number("--min-lr").value_or(0);
  if (least > 0 && peak > 0) from.set("schedule.min_ratio", std::min(least / peak, 1.0), "min-lr / lr");
  if (style == "WSD") {
    const auto decay = megatron_steps(from, "lr-wsd-decay", batch);
    if (decay) from.set("schedule.decay_steps", *decay);
    from.need("schedule.decay_steps", "the length of the decay: no --lr-wsd-decay-iters says it");
    if (from.word("--lr-wsd-decay-style").value_or("exponential") != "linear") {
      from.refuse_absent("--lr-wsd-decay-style: the decay of wsd is linear");
    }
  }
  if (from.number("--lr-warmup-init").value_or(0) > 0) {
    from.refuse("--lr-warmup-init", "a warm-up begins at peak / warmup_steps");
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
              "a learning_rate_factor is that of all steps: min-lr x decoupled-lr / lr is its end");
}

void take_optimizer(Conversion& from, double peak) {
  const std::string name = from.word("--optimizer").value_or("adam");
  if (name == "adam" || name == "sgd" || name == "muon") {
    from.set("optimizer.name", name == "adam" ? std::string("adamw") : name);
  } else {
    from.refuse("--optimizer", "optimizer.name has adamw, sgd and muon");
  }
  if (peak > 0) from.set("optimizer.learning_rate", peak);
  from.need("optimizer.learning_rate", "no --lr says it");
  const auto take = [&](const char* argument, const char* key, double usual) {
    const std::optional<double> value = from.number(argument);
    from.set(key, value.value_or(usual), value ? "" : kDefault);
  };
  take("--weight-decay", "optimizer.weight_decay", 0.01);
  from.set("optimizer.decay", std::string("matrices"), "as Megatron does: neither norms nor biases decay");
  take("--clip-grad", "train.clip_norm", 1);
  if (name == "sgd") {
    take("--sgd-momentum", "optimizer.momentum", 0.9);
  } else {
    take("--adam-eps", "optimizer.eps", 1e-8);
    from.set("optimizer.betas", "[" + scalar_text(from.number("--adam-beta1").value_or(0.9)) + ", " +
                                    scalar_text(from.number("--adam-beta2").value_or(0.999)) + "]");
  }
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
