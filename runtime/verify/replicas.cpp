#include "runtime/verify/replicas.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "runtime/verify/worst_rank.h"

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

}  // namespace

std::vector<Replicas> compare_replicas(const Trace& trace, const DeviceMesh& mesh, double tolerance) {
  const at::NoGradGuard no_grad;
  std::vector<Replicas> all;
  for (const Axis& axis : mesh.layout().axes()) {
    if (axis.size == 1) continue;
    if (std::count(trace.cut_axes.begin(), trace.cut_axes.end(), axis.name) > 0) {
      all.push_back({axis.name, 0, 0, ""});
      continue;
    }
    std::vector<std::string> names;
    std::vector<Measured> measured;
    for (const TracedParameter& parameter : trace.parameters) {
      if (!parameter.gradient.defined() || parameter.sharded_over == axis.name) continue;
      const double difference = distance_from_first(parameter.gradient, mesh.group(axis.name));
      names.push_back(parameter.name);
      measured.push_back({difference, difference});
    }
    Replicas replicas{axis.name, static_cast<int64_t>(names.size()), 0, ""};
    double largest_difference = tolerance;
    const std::vector<Measured> worst = worst_of_ranks(mesh.world(), measured);
    for (size_t i = 0; i < worst.size(); ++i) {
      if (worst[i].difference <= tolerance) continue;
      ++replicas.num_different;
      if (!replicas.worst.empty() && worst[i].difference <= largest_difference) continue;
      replicas.worst = names[i];
      largest_difference = worst[i].difference;
    }
    all.push_back(replicas);
  }
  return all;
}

}  // namespace meshtrain
