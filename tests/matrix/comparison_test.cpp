// The comparison detects one wrong copy on one rank, for each kind of number, and names that rank.

#include "runtime/program/verify/comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "mesh/device/aten.h"
#include "runtime/program/verify/replicas.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// Two parameters on a mesh of dp x tp: one cut over tp, and one that every rank holds complete.
class Comparing : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 12, kColumns = 5;

  Comparing() {
    const int64_t tp = world().size() >= 4 ? 2 : world().size();
    mesh_ = std::make_unique<DeviceMesh>(MeshLayout({{"dp", world().size() / tp}, {"cp", 1}, {"tp", tp}}), world());
  }

  Trace full(at::ScalarType dtype = at::kDouble) const {
    Trace trace{{2.5}, {0.7}, {}};
    trace.parameters.push_back({"cut", {kRows, kColumns}, {{0, 0}, {kRows, kColumns}}, drawn(1), drawn(2)});
    trace.parameters.push_back({"norm", {kColumns}, {{0}, {kColumns}}, drawn(3)[0].clone(), drawn(4)[0].clone()});
    for (TracedParameter& parameter : trace.parameters) {
      parameter.gradient = parameter.gradient.to(dtype);
      parameter.movement = parameter.movement.to(dtype);
    }
    return trace;
  }

  /// Returns this rank's part of the correct result `full`, without the last column of rows, which is padding.
  Trace own_part(Trace trace) const {
    if (mesh_->size("tp") == 1) return trace;
    TracedParameter& cut = trace.parameters[0];
    const int64_t rows = kRows / mesh_->size("tp");
    cut.box = {{mesh_->coordinate("tp") * rows, 0}, {rows, kColumns}};
    cut.parts = mesh_->group("tp");
    cut.cut_axes = {"tp"};
    cut.gradient = part(cut.gradient, cut.box).clone();
    cut.movement = part(cut.movement, cut.box).clone();
    return trace;
  }

  std::vector<Comparison> compared(const Trace& trace, const Reference& reference,
                                   const std::string& precision = "fp64") const {
    return compare(trace, mesh_->rank() == 0 ? &reference : nullptr, *mesh_, precision);
  }

  /// Applies `change` to the last rank's trace and expects a difference in entry `index` alone, on that rank.
  template <class Change>
  void expect_found(size_t index, const Change& change) const {
    Trace trace = own_part(full());
    const int64_t last = world().size() - 1;
    if (world().rank() == last) change(trace);
    const std::vector<Comparison> all = compared(trace, {full(), {}});
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].equal(), i != index) << all[i].name << " differs by " << all[i].difference;
    }
    EXPECT_EQ(all[index].rank, last);
  }

  std::unique_ptr<DeviceMesh> mesh_;

 private:
  static at::Tensor drawn(uint64_t seed) { return random_tensor({kRows, kColumns}, seed); }
};

TEST_F(Comparing, FindsNothingWhereNothingDiffers) {
  for (const Comparison& each : compared(own_part(full()), {full(), {}})) {
    EXPECT_TRUE(each.equal());
    EXPECT_NEAR(each.value, each.reference, 1e-12) << each.name;
  }
}

TEST_F(Comparing, FindsEachKindOnOneRank) {
  expect_found(0, [](Trace& trace) { trace.losses[0] += 1e-8; });
  expect_found(1, [](Trace& trace) { trace.grad_norms[0] += 1e-8; });
  expect_found(2, [](Trace& trace) { trace.parameters[0].gradient[0][0] += 1e-8; });
  expect_found(3, [](Trace& trace) { trace.parameters[1].gradient[4] += 1e-8; });
  expect_found(4, [](Trace& trace) { trace.parameters[0].movement[1][2] += 1e-7; });
  expect_found(5, [](Trace& trace) { trace.parameters[1].movement[2] += 1e-7; });
}

TEST_F(Comparing, FindsWhatIsNoNumber) {
  expect_found(0, [](Trace& trace) { trace.losses[0] = std::numeric_limits<double>::quiet_NaN(); });
  expect_found(2, [](Trace& trace) { trace.parameters[0].gradient[0][0] = std::numeric_limits<double>::quiet_NaN(); });
  expect_found(5, [](Trace& trace) { trace.parameters[1].movement[0] = std::numeric_limits<double>::infinity(); });
}

/// A step that one rank and the mesh both skipped proves nothing.
TEST_F(Comparing, FindsAStepThatBothSkipped) {
  Trace skipped = full();
  skipped.grad_norms[0] = std::numeric_limits<double>::infinity();
  const std::vector<Comparison> all = compared(own_part(skipped), {skipped, {}});
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].equal(), i != 1) << all[i].name;
}

/// When one rank in bf16 differs by 0.02 in one gradient and 0.002 in the other, a mesh may differ by about 0.08 in
/// each, which is more than 4 x 0.002, but not in both: all together only by 1.5 x 0.02.
TEST_F(Comparing, HoldsBf16AgainstOneRankInFp32) {
  Trace exact = full(at::kFloat);
  for (TracedParameter& parameter : exact.parameters) parameter.gradient.fill_(1);
  Trace rounded = exact;
  rounded.parameters[0].gradient = exact.parameters[0].gradient * 1.02;
  rounded.parameters[1].gradient = exact.parameters[1].gradient * 1.002;
  const auto different = [&](double cut, double norm) {
    Trace mesh = exact;
    mesh.parameters[0].gradient = exact.parameters[0].gradient * (1 + cut);
    mesh.parameters[1].gradient = exact.parameters[1].gradient * (1 + norm);
    std::string names;
    for (const Comparison& each : compared(own_part(mesh), {exact, rounded}, "bf16")) {
      if (!each.equal()) names += each.kind == Comparison::Kind::AllGradients ? "all " : each.name + " ";
    }
    return names;
  };
  EXPECT_EQ(different(0.02, 0.002), "");
  EXPECT_EQ(different(0.02, 0.07), "");
  EXPECT_EQ(different(0.02, 0.09), "norm ");
  EXPECT_EQ(different(0.05, 0.002), "all ");
  EXPECT_EQ(different(0.09, 0.002), "cut all ");
}

TEST(Reference, IsTrainedInTheMeshsPrecisionFirst) {
  const auto trained = [](const std::string& precision, bool has_fp64) {
    std::string order;
    const auto train = [&](const std::string& asked) {
      order += asked + " ";
      return Trace{{asked == precision ? 1. : 2.}, {}, {}};
    };
    const Reference reference = make_reference(precision, has_fp64, train);
    order += reference.trace.losses[0] == 1 ? "own" : "another";
    return order + (reference.other ? " and " + std::string(reference.other->losses[0] == 1 ? "own" : "another") : "");
  };
  EXPECT_EQ(trained("fp64", true), "fp64 own");
  EXPECT_EQ(trained("fp32", true), "fp32 fp64 own and another");
  EXPECT_EQ(trained("fp32", false), "fp32 own");
  EXPECT_EQ(trained("bf16_mixed", false), "bf16_mixed fp32 another and own");
}

/// Where one rank in fp32 differs by 3e-5 from one rank in fp64, a mesh may differ by 4 x 3e-5 more than by 1e-5.
TEST_F(Comparing, AllowsInFp32WhatTheModelMakesOfRounding) {
  const Trace in_fp32 = full(at::kFloat);
  Trace in_fp64 = full();
  in_fp64.parameters[0].gradient.mul_(1 + 3e-5);
  const auto different = [&](double by, const Reference& reference) {
    Trace mesh = in_fp32;
    mesh.parameters[0].gradient = in_fp32.parameters[0].gradient * (1 + by);
    std::string names;
    for (const Comparison& each : compared(own_part(mesh), reference, "fp32")) {
      if (!each.equal()) names += each.name + " ";
    }
    return names;
  };
  EXPECT_EQ(different(2e-5, {in_fp32, {}}), "cut ");
  EXPECT_EQ(different(2e-5, {in_fp32, in_fp64}), "");
  EXPECT_EQ(different(1e-4, {in_fp32, in_fp64}), "");
  EXPECT_EQ(different(2e-4, {in_fp32, in_fp64}), "cut ");
}

TEST_F(Comparing, MeasuresWhatIsNearlyZeroOnTheModelsScale) {
  Trace reference = full(), trace = full();
  reference.parameters[1].gradient.mul_(1e-14);
  reference.parameters[1].movement.mul_(1e-14);
  trace.parameters[1].gradient.mul_(2e-14);
  trace.parameters[1].movement.mul_(2e-14);
  for (const Comparison& each : compared(own_part(trace), {reference, {}})) EXPECT_TRUE(each.equal()) << each.name;
}

/// Weights of 1 that a step moves by about a rounding of fp32 may move by another one.
TEST_F(Comparing, AllowsWeightsThatHardlyMoveARoundingOfEachStep) {
  Trace reference = full(at::kFloat), trace = full(at::kFloat);
  trace.losses = reference.losses = {2.5, 2.5, 2.5};
  constexpr double kRounding = 0x1p-24;
  reference.parameters[0].movement.mul_(1e-6);
  trace.parameters[0].movement.mul_(1e-6);
  reference.parameters[1].movement.fill_(8 * kRounding);
  const auto is_equal = [&](double roundings, double first_length) {
    reference.parameters[1].first_length = first_length;
    trace.parameters[1].movement.fill_((8 + roundings) * kRounding);
    return compared(own_part(trace), {reference, {}}, "fp32").at(7).equal();
  };
  const double length = std::sqrt(static_cast<double>(kColumns));
  EXPECT_FALSE(is_equal(2, 0));
  EXPECT_TRUE(is_equal(2, length));
  EXPECT_TRUE(is_equal(5.9, length));
  EXPECT_FALSE(is_equal(6.1, length)) << "two of each of three steps";
}

TEST_F(Comparing, TellsWhichReplicasDiffer) {
  Trace trace = own_part(full());
  for (const Replicas& replicas : compare_replicas(trace, *mesh_, 1e-10)) EXPECT_EQ(replicas.num_different, 0);
  if (world().size() == 1) return;
  if (mesh_->coordinate("tp") == 1) trace.parameters[1].gradient[0] += 1e-3;
  for (const Replicas& replicas : compare_replicas(trace, *mesh_, 1e-10)) {
    const bool along_tp = replicas.axis == "tp";
    EXPECT_EQ(replicas.num_compared, along_tp ? 1 : 2);
    EXPECT_EQ(replicas.num_different, along_tp ? 1 : 0);
    EXPECT_EQ(replicas.worst, along_tp ? "norm" : "");
  }
}

}  // namespace
}  // namespace meshtrain::testing
