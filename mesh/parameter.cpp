#include "mesh/parameter.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

at::Tensor empty_leaf(const at::TensorOptions& options) {
  return at::empty({0}, options.requires_grad(false)).set_requires_grad(true);
}

int64_t product(const std::vector<int64_t>& extents) {
  int64_t elements = 1;
  for (const int64_t extent : extents) elements *= extent;
  return elements;
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * std::max<int64_t>(shape[dim], 1);
  return strides;
}

}  // namespace

at::Tensor Parameter::valid() const {
  at::Tensor part = tensor;
  for (size_t dim = 0; dim < box.size.size(); ++dim) {
    if (box.size[dim] != shape[dim]) part = part.narrow(static_cast<int64_t>(dim), 0, box.size[dim]);
  }
  return part;
}

Parameter full_parameter(std::string name, std::vector<int64_t> shape, Initializer initializer,
                         const at::TensorOptions& options) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.tensor = empty_leaf(options);
  parameter.shape = shape;
  parameter.global_shape = shape;
  parameter.box = {std::vector<int64_t>(shape.size(), 0), shape};
  parameter.initializer = initializer;
  return parameter;
}

Parameter sharded_parameter(std::string name, std::vector<int64_t> shape, int64_t dim, const Group& group,
                            Initializer initializer, const at::TensorOptions& options) {
  const int64_t dims = static_cast<int64_t>(shape.size());
  if (dim < 0 || dim >= dims) {
    throw RankError<std::invalid_argument>(group.coordinate_text() + ": " + name + " of " + std::to_string(dims) +
                                           " dims cannot be cut along dim " + std::to_string(dim));
  }
  Parameter parameter = full_parameter(std::move(name), std::move(shape), initializer, options);
  if (group.size() == 1) return parameter;

  const int64_t extent = parameter.global_shape[dim];
  const int64_t chunk = (extent + group.size() - 1) / group.size();
  const int64_t start = std::min(chunk * group.rank(), extent);
  parameter.shape[dim] = chunk;
  parameter.box.start[dim] = start;
  parameter.box.size[dim] = std::min(chunk, extent - start);
  parameter.sharded_over = group.name();
  parameter.sharded_dim = dim;
  return parameter;
}

void bind(Parameter& parameter, const at::Tensor& flat, int64_t offset) {
  const at::NoGradGuard no_grad;
  at::Tensor& leaf = parameter.tensor;
  const int64_t elements = product(parameter.shape);
  if (!leaf.defined() || leaf.scalar_type() != flat.scalar_type() || leaf.device() != flat.device() ||
      flat.dim() != 1 || !flat.is_contiguous() || offset < 0 || offset + elements > flat.numel()) {
    std::ostringstream text;
    text << parameter.name << " of " << elements << " elements cannot be bound to element " << offset
         << " of a flat buffer of shape " << flat.sizes() << ", " << flat.scalar_type() << " on " << flat.device();
    if (leaf.defined()) text << ": the parameter is " << leaf.scalar_type() << " on " << leaf.device();
    throw std::invalid_argument(text.str());
  }
  const int64_t in_storage = flat.storage_offset() + offset;
  const bool there_already = leaf.is_alias_of(flat) && leaf.storage_offset() == in_storage;
  if (leaf.numel() == elements && !there_already) flat.narrow(0, offset, elements).copy_(leaf.flatten());
  leaf.set_(flat.storage(), in_storage, parameter.shape, contiguous_strides(parameter.shape));
}

}  // namespace meshtrain
