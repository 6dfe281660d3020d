#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

using Words = std::vector<std::string>;

std::string recipe() {
  return source_folder() + "/recipes/quickstart.yaml";
}

Words plan_words(const Words& arguments) {
  Words words = {"plan", recipe()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return words;
}

nlohmann::json plan_json(const ScratchFolder& folder, Words arguments) {
  const std::string path = folder.path() / "plan.json";
  arguments.insert(arguments.end(), {"--json", path});
  const Ending ending = run_meshtrain(plan_words(arguments));
  EXPECT_EQ(ending.status, 0) << ending.err;
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

TEST(PlanCommand, ListsWhatIsPossibleAndWhyTheRestIsNot) {
  const Ending ending = run_meshtrain(plan_words({"--ranks", "8", "--top", "3"}));
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_EQ(ending.err, "");
  EXPECT_EQ(ending.out.rfind("Ranked by traffic alone: without --machine the fastest mesh is not known.\n"
                             "8 meshes of 8 ranks, 1 host of 8 ranks (assumed); bytes of the fullest rank, on CPUs, ",
                             0),
            0u)
      << ending.out;
  EXPECT_EQ(count(ending.out, "\n  dp="), 3) << ending.out;
  EXPECT_TRUE(has(ending.out, "  and 5 more: --top shows them\n")) << ending.out;
  EXPECT_TRUE(has(ending.out,
                  "not possible:\n"
                  "  model.num_key_value_heads: 4 does not divide over tp=8: use a mesh whose tp divides it\n"
                  "    dp=1,cp=1,tp=8\n"
                  "  train.global_batch: 16 is not a multiple of dp x micro_batch = 8 x 4 = 32: "))
      << ending.out;
  EXPECT_FALSE(has(ending.out, "meshtrain train")) << "a mesh is advised that nothing says to be fast";
  EXPECT_TRUE(has(ending.out,
                  "  which mesh is the fastest:\n"
                  "    on GPUs: give --machine NAME, one of a100 h100 h100-500w h200 b200\n"
                  "    on CPUs: give --machine FILE, which mpirun -n 8 meshtrain plan " +
                      recipe() + " --calibrate --out FILE writes\n"))
      << ending.out;
  std::istringstream lines(ending.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_TRUE(line.size() <= 100 || has(line, recipe())) << line;
  }
}

TEST(PlanCommand, SaysHowManyHostsWereAssumed) {
  const ScratchFolder folder;
  const Words gpus = {"--ranks", "16", "--machine", "h100"};
  Words stated = gpus;
  stated.insert(stated.end(), {"--hosts-of", "8"});
  nlohmann::json assumed = plan_json(folder, gpus), given = plan_json(folder, stated);
  EXPECT_EQ(assumed["ranks_per_host"], 8) << "GPUs are sold 8 to a host";
  EXPECT_EQ(assumed["assumes_hosts"], true);
  EXPECT_EQ(given["assumes_hosts"], false);
  given["assumes_hosts"] = true;
  EXPECT_EQ(assumed, given);
  const std::string without = run_meshtrain(plan_words(gpus)).out;
  EXPECT_TRUE(has(without, ", 2 hosts of 8 ranks (assumed), ")) << without;
  EXPECT_TRUE(has(without, "\n  assumed: give --hosts-of N, the number of ranks on a host\n")) << without;
  const std::string with_hosts = run_meshtrain(plan_words(stated)).out;
  EXPECT_FALSE(has(with_hosts, "assumed")) << with_hosts;
  EXPECT_TRUE(has(with_hosts, ", 2 hosts of 8 ranks, ")) << with_hosts;
}

TEST(PlanCommand, RefusesTimesOfAnotherDevice) {
  EXPECT_EQ(only_complaint(run_meshtrain(plan_words({"--ranks", "2", "--machine", "h100", "--set", "device=cpu"}))),
            "device: cpu, but --machine h100 has times for device: cuda: give a machine with the recipe's device, or "
            "change device");
}

TEST(PlanCommand, AbbreviatesMany) {
  const Ending ending = run_meshtrain(plan_words({"--ranks", "512", "--set", "train.global_batch=512", "--top", "1"}));
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, " more\n")) << ending.out;
  EXPECT_LT(ending.out.size(), 4000u) << ending.out;
}

TEST(PlanCommand, WritesAllOfItAsJson) {
  const ScratchFolder folder;
  const nlohmann::json plan = plan_json(folder, {"--ranks", "4", "--hosts-of", "2", "--memory", "60MiB"});
  EXPECT_EQ(plan["ranks"], 4);
  EXPECT_EQ(plan["ranks_per_host"], 2);
  EXPECT_EQ(plan["device"], "cpu");
  ASSERT_EQ(plan["meshes"].size(), 6u);
  bool fitted = true;
  for (const nlohmann::json& mesh : plan["meshes"]) {
    int64_t memory = 0, sent = 0, among_hosts = 0;
    for (const auto& [part, bytes] : mesh["memory_bytes"].items()) {
      EXPECT_GE(bytes.get<int64_t>(), 0) << mesh["mesh"] << " " << part;
      memory += bytes.get<int64_t>();
    }
    EXPECT_EQ(mesh["memory_bytes_total"], memory) << mesh["mesh"];
    EXPECT_EQ(mesh["fits"], memory <= 60 << 20) << mesh["mesh"];
    EXPECT_TRUE(fitted || !mesh["fits"]) << "those that fit come first";
    fitted = mesh["fits"];
    for (const nlohmann::json& each : mesh["traffic"]) {
      sent += each["sent_bytes"].get<int64_t>();
      if (each["hosts"] > 1) among_hosts += each["sent_bytes"].get<int64_t>();
    }
    EXPECT_EQ(mesh["sent_bytes_among_hosts"], among_hosts) << mesh["mesh"];
    EXPECT_EQ(mesh["sent_bytes_on_host"], sent - among_hosts) << mesh["mesh"];
    EXPECT_GT(sent, 0) << mesh["mesh"];
  }
  EXPECT_FALSE(fitted) << "no mesh is too large: the test compares nothing";
  for (const nlohmann::json& each : plan["refused"]) EXPECT_FALSE(each["meshes"].empty());
}

TEST(PlanCommand, FollowsTheRecipe) {
  const ScratchFolder folder;
  const auto memory = [&](const std::string& part, const Words& settings) {
    Words words = {"--ranks", "1"};
    for (const std::string& each : settings) words.insert(words.end(), {"--set", each});
    return plan_json(folder, words)["meshes"][0]["memory_bytes"][part].get<int64_t>();
  };
  EXPECT_EQ(memory("optimizer", {"optimizer.name=adamw"}), 2 * memory("parameters", {"optimizer.name=adamw"}));
  EXPECT_LT(memory("activations", {"train.activation_checkpointing.mode=full"}), memory("activations", {}) / 2);
}

TEST(PlanCommand, SaysWhatIsMissing) {
  const auto complaint = [](const Words& words) { return only_complaint(run_meshtrain(plan_words(words))); };
  EXPECT_EQ(complaint({"--ranks", "7"}),
            "no mesh of 7 ranks is possible: model.num_attention_heads: 8 does not divide over tp=7: use a mesh whose "
            "tp divides it (dp=1,cp=1,tp=7); dp x cp x tp is the number of ranks, dp has to divide 4 "
            "(train.global_batch / micro_batch), cp 256 (train.sequence_length), tp 4 (heads, key-value heads and "
            "intermediate_size of the model)");
  const std::string fits_on_more = complaint({"--ranks", "8", "--memory", "20MiB"});
  const char* const least = "a rank: dp=1,cp=8,tp=1 needs the least, ";
  EXPECT_TRUE(has(fits_on_more, "no mesh of 8 ranks fits in 20 MiB ") && has(fits_on_more, least)) << fits_on_more;
  const bool on_16 = has(fits_on_more, "; it would fit on 16 ranks");  // 32 where products need more for a moment
  EXPECT_TRUE(on_16 || has(fits_on_more, "; it would fit on 32 ranks")) << fits_on_more;
  const std::string fits_nowhere = complaint({"--ranks", "8", "--memory", "1MiB"});
  EXPECT_TRUE(has(fits_nowhere, "no mesh of 8 ranks fits in 1 MiB ") && has(fits_nowhere, least)) << fits_nowhere;
  EXPECT_TRUE(has(fits_nowhere, "; more ranks would not be enough either: train.activation_checkpointing.mode: full"))
      << fits_nowhere;
  EXPECT_EQ(complaint({"--ranks", "8", "--memory", "40"}),
            "--memory 40: expected a size above 0 with its unit, as in 80GiB, 512MiB or 80GB");
  EXPECT_EQ(complaint({"--ranks", "16385"}), "--ranks 16385: a plan covers at most 16384 ranks");
  EXPECT_TRUE(has(complaint({"--ranks", "0"}), "--ranks: 0 is not a whole number"));
  EXPECT_EQ(complaint({}), "meshtrain plan: --ranks is required: see meshtrain plan --help");
  EXPECT_EQ(complaint({"--ranks", "1", "--json", "/nowhere/plan.json"}),
            "cannot write /nowhere/plan.json: No such file or directory");
  EXPECT_EQ(only_complaint(run_meshtrain({"plan", "nowhere.yaml", "--ranks", "1"})),
            "nowhere.yaml: No such file or directory");
}

TEST(PlanCommand, TakesTimesFromAMachine) {
  const ScratchFolder folder;
  const Ending ending = run_meshtrain(plan_words({"--ranks", "16", "--hosts-of", "8", "--machine", "h100"}));
  ASSERT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.out, "80 GiB a rank, the runtime's 2 GiB included; a step")) << ending.out;
  EXPECT_TRUE(has(ending.out, "\n  take dp=") && has(ending.out, " takes ")) << ending.out;
  EXPECT_TRUE(has(ending.out, "\n  at most with dp=")) << ending.out;
  EXPECT_TRUE(has(ending.out, ", 2 hosts of 8 ranks, ")) << ending.out;
  EXPECT_TRUE(has(ending.out, "\n  mpirun -n 16 meshtrain train " + recipe() + " --mesh dp=")) << ending.out;
  EXPECT_TRUE(has(ending.out, "\n  times: NVIDIA H100 SXM data sheet; ")) << ending.out;
  EXPECT_TRUE(has(ending.out, "tokens/s")) << ending.out;
  EXPECT_TRUE(has(ending.out, "; train.global_batch / dp allows no more)")) << ending.out;
  EXPECT_TRUE(has(ending.out, "; memory allows no more)") || has(ending.out, "; no more were tried)")) << ending.out;
  EXPECT_TRUE(has(ending.out, " other")) << ending.out;
  const nlohmann::json plan = plan_json(folder, {"--ranks", "16", "--hosts-of", "8", "--machine", "h100"});
  EXPECT_EQ(plan["device"], "cuda");
  double last = 0;
  ASSERT_GT(plan["meshes"].size(), 3u);
  for (const nlohmann::json& mesh : plan["meshes"]) {
    const nlohmann::json& parts = mesh["seconds_by_part"];
    double sum = 0;
    for (const char* part : {"products", "attention", "elementwise", "optimizer", "copies"})
      sum += parts[part].get<double>();
    for (const auto& [group, seconds] : parts["exposed"].items()) {
      sum += seconds.get<double>();
      EXPECT_LE(seconds, parts["collectives"][group].get<double>() * 1.001) << mesh["mesh"] << " " << group;
    }
    EXPECT_NEAR(mesh["seconds"], sum, 1e-9) << mesh["mesh"];
    EXPECT_GE(mesh["seconds"], last) << mesh["mesh"] << ": the fastest come first";
    last = mesh["seconds"];
    EXPECT_GT(mesh["model_flops"], 0);
    EXPECT_NEAR(mesh["tokens_per_second_per_rank"].get<double>() * mesh["seconds"].get<double>() * 16, 16 * 256, 1e-6)
        << "of a step";
  }
}

TEST(PlanCommand, SaysWithWhichOptionsTheFastestMeshRuns) {
  const Words words = {"--ranks", "2", "--machine", "h100"};
  EXPECT_TRUE(has(run_meshtrain(plan_words(words)).out, "\n  meshes with pp are left out: --set parallel.mesh.pp=2,"));
  Words with_pp = words;
  with_pp.insert(with_pp.end(), {"--set", "parallel.mesh.pp=2", "--set", "train.seed=7"});
  const Ending ending = run_meshtrain(plan_words(with_pp));
  EXPECT_TRUE(has(ending.out, "pp=2,dp=1,cp=1,tp=1")) << ending.out;
  EXPECT_FALSE(has(ending.out, "meshes with pp are left out")) << ending.out;
  const std::string command = ending.out.substr(ending.out.rfind("\n  mpirun -n 2 meshtrain train "));
  EXPECT_TRUE(has(command, " --set 'train.seed=7'")) << command;
  EXPECT_FALSE(has(command, "parallel.mesh.pp")) << command << "contradicts --mesh";
}

TEST(PlanCommand, SearchesSettingsOfEachMesh) {
  const ScratchFolder folder;
  const Words words = {"--ranks", "2", "--machine", "h100", "--set", "train.activation_checkpointing.mode=full"};
  Words all = words;
  all.insert(all.end(), {"--search", "all"});
  const nlohmann::json found = plan_json(folder, all), own = plan_json(folder, words);
  ASSERT_GE(found["meshes"].size(), own["meshes"].size());
  const nlohmann::json& best = found["meshes"][0];
  EXPECT_LT(best["seconds"].get<double>(), 0.95 * own["meshes"][0]["seconds"].get<double>());
  const auto has_setting = [&](const std::string& setting) {
    return std::ranges::any_of(best["settings"], [&](const auto& each) { return each == setting; });
  };
  EXPECT_TRUE(has_setting("train.activation_checkpointing.mode=none")) << best["settings"];
  // The settings, given by hand, make the same step.
  Words by_hand = words;
  for (const nlohmann::json& each : best["settings"]) by_hand.insert(by_hand.end(), {"--set", each});
  const nlohmann::json again = plan_json(folder, by_hand);
  const auto same =
      std::ranges::find_if(again["meshes"], [&](const auto& each) { return each["mesh"] == best["mesh"]; });
  ASSERT_NE(same, again["meshes"].end());
  EXPECT_EQ((*same)["seconds"], best["seconds"]);
  EXPECT_EQ((*same)["memory_bytes_total"], best["memory_bytes_total"]);
  const Ending ending = run_meshtrain(plan_words(all));
  EXPECT_TRUE(has(ending.out, " --mesh " + best["mesh"].get<std::string>() + " --set '")) << ending.out;
  EXPECT_EQ(only_complaint(run_meshtrain(plan_words({"--ranks", "2", "--search", "all"}))),
            "--search all: settings are compared by their times: give --machine, a preset or a file of --calibrate");
}

TEST(PlanCommand, ProposesAnotherOrderOfAxes) {
  const ScratchFolder folder;
  const nlohmann::json plan =
      plan_json(folder, {"--ranks", "8", "--hosts-of", "2", "--machine", "h100", "--set", "parallel.order=[tp,cp,dp]"});
  const auto mesh = std::ranges::find_if(plan["meshes"], [](const auto& each) {
    const std::string text = each["mesh"];
    return has(text, "dp=4") && has(text, "tp=2");
  });
  ASSERT_NE(mesh, plan["meshes"].end());
  EXPECT_TRUE((*mesh)["mesh"].get<std::string>().ends_with("tp=2")) << (*mesh)["mesh"] << ": tp leaves its host";
  ASSERT_EQ((*mesh)["settings"].size(), 1u);
  EXPECT_EQ((*mesh)["settings"][0].get<std::string>().rfind("parallel.order=[", 0), 0u);
}

TEST(PlanCommand, IsOfOneProcess) {
  const Ending ending = run_meshtrain_on_ranks(2, plan_words({"--ranks", "2"}));
  EXPECT_NE(ending.status, 0);
  EXPECT_TRUE(has(ending.err, "meshtrain plan")) << ending.err;
}

}  // namespace
}  // namespace meshtrain::testing
