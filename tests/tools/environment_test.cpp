// docs/clusters.md names every environment variable that the program reads.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>

#include "tests/support/files.h"
#include "tests/support/messages.h"

namespace meshtrain::testing {
namespace {

/// Returns what the first group of `pattern` matches in the sources of the program.
std::set<std::string> found_in_sources(const std::regex& pattern, const std::string& part_of_path = "") {
  std::set<std::string> found;
  for (const char* floor : {"mesh", "tensor_parallel", "context_parallel", "fsdp", "runtime", "tools"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_folder() + "/" + floor)) {
      const std::string file = entry.path();
      if (!entry.is_regular_file() || !has(file, part_of_path)) continue;
      if (!file.ends_with(".cpp") && !file.ends_with(".h") && !file.ends_with(".cu")) continue;
      const std::string text = content(file);
      for (std::sregex_iterator match(text.begin(), text.end(), pattern); match != std::sregex_iterator(); ++match) {
        found.insert((*match)[1]);
      }
    }
  }
  return found;
}

TEST(EnvironmentVariables, AreInTheDocument) {
  std::set<std::string> names = found_in_sources(std::regex(R"re([gs]etenv\("([A-Z_0-9]+)")re"));
  EXPECT_TRUE(names.contains("MESHTRAIN_SILENCE_LIMIT"));
  names.merge(found_in_sources(std::regex(R"re("([A-Z][A-Z_0-9]+)")re"), "mpi/launcher.cpp"));
  EXPECT_TRUE(names.contains("FLUX_JOB_SIZE"));
  const std::string document = content(source_folder() + "/docs/clusters.md");
  for (const std::string& name : names) EXPECT_TRUE(has(document, "`" + name + "`")) << name;
}

}  // namespace
}  // namespace meshtrain::testing
