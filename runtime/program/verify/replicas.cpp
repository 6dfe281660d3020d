#include "runtime/program/verify/replicas.h"

#include "mesh/device/aten.h"
#include "runtime/program/verify/worst_rank.h"

namespace meshtrain {
namespace {

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

/// Returns max|a-b| / max|b|, where b is the gradient of the first rank of `group`. When b is all zeros: zero or not a
/// number.
double distance_from_first(const at::Tensor& gradient, const Group& group) {
  at::Tensor first = gradient.clone();
  group.broadcast(first, 0).wait();
  const double difference = largest(gradient - first);
  return difference == 0 ? 0 : difference / largest(first);
}

/// Returns the numbers of the parameters whose gradients have the same part on every rank of `group`, the ranks along
/// `axis`. The result is the same on these ranks.
std::vector<size_t> held_alike(const Trace& trace, const std::string& axis, const Group& group) {
  const auto count = static_cast<int64_t>(trace.parameters.size());
  at::Tensor differs = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) {
    const TracedParameter& parameter = trace.parameters[static_cast<size_t>(i)];
    const bool alike = parameter.gradient.defined() && !parameter.cut_axes.contains(axis);
    differs.mutable_data_ptr<int64_t>()[i] = alike ? 0 : 1;
  }
  group.all_reduce(differs, Reduce::Max).wait();
  std::vector<size_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    if (differs.const_data_ptr<int64_t>()[i] == 0) numbers.push_back(static_cast<size_t>(i));
  }
  return numbers;
}

}  // namespace

std::vector<Replicas> compare_replicas(const Trace& trace, const DeviceMesh& mesh, double tolerance) {
  const at::NoGradGuard no_grad;
  std::vector<Replicas> all;
  for (const Axis& axis : mesh.layout().axes()) {
    if (axis.size == 1) continue;
    const Group& group = mesh.group(axis.name);
    std::vector<Measurement> measured(trace.parameters.size(), Measurement::none());
    for (const size_t i : held_alike(trace, axis.name, group)) {
      const double difference = distance_from_first(trace.parameters[i].gradient, group);
      measured[i] = {difference, difference};
    }
    Replicas replicas{axis.name, 0, 0, ""};
    double largest_difference = tolerance;
    const std::vector<Measurement> worst = worst_of_ranks(mesh.world(), measured);
    for (size_t i = 0; i < worst.size(); ++i) {
      if (worst[i].exists()) ++replicas.num_compared;
      if (worst[i].difference <= tolerance) continue;
      ++replicas.num_different;
      if (!replicas.worst.empty() && worst[i].difference <= largest_difference) continue;
      replicas.worst = trace.parameters[i].name;
      largest_difference = worst[i].difference;
    }
    all.push_back(replicas);
  }
  return all;
}

}  // namespace meshtrain
