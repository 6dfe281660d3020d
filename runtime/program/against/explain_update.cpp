#include "runtime/program/against/explain_update.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "runtime/program/against/parameter_kinds.h"

namespace meshtrain {
namespace {

constexpr double kBound = 1e-3;  // of a movement: Adam's step of a gradient that is rounded to fp32

enum class Decay {
  AsTold,
  None,
  Added,    // to the gradient, as Adam has it
  Largest,  // of all groups
};

/// A variant of the optimizer's formula.
struct Variant {
  const char* text;
  bool clips = true, corrects = true;
  Decay decay = Decay::AsTold;
  bool eps_inside = false;
};

constexpr std::array kVariants = {
    Variant{""},
    Variant{"gradients are not clipped", false},
    Variant{"weight decay is not applied", true, true, Decay::None},
    Variant{"weight decay is added to the gradient", true, true, Decay::Added},
    Variant{"Adam's bias correction is missing", true, false},
    Variant{"Adam's epsilon is inside the square root", true, true, Decay::AsTold, true},
    Variant{"weight decay of another group is applied", true, true, Decay::Largest},
    Variant{"gradients are not clipped, and weight decay is not applied", false, true, Decay::None},
};

bool is_adam(const std::string& name) {
  return name.starts_with("Adam") || name.starts_with("FusedAdam") || name.starts_with("DeepSpeedCPUAdam");
}

std::string short_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

/// Returns the movement of one element's update by the optimizer's first step, for all elements.
at::Tensor movement(const Variant& variant, const StepDump& dump, const DumpedUpdate& update, at::Tensor gradient,
                    const at::Tensor& weight, double clip_factor) {
  if (variant.clips) gradient = gradient * clip_factor;
  const bool added = variant.decay == Decay::Added ||
                     (variant.decay == Decay::AsTold && dump.optimizer() != "AdamW" &&
                      !dump.optimizer().starts_with("FusedAdam") && !dump.optimizer().starts_with("DeepSpeedCPUAdam"));
  const double told = variant.decay == Decay::Largest ? dump.largest_decay() : update.weight_decay;
  const double decay = variant.decay == Decay::None ? 0 : told;
  if (added) gradient = gradient + decay * weight;
  at::Tensor step = gradient;
  if (is_adam(dump.optimizer())) {
    const at::Tensor first = gradient * (variant.corrects ? 1 : 1 - update.beta1);
    const at::Tensor second = gradient.square() * (variant.corrects ? 1 : 1 - update.beta2);
    step = first / (variant.eps_inside ? (second + update.eps).sqrt() : second.sqrt() + update.eps);
  }
  if (!added) step = step + decay * weight;
  return -update.learning_rate * step;
}

std::string why_not(const StepDump& dump) {
  if (!is_adam(dump.optimizer()) && dump.optimizer() != "SGD") {
    return "its optimizer is " + dump.optimizer() + "; known are AdamW, Adam and SGD";
  }
  if (is_adam(dump.optimizer()) && dump.num_updates() > 1) {
    return "it is update " + std::to_string(dump.num_updates()) + " of the optimizer; dump the first";
  }
  return "";
}

}  // namespace

UpdateComparison compare_updates(const StepDump& dump, const OwnStep& own, double gradient_norm) {
  UpdateComparison result{.not_compared = why_not(dump)};
  if (!result.not_compared.empty()) return result;
  const double norm = dump.grad_norm().value_or(gradient_norm);
  const double clip_factor = dump.clip_norm() > 0 ? std::min(1.0, dump.clip_norm() / (norm + 1e-6)) : 1;
  const double unit = dump.weight_dtype() == at::kBFloat16 ? 1.0 / 256 : std::pow(2.0, -24);
  for (const std::string& name : own.names) {
    const std::vector<int64_t>& shape = own.shapes.at(name);
    const at::Tensor gradient = dump.gradient(name, shape), before = dump.before(name, shape),
                     after = dump.after(name, shape);
    const std::optional<DumpedUpdate> update = dump.update(name, shape);
    if (!gradient.defined() || !after.defined() || !update) continue;
    UpdateFacts& fact = result.facts.emplace_back(UpdateFacts{.name = name});
    const at::Tensor moved = after - before;
    for (const Variant& variant : kVariants) {
      const at::Tensor expected = movement(variant, dump, *update, gradient, before, clip_factor);
      const double length =
          std::max(at::linalg_vector_norm(expected).item<double>(), std::numeric_limits<double>::min());
      fact.variants.push_back(at::linalg_vector_norm(moved - expected).item<double>() / length);
      if (fact.variants.size() > 1) continue;  // the others only explain a difference
      fact.difference = fact.variants.front();
      fact.moved = at::linalg_vector_norm(moved).item<double>();
      fact.expected = length;
      // Two roundings of each weight: its own, and that of the sum.
      fact.bound = kBound + 2 * unit * at::linalg_vector_norm(before).item<double>() / length;
      const at::Tensor moves = expected.ne(0);
      const double count = moves.sum().item<double>();
      if (count > 0) fact.unmoved = moves.logical_and(moved.eq(0)).sum().item<double>() / count;
      if (fact.equal()) break;
    }
  }
  return result;
}

namespace {

/// Returns the variant that explains most of these parameters, the first of several; 0 when none explains any.
size_t most_explaining(const std::vector<const UpdateFacts*>& facts) {
  size_t best = 0;
  int64_t most = 0;
  for (size_t variant = 1; variant < kVariants.size(); ++variant) {
    const int64_t count = std::ranges::count_if(facts, [&](const UpdateFacts* fact) { return fact->is(variant); });
    if (count > most) best = variant, most = count;
  }
  return best;
}

}  // namespace

std::vector<Finding> explain_updates(const UpdateComparison& updates, const StepDump& dump) {
  std::vector<Finding> findings;
  std::vector<const UpdateFacts*> wrong;
  double unmoved = 0;
  for (const UpdateFacts& fact : updates.facts) {
    if (!fact.equal()) wrong.push_back(&fact);
    unmoved += fact.unmoved / static_cast<double>(updates.facts.size());
  }
  if (dump.weight_dtype() == at::kBFloat16 && unmoved > 0.1) {
    findings.push_back({"updates: lost to the rounding of weights to bf16",
                        short_text(100 * unmoved) + " % of the elements that should move stay as they were: keep the "
                                                    "weights in fp32, or round stochastically"});
  }
  if (wrong.empty()) return findings;
  std::vector<const UpdateFacts*> rest = wrong;
  std::map<size_t, std::vector<const UpdateFacts*>> by_variant;
  for (size_t variant = most_explaining(rest); variant != 0; variant = most_explaining(rest)) {
    const auto [explained, end] =
        std::ranges::stable_partition(rest, [variant](const UpdateFacts* fact) { return !fact->is(variant); });
    by_variant[variant].assign(explained, end);
    rest.erase(explained, end);
  }
  const auto describe = [&](const std::vector<const UpdateFacts*>& some) {
    double least = some.front()->difference, most = least;
    for (const UpdateFacts* fact : some)
      least = std::min(least, fact->difference), most = std::max(most, fact->difference);
    return counted(some.size(), "parameter") + " of " + std::to_string(updates.facts.size()) + " (" +
           some.front()->name + (some.size() > 1 ? ", ..." : "") + "); from the formula of " + dump.optimizer() +
           " they differ by " + short_text(least) + " to " + short_text(most) + " of their movement";
  };
  std::vector<std::string> all;
  for (const UpdateFacts& fact : updates.facts) all.push_back(fact.name);
  for (const auto& [variant, some] : by_variant) {
    std::vector<std::string> names;
    for (const UpdateFacts* fact : some) names.push_back(fact->name);
    const std::string of =
        names.size() == all.size() ? "" : " of " + describe_kinds(names, all, dump.shape().tie_word_embeddings);
    findings.push_back({"updates" + of + ": " + kVariants.at(variant).text, describe(some)});
  }
  if (!rest.empty()) {
    const bool still = std::ranges::all_of(rest, [](const UpdateFacts* fact) { return fact->unmoved > 0.99; });
    findings.push_back({still
                            ? "updates: none; the weights did not move"
                            : "updates: the formula, the learning rate or the gradients differ from those of the dump",
                        describe(rest)});
  }
  return findings;
}

}  // namespace meshtrain
