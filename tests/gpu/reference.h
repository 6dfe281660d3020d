#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/dtype_tolerance.h"

namespace meshtrain::testing {

/// Bounds of ||a - b|| / ||b|| over many numbers. Halves are rounded up to three times, by at most 2^-8 (bf16) or 2^-11
/// (fp16) of their size.
inline const std::vector<DtypeTolerance> kPrecisions = {{at::kFloat, 1e-5}, {at::kBFloat16, 4e-3}, {at::kHalf, 6e-4}};

/// Returns `tolerance`, or three times as much when `count` is so small that errors may not average out.
double tolerance_for(int64_t count, double tolerance);

/// Returns the device that computes: the current GPU, with its index, or the host when it emulates one
/// (tests/emulated).
at::Device gpu();

/// Returns when the GPU has done all work.
void wait_for_gpu();

/// Returns n, more than a GPU does at once; on the emulation, which does less at once, a smaller odd number.
int64_t many(int64_t n);

/// Returns standard-normal values on the host, in fp64; they differ in every run.
at::Tensor fresh(at::IntArrayRef shape);

/// Returns ||a - b|| / ||b||, in fp64 on the host; infinite when an element of `a` is not a number.
double error_of(const at::Tensor& a, const at::Tensor& b);
/// As above, relative to ||size||: of sums, where `size` are the terms' absolute values added up.
double error_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& size);

/// Fills memory that tensors like these will be allocated in with NaN: elements that a kernel leaves out are then
/// visible.
void poison(const std::vector<at::Tensor>& like);

using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Compares results and gradients of `function` of `inputs`, rounded to the precision's dtype, on the GPU with those in
/// fp64 on the host. The last `num_fixed` inputs need no gradient.
void expect_as_on_host(const std::string& what, const DtypeTolerance& precision, const std::vector<at::Tensor>& inputs,
                       const Function& function, size_t num_fixed = 0);

}  // namespace meshtrain::testing
