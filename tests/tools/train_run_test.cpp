#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/support/files.h"
#include "tests/support/load.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

class TrainRun : public TrainProgram {
 protected:
  /// Returns a run without an end.
  Words endless(int ranks) const { return command(ranks, {"--mesh", "dp=auto", "--set", "train.steps=1000000"}); }

  /// Starts an endless run, sends `signal` to the started program after some steps, and expects all ranks to stop with
  /// 75.
  void expect_stop(int ranks, int signal) {
    Program program(endless(ranks));
    wait_for_steps(3);
    EXPECT_TRUE(is_running());
    const auto start = std::chrono::steady_clock::now();
    program.signal(signal);
    const Ending ending = program.wait();
    EXPECT_LT(std::chrono::steady_clock::now() - start, within(std::chrono::seconds(10)));
    EXPECT_EQ(ending.status, 75) << ending.err;
    EXPECT_EQ(count(ending.err, "meshtrain:"), 0) << ending.err;
    const size_t steps = metrics().size();
    EXPECT_TRUE(has(ending.out, "stopped on request after step " + std::to_string(steps) + ";")) << ending.out;
    expect_steps(metrics(), steps);
    recipe = run_dir / "recipe.yaml";
    const std::string more = "train.steps=" + std::to_string(steps + 2);
    const Ending resumed = train(ranks, {"--resume", "--set", more});
    EXPECT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_TRUE(has(resumed.out, "resumed after step " + std::to_string(steps) + ",")) << resumed.out;
    expect_steps(metrics(), steps + 2);
  }
};

TEST_F(TrainRun, ReadsTheNextStepWhileItWorksOnOne) {
  Program program(endless(2));
  wait_for_steps(1);
  const std::vector<std::string> names = threads();
  EXPECT_EQ(std::count(names.begin(), names.end(), "read-ahead"), 2) << "one a rank";
  program.signal(SIGUSR1);
  EXPECT_EQ(program.wait().status, 75);
}

TEST_F(TrainRun, TellsWhatItDidAndCanBeDoneAgain) {
  const Ending ending = train(2, {"--mesh", "dp=2", "--set", "train.steps=12"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.err, "");
  EXPECT_EQ(count(ending.out, "\nstep "), 12) << ending.out;
  const auto first = metrics();
  expect_steps(first, 12);
  for (const nlohmann::json& entry : first) {
    for (const char* key : {"loss", "grad_norm", "learning_rate", "step_seconds", "tokens_per_second"}) {
      EXPECT_GT(entry.at(key).get<double>(), 0) << key;
    }
    EXPECT_EQ(entry.at("tokens"), entry.at("step").get<int>() * 4 * 16);
  }
  EXPECT_LT(first.back().at("loss").get<double>(), first.front().at("loss").get<double>() - 0.1);

  recipe = run_dir / "recipe.yaml";
  run_dir = path("again");
  EXPECT_EQ(train(2, {}).status, 0);
  const auto second = metrics();
  expect_steps(second, 12);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].at("loss"), second[i].at("loss"));
    EXPECT_EQ(first[i].at("grad_norm"), second[i].at("grad_norm"));
  }
}

TEST_F(TrainRun, CheckpointsActivationsToTheSameLosses) {
  EXPECT_EQ(train(1, {"--set", "train.steps=4"}).status, 0);
  const auto kept = metrics();
  for (const char* mode : {"full", "selective"}) {
    run_dir = path(mode);
    const std::string checkpointing = std::string("train.activation_checkpointing={mode: ") + mode + ", every: 1}";
    const Ending ending =
        train(1, {"--set", "train.steps=4", "--set", checkpointing, "--set", "train.offload_activations=true"});
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(count(ending.out, "train.offload_activations has no effect"), 1) << ending.out;
    const auto again = metrics();
    ASSERT_EQ(again.size(), kept.size());
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(again[i].at("loss"), kept[i].at("loss")) << mode;
  }
}

TEST_F(TrainRun, TrainsFromTheDiskToTheSameLosses) {
  const Words sharded = {"--set", "train.steps=4", "--set", "parallel.fsdp.mode=full_shard", "--mesh", "dp=auto"};
  for (const int ranks : {1, 2}) {
    EXPECT_EQ(train(ranks, sharded).status, 0);
    const auto in_memory = metrics();
    run_dir = path("disk " + std::to_string(ranks));
    Words offloaded = sharded;
    const std::filesystem::path folder = path("shards");
    offloaded.insert(offloaded.end(), {"--set", "parallel.fsdp.offload={to: disk, path: " + folder.string() + "}"});
    const Ending ending = train(ranks, offloaded);
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(count(ending.out, " KiB a rank in " + folder.string()), 1) << ending.out;
    const auto from_disk = metrics();
    ASSERT_EQ(from_disk.size(), in_memory.size());
    for (size_t i = 0; i < in_memory.size(); ++i) {
      // On one rank only the disk makes it full_shard, which sums micro-batches in another order.
      const double own = from_disk[i].at("loss"), expected = in_memory[i].at("loss");
      EXPECT_NEAR(own, expected, ranks == 1 ? 1e-5 * expected : 0);
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    run_dir = path("memory again");
  }
}

TEST_F(TrainRun, TrainsWithTheStateAloneOnTheDiskToTheSameLosses) {
  const Words sharded = {"--set", "train.steps=4", "--set", "parallel.fsdp.mode=shard_grad_op", "--mesh", "dp=auto"};
  for (const int ranks : {1, 2}) {
    run_dir = path("memory " + std::to_string(ranks));
    EXPECT_EQ(train(ranks, sharded).status, 0);
    const auto in_memory = metrics();
    run_dir = path("disk " + std::to_string(ranks));
    Words offloaded = sharded;
    const std::filesystem::path folder = path("shards");
    for (const std::string& setting :
         {"parallel.fsdp.offload={to: disk, parameters: false, path: " + folder.string() + "}",
          std::string("checkpoint.every=2")}) {
      offloaded.insert(offloaded.end(), {"--set", setting});
    }
    const Ending ending = train(ranks, offloaded);
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(count(ending.out, " a rank in " + folder.string() + ", the optimizer's state alone"), 1) << ending.out;
    const auto from_disk = metrics();
    ASSERT_EQ(from_disk.size(), in_memory.size());
    for (size_t i = 0; i < in_memory.size(); ++i) EXPECT_EQ(from_disk[i].at("loss"), in_memory[i].at("loss"));
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
}

// Frozen parts of fused matrices and the tied embedding, matrices by Muon and a group, on dp=2,tp=2 in every mode.
TEST_F(TrainRun, FreezesAndGroupsOnEveryMeshAlike) {
  const auto run = [&](int ranks, const std::string& mesh, const std::string& mode, const std::string& optimizer) {
    run_dir = path(std::to_string(ranks) + mode + optimizer);
    const Ending ending =
        train(ranks, {"--mesh", mesh,
                      "--set",  "parallel.fsdp=" + mode,
                      "--set",  "train.steps=3",
                      "--set",  "train.precision=fp64",
                      "--set",  "model.num_hidden_layers=3",
                      "--set",  "optimizer.name=" + optimizer,
                      "--set",  "train.freeze=[\"*embed*\", \"*.0.*\", \"*.1.*k_proj*\", \"*.2.*gate*\"]",
                      "--set",  "optimizer.groups=[{pattern: \"*norm*\", learning_rate_factor: 2, weight_decay: 0}]",
                      "--set",  "optimizer.weight_decay=0.1",
                      "--set",  "train.parameter_metrics={every: 3}"});
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_TRUE(has(ending.out, " of them trained)")) << ending.out;
    std::ifstream file(run_dir / "parameters.jsonl");
    std::string line, more;
    EXPECT_TRUE(std::getline(file, line) && !std::getline(file, more));
    return std::pair(metrics(), nlohmann::json::parse(line));
  };
  for (const char* optimizer : {"adamw", "muon"}) {
    const auto [alone, parameters_alone] = run(1, "dp=1", "{mode: no_shard}", optimizer);
    EXPECT_EQ(parameters_alone["step"], 3);
    EXPECT_EQ(parameters_alone["parameters"].size(), 2 * 9 - 2 + 1u);
    for (const char* mode : {"no_shard", "shard_optimizer", "shard_grad_op", "full_shard", "hybrid_shard"}) {
      if (optimizer == std::string("muon") && mode[0] == 's') continue;
      const std::string size = mode == std::string("hybrid_shard") ? ", shard_size: 2" : "";
      const auto [many, parameters] = run(4, "dp=2,tp=2", "{mode: " + std::string(mode) + size + "}", optimizer);
      ASSERT_EQ(many.size(), alone.size());
      for (size_t i = 0; i < alone.size(); ++i) {
        for (const char* key : {"loss", "grad_norm"}) {
          const double one = alone[i].at(key);
          EXPECT_NEAR(many[i].at(key).get<double>(), one, 1e-10 * one) << mode << " " << optimizer << " " << key;
        }
      }
      for (const auto& [name, one] : parameters_alone["parameters"].items()) {
        for (const char* key : {"grad_norm", "weight_norm", "update_norm"}) {
          const double wanted = one.at(key);
          EXPECT_NEAR(parameters["parameters"][name].at(key).get<double>(), wanted, 1e-8 * wanted)
              << name << " " << key;
        }
      }
    }
  }
}

TEST_F(TrainRun, InFp16FindsItsLossScale) {
  const Ending ending = train(2, {"--mesh", "dp=2", "--set", "train.steps=60", "--set", "train.precision=fp16_mixed",
                                  "--set", "train.loss_scale={initial: 67108864, growth_interval: 100}", "--set",
                                  "train.log_every=1000", "--set", "schedule={name: linear, warmup_steps: 10}"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  const auto steps = metrics();
  expect_steps(steps, 60);
  double scale = 67108864;
  size_t num_skipped = 0;
  for (const nlohmann::json& step : steps) {
    EXPECT_EQ(step.at("loss_scale"), scale);
    EXPECT_EQ(step.contains("non_finite"), step.at("skipped").get<bool>());
    if (step.at("skipped")) scale /= 2, ++num_skipped;
  }
  EXPECT_GT(num_skipped, 0u);
  EXPECT_LT(num_skipped, 20u);
  EXPECT_EQ(steps[9].at("learning_rate"), 1e-2) << "the schedule goes on";
  EXPECT_LT(steps.back().at("loss"), 0.5 * steps[0].at("loss").get<double>());
  const std::string line = "skipped: the gradient of ";
  EXPECT_EQ(count(ending.out, line), static_cast<int>(num_skipped)) << ending.out;
}

TEST_F(TrainRun, StopsOnASignalThatMpirunForwards) {
  for (const int signal : {SIGUSR1, SIGINT, SIGTERM}) {
    std::filesystem::remove_all(run_dir);
    recipe = path("tiny.yaml");
    expect_stop(2, signal);
  }
}

TEST_F(TrainRun, SaysHowMpirunIsStopped) {
  Words words = command(2, {"--mesh", "dp=2", "--set", "train.steps=1"});
  const std::string line =
      "Ctrl-C ends mpirun's ranks without a checkpoint; to stop after a step with one: kill -USR1 ";
  EXPECT_FALSE(has(run_program(words).out, line)) << "Ctrl-C does, under tools/ranks";
  std::filesystem::remove_all(run_dir);
  const Words mpirun = {"/usr/bin/env",
                        "OMPI_ALLOW_RUN_AS_ROOT=1",
                        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                        "mpirun",
                        "--oversubscribe",
                        "--bind-to",
                        "none",
                        "-n"};
  words.erase(words.begin());
  words.insert(words.begin(), mpirun.begin(), mpirun.end());
  const Ending ending = run_program(words);
  EXPECT_EQ(ending.status, 0) << ending.err;
  const size_t at = ending.out.find(line);
  ASSERT_NE(at, std::string::npos) << ending.out;
  EXPECT_TRUE(std::isdigit(ending.out[at + line.size()])) << "the number of mpirun's process";
}

TEST_F(TrainRun, StopsOnATermSignalAlone) {
  expect_stop(1, SIGTERM);
}

// Only the last rank gets a signal.
TEST_F(TrainRun, StopsWhenOneRankIsAsked) {
  Program program(endless(2));
  wait_for_steps(3);
  int rank = 0;
  for (const std::filesystem::path& process : processes()) {
    if (has(content(process / "status"), "Name:\tmeshtrain\n")) rank = std::stoi(process.filename());
  }
  ASSERT_GT(rank, 0);
  kill(rank, SIGUSR1);
  const Ending ending = program.wait();
  EXPECT_EQ(ending.status, 75) << ending.err;
  EXPECT_TRUE(has(ending.out, "stopped on request after step " + std::to_string(metrics().size()) + ";")) << ending.out;
}

// While the recipe is read, from a pipe that nobody has written to yet.
TEST_F(TrainRun, StopsOnASignalThatCameBeforeItBegan) {
  const std::string text = content(recipe);
  std::filesystem::remove(recipe);
  ASSERT_EQ(mkfifo(recipe.c_str(), 0600), 0);
  Program program(command(1, {"--set", "train.steps=1000000"}));
  const auto catches = [&] {  // SIGUSR1
    for (const std::filesystem::path& process : processes()) {
      const std::string status = content(process / "status"), caught = "SigCgt:";
      if (!has(status, "Name:\tmeshtrain\n")) continue;  // still a shell
      return (std::stoull(status.substr(status.find(caught) + caught.size()), nullptr, 16) >> (SIGUSR1 - 1) & 1) != 0;
    }
    return false;
  };
  const bool ready = wait_until(catches);
  program.signal(ready ? SIGUSR1 : SIGKILL);
  if (ready) std::ofstream(recipe) << text;
  const Ending ending = program.wait();
  EXPECT_EQ(ending.status, 75) << ending.err;
  expect_steps(metrics(), 1);
}

TEST_F(TrainRun, StopsAtItsTimeLimitAndIsResumed) {
  const Ending stopped = train(2, {"--mesh", "dp=2", "--set", "train.steps=1000000", "--set", "train.time_limit=0.2"});
  EXPECT_EQ(stopped.status, 75) << stopped.err;
  EXPECT_EQ(count(stopped.out, "stopped by train.time_limit after step "), 1) << stopped.out;
  const size_t steps = metrics().size();
  expect_steps(metrics(), steps);
  const std::string more = "train.steps=" + std::to_string(steps + 2);
  EXPECT_EQ(train(2, {"--mesh", "dp=2", "--resume", "--set", more}).status, 0);
  expect_steps(metrics(), steps + 2);
}

TEST_F(TrainRun, TheMeshIsToldInItsOwnOrder) {
  const Words words = {"--mesh", "dp=2", "--set", "parallel.order=[tp, dp, cp]", "--set", "checkpoint.every=4"};
  EXPECT_TRUE(has(train(2, words).out, " parameters, mesh tp=1,dp=2,cp=1, sequence parallel off, fp32\n"));
  EXPECT_TRUE(has(run_meshtrain({"checkpoint", "inspect", run_dir}).out, "\n  written on mesh tp=1,dp=2,cp=1 by "));
}

TEST_F(TrainRun, IsCheckedWithoutItsRanks) {
  const Ending ending = train(1, {"--check", "--mesh", "dp=2,tp=2,cp=2"});
  EXPECT_EQ(ending.status, 0) << ending.err;
  const std::string data = path("tokens.bin").string() + ": 16 samples, 256 tokens, 0.16 epochs\n";
  EXPECT_TRUE(ending.out.starts_with("tiny: fits mesh dp=2,cp=2,tp=2; 100 samples of 16 tokens\ndata: " + data +
                                     "a checkpoint, if the run is stopped, of "))
      << ending.out;
  EXPECT_TRUE(has(ending.out, "\na step needs ") && has(ending.out, "\nnot checked without ranks: ")) << ending.out;
  EXPECT_TRUE(has(ending.out, "\n\nmesh:\n  dp: 2\n  cp: 2\n  tp: 2\n")) << ending.out;
  EXPECT_TRUE(has(ending.out, "fsdp:\n  mode: no_shard\n  axes: [dp]\n")) << "what auto is on this mesh";
  EXPECT_TRUE(has(ending.out, "context:\n  algorithm: ulysses\n"));
  EXPECT_FALSE(std::filesystem::exists(run_dir));
  EXPECT_TRUE(has(complaint(1, {"--check", "--mesh", "dp=3"}), "train.global_batch: 4 is not a multiple of"));
}

}  // namespace
}  // namespace meshtrain::testing
