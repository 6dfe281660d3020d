#include "runtime/training/model/adapter_shape.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "mesh/base/files/glob.h"
#include "mesh/base/philox.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

/// Returns the index of the block that the layer `name` belongs to.
int64_t block_of(const std::string& name) {
  constexpr std::string_view kPrefix = "model.layers.";
  return name.starts_with(kPrefix) ? std::stoll(name.substr(kPrefix.size())) : -1;
}

bool is_target(const AdapterShape& shape, const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  return std::ranges::any_of(shape.targets, [&](const std::string& target) {
    if (target == "all-linear") return name != kEmbeddingLayer && name != kHeadLayer;
    return target == last || matches(target, name);
  });
}

Initializer first_values(const AdapterShape& shape, int64_t in_features) {
  if (shape.init == AdapterShape::Init::Gaussian) {
    return {.kind = Initializer::Kind::Normal, .std = 1 / static_cast<double>(shape.rank)};
  }
  return {.kind = Initializer::Kind::Uniform, .bound = 1 / std::sqrt(static_cast<double>(in_features))};
}

}  // namespace

std::optional<AdapterOptions> adapter_of(const AdapterShape& shape, const std::string& name, const std::string& input,
                                         int64_t in_features) {
  const bool in_layers = shape.layers.empty() || std::ranges::count(shape.layers, block_of(name)) > 0;
  if (!shape || !in_layers || !is_target(shape, name)) return std::nullopt;
  const Initializer drawn{.kind = Initializer::Kind::Uniform, .bound = 1 / std::sqrt(static_cast<double>(shape.rank))};
  const Initializer other = shape.draws_all ? drawn : Initializer{};
  if (name == kEmbeddingLayer) {
    return AdapterOptions{.rank = shape.rank,
                          .scale = adapter_scale(shape),
                          .initializer = other,
                          .initializer_of_b = {.kind = Initializer::Kind::Normal, .std = 1}};
  }
  return AdapterOptions{.rank = shape.rank,
                        .scale = adapter_scale(shape),
                        .dropout = {shape.dropout, philox_key(shape.seed, input + ".dropout")},
                        .initializer = first_values(shape, in_features),
                        .initializer_of_b = other};
}

double adapter_scale(const AdapterShape& shape) {
  const auto rank = static_cast<double>(shape.rank);
  return shape.alpha / (shape.use_rslora ? std::sqrt(rank) : rank);
}

AdapterNames adapter_names(const std::string& weight) {
  if (!weight.ends_with(".weight")) return {};
  const std::string layer = weight.substr(0, weight.rfind('.'));
  if (layer == kEmbeddingLayer) return {layer + ".lora_embedding_A", layer + ".lora_embedding_B"};
  return {layer + ".lora_A.weight", layer + ".lora_B.weight"};
}

bool adapts_embedding(const AdapterShape& shape) {
  return adapter_of(shape, kEmbeddingLayer, "", 1).has_value();
}

bool adapts_vocabulary(const AdapterShape& shape) {
  return adapts_embedding(shape) || adapter_of(shape, kHeadLayer, "", 1);
}

at::Tensor merged(const AdapterShape& shape, const std::string& name, const at::Tensor& weight, const at::Tensor& a,
                  const at::Tensor& b) {
  const at::ScalarType dtype = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const bool is_embedding = name.starts_with(kEmbeddingLayer);
  const at::Tensor first = (is_embedding ? a : b).to(dtype), second = (is_embedding ? b.t() : a).to(dtype);
  return at::addmm(weight.to(dtype), first, second, /*beta=*/1, /*alpha=*/adapter_scale(shape));
}

bool is_adapter(const std::string& parameter) {
  constexpr std::array kEnds = {".lora_A.weight", ".lora_B.weight", ".lora_embedding_A", ".lora_embedding_B"};
  return std::ranges::any_of(kEnds, [&](const char* end) { return parameter.ends_with(end); });
}

bool is_trained(const AdapterShape& shape, const std::vector<std::string>& freeze, const std::string& parameter) {
  if (first_match(freeze, parameter)) return false;
  return !shape || is_adapter(parameter) || first_match(shape.train, parameter).has_value();
}

}  // namespace meshtrain
