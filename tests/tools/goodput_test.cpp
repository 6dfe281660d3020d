// The ledger of a run that is killed again and again adds up to the time that passed.
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/load.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

/// Returns the seconds since 1970.
double time_of_day() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class GoodputProgram : public TrainProgram {
 protected:
  /// Waits until `step` is made by a program that started at `start`; an earlier one may have come further.
  void wait_for_step(int64_t step, double start) const {
    const auto is_made = [&] {
      const nlohmann::json newest = newest_metrics();
      return !newest.is_null() && newest.at("step") >= step && newest.at("time") > start;
    };
    EXPECT_TRUE(wait_until(is_made)) << "step " << step << " does not come";
  }
  /// Returns the last complete line of metrics.jsonl, null without one. Reads only the end of the file, which grows
  /// fast.
  nlohmann::json newest_metrics() const {
    constexpr std::streamoff kSeveralLines = 1 << 14;
    std::ifstream file(run_dir / "metrics.jsonl", std::ios::ate);
    file.seekg(std::max<std::streamoff>(0, file.tellg() - kSeveralLines));
    std::string newest;
    for (std::string line; std::getline(file, line) && !file.eof();) newest = std::move(line);
    return newest.empty() ? nlohmann::json() : nlohmann::json::parse(newest);
  }
  void kill_ranks() const {
    for (const std::filesystem::path& folder : processes()) {
      std::error_code gone;
      if (std::filesystem::read_symlink(folder / "exe", gone).filename() != "meshtrain") continue;
      kill(std::stoi(folder.filename().string()), SIGKILL);
    }
  }
};

TEST_F(GoodputProgram, ARunKilledFiveTimesAddsUpToItsWallTime) {
  constexpr int kKills = 5;
  const auto start = [&](int last) {
    return command(2, {"--mesh", "dp=2", "--resume", "--set", "train.steps=" + std::to_string(last), "--set",
                       "checkpoint={every: 200, keep_last: 1}", "--set", "train.log_every=1000"});
  };
  const double begun = time_of_day();
  for (int64_t i = 1; i <= kKills; ++i) {
    const double started = time_of_day();
    Program program(start(1'000'000));
    wait_for_step(200 * i + 150, started);
    kill_ranks();
    program.wait();
    while (is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // it could still write a step
  }
  const Ending ending = run_program(start(newest_metrics().at("step").get<int>() + 100));
  const double wall = time_of_day() - begun;
  ASSERT_EQ(ending.status, 0) << ending.err;

  const std::vector<nlohmann::json> starts = lines(run_dir / "goodput.jsonl");
  ASSERT_EQ(starts.size(), kKills + 1u);
  double sum = 0, lost = 0, idle = 0, last_end = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    const nlohmann::json& of = starts[i];
    EXPECT_EQ(of.at("ended"), i < kKills ? "killed" : "done") << of;
    EXPECT_EQ(of.at("ranks"), 2);
    double parts = 0;
    for (const auto& [part, seconds] : of.at("seconds").items()) parts += seconds.get<double>();
    const double begin = of.at("start"), end = of.at("end");
    EXPECT_NEAR(parts, end - begin, 1e-4) << of;
    if (i > 0) idle += begin - last_end;
    EXPECT_GE(begin, last_end - 0.02);  // clock ticks
    last_end = end;
    lost += of.at("seconds").value("lost", 0.0);
    if (i < kKills) {
      EXPECT_GT(of.at("seconds").value("lost", 0.0), 0) << of;
    }
    sum += parts;
  }
  // Between the test's clock and the program's lie the launcher's start and end.
  EXPECT_NEAR(sum + idle, last_end - starts[0].at("start").get<double>(), 0.01 * wall);
  EXPECT_LE(sum + idle, wall + 0.05);
  EXPECT_GE(sum + idle, wall - within(std::chrono::seconds(2)).count());
  EXPECT_LT(lost, sum / 2);
}

TEST_F(GoodputProgram, EachEndIsTold) {
  ASSERT_EQ(train(2, {"--mesh", "dp=2", "--set", "train.time_limit=1e-9"}).status, 75);
  ASSERT_EQ(train(2, {"--mesh", "dp=2", "--resume", "--set", "optimizer.learning_rate=1e30", "--set", "train.steps=50",
                      "--set", "train.clip_norm=0"})
                .status,
            1);
  ASSERT_EQ(train(2, {"--mesh", "dp=2", "--resume"}).status, 0);
  const std::vector<nlohmann::json> starts = lines(run_dir / "goodput.jsonl");
  ASSERT_EQ(starts.size(), 3u);
  EXPECT_EQ(starts[0].at("ended"), "stopped");
  EXPECT_EQ(starts[1].at("ended"), "failed");
  EXPECT_EQ(starts[2].at("ended"), "done");
}

TEST_F(GoodputProgram, AStepsLineHasWhatItTookOnEveryMesh) {
  // P parameters of the tiny model: embedding 64 x 32, tied; one block.
  constexpr int64_t kParameters = 64 * 32 + 4 * 32 * 32 + 3 * 32 * 48 + 3 * 32;
  const Words flops = {"--mesh", "dp=2", "--set", "train.device_flops=1e9", "--set", "parallel.fsdp.mode=no_shard"};
  ASSERT_EQ(train(2, flops).status, 0);
  const double now = time_of_day();
  for (const nlohmann::json& step : metrics()) {
    EXPECT_NEAR(step.at("time").get<double>(), now, within(std::chrono::seconds(30)).count());
    EXPECT_EQ(step.at("counted_tokens"), 64);
    EXPECT_GE(step.at("loss_max").get<double>(), step.at("loss").get<double>());
    const double per_token = 6.0 * kParameters + 6.0 * 1 * 32 * 16;
    const double rate = per_token * 64 / step.at("step_seconds").get<double>() / 2;
    EXPECT_NEAR(step.at("flops_per_rank").get<double>(), rate, 1e-6 * rate);
    EXPECT_NEAR(step.at("mfu").get<double>(), rate / 1e9, 1e-6 * rate / 1e9);
    EXPECT_GT(step.at("memory").at("host_peak_bytes").get<double>(), 20e6);
    EXPECT_LT(step.at("memory").at("host_peak_rank").get<int>(), 2);
    EXPECT_GE(step.at("seconds").at("optimizer").get<double>(), 0);
    // 2 (n - 1) / n of the gradients' 4 bytes a parameter, whose norms are padded to 256 bytes, and of the 8 bytes of
    // the number of counted labels.
    EXPECT_EQ(step.at("bytes").at("dp").get<int64_t>(), 4 * (kParameters + 3 * 32) + 8) << step;
  }
}

TEST_F(GoodputProgram, BytesByAxisAreThoseOfTheFormulas) {
  // Those of tensor_parallel/tensor_parallel.h and context_parallel/choice.h. All tokens of a step together: T of
  // hidden size M, K = 4 heads of D = 8 features; 2 ranks.
  constexpr int64_t kParameters = 64 * 32 + 4 * 32 * 32 + 3 * 32 * 48 + 3 * 32, kTokens = 64, kHidden = 32;
  constexpr int64_t kX = kTokens * kHidden * 4, kKeysAndValues = 2 * kTokens * kHidden * 4;
  constexpr int64_t kGradients = 4 * (kParameters + 3 * 32) + 8;  // and the number of labels, as over dp
  struct Case {
    std::string axis, setting;
    int64_t bytes;
  };
  for (const auto& [axis, setting, bytes] :
       {// 8 (t - 1) / t x of the layer, 2 (t - 1) / t x of the embedding and of the head, and 3 T numbers of the loss.
        Case{"tp", "parallel.sequence_parallel=off", (8 + 2 + 2) * kX / 2 + 3 * kTokens * 4},
        // (c - 1) / c KV forwards, and 2 (c - 1) / c KV backwards.
        Case{"cp", "parallel.context.algorithm=ring", kGradients + 3 * kKeysAndValues / 2},
        Case{"cp", "parallel.context.algorithm=all_gather", kGradients + 3 * kKeysAndValues / 2},
        // (c - 1) / c b S / c D (2 H + 2 K) e, twice.
        Case{"cp", "parallel.context.algorithm=ulysses", kGradients + 2 * kTokens / 4 * 8 * 16 * 4}}) {
    SCOPED_TRACE(setting);
    std::filesystem::remove_all(run_dir);
    ASSERT_EQ(train(2, {"--mesh", axis + "=2", "--set", setting, "--set", "parallel.fsdp.mode=no_shard", "--set",
                        "train.steps=2"})
                  .status,
              0);
    for (const nlohmann::json& step : metrics()) {
      EXPECT_EQ(step.at("bytes").at(axis).get<int64_t>(), bytes);
      // The vote of four numbers, and the metrics of the step before: 10 numbers, and 3 of each of two groups.
      const int64_t vote = 4 * 8, gathered = (11 + 3 * 2) * 8;
      EXPECT_EQ(step.at("bytes").at("world").get<int64_t>(), step.at("step") == 1 ? vote : vote + gathered);
    }
  }
}

TEST_F(GoodputProgram, MemoryIsWhatTheSystemSays) {
  Program program(command(2, {"--mesh", "dp=2", "--set", "train.steps=1000000", "--set", "train.log_every=1000"}));
  wait_for_step(20, time_of_day());
  /// The largest peak over ranks, in bytes.
  const auto peak_of_system = [&] {
    int64_t peak = 0;
    for (const std::filesystem::path& folder : processes()) {
      std::error_code gone;
      if (std::filesystem::read_symlink(folder / "exe", gone).filename() != "meshtrain") continue;
      const std::string status = content(folder / "status"), key = "VmHWM:";
      peak = std::max<int64_t>(peak, 1024 * std::stol(status.substr(status.find(key) + key.size())));
    }
    return peak;
  };
  for (int i = 0; i < 5; ++i) {
    const int64_t before = peak_of_system();
    const double now = time_of_day();
    wait_for_step(20, now + 0.2);  // a step that began after `before` was read
    const int64_t said = newest_metrics().at("memory").at("host_peak_bytes");
    const int64_t after = peak_of_system();
    EXPECT_GE(said, before);
    EXPECT_LE(said, after);
    EXPECT_LT(after - before, before / 20) << "the bounds are close";
  }
  program.signal(SIGUSR1);
  EXPECT_EQ(program.wait().status, 75);
}

}  // namespace
}  // namespace meshtrain::testing
