#include "runtime/program/telemetry/console.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

TEST(Console, ALineAStep) {
  EXPECT_EQ(console_line({12, 2.12345, 0.5, 1e-3, 0, 0, 12345.4}, 600, 75),
            "step  12/600  loss 2.1235  norm 0.500  lr 1.00e-03  12,345 tok/s  eta 1:15");
  StepMetrics skipped{12, 2.12345, 0.5, 1e-3};
  skipped.skipped = true;
  EXPECT_TRUE(console_line(skipped, 600, 75).ends_with("  skipped: the loss is not finite"));
  skipped.non_finite = "model.norm.weight";
  skipped.loss_scale = 65536;
  EXPECT_TRUE(console_line(skipped, 600, 75)
                  .ends_with("  skipped: the gradient of model.norm.weight is not finite with loss scale 65536"));
  StepMetrics evaluated{12, 2.12345, 0.5, 1e-3};
  evaluated.evaluation = EvaluationMetrics{1.98766, 100, 2};
  EXPECT_TRUE(console_line(evaluated, 600, 75).ends_with("  eta 1:15  eval loss 1.9877"));
  StepMetrics mixture{12, 2.12345, 0.5, 1e-3};
  mixture.experts = ExpertMetrics{.load_max = 2.5};
  EXPECT_TRUE(console_line(mixture, 600, 75).ends_with("  eta 1:15  load 2.50"));
  mixture.experts->balance_loss = 1.03125;
  EXPECT_TRUE(console_line(mixture, 600, 75).ends_with("  load 2.50  balance 1.0312"));
  EXPECT_EQ(with_separators(999), "999");
  EXPECT_EQ(with_separators(-1234567), "-1,234,567");
  EXPECT_EQ(with_separators(-123), "-123");
  EXPECT_EQ(counted(1, "piece"), "1 piece");
  EXPECT_EQ(counted(1234, "piece"), "1,234 pieces");
  EXPECT_EQ(counted(0, "mesh", "meshes"), "0 meshes");
  EXPECT_EQ(duration(2 * 3600 + 5), "2:00:05");
}

}  // namespace
}  // namespace meshtrain
