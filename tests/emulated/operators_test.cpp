// Errors of a CUDA version are found when its operator is called.
#include "tests/emulated/operators.h"

#include <gtest/gtest.h>
#include <torch/library.h>

#include <string>

#include "mesh/device/aten.h"
#include "mesh/device/operator.h"

namespace meshtrain {
namespace {

enum Fault { None, OtherEveryTime, WritesToWhatItReads, WritesBesideATensor, OtherStrides, OtherDtype };

at::Tensor twice(at::Tensor& counted, const at::Tensor& x, int64_t fault) {
  static int64_t calls = 0;
  counted.add_(fault == OtherEveryTime ? static_cast<double>(++calls) : 1.0);
  if (fault == WritesToWhatItReads) at::Tensor(x).neg_();
  if (fault == WritesBesideATensor) {
    at::empty({0}, counted.options()).set_(counted.storage(), 0, {1}, {1}).fill_(7);
  }
  const at::Tensor out = x * 2;
  return fault == OtherStrides ? out.t().contiguous().t() : fault == OtherDtype ? out.to(at::kHalf) : out;
}

at::Tensor twice_elsewhere(at::Tensor&, const at::Tensor& x, int64_t) {
  return at::empty_like(x);
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  library.def("emulated_twice_(Tensor(a!) counted, Tensor x, int fault) -> Tensor");
}
TORCH_LIBRARY_IMPL(meshtrain, CUDA, library) {
  library.impl("emulated_twice_", twice);
}
TORCH_LIBRARY_IMPL(meshtrain, Meta, library) {
  library.impl("emulated_twice_", twice_elsewhere);
}
TORCH_LIBRARY_IMPL(meshtrain, CPU, library) {
  library.impl("emulated_twice_", twice_elsewhere);
}

std::string problem_of(Fault fault, at::ScalarType dtype = at::kFloat) {
  static const Operator<at::Tensor(at::Tensor&, const at::Tensor&, int64_t)> op("meshtrain::emulated_twice_");
  const at::Tensor all = at::arange(5, at::TensorOptions(dtype)), x = at::ones({2, 3}, at::kFloat);
  at::Tensor counted = all.narrow(0, 1, 3);
  try {
    const at::Tensor out = op(counted, x, fault);
    const bool called = at::equal(all.to(at::kFloat), at::tensor({0.f, 2.f, 3.f, 4.f, 4.f})) && at::equal(out, x * 2);
    return called ? "" : "not called once";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

TEST(EmulatedOperators, WhatIsWrongIsFound) {
  const auto says = [](Fault fault, const std::string& part) {
    const std::string problem = problem_of(fault);
    EXPECT_NE(problem.find(part), std::string::npos) << problem;
  };
  EXPECT_EQ(problem_of(None), "");
  says(OtherEveryTime, "a barrier is missing");
  says(WritesToWhatItReads, "memory that it may only read");
  says(WritesBesideATensor, "memory that it may only read");
  says(OtherStrides, "of strides [1, 2], the Meta device's float [2, 3] of strides [3, 1]");
  says(OtherDtype, "result 0 is c10::Half");
  // In fp64 the CPU's own version is called.
  EXPECT_EQ(problem_of(None, at::kDouble), "not called once");
}

}  // namespace
}  // namespace meshtrain
