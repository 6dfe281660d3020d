// An incomplete or damaged checkpoint is never used.

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <random>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/safetensors/folder.h"
#include "tests/checkpoint/training.h"
#include "tests/matrix/cell.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/tensor_offset.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& content) {
  std::ofstream(file, std::ios::binary) << content;
}

/// A checkpoint of the world's ranks.
class Damage : public ::testing::Test {
 protected:
  Damage() : scratch_(world()) {
    if (world().rank() == 0) write_tokens(scratch_.path());
    world().barrier();
    const Variant variant{"llama", true, "mha", "none", "one", "fp32", "adamw"};
    const int64_t n = world().size();
    recipe_ = recipe_of({variant, n, 1, 1, "none", "contiguous", false, 1, n == 1 ? "no_shard" : "full_shard"}, n == 1,
                        scratch_.path());
    training_ = std::make_unique<Training>(recipe_, world());
    training_->run(1);
    training_->save(run());
    folder_ = newest(run());
  }
  ~Damage() override { training_.reset(); }

  fs::path run() const { return scratch_.path() / "run"; }
  fs::path last_file() const {
    const std::string rank = std::to_string(world().size() - 1);
    return folder_ / ("rank-" + std::string(5 - rank.size(), '0') + rank + ".safetensors");
  }

  /// Returns the message of all ranks when they resume from the checkpoint.
  std::string complaint() {
    world().barrier();
    std::string message;
    try {
      training_->resume(run());
    } catch (const InputError& error) {
      message = error.what();
    }
    world().barrier();
    return message;
  }
  /// Returns the message after rank 0 has called `damage`.
  std::string complaint_after(const std::function<void()>& damage) {
    world().barrier();  // nobody still reads it
    if (world().rank() == 0) damage();
    return complaint();
  }

  ScratchFolder scratch_;
  Recipe recipe_;
  std::unique_ptr<Training> training_;
  fs::path folder_;
};

TEST_F(Damage, AnUntouchedOneIsRead) {
  EXPECT_EQ(complaint(), "");
}

TEST_F(Damage, AMissingFileIsNamedWithAPieceOfIt) {
  const std::string message = complaint_after([&] { fs::remove(last_file()); });
  EXPECT_TRUE(has(message, last_file().string() + ": No such file")) << message;
  EXPECT_TRUE(has(message, "model.") && has(message, "] is unreadable: cannot read ")) << message;
  EXPECT_TRUE(has(message, "rank ") && has(message, " on ")) << message;
}

TEST_F(Damage, AFileCutShortIsNamedWithTheTensor) {
  for (const int64_t bytes : {int64_t{1}, int64_t{1000}}) {
    const std::string message =
        complaint_after([&] { fs::resize_file(last_file(), fs::file_size(last_file()) - static_cast<size_t>(bytes)); });
    EXPECT_TRUE(has(message, last_file().string() + ": tensor \"model.") && has(message, "the file was cut short"))
        << message;
  }
}

TEST_F(Damage, AFlippedBitIsNamedWithTensorAndBox) {
  const std::string untouched = content(last_file());
  world().barrier();
  const SafetensorsFile file(last_file());
  const TensorEntry entry = file.entries()[file.entries().size() / 2];
  const auto offset = static_cast<size_t>(testing::tensor_offset(file, entry.name));
  std::string damaged = untouched;
  damaged[offset + 5] ^= 1;
  const std::string message = complaint_after([&] { write(last_file(), damaged); });
  EXPECT_TRUE(has(message, last_file().string() + ": " + entry.name + " is damaged: its checksum is ")) << message;
  EXPECT_TRUE(has(entry.name, "[0:") || has(entry.name, ":"));
  EXPECT_EQ(complaint_after([&] { write(last_file(), untouched); }), "");
}

TEST_F(Damage, AManifestOfAnotherCheckpointIsSeen) {
  training_->run(1);
  training_->save(run());
  const fs::path newer = newest(run());
  ASSERT_NE(newer, folder_);
  const std::string message = complaint_after(
      [&] { fs::copy_file(folder_ / "manifest.json", newer / "manifest.json", fs::copy_options::overwrite_existing); });
  EXPECT_TRUE(has(message, " is damaged: its checksum is ")) << message;
}

TEST_F(Damage, NoChangeOfAnyByteIsTakenForTheCheckpoint) {
  if (world().size() > 1) GTEST_SKIP() << "one rank reads everything";
  std::mt19937_64 generator(11);
  for (const fs::path& file : {last_file(), folder_ / "manifest.json"}) {
    const std::string untouched = content(file);
    const size_t header = file == last_file() ? 4000 : untouched.size();  // bytes where more than a checksum is checked
    for (int i = 0; i < 400; ++i) {
      std::string damaged = untouched;
      const size_t at = generator() % (i % 2 == 0 ? header : untouched.size());
      switch (generator() % 4) {
        case 0:
          damaged.resize(at);
          break;
        case 1:
          damaged[at] ^= static_cast<char>(1 << generator() % 8);
          break;
        case 2:
          damaged.insert(at, 1, '7');
          break;
        default:
          damaged.erase(at, 1 + generator() % 9);
      }
      write(file, damaged);
      EXPECT_NE(complaint(), "") << file << " at " << at << " in change " << i;
    }
    write(file, untouched);
    EXPECT_EQ(complaint(), "");
  }
}

TEST_F(Damage, AnotherModelIsRefusedWithTheDifference) {
  Recipe other = recipe_;
  other.model.shape.intermediate_size = 96;
  other.train.seed = 7;
  training_ = std::make_unique<Training>(other, world());
  const std::string message = complaint();
  EXPECT_TRUE(has(message, "the recipe contradicts the checkpoint " + folder_.string() +
                               ": model.intermediate_size: 96, was 80; train.seed: 7, was 42: use the recipe"))
      << message;
}

TEST_F(Damage, OtherDataAreRefusedAndMovedOnesAreNot) {
  const fs::path moved = scratch_.path() / "moved.bin";
  const auto resumes_with_moved = [&](const std::function<void(std::string&)>& change) {
    std::string tokens = content(recipe_.data.tokens);
    change(tokens);
    if (world().rank() == 0) write(moved, tokens);
    world().barrier();
    Recipe other = recipe_;
    other.data.tokens = moved;
    training_ = std::make_unique<Training>(other, world());
    return complaint();
  };
  EXPECT_EQ(resumes_with_moved([](std::string&) {}), "");
  const std::string message = resumes_with_moved([](std::string& tokens) { tokens[100] = tokens[100] == 5 ? 6 : 5; });
  EXPECT_TRUE(has(message, "data.tokens: a file of ") && has(message, ", was one of ")) << message;
}

TEST_F(Damage, StateThatWasNeverThereIsMissed) {
  Recipe other = recipe_;
  other.train.freeze = {"*.k_proj.*"};
  training_ = std::make_unique<Training>(other, world());
  EXPECT_EQ(complaint(), "") << "what is frozen from now on";
  training_->save(scratch_.path() / "frozen");
  training_ = std::make_unique<Training>(recipe_, world());
  std::string message;
  try {
    training_->resume(scratch_.path() / "frozen");
  } catch (const InputError& error) {
    message = error.what();
  }
  EXPECT_TRUE(has(message, "has no model.layers.0.self_attn.k_proj.weight.exp_avg")) << message;
}

}  // namespace
}  // namespace meshtrain::testing
