// Files of a checkpoint vanish during the write: it does not become complete.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "mesh/agree.h"
#include "tests/checkpoint/training.h"
#include "tests/matrix/cell.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

class Vanished : public ::testing::Test {
 protected:
  Vanished() : scratch_(world()) {
    if (world().rank() == 0) write_tokens(scratch_.path());
    world().barrier();
    const int64_t n = world().size();
    const Variant variant{"llama", true, "mha", "none", "one", "fp32", "adamw"};
    training_ = std::make_unique<Training>(
        recipe_of({variant, n, 1, 1, "none", "contiguous", false, 1, n == 1 ? "no_shard" : "full_shard"}, n == 1,
                  scratch_.path()),
        world());
    training_->run(1);
    training_->save(run());
    before_ = contents(run() / "step-00000001");
    training_->run(1);
  }
  ~Vanished() override { training_.reset(); }

  fs::path run() const { return scratch_.path() / "run"; }
  /// Returns the folder of the checkpoint in progress.
  fs::path partial() const {
    for (const auto& entry : fs::directory_iterator(run())) {
      if (entry.path().extension() == ".tmp") return entry.path();
    }
    return {};
  }

  void wait_until_durable(const Checkpoints& checkpoints) const {
    while (!checkpoints.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    world().barrier();
  }
  /// Returns the message of all ranks when rank 0 calls `damage` on the folder, `stages` after its pieces are durable.
  std::string complaint_after(int stages, const std::function<void(const fs::path&)>& damage) {
    std::unique_ptr<Checkpoints> checkpoints = training_->begin_save(run());
    wait_until_durable(*checkpoints);
    for (int stage = 0; stage < stages; ++stage) {
      checkpoints->advance();
      wait_until_durable(*checkpoints);
    }
    if (world().rank() == 0) damage(partial());
    world().barrier();
    std::string message;
    try {
      checkpoints->finish();
    } catch (const AgreedError& error) {
      message = error.what();
    }
    checkpoints.reset();  // removes the files of the failed checkpoint
    world().barrier();
    EXPECT_EQ(CheckpointFolder(run()).steps(), std::vector<int64_t>{1}) << message;
    EXPECT_EQ(contents(run() / "step-00000001"), before_);
    EXPECT_EQ(partial(), fs::path()) << "what is there of it is removed";
    world().barrier();
    return message;
  }

  ScratchFolder scratch_;
  std::unique_ptr<Training> training_;
  std::map<std::string, std::string> before_;
};

TEST_F(Vanished, AFolderBetweenPiecesAndManifest) {
  const std::string message = complaint_after(0, [](const fs::path& folder) { fs::remove_all(folder); });
  EXPECT_TRUE(message.starts_with("the checkpoint of step 2 was not written: rank 0")) << message;
  EXPECT_TRUE(has(message, "/manifest.json: No such file or directory")) << message;
}

TEST_F(Vanished, AFolderAfterTheManifest) {
  const std::string message = complaint_after(1, [](const fs::path& folder) { fs::remove_all(folder); });
  EXPECT_TRUE(has(message, "/manifest.json was written and cannot be found: No such file")) << message;
}

TEST_F(Vanished, AFileOfOneRank) {
  const std::string last = "rank-0000" + std::to_string(world().size() - 1) + ".safetensors";
  const std::string message = complaint_after(1, [&](const fs::path& folder) { fs::remove(folder / last); });
  EXPECT_TRUE(has(message, "/" + last + " was written and cannot be found: No such file")) << message;
  EXPECT_TRUE(has(message, "rank " + std::to_string(world().size() - 1))) << message;
}

TEST_F(Vanished, TheEndOfAFile) {
  const std::string message =
      complaint_after(1, [&](const fs::path& folder) { fs::resize_file(folder / "rank-00000.safetensors", 100); });
  EXPECT_TRUE(has(message, "/rank-00000.safetensors has 100 bytes, ") && has(message, " were written")) << message;
}

}  // namespace
}  // namespace meshtrain::testing
