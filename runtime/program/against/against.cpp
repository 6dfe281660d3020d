#include "runtime/program/against/against.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "runtime/program/against/explain.h"
#include "runtime/program/against/explain_update.h"
#include "runtime/program/against/other_reading.h"

namespace meshtrain {
namespace {

constexpr double kLikeBf16 = 0.1;  // of the bound: the worst gradient of a step in bf16 had 0.2 to 0.5 of it

std::string row(const std::string& what, double theirs, double own, double difference, double bound,
                const std::string& name = "") {
  char text[512];
  std::snprintf(text, sizeof text, "  %-21s %14.9g %14.9g  %9.1e  %9.1e  %s\n", what.c_str(), theirs, own, difference,
                bound, name.c_str());
  std::string line = text;
  line.erase(line.find_last_not_of(" \n") + 1);
  return line + "\n";
}

std::string describe(const StepDump& dump, const OwnStep& own) {
  std::string mesh;
  for (const auto& [axis, size] : dump.mesh()) mesh += (mesh.empty() ? "" : ",") + axis + "=" + std::to_string(size);
  const ModelShape& shape = dump.shape();
  const std::string left_out = dump.left_out();
  return dump.folder().string() + ": a step on " + mesh + " against one rank\n  model      " +
         counted(shape.num_hidden_layers, "layer") + " of hidden size " + std::to_string(shape.hidden_size) +
         ", vocabulary " + std::to_string(shape.vocab_size) + "\n  step       " +
         counted(dump.inputs().size(0), "sample") + " of " + std::to_string(dump.inputs().size(1)) + " tokens in " +
         counted(own.parts.size(), "part") + ", " + counted(own.num_counted(), "label") + " that count; " +
         dump.optimizer() + (left_out.empty() ? "" : "\n  left out   " + left_out) + "\n\n";
}

/// Returns by how much a norm may differ that adds up the squares of the largest parameter in fp32: torch's of 263 M
/// elements was 3.7e-4 off.
double norm_rounding(const OwnStep& own) {
  double most = 0;
  for (const auto& [name, shape] : own.shapes) {
    double numel = 1;
    for (const int64_t size : shape) numel *= static_cast<double>(size);
    most = std::max(most, numel);
  }
  return std::sqrt(most) * std::pow(2.0, -24);
}

/// Returns the distances of a step in the precision of halves, for a program whose differences fp32 does not explain.
std::map<std::string, double> distances_of_halves(const StepDump& dump, const OwnStep& own) {
  const bool weights = dump.weight_dtype() == at::kBFloat16;
  return distances(own, compute_step(dump, reading_of(dump), weights ? "bf16" : "bf16_mixed", /*apart=*/false));
}

/// The program's gradients beside those of one rank, and what explains their differences.
struct GradientComparison {
  std::map<std::string, double> rounding;  // of gradient_facts()
  std::vector<GradientFacts> facts;
  std::vector<Finding> findings;
};

GradientComparison compare_gradients(const StepDump& dump, const OwnStep& own, std::map<std::string, double> rounding) {
  GradientComparison result{std::move(rounding), {}, {}};
  result.facts = gradient_facts(dump, own, result.rounding);
  result.findings = explain_gradients(dump, own, result.facts);
  return result;
}

/// Returns true when explain_gradients() has found what the program's gradients are.
bool is_explained(const std::vector<GradientFacts>& facts) {
  return std::ranges::all_of(facts, [](const GradientFacts& fact) {
    return fact.equal() || fact.missing || fact.is_multiple() || fact.is_of_parts();
  });
}

std::string table(const StepDump& dump, const OwnStep& own, const std::vector<GradientFacts>& facts,
                  const UpdateComparison& updates, double loss_bound, bool every) {
  const double loss = own.loss();
  const double norm = own.norm();
  std::string text = "                           the program       one rank  difference      bound\n" +
                     row("loss", dump.loss(), loss, std::abs(dump.loss() - loss) / std::abs(loss), loss_bound);
  if (dump.grad_norm())
    text += row("gradient norm", *dump.grad_norm(), norm, std::abs(*dump.grad_norm() - norm) / norm,
                loss_bound + norm_rounding(own));
  const auto add = [&](const std::string& what, const GradientFacts& fact) {
    text += row(what, fact.length, fact.own_length, fact.missing ? 1 : fact.difference, fact.bound,
                fact.name + (fact.missing ? " (none)" : ""));
  };
  if (every) {
    for (const GradientFacts& fact : facts) add("gradient", fact);
  } else {
    add("worst gradient", *std::ranges::max_element(facts, {}, [](const GradientFacts& fact) {
          return fact.missing ? 1 : fact.difference / fact.bound;
        }));
  }
  if (updates.facts.empty()) return text;
  const auto add_update = [&](const std::string& what, const UpdateFacts& fact) {
    text += row(what, fact.moved, fact.expected, fact.difference, fact.bound, fact.name);
  };
  if (every) {
    for (const UpdateFacts& fact : updates.facts) add_update("weight update", fact);
  } else {
    add_update("worst weight update", *std::ranges::max_element(updates.facts, {}, [](const UpdateFacts& fact) {
                 return fact.difference / fact.bound;
               }));
  }
  return text;
}

}  // namespace

bool verify_against(const std::filesystem::path& folder, const AgainstOptions& options,
                    const std::function<void(const std::string&)>& print) {
  const StepDump dump(folder);
  const OwnStep own = compute_step(dump, reading_of(dump), options.precision, /*apart=*/true);
  print(describe(dump, own));
  GradientComparison gradients = compare_gradients(dump, own, {});
  if (!is_explained(gradients.facts)) {
    // An explanation that holds in fp32 is exact; only without one may halves explain the differences.
    GradientComparison in_halves = compare_gradients(dump, own, distances_of_halves(dump, own));
    if (is_explained(in_halves.facts)) gradients = std::move(in_halves);
  }
  auto& [rounding, facts, findings] = gradients;
  std::optional<OtherReading> other;
  if (!is_explained(facts)) other = find_other_reading(dump, own, options.precision, rounding);
  if (other) findings = {other->finding};
  const bool halves = !rounding.empty();
  const double bound = halves ? 0.005 : 1e-4;
  const UpdateComparison updates =
      compare_updates(dump, own, dump.is_complete() ? gradient_norm_of(facts) : own.norm());
  for (std::vector<Finding> more :
       {explain_loss(dump, other ? other->step : own, bound),
        explain_norm(dump, own, facts, bound + norm_rounding(own)), explain_updates(updates, dump)}) {
    findings.insert(findings.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
  }
  print(table(dump, own, facts, updates, bound, options.every_parameter));
  if (!updates.not_compared.empty()) print("updates are not compared: " + updates.not_compared + "\n");
  if (findings.empty()) {
    double most = 0;
    for (const GradientFacts& fact : facts) most = std::max(most, fact.difference / fact.bound);
    char share[16];
    std::snprintf(share, sizeof share, "%.2g", most);
    print(std::string("equal") + (halves ? " within the rounding of bf16" : "") +
          (dump.is_complete() ? "" : ", in what was dumped") + ": the worst gradient has " + share + " of its bound\n");
    if (halves && most < kLikeBf16 && dump.gradient_dtype() == at::kFloat) {
      print(
          "a step in bf16 would differ more: was TF32 on, or is a constant different, such as the eps of norms or "
          "RoPE's base?\n");
    }
    return true;
  }
  print("DIFFERENT:\n");
  for (const Finding& finding : findings) print("  " + finding.what + "\n      " + finding.evidence + "\n");
  return false;
}

}  // namespace meshtrain
