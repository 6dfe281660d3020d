#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/precision.h"

namespace meshtrain::testing {

/// Bounds of ||a - b|| / ||b|| over many numbers. Halves are rounded up to three times, by 2^-8 (bf16) and 2^-11 (fp16)
/// of themselves at most.
inline const std::vector<Precision> kPrecisions = {{at::kFloat, 1e-5}, {at::kBFloat16, 4e-3}, {at::kHalf, 6e-4}};

/// `tolerance`, and three times as much for so few numbers that their errors may not average out.
double tolerance_for(int64_t count, double tolerance);

/// What computes: a GPU, or what stands for one (tests/emulated).
at::Device gpu();

/// n of something, more than a GPU does at once; where less of it is enough for that, an odd number that is smaller.
int64_t many(int64_t n);

/// Standard-normal values on the host, in fp64; others in every run.
at::Tensor fresh(at::IntArrayRef shape);

/// ||a - b|| / ||b||, in fp64 on the host; infinite where an element of `a` is no number.
double error_of(const at::Tensor& a, const at::Tensor& b);

/// Memory that tensors like these will be given next holds no numbers: what a kernel leaves out is seen.
void poison(const std::vector<at::Tensor>& like);

using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Results and gradients of `function` of `inputs`, rounded to the precision's dtype, on the GPU and in fp64 on the
/// host. The last `num_fixed` inputs want no gradient.
void expect_as_on_host(const std::string& what, const Precision& precision, const std::vector<at::Tensor>& inputs,
                       const Function& function, size_t num_fixed = 0);

}  // namespace meshtrain::testing
