#include "tests/tensor_parallel/layers.h"

#include <functional>
#include <numeric>

#include "mesh/backends/dry_run.h"
#include "mesh/device/aten.h"
#include "tests/support/world.h"

namespace meshtrain::testing {

TensorParallel tensor_parallel(bool sequence_parallel) {
  static const DeviceMesh mesh(MeshLayout({{"tp", world().size()}}), world());
  return {mesh.group("tp"), sequence_parallel};
}

DeviceMesh imagined_mesh(int rank, int size) {
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const Group imagined(dry_run_backend(rank, size), "world", std::move(ranks), "rank " + std::to_string(rank));
  return DeviceMesh(MeshLayout({{"tp", size}}), imagined);
}

at::Tensor own_part(const at::Tensor& full, int64_t dim) {
  const int64_t extent = full.size(dim) / world().size();
  return full.detach().narrow(dim, extent * world().rank(), extent).clone();
}

at::Tensor own_rows(const at::Tensor& full, const TensorParallel& tp) {
  return tp.splits_rows() ? own_part(full, 0) : full.detach().clone();
}

at::Tensor own_box(const Parameter& parameter, const at::Tensor& full) {
  at::Tensor local = at::zeros(parameter.shape, full.options().requires_grad(false));
  at::Tensor part = full.detach(), target = local;
  for (size_t i = 0; i < parameter.shape.size(); ++i) {
    const int64_t dim = static_cast<int64_t>(i);
    part = part.narrow(dim, parameter.box.start[i], parameter.box.size[i]);
    target = target.narrow(dim, 0, parameter.box.size[i]);
  }
  target.copy_(part);
  return local;
}

std::map<std::string, at::Tensor> full_values(const std::vector<Parameter*>& parameters) {
  std::map<std::string, at::Tensor> values;
  for (const Parameter* parameter : parameters) {
    const uint64_t seed = std::hash<std::string>()(parameter->name);
    values[parameter->name] = random_tensor(parameter->global_shape, seed).requires_grad_();
  }
  return values;
}

at::Tensor materialize(const std::vector<Parameter*>& parameters, const std::map<std::string, at::Tensor>& values,
                       Storage storage, at::ScalarType gradient_dtype) {
  const at::NoGradGuard no_grad;
  const at::TensorOptions options = parameters.front()->tensor.options().requires_grad(false);
  int64_t total = 3;  // so that parameters do not begin at the start of the buffer
  for (const Parameter* parameter : parameters) total += at::empty(parameter->shape, at::kMeta).numel();
  const at::Tensor flat = at::zeros({total}, options);
  const at::TensorOptions gradient_options =
      gradient_dtype == at::ScalarType::Undefined ? options : options.dtype(gradient_dtype);
  const at::Tensor gradients = storage == Storage::Flat ? at::zeros({total}, gradient_options) : at::Tensor();

  int64_t offset = 3;
  for (Parameter* parameter : parameters) {
    const at::Tensor local = own_box(*parameter, values.at(parameter->name)).to(options.dtype());
    if (storage == Storage::Loose) {
      parameter->tensor = local.to(options.device()).requires_grad_();
      continue;
    }
    bind(*parameter, flat, offset);
    if (!flat.is_meta()) parameter->tensor.detach().copy_(local);
    parameter->tensor.mutable_grad() = gradients.narrow(0, offset, local.numel()).view(parameter->shape);
    offset += local.numel();
  }
  return gradients;
}

}  // namespace meshtrain::testing
