#include "runtime/training/optimizer/rules.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

OptimizerOptions with_muon(double learning_rate) {
  OptimizerOptions options;
  options.name = "muon";
  options.learning_rate = learning_rate;
  options.muon.adamw_learning_rate = 0.5;
  return options;
}

TEST(UpdateRule, AGroupOfMatricesIsUpdatedByElement) {
  const Parameter head = full_parameter("head.weight", {7, 4}, {}, at::TensorOptions().dtype(at::kDouble));
  OptimizerOptions options = with_muon(0.25);
  EXPECT_TRUE(rule_of(head, options).full_matrix);
  EXPECT_EQ(rule_of(head, options).rate, 1);
  options.groups = {{.pattern = "head.*", .by_element = true}};
  EXPECT_FALSE(rule_of(head, options).full_matrix);
  EXPECT_EQ(rule_of(head, options).rate, 2) << "adamw_learning_rate / learning_rate";
}

TEST(UpdateRule, AStackOfVectorsIsNoMatrix) {
  Parameter biases = full_parameter("experts.bias", {7, 4}, {}, at::TensorOptions().dtype(at::kDouble));
  OptimizerOptions options = with_muon(0.25);
  options.weight_decay = 0.1;
  options.decay = DecayScope::Matrices;
  EXPECT_TRUE(rule_of(biases, options).full_matrix);
  EXPECT_EQ(rule_of(biases, options).weight_decay, 0.1);
  biases.num_matrices = 0;
  EXPECT_FALSE(rule_of(biases, options).full_matrix);
  EXPECT_EQ(rule_of(biases, options).weight_decay, 0);
}

TEST(UpdateRule, AFactorOfNoLearningRateIsAnError) {
  const Parameter bias = full_parameter("bias", {7}, {}, at::TensorOptions().dtype(at::kDouble));
  EXPECT_THROW(rule_of(bias, with_muon(0)), InputError);
}

}  // namespace
}  // namespace meshtrain
