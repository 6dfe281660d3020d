#include "mesh/base/files/glob.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

TEST(Glob, MatchesTheCompleteNameAsAShellDoes) {
  const std::string name = "model.layers.10.mlp.up_proj.weight";
  for (const char* pattern : {"*", "model.layers.10.mlp.up_proj.weight", "model.layers.*.mlp.*", "*up_proj*",
                              "model.layers.1?.*", "model.layers.[0-9][0-9].*", "*.mlp.[!gd]*", "*\\.weight"}) {
    EXPECT_TRUE(matches(pattern, name)) << pattern;
  }
  for (const char* pattern : {"", "model", "up_proj", "model.layers.1.*", "MODEL.*", "*.bias", "*.mlp.[!u]*",
                              "model.layers.[!0-9]*", "*.mlp.\\*"}) {
    EXPECT_FALSE(matches(pattern, name)) << pattern;
  }
}

TEST(Glob, TheFirstOfSeveralThatMatchesCounts) {
  const std::string name = "model.layers.10.mlp.up_proj.weight";
  EXPECT_EQ(first_match({"*.bias", "*.mlp.*", "*"}, name), 1u);
  EXPECT_EQ(first_match({"*.bias"}, name), std::nullopt);
}

}  // namespace
}  // namespace meshtrain
