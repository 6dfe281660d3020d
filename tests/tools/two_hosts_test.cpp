#include <fstream>

#include "tests/tools/train_program.h"

// Hosts with their own files: tests/support/two_hosts, one rank on each.
namespace meshtrain::testing {
namespace {

class DataOnTwoHosts : public TrainProgram {
 protected:
  /// Creates the folder `own` on both hosts, with the tokens; the recipe reads them there.
  DataOnTwoHosts() {
    std::filesystem::create_directories(own);
    std::filesystem::create_directories(disk);
    for (const char* name : {"tokens.bin", "held_out.bin"}) {
      for (const auto& folder : {own, disk}) std::filesystem::copy_file(path("tokens.bin"), folder / name);
    }
  }

  Ending train_on_both(const Words& more = {}) const {
    Words words = {source_folder() + "/tests/support/two_hosts",
                   "--ranks",
                   "1,1",
                   "--own",
                   own.string() + "=" + disk.string(),
                   build_folder() + "/meshtrain",
                   "train",
                   recipe,
                   "--run-dir",
                   run_dir,
                   "--mesh",
                   "dp=2",
                   "--set",
                   "data.tokens=" + (own / "tokens.bin").string(),
                   "--set",
                   "evaluate.tokens=" + (own / "held_out.bin").string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }

  /// Changes a byte of a file of the second host and restores it. Returns the message in between.
  std::string complaint_with_changed(const std::string& name, const Words& more = {}) const {
    const auto change = [&](int by) {
      std::fstream file(disk / name, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-2, std::ios::end);
      const auto at = file.tellg();
      const char changed = static_cast<char>(file.get() ^ by);
      file.seekp(at);
      file.put(changed);
    };
    change(1);
    const std::string said = complaint(train_on_both(more), 2);
    change(1);
    return said;
  }

  const std::filesystem::path own = path("own"), disk = path("disk of the second");
};

TEST_F(DataOnTwoHosts, FilesThatDifferAreRefused) {
  const Ending same = train_on_both({"--set", "train.export=" + path("model").string()});
  if (same.status == 77) GTEST_SKIP() << same.err;
  ASSERT_EQ(same.status, 0) << same.err;
  for (const auto& folder : {own, disk}) std::filesystem::copy(path("model"), folder / "model");
  run_dir = path("second");
  const Words pretrained = {"--set", "model={hf: " + (own / "model").string() + ", init: pretrained}"};
  const std::vector<std::pair<std::string, std::string>> files = {
      {"tokens.bin", "data.tokens"},
      {"held_out.bin", "evaluate.tokens"},
      {"model/model.safetensors", "model.hf, model.safetensors"}};
  for (const auto& [name, key] : files) {
    const std::string file = (own / name).string(), bytes = std::to_string(std::filesystem::file_size(own / name));
    const std::string said = complaint_with_changed(name, pretrained);
    EXPECT_EQ(said.find(key + ": hosts have different files: on mta"), 0U) << said;
    EXPECT_EQ(count(said, " " + file + " has " + bytes + " bytes with checksum "), 2) << said;
    EXPECT_TRUE(has(said, ", on mtb") && has(said, ": give every host the same file")) << said;
  }
  EXPECT_TRUE(metrics().empty());
  std::filesystem::remove(disk / "tokens.bin");
  const std::string said = complaint(train_on_both(), 2);
  EXPECT_EQ(said.find("on host mtb"), 0U) << said;
  EXPECT_TRUE(has(said, ": cannot read " + (own / "tokens.bin").string() + ": No such file")) << said;
}

}  // namespace
}  // namespace meshtrain::testing
