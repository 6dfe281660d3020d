#include "mesh/base/error.h"

#include <gtest/gtest.h>

#include "mesh/group.h"

namespace meshtrain {
namespace {

TEST(NamesRank, MarksTheRefusalOfAGroup) {
  at::Tensor output;
  try {
    Group().broadcast(output, 3).wait();
    FAIL() << "nothing was refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(dynamic_cast<const NamesRank*>(static_cast<const std::exception*>(&error)), nullptr) << error.what();
  }
}

}  // namespace
}  // namespace meshtrain
