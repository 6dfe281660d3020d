#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace meshtrain {

/// A computation on the host with real tensors; returns the tensors that it made.
using HostComputation = std::function<std::vector<at::Tensor>()>;

/// Returns a Meta tensor as large as the scratch memory that LibTorch and its libraries allocate in a computation on
/// the host, besides its results. A dry run holds the tensor while it makes the shapes of the results. The size is
/// measured once for each `key`, in the second call of the computation that `prepare` returns; HostMemory counts from
/// then on.
at::Tensor host_scratch(const std::string& key, const std::function<HostComputation()>& prepare);

/// Returns true for tensors of a dry run for the host, whose computations have such scratch.
bool has_host_scratch(const at::Tensor& tensor);

}  // namespace meshtrain
