#include "runtime/training/model/rope_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

// Every operator below is one of transformers', so that fp32 rounds as it does there. In Python a scalar over a tensor
// is the reciprocal times the scalar.

// Returns theta^(2i/D), [D/2], for D features that rotate.
at::Tensor plain_periods(double theta, int64_t features, at::ScalarType dtype) {
  const at::Tensor exponents = at::arange(0, features, 2, at::kLong).to(dtype) / features;
  return at::pow(theta, exponents);
}

at::Tensor llama3(const at::Tensor& plain, const RopeScaling& scaling) {
  const double context = static_cast<double>(scaling.original_max_position_embeddings);
  const double low = scaling.low_freq_factor, high = scaling.high_freq_factor;
  const at::Tensor wavelengths = plain.reciprocal() * (2 * std::numbers::pi);
  // As tensors: a scalar beyond fp32 is refused by a comparison.
  const at::Tensor is_long = wavelengths > at::scalar_tensor(context / low, at::kDouble);
  const at::Tensor is_short = wavelengths < at::scalar_tensor(context / high, at::kDouble);
  const at::Tensor kept = (wavelengths.reciprocal() * context - low) / (high - low);
  const at::Tensor blended = (1 - kept) * plain / scaling.factor + kept * plain;
  return at::where(is_long, plain / scaling.factor, at::where(is_short, plain, blended));
}

// Returns the feature, as a real number, that rotates `rotations` times over the original context.
double feature_of(double rotations, const ModelShape& shape, double context) {
  return static_cast<double>(rotary_features(shape)) * std::log(context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(shape.rope_theta));
}

at::Tensor yarn(const at::Tensor& periods, const ModelShape& shape, const RopeScaling& scaling) {
  const auto context =
      static_cast<double>(scaling.original_max_position_embeddings > 0 ? scaling.original_max_position_embeddings
                                                                       : shape.max_position_embeddings);
  double begin = feature_of(scaling.beta_fast, shape, context), end = feature_of(scaling.beta_slow, shape, context);
  if (scaling.truncate) begin = std::floor(begin), end = std::ceil(end);
  begin = std::max(begin, 0.0);
  end = std::min(end, static_cast<double>(rotary_features(shape) - 1));
  if (begin == end) end += 0.001;
  const at::Tensor features = at::arange(periods.numel(), periods.options());
  const at::Tensor kept = 1 - ((features - begin) / (end - begin)).clamp(0, 1);
  return (scaling.factor * periods).reciprocal() * (1 - kept) + periods.reciprocal() * kept;
}

double yarn_attention_factor(const RopeScaling& scaling) {
  if (scaling.attention_factor) return *scaling.attention_factor;
  const auto magnitude = [&](double mscale) {
    return scaling.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(scaling.factor) + 1.0;
  };
  if (scaling.mscale && scaling.mscale_all_dim) {
    return magnitude(*scaling.mscale) / magnitude(*scaling.mscale_all_dim);
  }
  return magnitude(1);
}

// Divides each frequency by its number for sequences of this length.
RopeFrequencies longrope(const at::Tensor& periods, const ModelShape& shape, const RopeScaling& scaling,
                         int64_t length) {
  const int64_t original = scaling.original_max_position_embeddings;
  const std::vector<double>& divisors = length > original ? scaling.long_factor : scaling.short_factor;
  const double factor = scaling.factor > 1
                            ? scaling.factor
                            : static_cast<double>(shape.max_position_embeddings) / static_cast<double>(original);
  double attention_factor = scaling.attention_factor.value_or(1);
  if (!scaling.attention_factor && factor > 1) {
    attention_factor = std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(original)));
  }
  return {(at::tensor(divisors, at::kDouble).to(periods.scalar_type()) * periods).reciprocal(), attention_factor};
}

std::optional<RopeMistake> longrope_mistake(const ModelShape& shape, const RopeScaling& scaling) {
  const auto wanted = static_cast<size_t>(rotary_features(shape) / 2);
  for (const auto& [key, divisors] :
       {std::pair("short_factor", &scaling.short_factor), std::pair("long_factor", &scaling.long_factor)}) {
    if (divisors->size() != wanted) {
      return RopeMistake{key, fmt::format("has {}: it must have {}, one for each pair of rotated features",
                                          counted(divisors->size(), "number"), wanted)};
    }
  }
  if (scaling.original_max_position_embeddings < 2) {
    return RopeMistake{"original_max_position_embeddings", "must be given, and above 1"};
  }
  if (shape.max_position_embeddings < scaling.original_max_position_embeddings) {
    return RopeMistake{"original_max_position_embeddings",
                       fmt::format("is {}, above max_position_embeddings {}", scaling.original_max_position_embeddings,
                                   shape.max_position_embeddings)};
  }
  return std::nullopt;
}

std::optional<RopeMistake> yarn_mistake(const ModelShape& shape, const RopeScaling& scaling) {
  if (scaling.beta_fast <= scaling.beta_slow) {
    return RopeMistake{"beta_fast",
                       fmt::format("is {}: it must be above beta_slow {}", scaling.beta_fast, scaling.beta_slow)};
  }
  if (scaling.original_max_position_embeddings == 0 && shape.max_position_embeddings == 0) {
    return RopeMistake{"original_max_position_embeddings",
                       "is missing, and so is max_position_embeddings: yarn needs one of them"};
  }
  if (shape.rope_theta <= 1) {
    return RopeMistake{"rope_type", fmt::format("is yarn, which needs a rope_theta above 1, not {}", shape.rope_theta)};
  }
  if (scaling.mscale.has_value() != scaling.mscale_all_dim.has_value()) {
    const std::string given = scaling.mscale ? "mscale" : "mscale_all_dim";
    return RopeMistake{given, "has no effect alone: give both mscale and mscale_all_dim, or neither"};
  }
  if (scaling.mscale && scaling.attention_factor) {
    return RopeMistake{"mscale", "has no effect together with attention_factor: give one of them"};
  }
  return std::nullopt;
}

}  // namespace

RopeFrequencies rope_frequencies(const ModelShape& shape, at::ScalarType dtype, int64_t length) {
  if (const auto mistake = rope_mistake(shape)) throw InputError("rope_scaling." + mistake->key + " " + mistake->what);
  const at::Tensor periods = plain_periods(shape.rope_theta, rotary_features(shape), dtype),
                   plain = periods.reciprocal();
  if (!shape.rope_scaling) return {plain};
  const RopeScaling& scaling = *shape.rope_scaling;
  if (scaling.type == "linear") return {plain / scaling.factor};
  if (scaling.type == "llama3") return {llama3(plain, scaling)};
  if (scaling.type == "longrope") return longrope(periods, shape, scaling, length);
  if (scaling.type == "dynamic") {
    if (length <= shape.max_position_embeddings) return {plain};
    throw InputError(fmt::format(
        "sequences of {} positions are beyond the trained length {} (max_position_embeddings), where rope_type dynamic "
        "depends on the length of each: use shorter ones",
        length, shape.max_position_embeddings));
  }
  if (scaling.type != "yarn") throw InputError("there is no rotary scaling \"" + scaling.type + "\"");
  return {yarn(periods, shape, scaling), yarn_attention_factor(scaling)};
}

RopeFrequencies local_rope_frequencies(const ModelShape& shape, at::ScalarType dtype) {
  return {plain_periods(shape.rope_local_base_freq, rotary_features(shape), dtype).reciprocal()};
}

std::optional<RopeMistake> rope_mistake(const ModelShape& shape) {
  if (!shape.rope_scaling) return std::nullopt;
  const RopeScaling& scaling = *shape.rope_scaling;
  if (scaling.type == "longrope") return longrope_mistake(shape, scaling);
  if (scaling.type == "dynamic" && shape.max_position_embeddings == 0) {
    return RopeMistake{"rope_type", "is dynamic, which needs max_position_embeddings"};
  }
  if (scaling.factor < 1) {
    return RopeMistake{"factor", fmt::format("is {}: it must be at least 1", scaling.factor)};
  }
  if (scaling.type == "llama3" && scaling.high_freq_factor <= scaling.low_freq_factor) {
    return RopeMistake{"high_freq_factor", fmt::format("is {}: it must be above low_freq_factor {}",
                                                       scaling.high_freq_factor, scaling.low_freq_factor)};
  }
  return scaling.type == "yarn" ? yarn_mistake(shape, scaling) : std::nullopt;
}

}  // namespace meshtrain
