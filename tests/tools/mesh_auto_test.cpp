// --mesh auto, machines that were measured, and the lines of a run about its forecast.

#include <fstream>
#include <regex>
#include <sstream>

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

class MeshAuto : public TrainProgram {
 protected:
  /// Returns the number before the first match of `unit` after `beginning`.
  static double number_after(const std::string& text, const std::string& beginning, const std::string& unit) {
    std::smatch match;
    const std::regex pattern(beginning + "[^;]*?([0-9.]+) " + unit);
    return std::regex_search(text, match, pattern) ? std::stod(match[1]) : -1;
  }
};

TEST_F(MeshAuto, MeasuresTheMachineAndTakesAMesh) {
  const Ending ending = train(2, {"--mesh", "auto"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "--mesh auto: dp=") && has(ending.out, ", the fastest of 3 meshes by the plan: "))
      << ending.out;
  EXPECT_EQ(metrics().size(), 4u);
  std::ifstream file(run_dir / "decisions.yaml");
  std::stringstream plan;
  plan << file.rdbuf();
  EXPECT_TRUE(has(plan.str(), "mesh:")) << plan.str();
}

TEST_F(MeshAuto, TakesAMachineThatWasMeasuredBefore) {
  const std::string machine = path("machine.yaml");
  const Ending measured = run_meshtrain_on_ranks(2, {"plan", recipe, "--calibrate", "--out", machine});
  ASSERT_EQ(measured.status, 0) << measured.err;
  EXPECT_TRUE(has(measured.out, " a rank, is what was free just now: change it there, or use plan --memory\n"))
      << measured.out;
  const Ending again = run_meshtrain_on_ranks(2, {"plan", recipe, "--calibrate", "--out", machine});
  EXPECT_EQ(again.status, 2);
  EXPECT_TRUE(has(again.err, "--out " + machine + " already exists: give another name, or move it away")) << again.err;
  const Ending planned = run_meshtrain({"plan", recipe, "--ranks", "2", "--machine", machine});
  ASSERT_EQ(planned.status, 0) << planned.err;
  EXPECT_TRUE(has(planned.out, "a step on measured")) << planned.out;
  const Ending trained = train(2, {"--mesh", "auto", "--machine", machine});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const std::string best = planned.out.substr(planned.out.find("\n  take ") + 8);
  const std::string mesh = best.substr(0, best.find(':'));
  EXPECT_TRUE(has(trained.out, "--mesh auto: " + mesh + ", ")) << trained.out << planned.out;
}

// A mixture whose experts fit on no rank as a whole.
TEST_F(MeshAuto, CutsExpertsWhereMemoryForcesIt) {
  const std::string machine =
      "device: cpu\nmemory_bandwidth: 1e10\nproduct_flops: {fp32: 1e11}\n"
      "on_host: {bandwidth: 1e9}\namong_hosts: {bandwidth: 1e9}\n";
  write("machine.yaml", machine);
  const Words with = {"--machine", path("machine.yaml"),          "--set", "model.family=mixtral",
                      "--set",     "model.num_experts=8",         "--set", "model.num_experts_per_tok=2",
                      "--set",     "model.intermediate_size=256", "--set", "parallel.fsdp.mode=no_shard"};
  Words words = {"plan", recipe, "--ranks", "2", "--json", path("plan.json")};
  words.insert(words.end(), with.begin(), with.end());
  ASSERT_EQ(run_meshtrain(words).status, 0);
  int64_t least = INT64_MAX;
  for (const auto& mesh : nlohmann::json::parse(std::ifstream(path("plan.json")))["meshes"]) {
    if (!has(mesh["mesh"], "ep=")) least = std::min(least, mesh["memory_bytes_total"].get<int64_t>());
  }
  write("machine.yaml", machine + "memory: " + std::to_string(least - 1) + "\n");
  words = {"--mesh", "auto"};
  words.insert(words.end(), with.begin(), with.end());
  const Ending trained = train(2, words);
  ASSERT_EQ(trained.status, 0) << trained.err;
  EXPECT_TRUE(
      std::regex_search(trained.out, std::regex("--mesh auto: dp=[0-9,cpt=]*,ep=2, the fastest of 6 meshes by "
                                                "the plan: .*; if all tokens choose the experts of one rank, ")))
      << trained.out;
  EXPECT_EQ(metrics().size(), 4u);
}

TEST_F(MeshAuto, IsRefusedInOneLine) {
  EXPECT_EQ(complaint(2, {"--mesh", "auto", "--set", "train.global_batch=1", "--set", "train.sequence_length=1",
                          "--set", "model.num_attention_heads=1", "--set", "model.num_key_value_heads=1"})
                .rfind("no mesh of 2 ranks is possible: ", 0),
            0u);
  EXPECT_EQ(
      complaint(2, {"--mesh", "auto", "--machine", "h1000"}),
      "--machine h1000: neither a file nor a preset; did you mean h100? Presets: a100, h100, h100-500w, h200, b200");
  EXPECT_EQ(complaint(2, {"--mesh", "auto", "--set", "device=cuda"}),
            "--mesh auto on GPUs needs --machine: a preset or a file (docs/plan.md)");
  EXPECT_EQ(complaint(2, {"--mesh", "auto", "--machine", "h100", "--set", "device=cpu"}),
            "--machine h100 has times for GPUs, but device: cpu uses CPUs here: give a machine with these, or leave "
            "--machine out");
  EXPECT_EQ(
      complaint(2, {"--mesh", "auto", "--check"}),
      "--check --mesh auto measures nothing: give --machine NAME, a preset or the file that mpirun -n 2 meshtrain "
      "plan " +
          recipe.string() + " --calibrate writes");
}

TEST_F(MeshAuto, ACheckSaysWhatItsMeshNeeds) {
  const Ending ending = train(1, {"--check", "--plan", "--mesh", "dp=2,tp=2", "--machine", "h100"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(std::regex_search(
      ending.out, std::regex("\nplan: [0-9.]+ KiB a rank, [0-9.]+ KiB sent a step, [0-9.]+ ms a step; 1 host of 4 "
                             "ranks \\(assumed\\); times: NVIDIA H100 SXM data sheet; ")))
      << ending.out;
}

TEST_F(MeshAuto, ACheckTakesTheMeshThatTheRunWould) {
  const Ending planned = run_meshtrain({"plan", recipe, "--ranks", "2", "--machine", "h100"});
  ASSERT_EQ(planned.status, 0) << planned.err;
  const std::string best = planned.out.substr(planned.out.find("\n  take ") + 8);
  const std::string mesh = best.substr(0, best.find(':'));
  const Ending checked = train(2, {"--check", "--mesh", "auto", "--machine", "h100"});
  ASSERT_EQ(checked.status, 0) << checked.err;
  EXPECT_TRUE(has(checked.out, "--mesh auto: " + mesh + ", the fastest of 3 meshes by the plan: ")) << checked.out;
  EXPECT_TRUE(has(checked.out, ": fits mesh " + mesh + "; ")) << checked.out;
  EXPECT_TRUE(has(checked.out, "; 1 host of 2 ranks (assumed); times: NVIDIA H100 SXM data sheet; ")) << checked.out;
  const Ending alone = train(1, {"--check", "--mesh", "auto"});
  EXPECT_TRUE(has(alone.out, "--mesh auto: one rank was started; mpirun -n N checks the mesh of N\n")) << alone.err;
  EXPECT_FALSE(std::filesystem::exists(run_dir));
}

// The order of axes is a part of the fastest mesh where hosts differ.
TEST_F(MeshAuto, TakesTheOrderOfAxesThatThePlanProposes) {
  const Words with = {"--machine", "h100", "--set", "parallel.order=[tp,cp,dp]", "--set", "train.global_batch=4"};
  Words words = {"plan", recipe, "--ranks", "16"};
  words.insert(words.end(), with.begin(), with.end());
  const Ending planned = run_meshtrain(words);
  ASSERT_EQ(planned.status, 0) << planned.err;
  const std::string best = planned.out.substr(planned.out.find("\n  take ") + 8);
  const std::string mesh = best.substr(0, best.find(' '));
  ASSERT_TRUE(has(best.substr(0, 200), " with parallel.order=[")) << planned.out;
  words = {"train", recipe, "--run-dir", run_dir, "--check", "--mesh", "auto"};
  words.insert(words.end(), with.begin(), with.end());
  const Ending checked = run_meshtrain(words, {"OMPI_COMM_WORLD_SIZE=16", "OMPI_COMM_WORLD_RANK=0"});
  ASSERT_EQ(checked.status, 0) << checked.err;
  EXPECT_TRUE(has(checked.out, "--mesh auto: " + mesh + ", the fastest of ")) << checked.out;
  EXPECT_TRUE(has(checked.out, ": fits mesh " + mesh + "; ")) << checked.out;
}

// Compares the forecast of the first rank's memory and traffic with the counted bytes.
TEST_F(MeshAuto, ARunSaysPlanAndTruth) {
  const Ending ending = train(2, {"--mesh", "tp=2", "--set", "train.steps=12"});
  ASSERT_EQ(ending.status, 0) << ending.err;
  const double planned = number_after(ending.out, "plan for rank 0: ", "KiB");
  const double counted = number_after(ending.out, "\nfirst 10 steps of rank 0: ", "KiB");
  EXPECT_GT(planned, 0) << ending.out;
  EXPECT_NEAR(counted / planned, 1, 0.03) << ending.out;
  const double planned_sent = number_after(ending.out, "plan for rank 0: [0-9.]+ [KM]iB,", "KiB sent a step");
  const double counted_sent =
      number_after(ending.out, "\nfirst 10 steps of rank 0: [0-9.]+ [KM]iB,", "KiB sent a step");
  EXPECT_NEAR(counted_sent, planned_sent, 1) << ending.out;
  const std::string report = run_meshtrain({"report", run_dir.string()}).out;
  EXPECT_TRUE(std::regex_search(report, std::regex("\n    sent in a step +[0-9.]+ KiB +[0-9.]+ KiB +[+-]0\\.[0-9] %")))
      << report;
  EXPECT_FALSE(has(train(1, {"--resume", "--set", "train.steps=5"}).out, "plan for rank 0"));
}

// A checkpoint is written from a copy, which stays for the next one: 12 bytes for each of the 10,848 parameters.
TEST_F(MeshAuto, ThePlanCountsTheCopyOfACheckpoint) {
  const auto run_with = [&](const std::string& every) {
    run_dir = path("every " + every);
    const Ending ending = train(1, {"--set", "train.steps=12", "--set", "checkpoint.every=" + every});
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending.out;
  };
  const auto planned = [&](const std::string& out) { return number_after(out, "plan for rank 0: ", "KiB, "); };
  const auto counted = [&](const std::string& out) { return number_after(out, "first 10 steps of rank 0: ", "KiB, "); };
  const std::string never = run_with("0"), early = run_with("5"), late = run_with("11");
  EXPECT_NEAR(planned(early) - planned(never), 127.1, 0.2) << early;
  EXPECT_NEAR(counted(early) - counted(never), 127.1, 10) << early;
  EXPECT_TRUE(has(early, " KiB, 127.1 KiB of them for the copy of a checkpoint, 0 KiB sent a step\n")) << early;
  EXPECT_TRUE(has(late, " KiB, 127.1 KiB more from the first checkpoint on, 0 KiB sent a step\n")) << late;
  run_dir = path("every 5");
  EXPECT_TRUE(has(run_meshtrain({"report", run_dir.string()}).out, "checkpoint copy"));
}

}  // namespace
}  // namespace meshtrain::testing
