#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace meshtrain {

/// A computation on the host whose tensors exist; returns the tensors that it made.
using HostComputation = std::function<std::vector<at::Tensor>()>;

/// Returns a tensor of the Meta device as large as what LibTorch and its libraries allocate for a moment in a
/// computation on the host, besides its results. A dry run holds it as long as it makes the shapes of those. Measured
/// once for each `key`, by the second call of the computation that `prepare` returns; HostMemory counts from then on.
at::Tensor host_scratch(const std::string& key, const std::function<HostComputation()>& prepare);

/// Returns true for tensors of a dry run for the host, whose computations have such scratch.
bool has_host_scratch(const at::Tensor& tensor);

}  // namespace meshtrain
