// Each rank stands for a host with files of its own.

#include "runtime/program/run/run_files.h"

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "mesh/host_map.h"
#include "tests/support/files.h"
#include "tests/support/hosts.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class RunFiles : public ::testing::Test {
 protected:
  RunFiles() {
    if (world().rank() == 0) {
      write_file(file("a.bin"), "0123");
      write_file(file("b.bin"), "4567");
    }
    world().barrier();
  }

  fs::path file(const std::string& name) const { return folder_.path() / name; }
  /// Returns a recipe with `tokens` for this rank.
  static Recipe recipe_of(const fs::path& tokens) {
    Recipe recipe;
    recipe.data.tokens = tokens;
    return recipe;
  }
  static std::string differing(const Recipe& recipe, Hosts hosts) {
    return message<InputError>([&] { check_same_files(recipe, /*reads_weights=*/false, world_on(hosts)); });
  }
  static bool has_several() { return world().size() > 1; }

  const ScratchFolder folder_{world()};
};

TEST_F(RunFiles, EqualFilesOnAllHostsPass) {
  EXPECT_EQ(differing(recipe_of(file("a.bin")), Hosts::Each), "");
}

TEST_F(RunFiles, DifferentFilesAreNamedOnEveryRankWithTheirFingerprints) {
  const fs::path own = file(world().rank() + 1 == world().size() ? "b.bin" : "a.bin");
  const auto described = [&](const std::string& name) {
    return "on " + host_name() + " " + file(name).string() + " has 4 bytes with checksum " +
           checksum_text(fingerprint(file(name)).checksum);
  };
  EXPECT_EQ(differing(recipe_of(own), Hosts::Each),
            has_several() ? "data.tokens: hosts have different files: " + described("a.bin") + ", " +
                                described("b.bin") + ": give every host the same file"
                          : "");
}

TEST_F(RunFiles, FilesThatOnlySomeHostsNeedAreNamed) {
  Recipe recipe = recipe_of(file("a.bin"));
  if (world().rank() > 0) recipe.data.loss_mask = file("b.bin");
  const std::string said = differing(recipe, Hosts::Each);
  EXPECT_EQ(has(said, "data.loss_mask: hosts have different files: on " + host_name() + " no file, on "), has_several())
      << said;
}

TEST_F(RunFiles, FilesOfOneHostAreNotRead) {
  EXPECT_EQ(differing(recipe_of(file("none.bin")), Hosts::Found), "");
}

TEST_F(RunFiles, AFileThatOneHostLacksIsNamedWithTheHost) {
  const bool is_last = world().rank() + 1 == world().size();
  const std::string said = differing(recipe_of(file(is_last ? "none.bin" : "a.bin")), Hosts::Each);
  EXPECT_EQ(has(said, "on host " + host_name() + ": cannot read " + file("none.bin").string()), has_several()) << said;
}

TEST_F(RunFiles, FilesOfAMixtureAreNamedByTheKeysOfItsEntries) {
  DataOptions data;
  data.mixture.resize(2);
  data.mixture[0].tokens = "/data/a.bin";
  data.mixture[0].dtype = "megatron";
  data.mixture[1].tokens = "/data/b.bin";
  data.mixture[1].loss_mask = "/data/mask";
  std::vector<std::string> keys;
  for (const auto& [key, path] : data_files(data)) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"data.mixture[0].tokens", "data.mixture[0].tokens.idx",
                                            "data.mixture[1].tokens", "data.mixture[1].loss_mask"}));
}

}  // namespace
}  // namespace meshtrain::testing
