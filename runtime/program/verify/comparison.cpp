#include "runtime/program/verify/comparison.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "mesh/device/aten.h"
#include "runtime/program/verify/worst_rank.h"

namespace meshtrain {
namespace {

using Kind = Comparison::Kind;

constexpr double kNearlyZero = 1e-6;  // times the model's scale

// Bounds below fp64: factors of the distance between one rank in fp32 and one rank in the other precision. In the half
// precisions the matrix of the tests needed at most 1.0, 2.1 and 1.3, or 1.8 where adapters alone are trained (one of
// 331 cells on 8 ranks: their gradients are few, and tp rounds each rank's share of a row-parallel output), in
// fp16_mixed no more than in bf16; tools/test
// --full -R matrix prints the share of the bound that each kind of number used.
constexpr double kValueFactor = 2;
constexpr double kTensorFactor = 4;
constexpr double kAllFactor = 2;

/// Returns half the distance between neighbouring numbers near 1.
double rounding_of(const std::string& precision) {
  return precision.starts_with("fp16") ? 0x1p-11 : 0x1p-8;
}

/// The measure of a tensor's size.
enum class Measure { Largest, Length };

Measure measure_of(Kind kind, const std::string& precision) {
  return kind == Kind::Gradient && !is_rounded(precision) ? Measure::Largest : Measure::Length;
}

double movement_tolerance(const std::string& precision) {
  return precision == "fp64" ? 1e-10 : precision == "fp32" ? 1e-3 : rounding_of(precision);
}

/// Returns the most that two trainings of so many steps differ by in the L2 norm because each step rounds each weight
/// to the dtype of the shards: weights of this length that hardly move, norms under sgd, move by few roundings.
double rounding_of_weights(const std::string& precision, size_t steps, double length) {
  return 2 * static_cast<double>(steps) * (precision == "fp64" ? 0x1p-53 : 0x1p-24) * length;
}

double length_of(const std::vector<double>& parts) {
  double squares = 0;
  for (const double part : parts) squares += part * part;
  return std::sqrt(squares);
}

double size_of(const at::Tensor& tensor, Measure measure) {
  if (tensor.numel() == 0) return 0;
  if (measure == Measure::Largest) return tensor.abs().max().item<double>();
  return at::linalg_vector_norm(tensor, 2, at::OptionalIntArrayRef{}, false, at::kDouble).item<double>();
}

/// Returns max|a-b| or |a-b|, in fp32 or wider.
double distance(const at::Tensor& a, const at::Tensor& b, Measure measure) {
  const at::ScalarType dtype = at::promote_types(at::promote_types(a.scalar_type(), b.scalar_type()), at::kFloat);
  return size_of(a.to(dtype) - b.to(dtype), measure);
}

/// The divisor of a difference, and the bound of the quotient.
struct Yardstick {
  double reference, scale, bound;
};

const at::Tensor& tensor_of(const TracedParameter& parameter, Kind kind) {
  return kind == Kind::Gradient ? parameter.gradient : parameter.movement;
}

/// Returns the numbers of the parameters that have a tensor of this kind on the ranks that hold the parameter. Frozen
/// parameters have no gradient; their movement is zero.
std::vector<size_t> compared(const Trace& trace, Kind kind) {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < trace.parameters.size(); ++i) {
    if (kind == Kind::Weight || trace.parameters[i].trainable) numbers.push_back(i);
  }
  return numbers;
}

/// The scales and bounds that the rank with the reference knows before any tensor is compared, in the order of the
/// result.
class Yardsticks {
 public:
  Yardsticks(const Reference& reference, const std::string& precision) : reference_(reference), precision_(precision) {
    add_values(&Trace::losses);
    add_values(&Trace::grad_norms);
    add_tensors(Kind::Gradient, value_tolerance(precision));
    add_tensors(Kind::Weight, movement_tolerance(precision));
    if (!together_.empty()) {  // norms differ by no more than the gradients themselves
      const size_t losses = reference.trace.losses.size(), norms = reference.trace.grad_norms.size();
      for (size_t i = losses; i < losses + norms; ++i) all_[i].bound = std::max(all_[i].bound, together_[0].bound);
    }
    all_.insert(all_.end(), together_.begin(), together_.end());
  }
  const std::vector<Yardstick>& all() const { return all_; }

 private:
  void add_values(std::vector<double> Trace::*values) {
    const std::vector<double>& exact = reference_.trace.*values;
    for (size_t i = 0; i < exact.size(); ++i) {
      const double scale = exact[i] == 0 ? 1 : std::abs(exact[i]);
      double bound = value_tolerance(precision_);
      if (reference_.other) {
        bound += kValueFactor * std::abs(((*reference_.other).*values)[i] - exact[i]) / scale;
      }
      all_.push_back({exact[i], scale, bound});
    }
  }

  void add_tensors(Kind kind, double tolerance) {
    const Measure measure = measure_of(kind, precision_);
    const auto per_element = [&](const at::Tensor& tensor) {
      return measure == Measure::Largest ? 1 : std::sqrt(static_cast<double>(std::max<int64_t>(tensor.numel(), 1)));
    };
    std::vector<at::Tensor> tensors;
    std::vector<double> sizes, roundings;
    double model_scale = 0;
    for (const size_t i : compared(reference_.trace, kind)) {
      const TracedParameter& parameter = reference_.trace.parameters[i];
      roundings.push_back(kind == Kind::Weight
                              ? rounding_of_weights(precision_, reference_.trace.losses.size(), parameter.first_length)
                              : 0);
      tensors.push_back(tensor_of(reference_.trace.parameters[i], kind));
      sizes.push_back(size_of(tensors.back(), measure));
      model_scale = std::max(model_scale, sizes.back() / per_element(tensors.back()));
    }
    const size_t first = all_.size();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const double model_size = model_scale * per_element(tensors[i]);
      const double size = sizes[i] < kNearlyZero * model_size ? model_size : sizes[i], scale = size == 0 ? 1 : size;
      all_.push_back({sizes[i], scale, tolerance + roundings[i] / scale});
    }
    if (reference_.other) allow_rounding(kind, measure, first);
  }

  /// Widens the bounds of the tensors from `first` on by the distance of one rank in the other precision.
  void allow_rounding(Kind kind, Measure measure, size_t first) {
    std::vector<double> distances, sizes;
    const std::vector<size_t> parameters = compared(reference_.trace, kind);
    for (const size_t i : parameters) {
      distances.push_back(distance(tensor_of(reference_.other->parameters[i], kind),
                                   tensor_of(reference_.trace.parameters[i], kind), measure));
      sizes.push_back(all_[first + sizes.size()].reference);
    }
    const double size = length_of(sizes), scale = size == 0 ? 1 : size, of_all = length_of(distances) / scale;
    for (size_t i = 0; i < parameters.size(); ++i) {
      Yardstick& yardstick = all_[first + i];
      const double own = distances[i] / yardstick.scale;
      double& gradient = off_by_[parameters[i]];  // 0 for parameters without a gradient
      if (kind == Kind::Gradient) gradient = own;
      yardstick.bound += kTensorFactor * std::max({own, gradient, of_all});
    }
    if (is_rounded(precision_)) together_.push_back({size, scale, kAllFactor * of_all + rounding_of(precision_)});
  }

  const Reference& reference_;
  const std::string& precision_;
  std::vector<Yardstick> all_, together_;
  std::map<size_t, double> off_by_;  // by parameter: distance of one rank's gradient in the other precision
};

std::vector<Yardstick> receive_yardsticks(const Reference* reference, size_t count, const DeviceMesh& mesh,
                                          const std::string& precision, int root) {
  std::vector<Yardstick> all(count);
  at::Tensor numbers = at::empty({static_cast<int64_t>(count), 3}, at::kDouble);
  double* number = numbers.data_ptr<double>();
  if (mesh.rank() == root) {
    all = Yardsticks(*reference, precision).all();
    for (size_t i = 0; i < count; ++i) {
      number[3 * i] = all[i].reference;
      number[3 * i + 1] = all[i].scale;
      number[3 * i + 2] = all[i].bound;
    }
  }
  mesh.world().broadcast(numbers, root).wait();
  for (size_t i = 0; i < count; ++i) all[i] = {number[3 * i], number[3 * i + 1], number[3 * i + 2]};
  return all;
}

/// Returns the reference's tensor for `parameter`, on every rank.
at::Tensor receive_full(const TracedParameter& parameter, Kind kind, const TracedParameter* reference,
                        const DeviceMesh& mesh, const std::string& precision, int root) {
  const at::ScalarType dtype = precision == "fp64" ? at::kDouble : at::kFloat;
  at::Tensor full = reference ? tensor_of(*reference, kind) : at::empty(parameter.global_shape, dtype);
  mesh.world().broadcast(full, root).wait();
  return full;
}

/// Returns distance and size of the complete tensor to which this rank's part belongs; Measured::none() without a part.
Measurement measure_tensor(const TracedParameter& parameter, Kind kind, const at::Tensor& full,
                           const std::string& precision) {
  if (!parameter.held()) return Measurement::none();
  const Measure measure = measure_of(kind, precision);
  const at::Tensor& mine = tensor_of(parameter, kind);
  const double own = distance(mine, part(full, parameter.box), measure), size = size_of(mine, measure);
  if (parameter.parts.size() == 1) return {own, own, size};
  at::Tensor both = at::tensor({own, size}, at::kDouble);
  if (measure == Measure::Largest) {
    parameter.parts.all_reduce(both, Reduce::Max).wait();
  } else {
    both.square_();
    parameter.parts.with_purpose("verify").all_reduce(both).wait();
    both.sqrt_();
  }
  return {both[0].item<double>(), own, both[1].item<double>()};
}

/// Returns distance and size of all gradients together, and then of all weights together, as this rank sees them. For
/// parameters that this rank lacks, takes the entries of `worst`, the worst rank's, instead of those of `measured`.
/// Both begin with the first gradient.
std::vector<Measurement> measure_together(const Trace& trace, const Measurement* measured, const Measurement* worst) {
  std::vector<Measurement> together;
  for (const Kind kind : {Kind::Gradient, Kind::Weight}) {
    std::vector<double> differences, own, sizes;
    for (const size_t i : compared(trace, kind)) {
      const bool held = trace.parameters[i].held();
      const Measurement& tensor = held ? *measured : *worst;
      differences.push_back(tensor.difference);
      if (held) own.push_back(tensor.difference);
      sizes.push_back(tensor.value);
      ++measured, ++worst;
    }
    together.push_back({length_of(differences), length_of(own), length_of(sizes)});
  }
  return together;
}

}  // namespace

Reference make_reference(const std::string& precision, bool has_fp64,
                         const std::function<Trace(const std::string& precision)>& train) {
  Trace own = train(precision);
  if (precision == "fp64" || (precision == "fp32" && !has_fp64)) return {std::move(own), {}};
  if (precision == "fp32") return {std::move(own), train("fp64")};
  Trace in_fp32 = train("fp32");
  return {std::move(in_fp32), std::move(own)};
}

bool is_rounded(const std::string& precision) {
  return precision.starts_with("bf16") || precision.starts_with("fp16");
}

double value_tolerance(const std::string& precision) {
  return precision == "fp64" ? 1e-10 : precision == "fp32" ? 1e-5 : rounding_of(precision);
}

double least_eps(const std::string& precision) {
  return precision == "fp64" ? 1e-7 : precision == "fp32" ? 1e-5 : 1e-3;
}

std::vector<Comparison> compare(const Trace& trace, const Reference* reference, const DeviceMesh& mesh,
                                const std::string& precision, int root) {
  const at::NoGradGuard no_grad;
  std::vector<Comparison> all;
  for (const Kind kind : {Kind::Loss, Kind::GradientNorm}) {
    for (size_t step = 0; step < trace.losses.size(); ++step) {
      all.push_back({kind, trace.losses.size() == 1 ? "" : "step " + std::to_string(step + 1), 0, 0, 0, 0});
    }
  }
  for (const Kind kind : {Kind::Gradient, Kind::Weight}) {
    for (const size_t i : compared(trace, kind)) all.push_back({kind, trace.parameters[i].name, 0, 0, 0, 0});
  }
  if (is_rounded(precision)) {
    for (const Kind kind : {Kind::AllGradients, Kind::AllWeights}) all.push_back({kind, "", 0, 0, 0, 0});
  }
  const std::vector<Yardstick> yardsticks = receive_yardsticks(reference, all.size(), mesh, precision, root);

  std::vector<Measurement> measured;
  const auto add_value = [&](double value) {
    const double difference = std::abs(value - yardsticks[measured.size()].reference);
    measured.push_back({difference, difference, value});
  };
  for (const double loss : trace.losses) add_value(loss);
  for (const double norm : trace.grad_norms) add_value(norm);
  const size_t num_values = measured.size();
  for (const Kind kind : {Kind::Gradient, Kind::Weight}) {
    for (const size_t i : compared(trace, kind)) {
      const TracedParameter& parameter = trace.parameters[i];
      const TracedParameter* full = reference ? &reference->trace.parameters[i] : nullptr;
      measured.push_back(
          measure_tensor(parameter, kind, receive_full(parameter, kind, full, mesh, precision, root), precision));
    }
  }
  std::vector<Measurement> worst = worst_of_ranks(mesh.world(), measured);
  if (is_rounded(precision)) {
    const std::vector<Measurement> together =
        worst_of_ranks(mesh.world(), measure_together(trace, measured.data() + num_values, worst.data() + num_values));
    worst.insert(worst.end(), together.begin(), together.end());
  }
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].value = worst[i].value;
    all[i].reference = yardsticks[i].reference;
    all[i].difference = worst[i].difference / yardsticks[i].scale;
    all[i].bound = yardsticks[i].bound;
    all[i].rank = worst[i].rank;
  }
  return all;
}

}  // namespace meshtrain
