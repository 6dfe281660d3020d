#include "mesh/base/files/lower_case.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

TEST(LowerCase, ChangesLettersOfAsciiAlone) {
  EXPECT_EQ(lower_case("AZaz09@[`{"), "azaz09@[`{");
  EXPECT_EQ(lower_case("ÉA"), "Éa") << "in any locale";
}

}  // namespace
}  // namespace meshtrain
