#include "runtime/training/checkpoint/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/faults/faults.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;
using testing::ScratchFolder;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

void make(const fs::path& folder) {
  fs::create_directories(folder / "inside");
}

TEST(CheckpointFolder, OnlyWhatIsCompleteCounts) {
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path() / "checkpoints");
  EXPECT_TRUE(folder.steps().empty()) << "there is no folder";
  for (const char* name : {"step-00000010", "step-00000009", "step-123456789", "step-00000011.tmp", "step-11",
                           "step-00000012.removed", "abandoned-step-00000013", "run-0123456789abcdef", "step-",
                           "step-0000001x", "latest", "step-99999999999999999999"}) {
    make(scratch.path() / "checkpoints" / name);
  }
  EXPECT_EQ(folder.steps(), (std::vector<int64_t>{9, 10, 123456789}));
  make(folder.partial(20, "a"));
  folder.complete(20, "a");
  folder.complete(20, "a");  // as another host
  EXPECT_EQ(folder.steps().back(), 123456789);
  EXPECT_TRUE(fs::exists(folder.step(20) / "inside"));
  EXPECT_FALSE(fs::exists(folder.partial(20, "a")));
}

TEST(CheckpointFolder, LeftoversAreRemovedAndNothingElse) {
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path());
  for (const char* name : {"step-00000010", "step-00000011.tmp", "step-00000011.0123456789abcdef.tmp",
                           "step-00000012.0123456789abcdef.removed", "mine.tmp", "step-1.a.tmp"}) {
    make(scratch.path() / name);
  }
  folder.clean();
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"mine.tmp", "step-00000010", "step-1.a.tmp"}));
}

TEST(CheckpointFolder, LaterOnesAreSetAside) {
  const auto sorted = [](std::vector<int64_t> steps) {
    std::sort(steps.begin(), steps.end());
    return steps;
  };
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path());
  for (const int64_t step : {5, 10, 15}) make(folder.step(step));
  folder.abandon({10, 15, 20});
  EXPECT_EQ(folder.steps(), std::vector<int64_t>{5});
  EXPECT_EQ(sorted(folder.abandoned()), (std::vector<int64_t>{10, 15}));
  make(folder.step(10));
  folder.abandon({10});
  EXPECT_EQ(sorted(folder.abandoned()), (std::vector<int64_t>{10, 10, 15}));
  EXPECT_EQ(names_in(scratch.path()), (std::vector<std::string>{"abandoned-step-00000010", "abandoned-step-00000010-2",
                                                                "abandoned-step-00000015", "step-00000005"}));
}

TEST(CheckpointFolder, TheLastAndTheMultiplesAreKept) {
  const auto kept = [](int64_t keep_last, int64_t keep_every) {
    const ScratchFolder scratch;
    const CheckpointFolder folder(scratch.path());
    for (int64_t step = 10; step <= 60; step += 10) make(folder.step(step));
    const RetiredCheckpoints retired = folder.retire(folder.outdated(keep_last, keep_every), "a");
    EXPECT_EQ(retired.problem, "");
    for (const fs::path& each : retired.folders) fs::remove_all(each);
    EXPECT_EQ(names_in(scratch.path()).size(), folder.steps().size()) << "nothing else is there";
    return folder.steps();
  };
  EXPECT_EQ(kept(0, 0).size(), 6u);
  EXPECT_EQ(kept(9, 0).size(), 6u);
  EXPECT_EQ(kept(2, 0), (std::vector<int64_t>{50, 60}));
  EXPECT_EQ(kept(1, 30), (std::vector<int64_t>{30, 60}));
  EXPECT_EQ(kept(2, 20), (std::vector<int64_t>{20, 40, 50, 60}));
}

TEST(CheckpointFolder, OnlyAFolderThatIsThereBecomesACheckpoint) {
  const ScratchFolder scratch;
  const CheckpointFolder folder(scratch.path() / "checkpoints");
  const auto message = [](const auto& action) {
    try {
      action();
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message([&] { folder.begin(3, "a"); }),
            "cannot make " + folder.partial(3, "a").string() + ": No such file or directory");
  folder.claim("0123456789abcdef");
  folder.claim("0123456789abcdef");
  EXPECT_EQ(folder.owners(), std::vector<std::string>{"0123456789abcdef"});
  folder.begin(3, "a");
  folder.begin(3, "a");  // as another host
  fs::remove(folder.partial(3, "a"));
  EXPECT_EQ(message([&] { folder.complete(3, "a"); }),
            "cannot rename " + folder.partial(3, "a").string() + " to step-00000003: No such file or directory");
  EXPECT_EQ(folder.steps(), std::vector<int64_t>{});
}

// A file server may do a rename, lose the answer and get the request again: it then finds nothing to rename.
TEST(CheckpointFolder, ARenameWhoseAnswerWasLostIsDone) {
  for (const std::string error : {"ENOENT", "ESTALE"}) {
    const ScratchFolder scratch;
    const CheckpointFolder folder(scratch.path());
    make(folder.step(1));
    folder.begin(3, "a");
    testing::inject_faults("rename:step-:+" + error);
    folder.complete(3, "a");
    const RetiredCheckpoints retired = folder.retire({1}, "a");
    EXPECT_EQ(retired.folders, std::vector<fs::path>{scratch.path() / "step-00000001.a.removed"}) << error;
    EXPECT_EQ(retired.problem, "") << error;
    testing::inject_faults("");
    EXPECT_EQ(folder.steps(), std::vector<int64_t>{3}) << error;
    folder.begin(4, "a");
    testing::inject_faults("rename:step-:" + error);
    EXPECT_THROW(folder.complete(4, "a"), std::runtime_error) << error;
    testing::inject_faults("");
    EXPECT_EQ(folder.steps(), std::vector<int64_t>{3}) << error;
  }
}

}  // namespace
}  // namespace meshtrain
