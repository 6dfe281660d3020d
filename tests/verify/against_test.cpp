// `meshtrain verify --against` with steps that are made here: right ones, and ones with a fault in what was dumped.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/program/against/against.h"
#include "runtime/program/against/own_step.h"
#include "tests/against/made_step.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/tools/program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

using Tensors = MadeStep::Tensors;

constexpr double kClip = MadeStep::kClip, kDecay = MadeStep::kDecay, kRate = MadeStep::kRate;

/// A step on two data ranks with two micro-batches each, whose parts have different numbers of labels.
class Against : public ::testing::Test, private ScratchFolder, protected MadeStep {
 protected:
  explicit Against(const MadeStepOptions& options = {}) : MadeStep(path(), options) {}

  /// Returns what is printed; `equal`: the expected verdict.
  std::string verdict(bool equal) {
    write_step();
    write("gradients", dumped(gradients));
    write("after", dumped(after));
    std::string text;
    EXPECT_EQ(verify_against(folder(), {}, [&](const std::string& part) { text += part; }), equal) << text;
    return text;
  }
  void expect(const std::string& explanation) {
    const std::string text = verdict(false);
    EXPECT_TRUE(has(text, "\n  " + explanation)) << text;
  }
  /// Leaves out layer 0, and of tensors with more than `most` elements all but so many.
  void leave_out(int64_t most) {
    step["layers"] = {1};
    step["sample"] = most;
    Tensors numbers;
    for (const auto& [name, values] : gradients) {
      if (values.numel() > most && !has(name, "layers.0.")) numbers[name] = some(values.numel(), most);
    }
    write("sample", numbers);
    num_dumped_ = most;
  }
  /// Returns `most` different numbers of elements.
  static at::Tensor some(int64_t numel, int64_t most) {
    return at::arange(most, at::kLong).mul_(7919).remainder(numel);
  }

 private:
  /// Returns what leave_out() leaves.
  Tensors dumped(Tensors tensors) const {
    if (num_dumped_ == 0) return tensors;
    std::erase_if(tensors, [](const auto& entry) { return has(entry.first, "layers.0."); });
    for (auto& [name, values] : tensors) {
      if (values.numel() > num_dumped_) values = values.reshape(-1).index({some(values.numel(), num_dumped_)});
    }
    return tensors;
  }

  int64_t num_dumped_ = 0;  // elements of a tensor; 0: all
};

TEST_F(Against, ARightStepIsEqual) {
  EXPECT_TRUE(has(verdict(true), "equal: the worst gradient has "));
  for (auto& [name, values] : gradients) values = values.to(at::kFloat).to(at::kDouble);
  take(gradients);
  EXPECT_TRUE(has(verdict(true), "equal: the worst gradient has "));
}

TEST_F(Against, NoisesOfHalvesAreTheRoundingOfBf16) {
  for (auto& [name, values] : gradients) values = values.to(at::kBFloat16).to(at::kDouble);
  take(gradients);
  EXPECT_TRUE(has(verdict(true), "equal within the rounding of bf16"));
}

TEST_F(Against, AConstantThatDiffersIsNoRoundingOfBf16) {
  const std::string note = "was TF32 on, or is a constant different";
  for (auto& [name, values] : gradients) values = values.to(at::kFloat);
  std::ifstream text(folder() / "before/config.json");
  nlohmann::json config = nlohmann::json::parse(text);
  EXPECT_FALSE(has(verdict(true), note));
  config["rms_norm_eps"] = config["rms_norm_eps"].get<double>() + 1e-5;
  std::ofstream(folder() / "before/config.json") << config;
  EXPECT_TRUE(has(verdict(true), note)) << verdict(true);
}

TEST_F(Against, FactorsOfAllGradientsAreNumbersOfTheMesh) {
  const Tensors right = gradients;
  for (const auto& [factor, explanation] : {std::pair{2.0, "gradients: summed over "},
                                            {0.25, "gradients: divided once too often by dp=2 and 2 micro-batches"}}) {
    for (auto& [name, values] : gradients) values = right.at(name) * factor;
    take(gradients);
    expect(explanation);
  }
}

TEST_F(Against, SumsOfPartsAreNamedByWhatTheyLack) {
  const auto all = static_cast<double>(own.num_counted());
  std::vector<double> counted, means, rank_means, one, last;
  for (const BatchPart& part : own.parts) counted.push_back(static_cast<double>(part.num_counted));
  ASSERT_EQ(counted.size(), 4U);
  for (const double n : counted) means.push_back(all / (4 * n));
  const double rank0 = counted[0] + counted[1], rank1 = counted[2] + counted[3], lasts = counted[1] + counted[3];
  rank_means = {all / (2 * rank0), all / (2 * rank0), all / (2 * rank1), all / (2 * rank1)};
  one = {0, 0, all / rank1, all / rank1};
  last = {0, all / lasts, 0, all / lasts};
  for (const auto& [weights, explanation] :
       {std::pair{means, "gradients: the mean of the micro-batches' means"},
        {rank_means, "gradients: the mean of the ranks' means"},
        {one, "gradients: rank 1's samples alone: the sum over data ranks is missing"},
        {last, "gradients: the last micro-batch alone"}}) {
    take(of_parts(weights));
    expect(explanation);
  }
  take(of_parts({1, 1, 1, 3}));
  expect("gradients: the parts of the batch are not weighted by their numbers of labels");
}

TEST_F(Against, TensorsOfRanksThatDoNotSumAreNamedByTheirRanks) {
  const auto all = static_cast<double>(own.num_counted());
  const double of_rank0 = static_cast<double>(own.parts[0].num_counted + own.parts[1].num_counted);
  Tensors mixed = of_parts({all / of_rank0, all / of_rank0, 0, 0});
  const Tensors of_rank1 = of_parts({0, 0, all / (all - of_rank0), all / (all - of_rank0)});
  for (size_t i = 0; i < own.names.size(); i += 2) mixed[own.names[i]] = of_rank1.at(own.names[i]);
  take(mixed);
  expect(
      "gradients: rank 0's samples alone: the sum over data ranks is missing; in other tensors rank 1's samples alone");
}

TEST_F(Against, FaultsOfSomeParametersAreNamedByTheirKind) {
  step["mesh"] = {{"dp", 2}, {"tp", 2}};
  const Tensors right = gradients;
  for (auto& [name, values] : gradients) values = has(name, "norm") ? values * 2 : values;
  take(gradients);
  expect("gradients of norms: summed over dp=2 instead of averaged, or summed twice");
  gradients = right;
  for (auto& [name, values] : gradients) {
    if (has(name, "norm")) values = at::randn(values.sizes(), values.options()) * values.abs().max();
  }
  take(gradients);
  expect("gradients of norms: a part is missing, as when a sum over tp=2 is missing");
  gradients = right;
  std::erase_if(gradients, [](const auto& entry) { return has(entry.first, "norm"); });
  take({});
  expect("no gradients: norms");
}

TEST_F(Against, LossesAreExplainedAsGradientsAre) {
  const double right = step["loss"];
  step["loss"] = 2 * right;
  expect("loss: summed over ");
  step["loss"] = own.parts[0].loss_sum + own.parts[1].loss_sum;
  step["loss"] = step["loss"].get<double>() / static_cast<double>(own.parts[0].num_counted + own.parts[1].num_counted);
  expect("loss: rank 0's samples alone");
}

TEST_F(Against, NormsAreExplainedByWhatTheyCount) {
  const double all = norm(gradients), embedding = norm({{"", gradients.at("model.embed_tokens.weight")}});
  for (const auto& [value, explanation] :
       {std::pair{std::sqrt(all * all - embedding * embedding), "norm: lacks the embedding"},
        {std::sqrt(all * all + embedding * embedding), "norm: counts the embedding twice"},
        {all / std::sqrt(2.0), "norm: about that of one rank's shard, with dp=2"},
        {all * std::sqrt(2.0), "norm: squares are summed over dp=2, whose ranks have the same gradients"}}) {
    step["grad_norm"] = value;
    update(kClip / value, kDecay);
    expect(explanation);
  }
}

TEST_F(Against, UpdatesAreExplainedByTheOptimizersFormula) {
  update(kClip / norm(gradients), 0);
  expect("updates: weight decay is not applied");
  step["optimizer"]["name"] = "SGD";
  step["optimizer"]["groups"][0]["weight_decay"] = 0;
  for (const auto& [name, gradient] : gradients) after[name] = before[name] - kRate * gradient;
  expect("updates: gradients are not clipped");
  after = before;
  expect("updates: none; the weights did not move");
  for (const auto& [name, gradient] : gradients) after[name] = before[name] + kRate * gradient;
  expect("updates: the formula, the learning rate or the gradients differ");
}

TEST_F(Against, LabelsThatWereShiftedTwiceAreFound) {
  const StepDump dump(folder());
  at::Tensor shifted = at::full_like(dump.labels(), -100);
  shifted.narrow(1, 0, 11).copy_(dump.labels().narrow(1, 1, 11));
  take_reading({shifted});
  expect("labels: shifted twice");
  EXPECT_FALSE(has(verdict(false), "loss:")) << "the loss is that of the labels that were found";
}

class AgainstDocuments : public Against {
 protected:
  AgainstDocuments() : Against({.documents = true}) {}
};

TEST_F(AgainstDocuments, AreThoseOfTheDump) {
  EXPECT_TRUE(has(verdict(true), "equal: the worst gradient has "));
  const StepDump dump(folder());
  take_reading({dump.labels()});
  expect("documents: ignored; attention crosses them, and positions continue");
  take_reading({dump.labels(), {}, document_positions(dump.documents(), 12)});
  expect("documents: attention crosses them, although positions restart in each");
}

TEST_F(AgainstDocuments, AreRefusedOnAMesh) {
  verdict(true);  // writes the step
  const Ending ending = run_meshtrain({"verify", "--against", folder(), "--mesh", "dp=1"});
  EXPECT_TRUE(has(only_complaint(ending), "--mesh: the step has packed documents")) << ending.err;
}

TEST_F(Against, PositionsOfContextParallelRanksAreGlobal) {
  step["mesh"] = {{"dp", 2}, {"cp", 2}};
  const at::Tensor labels = StepDump(folder()).labels(), all = at::arange(12);
  take_reading({labels, {}, all.remainder(6).expand({8, 12})});
  expect("positions: they begin at 0 on each of cp=2 ranks, which have consecutive parts of a sequence");
  take_reading({labels, {}, (all.remainder(3) + all.ge(6).to(at::kLong) * 3).expand({8, 12})});
  expect("positions: they begin at 0 on each of cp=2 ranks, which have two chunks of a sequence (zig-zag)");
}

TEST_F(Against, ClippingComesAfterTheSum) {
  const auto all = static_cast<double>(own.num_counted());
  std::vector<double> weights;
  for (const size_t first : {0U, 2U}) {
    const double counted = static_cast<double>(own.parts[first].num_counted + own.parts[first + 1].num_counted);
    std::vector<double> alone(4, 0);
    alone[first] = alone[first + 1] = all / counted;
    const double clipped = std::min(1.0, kClip / norm(of_parts(alone)));
    weights.insert(weights.end(), 2, clipped * all / (2 * counted));
  }
  take(of_parts(weights));
  expect("gradients: each rank's gradients are clipped before their sum");
  Tensors clipped = of_parts({1, 1, 1, 1});
  const double factor = kClip / norm(clipped);
  for (auto& [name, values] : clipped) values = values * factor;
  take(clipped);
  expect("gradients: already clipped");
}

TEST_F(Against, WeightDecayIsThatOfEachGroup) {
  const double clip_factor = kClip / norm(gradients);
  const auto is_norm = [](const std::string& name) { return has(name, "norm"); };
  update(clip_factor, [&](const std::string& name) { return is_norm(name) ? 0 : kDecay; });
  expect("updates of norms: weight decay is not applied");
  nlohmann::json& groups = step["optimizer"]["groups"];
  groups.push_back(groups[0]);
  groups[1]["weight_decay"] = 0;
  for (nlohmann::json& group : groups) group["parameters"] = nlohmann::json::array();
  for (const std::string& name : own.names) groups[is_norm(name) ? 1 : 0]["parameters"].push_back(name);
  EXPECT_TRUE(has(verdict(true), "equal: the worst gradient has "));
  update(clip_factor, kDecay);
  expect("updates of norms: weight decay of another group is applied");
}

TEST_F(Against, LayersAndElementsThatWereLeftOutAreNotCompared) {
  leave_out(40);
  const std::string text = verdict(true);
  EXPECT_TRUE(has(text, "left out   gradients and updates: all layers but 1; in ")) << text;
  EXPECT_TRUE(has(text, " tensors all but at most 40 elements\n")) << text;
  EXPECT_TRUE(has(text, "equal, in what was dumped: the worst gradient has ")) << text;
  const Tensors right = gradients;
  take({{"model.layers.0.self_attn.o_proj.weight", right.at("model.layers.0.self_attn.o_proj.weight") * 2}});
  step["grad_norm"] = own.norm();
  update(kClip / own.norm(), kDecay);
  verdict(true);
}

TEST_F(Against, WhatIsLeftIsExplainedAsCompleteStepsAre) {
  leave_out(40);
  const Tensors right = gradients;
  const auto all = static_cast<double>(own.num_counted());
  std::vector<double> means;
  for (const BatchPart& part : own.parts) means.push_back(all / (4 * static_cast<double>(part.num_counted)));
  take(of_parts(means));
  expect("gradients: the mean of the micro-batches' means");
  take(right);
  const double norm_of_all = norm(right), embedding = norm({{"", right.at("model.embed_tokens.weight")}});
  step["grad_norm"] = std::sqrt(norm_of_all * norm_of_all - embedding * embedding);
  update(kClip / step["grad_norm"].get<double>(), kDecay);
  expect("norm: lacks the embedding");
  take(right);
  gradients["model.layers.1.mlp.up_proj.weight"] = right.at("model.layers.1.mlp.up_proj.weight").flip(0);
  expect("gradients of 1 of 5 column-parallel layers");
}

TEST_F(Against, RefusesLayersAndSamplesThatTheModelDoesNotHave) {
  const auto refusal = [&] {
    return message<InputError>([&] { verify_against(folder(), {}, [](const std::string&) {}); });
  };
  step["layers"] = {0, 7};
  write_step();
  EXPECT_TRUE(has(refusal(), "layers[1] is not a layer of the model")) << refusal();
  step.erase("layers");
  step["sample"] = 1;
  write_step();
  write("sample", {{"model.norm.weight", at::full({1}, 1 << 20, at::kLong)}});
  EXPECT_TRUE(has(refusal(), "model.norm.weight must have the indices of elements")) << refusal();
}

TEST_F(Against, RefusesWhatCannotBeCompared) {
  const auto refusal = [&] {
    return message<InputError>([&] { verify_against(folder(), {}, [](const std::string&) {}); });
  };
  step["optimizer"]["updates"] = 3;
  EXPECT_TRUE(has(verdict(true), "updates are not compared: it is update 3 of the optimizer; dump the first"));
  step.erase("mesh");
  write_step();
  EXPECT_TRUE(has(refusal(), "step.json: no mesh")) << refusal();
  fs::remove(folder() / "step.json");
  EXPECT_TRUE(has(refusal(), "the folder has no step.json")) << refusal();
}

/// The same step on a mesh of this program, as users run it.
class AgainstMesh : public Against {
 protected:
  Ending verify_on(int ranks, const std::vector<std::string>& arguments) {
    verdict(true);  // writes the step
    std::vector<std::string> words = {"verify", "--against", folder()};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return ranks == 1 ? run_meshtrain(words) : run_meshtrain_on_ranks(ranks, words);
  }
};

TEST_F(AgainstMesh, ComputesTheStepAsOneRankDoes) {
  const Ending ending = verify_on(4, {"--mesh", "dp=2,tp=2", "--set", "parallel.sequence_parallel=on"});
  EXPECT_EQ(ending.status, 0) << ending.out << ending.err;
  EXPECT_TRUE(has(ending.out, "equal: the worst gradient has ")) << ending.out;
  EXPECT_TRUE(has(ending.out, "tp=2 against one rank\n")) << ending.out;
  EXPECT_TRUE(has(ending.out, "sequence parallel on")) << ending.out;
  EXPECT_TRUE(has(ending.out, "equal: loss, gradient norm, ")) << ending.out;
  char loss[32];
  std::snprintf(loss, sizeof loss, "%.7g", own.loss());
  EXPECT_EQ(count(ending.out, loss), 4) << "the program's, one rank's, the mesh's and one rank's: " << ending.out;
}

TEST_F(AgainstMesh, FindsAFaultOfTheMesh) {
  const Ending ending = verify_on(2, {"--mesh", "dp=2", "--inject", "skip-reduce:dp.gradients"});
  EXPECT_EQ(ending.status, 1) << ending.err;
  EXPECT_TRUE(has(ending.out, "equal: the worst gradient has ")) << ending.out;
  EXPECT_TRUE(has(ending.out, "a sum over dp, or the input of each of its ranks, is wrong")) << ending.out;
}

TEST_F(AgainstMesh, RefusesMeshesThatCannotComputeTheStep) {
  EXPECT_TRUE(has(only_complaint(verify_on(3, {"--mesh", "dp=3"})), "8 samples, which 3 data ranks cannot share"));
  EXPECT_TRUE(has(only_complaint(verify_on(1, {"--mesh", "tp=2"})), " needs 2 ranks, but 1 was started"));
  EXPECT_TRUE(has(only_complaint(verify_on(2, {})), "--against: give --mesh, the mesh of these 2 ranks"));
  EXPECT_TRUE(has(only_complaint(verify_on(1, {"--inject", "skip-reduce:dp"})), "give --mesh"));
  EXPECT_TRUE(has(only_complaint(verify_on(1, {"--shrink"})), "the step is one of the complete model"));
}

/// Families that store several layers in one tensor.
class AgainstFused : public Against {
 protected:
  AgainstFused() : Against({.family = "phi3"}) {}
};

TEST_F(AgainstFused, GradientsOfFusedLayersAreReadByTheirRows) {
  Tensors fused;
  for (const auto& [kind, tensors] : {std::pair{"gradients", &gradients}, {"after", &after}}) {
    fused = *tensors;
    for (int64_t i = 0; fused.contains("model.layers." + std::to_string(i) + ".self_attn.q_proj.weight"); ++i) {
      const std::string block = "model.layers." + std::to_string(i) + ".";
      const auto join = [&](const std::vector<std::string>& parts, const std::string& whole) {
        std::vector<at::Tensor> values;
        for (const std::string& part : parts) {
          values.push_back(fused.at(block + part + ".weight"));
          fused.erase(block + part + ".weight");
        }
        fused[block + whole + ".weight"] = at::cat(values);
      };
      join({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, "self_attn.qkv_proj");
      join({"mlp.gate_proj", "mlp.up_proj"}, "mlp.gate_up_proj");
    }
    write(kind, fused);
    const std::string layer = "model.layers.0.self_attn.qkv_proj.weight";
    const at::Tensor numbers = some(fused.at(layer).numel(), 90);
    write("sample", {{layer, numbers}});
    fused[layer] = fused.at(layer).reshape(-1).index({numbers});
    write(std::string("sampled_") + kind, fused);
  }
  step["optimizer"]["groups"][0]["parameters"] = nlohmann::json::array();
  for (const auto& [name, values] : fused) step["optimizer"]["groups"][0]["parameters"].push_back(name);
  write_step();
  for (const bool sampled : {true, false}) {
    for (const std::string kind : {"gradients", "after"}) {
      if (sampled) fs::rename(folder() / kind, folder() / ("all_" + kind));
      fs::rename(folder() / ((sampled ? "sampled_" : "all_") + kind), folder() / kind);
    }
    step["sample"] = sampled ? nlohmann::json(90) : nlohmann::json();
    write_step();
    std::string text;
    EXPECT_TRUE(verify_against(folder(), {}, [&](const std::string& part) { text += part; })) << text;
    EXPECT_TRUE(has(text, "worst weight update")) << text;
    EXPECT_EQ(has(text, "left out   gradients and updates: in 1 tensor all but at most 90 elements"), sampled) << text;
    if (sampled) {
      for (const char* kind : {"gradients", "after"}) fs::remove_all(folder() / kind);
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
