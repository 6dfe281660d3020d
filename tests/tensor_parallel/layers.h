#pragma once

#include <map>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "mesh/parameter.h"
#include "tensor_parallel/tensor_parallel.h"

namespace meshtrain::testing {

/// Returns all ranks of the test along tp.
TensorParallel tensor_parallel(bool sequence_parallel);

/// Returns a tp mesh of `size` ranks that do not exist, as `rank` sees it.
DeviceMesh imagined_mesh(int rank, int size);

/// Returns this rank's equal part of `full` along `dim`.
at::Tensor own_part(const at::Tensor& full, int64_t dim);

/// Returns the rows of the residual stream [T, M] that this rank holds: all of them without sequence parallel.
at::Tensor own_rows(const at::Tensor& full, const TensorParallel& tp);

/// Returns this rank's part of `full`, values or gradients of a parameter; padding is zero.
at::Tensor own_box(const Parameter& parameter, const at::Tensor& full);

/// Returns the complete values of each parameter, by name, as fp64 leaves for a computation without a mesh: the same on
/// every rank.
std::map<std::string, at::Tensor> full_values(const std::vector<Parameter*>& parameters);

enum class Storage {
  Loose,  ///< separate parameters, no gradient buffers
  Flat,   ///< one buffer for all, gradients are views of another
};

/// Allocates the parameters and writes their parts of `values`. Returns the flat gradient buffer, of `gradient_dtype`
/// or the parameters' own, when there is one.
at::Tensor materialize(const std::vector<Parameter*>& parameters, const std::map<std::string, at::Tensor>& values,
                       Storage storage, at::ScalarType gradient_dtype = at::ScalarType::Undefined);

}  // namespace meshtrain::testing
