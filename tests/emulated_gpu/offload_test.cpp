// Compares training with shards offloaded to the host or to disk with training without offload, on the emulated GPU.
// Its copies run late and in parallel with its computation.
#include <cstdlib>
#include <string>
#include <vector>

#include "mesh/device/host_rows.h"
#include "tests/support/full_run.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

/// A mesh with settings of FSDP.
struct OffloadCase {
  const char* mesh;
  int ranks;
  const char* mode;
  const char* precision;
  Words settings = {};
  bool own_gpus = true;  ///< each rank has a GPU, so that they communicate by NCCL
  bool disk = false;     ///< to disk too
};

void PrintTo(const OffloadCase& at, std::ostream* out) {
  *out << at.mesh << ", " << at.mode << ", " << at.precision << (at.own_gpus ? "" : ", one GPU");
  for (const std::string& setting : at.settings) *out << " " << setting;
}

class OffloadOnGpu : public TrainProgram, public ::testing::WithParamInterface<OffloadCase> {
 protected:
  /// Runs ten steps. Returns the losses and norms of all of them, in turn.
  std::vector<double> steps(const Words& more) {
    setenv("MESHTRAIN_EMULATED_GPUS", std::to_string(GetParam().own_gpus ? GetParam().ranks : 1).c_str(), 1);
    std::filesystem::remove_all(run_dir);
    Words words = {"--mesh", GetParam().mesh, "--set", "device=cuda"};
    Words settings = {std::string("parallel.fsdp.mode=") + GetParam().mode,
                      std::string("train.precision=") + GetParam().precision, "train.steps=10",
                      "model.num_hidden_layers=3"};
    settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
    settings.insert(settings.end(), more.begin(), more.end());
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    const Ending ending = train(GetParam().ranks, words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    log = ending.out + ending.err;
    std::vector<double> numbers;
    for (const nlohmann::json& entry : metrics()) {
      numbers.push_back(entry.at("loss").get<double>());
      const nlohmann::json& norm = entry.at("grad_norm");
      numbers.push_back(norm.is_null() ? -1 : norm.get<double>());  // of a step that is skipped
    }
    EXPECT_EQ(numbers.size(), 20U);
    return numbers;
  }

  std::string log;
};

// One rank without offload has no shards, and adds gradients of micro-batches to those of other uses of a parameter, so
// the embedding of a tied model differs in its last bits. AdamW in fp32 has the same bits on the host and on a GPU.
// Other updates differ in the last bits, and rounding parameters to halves makes the difference larger.
TEST_P(OffloadOnGpu, AsWithout) {
  if (!is_in_sample()) GTEST_SKIP() << "every other mesh in a short run";
  const std::vector<double> expected = steps({});
  const bool is_adamw = !has(::testing::PrintToString(GetParam()), "optimizer");
  const bool to_the_bit = is_adamw && GetParam().precision != std::string("bf16") && has_lanes(at::kFloat);
  const std::vector<double> state_alone = steps({"parallel.fsdp.offload={to: host, parameters: false}"});
  EXPECT_TRUE(has(log, "\noffload to host: ") && has(log, ", the optimizer's state alone\n")) << log;
  EXPECT_EQ(state_alone, expected) << "the GPU updates shards as without offload";
  for (const bool disk : {false, true}) {
    if (disk && !GetParam().disk) continue;
    const std::vector<double> found =
        steps(disk ? Words{"parallel.fsdp.offload={to: disk, path: " + path("shards").string() + "}"}
                   : Words{"parallel.fsdp.offload={to: host}"});
    EXPECT_TRUE(has(log, disk ? "\noffload to disk: " : "\noffload to host: ")) << log;
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      const double bound = to_the_bit || i < 2 ? 0 : GetParam().precision == std::string("fp32") ? 1e-6 : 1e-2;
      EXPECT_NEAR(found[i], expected[i], bound * expected[i]) << (disk ? "disk, step " : "host, step ") << i / 2 + 1;
    }
  }
}

const std::string kUntied = "model.tie_word_embeddings=false";

INSTANTIATE_TEST_SUITE_P(
    Meshes, OffloadOnGpu,
    ::testing::Values(
        OffloadCase{"dp=1", 1, "full_shard", "fp32", {kUntied}}, OffloadCase{"dp=1", 1, "no_shard", "bf16_mixed"},
        OffloadCase{"dp=1",
                    1,
                    "full_shard",
                    "fp16_mixed",
                    {kUntied, "train.micro_batch=4", "parallel.fsdp.prefetch=2",
                     "train.loss_scale={initial: 67108864, growth_interval: 2}", "train.non_finite=skip"}},
        OffloadCase{"dp=2", 2, "full_shard", "bf16_mixed", {"parallel.fsdp.reshard_after_forward=false"}, true, true},
        OffloadCase{"dp=2", 2, "shard_optimizer", "fp32", {"train.parameter_metrics.every=2"}},
        OffloadCase{"dp=2", 2, "shard_grad_op", "fp16_mixed"},
        OffloadCase{"dp=2", 2, "no_shard", "fp32", {"parallel.fsdp.prefetch=0"}},
        OffloadCase{"dp=2", 2, "full_shard", "bf16", {"parallel.fsdp.no_sync=true", "train.stochastic_rounding=true"}},
        OffloadCase{"tp=2", 2, "no_shard", "fp16_mixed", {kUntied}},
        OffloadCase{"dp=2,tp=2", 4, "full_shard", "fp32", {kUntied, "train.freeze=[\"*layers.1.*\"]"}, true, true},
        OffloadCase{"dp=2",  // one trained buffer: its gradients are read while the copy before is on its way to disk
                    2,
                    "full_shard",
                    "bf16_mixed",
                    {"adapter={rank: 4, targets: [all-linear], layers: [1], dropout: 0.1}", "train.micro_batch=1"},
                    true,
                    true},
        OffloadCase{"dp=2,cp=2", 4, "shard_grad_op", "bf16_mixed", {"parallel.fsdp.shard_axes=[dp]"}, true, true},
        OffloadCase{"dp=4", 4, "hybrid_shard", "fp32", {"parallel.fsdp.shard_size=2", kUntied}},
        OffloadCase{"dp=2,tp=2", 4, "full_shard", "bf16_mixed", {"optimizer.name=muon"}},
        OffloadCase{"dp=2", 2, "full_shard", "bf16_mixed", {"optimizer={name: sgd, momentum: 0.9}"}, false}));

// Checkpoints are written from the shards of the host, and evaluations gather between steps.
class OffloadedRun : public TrainProgram {};

TEST_F(OffloadedRun, ResumesWhatARunWithoutOffloadBeganAndTheOtherWayRound) {
  setenv("MESHTRAIN_EMULATED_GPUS", "2", 1);
  const auto losses = [&](const Words& more) {
    Words words = {"--mesh", "dp=2", "--set", "device=cuda", "--set", "train.precision=bf16_mixed"};
    for (const std::string& setting :
         {std::string("model.num_hidden_layers=3"), kUntied, std::string("checkpoint.every=3"),
          std::string("evaluate.every=2"), std::string("evaluate.samples=4"),
          "evaluate.tokens=" + path("tokens.bin").string()}) {
      words.insert(words.end(), {"--set", setting});
    }
    words.insert(words.end(), more.begin(), more.end());
    const Ending ending = train(2, words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    std::vector<double> numbers;
    for (const nlohmann::json& entry : metrics()) {
      numbers.push_back(entry.at("loss").get<double>());
      const bool evaluates = entry.at("step").get<int>() % 2 == 0;  // and in the last step
      if (evaluates) numbers.push_back(entry.at("eval_loss").get<double>());
    }
    return numbers;
  };
  const Words host = {"--set", "parallel.fsdp.offload={to: host}"}, six = {"--set", "train.steps=6"};
  const std::vector<double> expected = losses(six);
  const Words state = {"--set", "parallel.fsdp.offload={to: host, parameters: false}"};
  const Words state_on_disk = {
      "--set", "parallel.fsdp.offload={to: disk, parameters: false, path: " + path("shards").string() + "}"};
  for (const auto& [begins, resumes] : std::vector<std::pair<Words, Words>>{
           {host, {}}, {{}, host}, {state, {}}, {{}, state}, {state, host}, {state_on_disk, state}}) {
    SCOPED_TRACE(::testing::PrintToString(begins) + ", then " + ::testing::PrintToString(resumes));
    std::filesystem::remove_all(run_dir);
    Words first = begins, second = resumes;
    first.insert(first.end(), {"--set", "train.steps=3"});
    losses(first);
    second.insert(second.end(), six.begin(), six.end());
    second.emplace_back("--resume");
    const std::vector<double> found = losses(second);
    if (has_lanes(at::kFloat)) {
      EXPECT_EQ(found, expected);
    }
  }
}

// One rank's host or disk refuses. The run ends with one line, and checkpoints remain readable.
class OffloadFailure : public TrainProgram {
 protected:
  void SetUp() override { setenv("MESHTRAIN_EMULATED_GPUS", "2", 1); }

  Words words_of(const std::string& offload) const {
    return {"--mesh", "dp=2",
            "--set",  "device=cuda",
            "--set",  "parallel.fsdp={mode: full_shard, offload: " + offload + "}",
            "--set",  "train.precision=bf16_mixed",
            "--set",  "checkpoint.every=2",
            "--set",  kUntied};
  }
  std::string to_disk() const { return "{to: disk, path: " + path("shards").string() + "}"; }
  /// Returns a shell line that only rank 1 runs.
  static std::string on_rank_1(const std::string& line) { return "[ $OMPI_COMM_WORLD_RANK != 1 ] || " + line; }
};

TEST_F(OffloadFailure, OfPinnedMemoryIsReportedBeforeTheFirstStep) {
  const std::string limit = on_rank_1("export MESHTRAIN_EMULATED_PINNED=8192");
  const std::string host = complaint(2, words_of("{to: host}"), 1, limit);
  EXPECT_TRUE(has(host, "rank 1") && has(host, "cannot pin ")) << host;
  EXPECT_TRUE(has(host,
                  " of host memory: out of memory: free memory, or raise the job's memory limit (and ulimit -l), "
                  "or give parallel.fsdp.offload.to: disk"))
      << host;
  expect_steps(metrics(), 0);

  std::filesystem::remove_all(run_dir);
  const std::string disk = complaint(2, words_of(to_disk()), 1, limit);
  EXPECT_TRUE(has(disk, "rank 1") && has(disk, "cannot pin ")) << disk;
  EXPECT_FALSE(has(disk, "offload.to: disk")) << "which is chosen already\n" << disk;
  EXPECT_TRUE(std::filesystem::is_empty(path("shards")));
  expect_steps(metrics(), 0);
}

// On one rank, whose memory is in no other file that the limit is for.
TEST_F(OffloadFailure, OfAFullDiskIsReportedBeforeTheFirstStep) {
  Words words = words_of(to_disk());
  words[1] = "dp=1";
  const std::string message = complaint(1, words, 1, "ulimit -f 64");
  EXPECT_TRUE(has(message, "offload to disk: cannot reserve ") && has(message, " in " + path("shards").string()))
      << message;
  EXPECT_TRUE(std::filesystem::is_empty(path("shards")));
  expect_steps(metrics(), 0);
}

// Copies fail as soon as the checkpoint of step 2 is complete. The device is then unusable: rank 1 reports that, unless
// LibTorch ends the process because a tensor's memory cannot be freed; rank 0 then reports that rank 1 is gone.
TEST_F(OffloadFailure, OfACopyLosesNoCheckpoint) {
  const auto losses = [&] {
    std::vector<double> all;
    for (const nlohmann::json& entry : metrics()) all.push_back(entry.at("loss").get<double>());
    return all;
  };
  for (const std::string& offload : {std::string("{to: host}"), to_disk()}) {
    SCOPED_TRACE(offload);
    std::filesystem::remove_all(run_dir);
    Words words = words_of(offload);
    words.insert(words.end(), {"--set", "train.steps=20"});
    EXPECT_EQ(train(2, words).status, 0);
    const std::vector<double> expected = losses();

    std::filesystem::remove_all(run_dir);
    const std::filesystem::path checkpoint = run_dir / "checkpoints" / "step-00000002";
    const Ending failed = train(2, words, on_rank_1("export MESHTRAIN_EMULATED_COPIES_FAIL=" + checkpoint.string()));
    EXPECT_NE(failed.status, 0);
    const std::string message = complaint(failed, failed.status);
    EXPECT_TRUE(has(message, "rank 1")) << message;
    EXPECT_LT(metrics().size(), 20u);

    words.emplace_back("--resume");
    const Ending resumed = train(2, words);
    EXPECT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_TRUE(has(resumed.out + resumed.err, "resumed after step ")) << resumed.out << resumed.err;
    EXPECT_EQ(losses(), expected);
  }
}

class OffloadedMemory : public TrainProgram {
 protected:
  /// Runs ten steps on a GPU. Returns the forecast of rank 0 and what was measured.
  nlohmann::json forecast(const Words& settings) {
    setenv("MESHTRAIN_EMULATED_GPUS", "1", 1);
    std::filesystem::remove_all(run_dir);
    Words words = {"--set", "device=cuda"};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    for (const char* setting : {"train.steps=10", "model.hidden_size=128", "model.intermediate_size=512",
                                "model.num_hidden_layers=4", "model.tie_word_embeddings=false"}) {
      words.insert(words.end(), {"--set", setting});
    }
    const Ending ending = train(1, words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    return lines(run_dir / "forecast.json").at(0);
  }
};

// LibTorch's allocator rounds each tensor up to 512 bytes.
TEST_F(OffloadedMemory, OfTheDeviceIsThatOfThePlan) {
  const nlohmann::json without = forecast({}), with = forecast({"parallel.fsdp.offload={to: host}"});
  const auto bytes = [](const nlohmann::json& of, const char* which) {
    return of.at(which).at("memory_bytes").get<double>();
  };
  EXPECT_NEAR(bytes(without, "measured"), bytes(without, "planned"), 0.01 * bytes(without, "planned"));
  EXPECT_NEAR(bytes(with, "measured"), bytes(with, "planned"), 0.01 * bytes(without, "planned"));

  const nlohmann::json& parts = with.at("planned").at("memory_by_part");
  const auto state = [&](const nlohmann::json& all) {
    double sum = 0;
    for (const char* part : {"parameters", "gathered", "gradients", "optimizer"}) sum += all.at(part).get<double>();
    return sum;
  };
  const double shards = state(without.at("planned").at("memory_by_part"));  // 16 bytes an element
  const nlohmann::json& offload = with.at("planned").at("offload");
  EXPECT_NEAR(offload.at("host_bytes").get<double>(), shards, 0.05 * shards) << "full pages";
  EXPECT_EQ(parts.at("parameters"), 0);
  EXPECT_EQ(parts.at("optimizer"), 0);
  const nlohmann::json line = metrics().back(), &copied = line.at("copied_bytes");
  EXPECT_EQ(copied.at("to_device"), offload.at("to_device_bytes"));
  EXPECT_EQ(copied.at("to_host"), offload.at("to_host_bytes"));
  EXPECT_NEAR(copied.at("to_host").get<double>(), 4 * shards / 4, 0.05 * shards) << "gradients of 4 micro-batches";
  // In fp32, with 4 micro-batches: parameters for each forward and each backward except the last unit's, gradients to
  // the host, and after the first micro-batch also gradients back.
  const double parameters = shards / 4;
  EXPECT_LE(offload.at("copied_bytes").get<double>(), (2 * 4 + 4 + 3) * parameters);
  EXPECT_GE(offload.at("copied_bytes").get<double>(), (2 * 4 + 4 + 3) * 0.9 * parameters);
}

// 8 bytes an element leave the device, but for the slots through which they are paged. The plan counts neither the
// memory of libraries nor what LibTorch's allocator adds to a tensor's bytes: both are the same with and without.
TEST_F(OffloadedMemory, OfStateAloneLeavesTheDeviceAsPlanned) {
  const nlohmann::json without = forecast({}), with = forecast({"parallel.fsdp.offload={to: host, parameters: false}"});
  const auto saved = [&](const char* which) {
    const auto bytes = [&](const nlohmann::json& of) { return of.at(which).at("memory_bytes").get<int64_t>(); };
    return bytes(without) - bytes(with);
  };
  EXPECT_EQ(saved("measured"), saved("planned"));
  const auto part = [](const nlohmann::json& of, const char* name) {
    return of.at("planned").at("memory_by_part").at(name).get<int64_t>();
  };
  for (const char* name : {"parameters", "gathered", "gradients", "activations"}) {
    EXPECT_EQ(part(with, name), part(without, name)) << name;
  }
  EXPECT_EQ(part(without, "optimizer"), 2 * part(without, "parameters"));
  EXPECT_EQ(saved("planned"), part(without, "optimizer") - part(with, "optimizer"));
  const nlohmann::json& offload = with.at("planned").at("offload");
  EXPECT_GE(offload.at("host_bytes").get<int64_t>(), part(without, "optimizer")) << "full pages";
  EXPECT_EQ(offload.at("to_device_bytes").get<int64_t>(), part(without, "optimizer"));
  EXPECT_EQ(offload.at("to_host_bytes"), offload.at("to_device_bytes"));
  const nlohmann::json line = metrics().back(), &copied = line.at("copied_bytes");
  EXPECT_EQ(copied.at("to_device"), offload.at("to_device_bytes"));
  EXPECT_EQ(copied.at("to_host"), offload.at("to_host_bytes"));
}

}  // namespace
}  // namespace meshtrain::testing
