// Two Fsdp, one within the other: experts within their block.
#include <gtest/gtest.h>

#include <string>

#include "fsdp/fsdp.h"
#include "mesh/device/aten.h"
#include "mesh/flight_recorder.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

struct OneUnit {
  explicit OneUnit(const std::string& name)
      : weight(full_parameter("weight of " + name, {4, 4}, {}, at::TensorOptions().dtype(at::kDouble))) {
    weight.tensor = random_tensor({4, 4}, 1).requires_grad_();
    fsdp.emplace(std::vector<UnitSpec>{{name, {&weight}}}, FsdpOptions{});
  }

  Parameter weight;
  std::optional<Fsdp> fsdp;
};

std::string work() {
  return FlightRecorder::own().work();
}

TEST(NestedFsdp, ShowsTheWorkOfTheInnerOneWhileItRuns) {
  OneUnit block("block 3"), experts("experts of block 3");
  std::vector<std::string> seen;
  const at::Tensor x = random_tensor({2, 4}, 2);
  const auto forward = [&] {
    return block.fsdp->run(0, [&] {
      at::Tensor y = at::matmul(x, block.weight.tensor);
      seen.push_back(work());
      y = experts.fsdp->run(0, [&] {
        seen.push_back(work());
        return at::matmul(y, experts.weight.tensor);
      });
      seen.push_back(work());
      return y.sum();
    });
  };
  forward();
  EXPECT_EQ(seen,
            (std::vector<std::string>{"forward of block 3", "forward of experts of block 3", "forward of block 3"}));
  EXPECT_EQ(work(), "forward of block 3") << "until the next begins";
  FlightRecorder::own().set_work("");
}

}  // namespace
}  // namespace meshtrain::testing
