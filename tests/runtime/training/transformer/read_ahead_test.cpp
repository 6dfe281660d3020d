#include "runtime/training/transformer/read_ahead.h"

#include <gtest/gtest.h>

#include <vector>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

/// Samples that can be read up to a limit; a read beyond it waits.
class Gate {
 public:
  int64_t read(int64_t g) {
    std::unique_lock lock(mutex_);
    ++asked_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return g < limit_; });
    if (g == bad_) throw InputError("sample " + std::to_string(g) + " is bad");
    return g;
  }
  void open(int64_t limit) {
    const std::lock_guard lock(mutex_);
    limit_ = limit;
    changed_.notify_all();
  }
  void spoil(int64_t g) { bad_ = g; }
  /// Waits until `asked` samples have been requested.
  void wait_for(int64_t asked) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return asked_ >= asked; });
  }
  int64_t asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t asked_ = 0;
  int64_t limit_ = 0;
  int64_t bad_ = -1;
};

constexpr int64_t kBatch = 3;

class ReadAheadTest : public ::testing::Test {
 protected:
  using Batch = std::vector<int64_t>;

  ReadAhead<Batch> read(int64_t steps) {
    return {0, steps, [this](int64_t step) {
              Batch batch;
              for (int64_t i = 0; i < kBatch; ++i) batch.push_back(samples_.read(step * kBatch + i));
              return batch;
            }};
  }

  Gate samples_;
};

TEST_F(ReadAheadTest, TheNextStepIsReadWhileThisOneIsWorkedOnAndNoFurther) {
  ReadAhead<Batch> batches = read(4);
  samples_.wait_for(1);  // nobody has requested a batch yet
  samples_.open(100);
  for (int64_t step = 0; step < 3; ++step) {
    const Batch batch = batches.next();
    EXPECT_EQ(batch, (Batch{step * kBatch, step * kBatch + 1, step * kBatch + 2}));
    samples_.wait_for((step + 2) * kBatch);  // waits for ever if nothing were read ahead
    EXPECT_EQ(samples_.asked(), (step + 2) * kBatch);
  }
  EXPECT_EQ(batches.next().front(), 3 * kBatch);
  EXPECT_EQ(samples_.asked(), 4 * kBatch) << "nothing is read after the last step";
}

TEST_F(ReadAheadTest, WhatGoesWrongIsThrownAtTheStepThatNeedsIt) {
  samples_.open(100);
  samples_.spoil(4);
  ReadAhead<Batch> batches = read(4);
  EXPECT_EQ(batches.next().front(), 0);
  samples_.wait_for(5);
  for (int i = 0; i < 2; ++i) {
    try {
      batches.next();
      ADD_FAILURE() << "a bad sample was read";
    } catch (const InputError& error) {
      EXPECT_STREQ(error.what(), "sample 4 is bad");
    }
  }
}

TEST_F(ReadAheadTest, CanBeLeftAtAnyTime) {
  samples_.open(100);
  for (int64_t taken = 0; taken <= 3; ++taken) {
    ReadAhead<Batch> batches = read(3);
    for (int64_t step = 0; step < taken; ++step) batches.next();
  }
  const ReadAhead<Batch> none = read(0);
}

TEST(ReadAhead, TheThreadHasOneThreadOfItsOwn) {
  at::set_num_threads(2);
  ReadAhead<int> threads(0, 1, [](int64_t) { return at::get_num_threads(); });
  EXPECT_EQ(threads.next(), 1);
  EXPECT_EQ(at::get_num_threads(), 2) << "those of the step are as they were";
  at::set_num_threads(1);
}

}  // namespace
}  // namespace meshtrain
