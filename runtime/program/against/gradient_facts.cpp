#include "runtime/program/against/gradient_facts.h"

#include <ATen/ops/linalg_pinv.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

constexpr double kFp32 = 1e-4;       // what fp32 explains of a gradient's length
constexpr double kTiny = 1e-6;       // of all gradients: below it, lengths are measured on the model's scale
constexpr double kHalf = 1.0 / 256;  // one rounding to bf16

double length(const at::Tensor& values) {
  return at::linalg_vector_norm(values).item<double>();
}

double dot(const at::Tensor& a, const at::Tensor& b) {
  return a.reshape(-1).dot(b.reshape(-1)).item<double>();
}

double length_of_all(const OwnStep& own) {
  double squares = 0;
  for (const std::string& name : own.names) squares += std::pow(length(own.gradient(name)), 2);
  return std::sqrt(squares);
}

/// Returns the length by which differences of a gradient are divided.
double scale_of(const at::Tensor& gradient, double all) {
  const double own = length(gradient);
  return own > kTiny * all ? own : std::max(all, std::numeric_limits<double>::min());
}

/// Returns the gradients of the parts as rows, [parts, numel], fp64, whose sum is the gradient of the mean loss.
at::Tensor rows_of(const OwnStep& own, const std::string& name) {
  std::vector<at::Tensor> rows;
  for (const BatchPart& part : own.parts) {
    rows.push_back(part.gradients.at(name).to(at::kDouble).reshape(-1) / static_cast<double>(own.num_counted()));
  }
  return at::stack(rows);
}

}  // namespace

std::map<std::string, double> distances(const OwnStep& own, const OwnStep& other) {
  std::map<std::string, double> result;
  const double all = length_of_all(own);
  for (const std::string& name : own.names) {
    const at::Tensor gradient = own.gradient(name);
    result[name] = length(other.gradient(name) - gradient) / scale_of(gradient, all);
  }
  return result;
}

std::vector<GradientFacts> gradient_facts(const StepDump& dump, const OwnStep& own,
                                          const std::map<std::string, double>& rounding) {
  std::vector<GradientFacts> facts;
  const double all = length_of_all(own);
  double most = 0;
  for (const auto& [name, distance] : rounding) most = std::max(most, distance);
  for (const std::string& name : own.names) {
    GradientFacts& fact = facts.emplace_back(GradientFacts{.name = name});
    fact.bound = rounding.contains(name) ? 4 * std::max(rounding.at(name), most / 4) + kHalf : kFp32;
    const at::Tensor gradient = own.gradient(name), theirs = dump.gradient(name, own.shapes.at(name));
    fact.own_length = length(gradient);
    fact.missing = !theirs.defined();
    if (fact.missing) continue;
    const double scale = scale_of(gradient, all), square = dot(gradient, gradient);
    fact.length = length(theirs);
    fact.difference = length(theirs - gradient) / scale;
    fact.factor = square > 0 ? dot(theirs, gradient) / square : 0;
    fact.beyond_factor = length(theirs - fact.factor * gradient) / scale / std::max(std::abs(fact.factor), 1.0);
    fact.beyond_parts = fact.beyond_factor;
  }
  return facts;
}

PartFit fit_parts(const StepDump& dump, const OwnStep& own, std::vector<GradientFacts*> some) {
  const auto num_parts = static_cast<int64_t>(own.parts.size());
  const double all = length_of_all(own);
  at::Tensor products = at::zeros({num_parts, num_parts}, at::kDouble), sums = at::zeros({num_parts}, at::kDouble);
  std::erase_if(some, [](const GradientFacts* fact) { return fact->missing; });
  for (const GradientFacts* fact : some) {
    const at::Tensor rows = rows_of(own, fact->name), theirs = dump.gradient(fact->name, own.shapes.at(fact->name));
    const double square = std::pow(scale_of(rows.sum(0), all), 2);
    products += at::mm(rows, rows.t()) / square;
    sums += at::mv(rows, theirs.reshape(-1)) / square;
  }
  const at::Tensor weights = at::mv(at::linalg_pinv(products, 1e-10, /*hermitian=*/true), sums);
  PartFit fit{{}, 0.002};
  for (int64_t k = 0; k < num_parts; ++k) fit.weights.push_back(weights[k].item<double>());
  for (GradientFacts* fact : some) {
    const at::Tensor rows = rows_of(own, fact->name), theirs = dump.gradient(fact->name, own.shapes.at(fact->name));
    const double scale = scale_of(rows.sum(0), all);
    const double most = weights.abs().max().item<double>();
    fact->beyond_parts = length(theirs.reshape(-1) - at::mv(rows.t(), weights)) / scale / std::max(most, 1.0);
    if (fact->bound > kFp32) fit.tolerance = 0.1;  // halves
  }
  return fit;
}

}  // namespace meshtrain
