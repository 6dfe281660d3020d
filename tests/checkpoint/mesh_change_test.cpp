// Every mesh reads the checkpoint of every other mesh, equal to the bit, and continues.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>

#include "mesh/base/error.h"
#include "mesh/device/aten.h"
#include "runtime/program/convert/export_adapter.h"
#include "runtime/program/convert/export_checkpoint.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/model/peft_tensors.h"
#include "runtime/training/safetensors/folder.h"
#include "tests/checkpoint/format_1.h"
#include "tests/checkpoint/training.h"
#include "tests/matrix/cell.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

/// A mesh of some of the world's ranks, and the cut of the model there.
struct MeshChoice {
  int64_t dp, tp, cp;
  std::string sharding;
  std::vector<std::string> order = {"dp", "cp", "tp"};
  std::string unit = "block";
  int64_t pp = 1;
  int64_t ep = 1;  ///< of a model with experts

  int64_t size() const { return pp * dp * tp * cp; }
};

const std::vector<MeshChoice> kChoices = {
    {1, 1, 1, "no_shard"},
    {2, 1, 1, "full_shard"},
    {2, 1, 1, "full_shard", {"dp", "cp", "tp"}, "sublayer"},
    {1, 2, 1, "no_shard"},
    {2, 1, 1, "shard_optimizer"},
    {1, 1, 2, "shard_grad_op"},
    {4, 1, 1, "hybrid_shard+"},
    {4, 1, 1, "hybrid_shard+", {"dp", "cp", "tp"}, "sublayer"},
    {2, 2, 1, "full_shard", {"tp", "dp", "cp"}},
    {2, 1, 2, "shard_grad_op", {"cp", "dp", "tp"}},
    {1, 4, 1, "no_shard"},
    {2, 2, 2, "full_shard"},
    {4, 2, 1, "shard_optimizer", {"tp", "cp", "dp"}},
    {2, 1, 4, "hybrid_shard"},
    {8, 1, 1, "shard_grad_op+"},
    {1, 1, 1, "no_shard", {"dp", "cp", "tp"}, "block", 2},
    {2, 1, 1, "full_shard", {"dp", "cp", "tp"}, "block", 2},
    {1, 2, 1, "no_shard", {"tp", "pp", "dp", "cp"}, "block", 2},
    {2, 2, 1, "shard_grad_op+", {"dp", "pp", "cp", "tp"}, "sublayer", 2},
};

/// The meshes of a model with experts.
const std::vector<MeshChoice> kExpertChoices = {
    {1, 1, 1, "no_shard"},
    {2, 1, 1, "full_shard", {"dp", "cp", "tp"}, "block", 1, 2},
    {1, 2, 1, "no_shard", {"dp", "cp", "tp"}, "block", 1, 2},
    {2, 1, 1, "full_shard"},
    {4, 1, 1, "full_shard", {"dp", "cp", "tp"}, "block", 1, 2},
    {2, 2, 1, "hybrid_shard", {"tp", "dp", "cp"}, "sublayer", 1, 4},
    {2, 1, 1, "shard_grad_op", {"dp", "cp", "tp"}, "block", 2, 2},
    {2, 2, 2, "full_shard", {"dp", "cp", "tp"}, "block", 1, 8},
    {2, 2, 1, "shard_optimizer", {"dp", "pp", "cp", "tp"}, "block", 2, 4},
    {8, 1, 1, "shard_grad_op", {"dp", "cp", "tp"}, "block", 1, 4},
};

/// Returns the choices with as many ranks as the world has, and with fewer.
std::vector<MeshChoice> choices(const std::vector<int64_t>& sizes, const std::vector<MeshChoice>& all = kChoices) {
  std::vector<MeshChoice> fitting;
  for (const MeshChoice& choice : all) {
    if (std::find(sizes.begin(), sizes.end(), choice.size()) != sizes.end()) fitting.push_back(choice);
  }
  return fitting;
}

/// The settings of a training that decide the dtypes and tensors of its checkpoint.
struct Kind {
  std::string precision, optimizer, frozen;
  bool tied, rounds_stochastically = false, fp32_state = false;
  std::string adapter = "none", family = "qwen3";

  std::string name() const {
    return family + " " + precision + " " + optimizer + (frozen == "none" ? "" : " frozen " + frozen) +
           (tied ? " tied" : "") + (rounds_stochastically ? " rounded by chance" : "") +
           (fp32_state ? " fp32 state" : "") + (adapter == "none" ? "" : " adapters " + adapter);
  }
};

Recipe recipe_on(const MeshChoice& choice, const Kind& kind, const std::filesystem::path& folder) {
  const Variant variant{kind.family,      kind.tied,      "mha",       "none", "one",
                        kind.precision,   kind.optimizer, kind.frozen,
                        /*groups=*/false, kind.adapter};
  const bool alone = choice.size() == 1;
  const Cell cell{variant,      choice.dp,     choice.tp, choice.cp,       choice.cp > 1 ? "ring" : "none",
                  "contiguous", choice.tp > 1, 1,         choice.sharding, "none",
                  choice.unit,  choice.pp,     "1f1b",    choice.ep};
  Recipe recipe = recipe_of(cell, alone, folder);
  recipe.parallel.order = complete_order(choice.order);
  recipe.train.stochastic_rounding = kind.rounds_stochastically;
  if (kind.fp32_state) recipe.optimizer.state_dtype = at::kFloat;
  if (kind.precision == "fp16_mixed") recipe.train.loss_scale = LossScaleOptions{.initial = 1024, .growth_interval = 3};
  if (kind.optimizer == "sgd") recipe.optimizer.momentum = 0.9;
  return recipe;
}

/// Returns the first `size` ranks of the world; on other ranks a similar group. Collective.
Group first_ranks(int64_t size) {
  static std::map<int64_t, Group> groups = {{world().size(), world()}};  // communicators are few
  if (groups.contains(size)) return groups.at(size);
  const int64_t begin = world().rank() / size * size;
  std::vector<int> members;
  for (int64_t rank = begin; rank < begin + size; ++rank) members.push_back(static_cast<int>(rank));
  return groups.emplace(size, world().split(members, "ranks")).first->second;
}

bool takes_part(const MeshChoice& choice) {
  return world().rank() < choice.size();
}

void every_mesh_reads_every_other(const Kind& kind, const std::vector<MeshChoice>& all) {
  SCOPED_TRACE(kind.name());
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const auto path = [&](size_t from, const std::string& to) { return folder.path() / (std::to_string(from) + to); };
  std::vector<std::unique_ptr<Training>> trainings(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const Group ranks = first_ranks(all[i].size());
    if (!takes_part(all[i])) continue;
    trainings[i] = std::make_unique<Training>(recipe_on(all[i], kind, folder.path()), ranks);
    trainings[i]->run(1 + static_cast<int64_t>(i) % 3);  // so that no training has the state it will read
    trainings[i]->save(path(i, ""));
  }
  world().barrier();
  for (size_t from = 0; from < all.size(); ++from) {
    for (size_t to = 0; to < all.size(); ++to) {
      if (!takes_part(all[to])) continue;
      trainings[to]->resume(path(from, ""));
      trainings[to]->save(path(from, "." + std::to_string(to)));
    }
    world().barrier();
    for (size_t to = 0; world().rank() == 0 && to < all.size(); ++to) {
      EXPECT_EQ(difference(newest(path(from, "")), newest(path(from, "." + std::to_string(to)))), "")
          << "from mesh " << from << " to " << to;
    }
  }
  world().barrier();
}

TEST(MeshChange, EveryMeshReadsEveryOtherToTheBit) {
  const std::vector<Kind> kinds = {{"fp32", "adamw", "parts", false},
                                   {"bf16", "adamw", "none", true, /*rounds_stochastically=*/true, /*fp32_state=*/true},
                                   {"bf16_mixed", "muon", "bottom", false},
                                   {"bf16_mixed", "adamw", "none", true, false, false, "all"},
                                   {"fp16_mixed", "sgd", "none", true}};
  if (world().size() == 8) {
    every_mesh_reads_every_other(kinds[0], choices({1, 4, 8}));
  } else if (world().size() == 4) {
    every_mesh_reads_every_other(kinds[1], choices({1, 2, 4}));
    every_mesh_reads_every_other(kinds[2], choices({2, 4}));
  } else {
    for (const Kind& kind : kinds) every_mesh_reads_every_other(kind, choices({1, world().size()}));
  }
}

TEST(MeshChange, OfExpertsThatAreCutOverAnyRanks) {
  std::vector<int64_t> sizes = {1, world().size()};
  if (world().size() == 4) sizes.push_back(2);
  const std::vector<MeshChoice> all = choices(sizes, kExpertChoices);
  const std::string family = world().size() == 4 ? "gpt_oss" : "qwen2_moe";  // biases are stacks too
  every_mesh_reads_every_other({"fp32", "adamw", "none", false, false, false, "none", family}, all);
  if (world().size() <= 2) {
    every_mesh_reads_every_other({"bf16_mixed", "muon", "bottom", false, false, false, "none", "gpt_oss"}, all);
  }
}

constexpr int64_t kSteps = 20, kSaved = 7;

/// Saves after some steps; another training continues from there and must equal one that was never interrupted.
void goes_on_as_if_nothing_was(const MeshChoice& choice, const Kind& kind) {
  SCOPED_TRACE(kind.name() + " " + choice.sharding);
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const Recipe recipe = recipe_on(choice, kind, folder.path());
  Training uninterrupted(recipe, world());
  uninterrupted.run(kSaved);
  uninterrupted.save(folder.path() / "run");
  const std::vector<double> expected = uninterrupted.run(kSteps - kSaved);
  Training resumed(recipe, world());
  EXPECT_TRUE(resumed.resume(folder.path() / "run").changes.empty());
  EXPECT_EQ(resumed.run(kSteps - kSaved), expected);
  EXPECT_EQ(resumed.state().num_samples, uninterrupted.state().num_samples);
}

TEST(MeshChange, OnTheSameMeshLossesAreThoseOfOneRunToTheBit) {
  const std::vector<Kind> kinds = {
      {"fp32", "adamw", "none", true},
      {"bf16_mixed", "adamw", "none", true, false, false, /*adapter=*/"all"},
      {"bf16", "adamw", "none", false, /*rounds_stochastically=*/true},
      {"fp16_mixed", "adamw", "none", true},
      {"bf16_mixed", "muon", "parts", false},
      {"bf16", "sgd", "none", false, /*rounds_stochastically=*/false, /*fp32_state=*/true}};
  size_t next = 0;
  for (const MeshChoice& choice : choices({world().size()})) {
    goes_on_as_if_nothing_was(choice, kinds[next++ % kinds.size()]);
    if (world().size() <= 2) goes_on_as_if_nothing_was(choice, kinds[next++ % kinds.size()]);
  }
}

TEST(MeshChange, OnTheSameMeshLossesOfExpertsAreThoseOfOneRunToTheBit) {
  for (const MeshChoice& choice : choices({world().size()}, kExpertChoices)) {
    goes_on_as_if_nothing_was(choice, {"fp64", "adamw", "none", false, false, false, "none", "qwen3_moe"});
  }
}

TEST(MeshChange, CheckpointsOfAdaptersLeaveTheBaseOut) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const Kind kind{"bf16_mixed", "adamw", "none", false, false, false, /*adapter=*/"all"};
  for (const MeshChoice& choice : choices({world().size()})) {
    SCOPED_TRACE(choice.sharding);
    Recipe recipe = recipe_on(choice, kind, folder.path());
    Training first(recipe, world());
    first.run(2);
    first.save(folder.path() / "run");
    const std::vector<double> expected = first.run(2);
    Training second(recipe, world(), /*resumes=*/true);
    second.resume(folder.path() / "run");
    EXPECT_EQ(second.run(2), expected);
    world().barrier();
    if (world().rank() == 0) {
      const Manifest manifest = read_manifest(newest(folder.path() / "run"));
      for (const auto& [name, tensor] : manifest.tensors) {
        EXPECT_TRUE(name.find(".lora_") != std::string::npos || name.find("norm") != std::string::npos) << name;
      }
      recipe.train.freeze = {"*norm*"};
      const auto refused = [&](const Recipe& other) {
        const CheckpointHead own = describe_run(other, MeshLayout({{"dp", 1}}));
        return message<InputError>([&] { resume_candidate(newest(folder.path() / "run"), own, 100); });
      };
      EXPECT_NE(refused(recipe).find("train.freeze: with adapters"), std::string::npos);
      std::filesystem::remove_all(folder.path() / "run");
    }
    world().barrier();
  }
}

TEST(MeshChange, CheckpointsOfAdaptersHaveTheirFrozenFactors) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const Kind kind{"fp32", "adamw", "none", false, false, false, /*adapter=*/"qv"};
  const auto path = [&](const char* name) { return folder.path() / name; };
  const auto export_for_peft = [&](const char* run, const char* out) {
    if (world().rank() == 0) export_adapter(newest(path(run)), path(out), {});
    world().barrier();
  };
  for (const MeshChoice& choice : choices({world().size()})) {
    SCOPED_TRACE(choice.sharding);
    Recipe recipe = recipe_on(choice, kind, folder.path());
    Training before(recipe, world());
    before.run(1);
    before.save(path("before"));
    export_for_peft("before", "peft");
    recipe.model.shape.adapter.from = path("peft");
    recipe.train.freeze = {"*.lora_A.*"};
    Training first(recipe, world());
    first.run(2);
    first.save(path("run"));
    const std::vector<double> expected = first.run(2);
    Training second(recipe, world(), /*resumes=*/true);
    second.resume(path("run"));
    EXPECT_EQ(second.run(2), expected);
    export_for_peft("run", "trained");
    if (world().rank() == 0) {
      const SafetensorsFile from(path("peft") / kPeftWeights), trained(path("trained") / kPeftWeights);
      for (const TensorEntry& entry : from.entries()) {
        const bool is_frozen = entry.name.ends_with(".lora_A.weight");
        EXPECT_EQ(at::equal(from.read(entry.name), trained.read(entry.name)), is_frozen) << entry.name;
      }
      EXPECT_NO_THROW(export_checkpoint(newest(path("run")), path("merged"), {}));
      for (const char* name : {"before", "peft", "run", "trained", "merged"}) std::filesystem::remove_all(path(name));
    }
    world().barrier();
  }
}

TEST(MeshChange, WithOtherUnitsLossesAreThoseOfOneRunToTheBit) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const MeshChoice choice{world().size(), 1, 1, world().size() > 1 ? "full_shard" : "no_shard"};
  Recipe recipe = recipe_on(choice, {"bf16_mixed", "adamw", "none", true}, folder.path());
  recipe.train.clip_norm = 0;  // its factor is rounded in the order in which units add up squares
  for (const char* unit : {"sublayer", "block"}) {
    const std::string other = unit == std::string("block") ? "sublayer" : "block";
    recipe.parallel.fsdp.unit = unit;
    Training uninterrupted(recipe, world());
    uninterrupted.run(kSaved);
    uninterrupted.save(folder.path() / unit);
    const std::vector<double> expected = uninterrupted.run(kSteps - kSaved);
    recipe.parallel.fsdp.unit = other;
    Training resumed(recipe, world());
    const std::vector<std::string> changes = resumed.resume(folder.path() / unit).changes;
    if (world().rank() == 0) {
      EXPECT_EQ(changes, std::vector<std::string>{"parallel.fsdp.unit: " + other + ", was " + unit});
    }
    EXPECT_EQ(resumed.run(kSteps - kSaved), expected);
  }
}

TEST(MeshChange, WhatMuonKeepsGoesOn) {
  for (const MeshChoice& choice : choices({world().size()}))
    goes_on_as_if_nothing_was(choice, {"fp32", "muon", "none", true});
}

TEST(MeshChange, ACheckpointWithAManifestOfFormat1IsReadToTheBit) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const MeshChoice choice = choices({world().size()}).front();
  Training training(recipe_on(choice, {"fp16_mixed", "adamw", "none", true}, folder.path()), world());
  training.run(2);
  training.save(folder.path() / "old");
  training.save(folder.path() / "kept");
  world().barrier();
  if (world().rank() == 0) {
    const std::filesystem::path checkpoint = newest(folder.path() / "old");
    const std::string text = format_1_text(read_manifest(checkpoint));
    std::ofstream(checkpoint / "manifest.json") << text;
    EXPECT_NE(text.find("\"format\": 1"), std::string::npos);
  }
  world().barrier();
  training.run(1);  // differs from the checkpoint
  training.resume(folder.path() / "old");
  training.save(folder.path() / "new");
  world().barrier();
  if (world().rank() == 0) {
    EXPECT_EQ(difference(newest(folder.path() / "kept"), newest(folder.path() / "new")), "");
  }
  world().barrier();
}

// A version wrote it whose schedules fell one step earlier.
TEST(MeshChange, ACheckpointOfAnotherScheduleSaysSoWhereItMatters) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  Recipe recipe = recipe_on(choices({world().size()}).front(), {"fp32", "sgd", "none", false}, folder.path());
  const auto mentions = [&](const ScheduleOptions& schedule) {
    recipe.schedule = schedule;
    Training training(recipe, world());
    const ResumePoint resumed = training.resume(folder.path() / "run");
    return std::any_of(resumed.changes.begin(), resumed.changes.end(), [](const std::string& change) {
      return change.find("falls one step later than in the version that wrote the checkpoint") != std::string::npos;
    });
  };
  Training training(recipe, world());
  training.run(1);
  training.save(folder.path() / "run");
  EXPECT_FALSE(mentions({.name = Schedule::Cosine, .min_ratio = 0.1})) << "it is of this version";
  world().barrier();
  if (world().rank() == 0) {
    const std::filesystem::path checkpoint = newest(folder.path() / "run");
    Manifest manifest = read_manifest(checkpoint);
    EXPECT_EQ(manifest.head.versions.erase(kScheduleVersion), 1u);
    std::ofstream(checkpoint / "manifest.json") << format_1_text(manifest);
  }
  world().barrier();
  const bool speaks = world().rank() == 0;
  EXPECT_EQ(mentions({.name = Schedule::Cosine, .min_ratio = 0.1}), speaks);
  EXPECT_EQ(mentions({.name = Schedule::Linear}), speaks);
  EXPECT_FALSE(mentions({.name = Schedule::Linear, .min_ratio = 1}));
  EXPECT_FALSE(mentions({.name = Schedule::Constant}));
}

TEST(MeshChange, OnAnotherMeshLossesAreThoseOfOneRun) {
  if (world().size() == 1) GTEST_SKIP() << "there is one mesh";
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const Kind kind{"fp64", "adamw", "none", true};
  const std::vector<MeshChoice> all = choices({world().size()});
  Training first(recipe_on(all[0], kind, folder.path()), world());
  first.run(2);
  first.save(folder.path() / "run");
  const std::vector<double> expected = first.run(3);
  for (const MeshChoice& choice : all) {
    Training other(recipe_on(choice, kind, folder.path()), world());
    other.resume(folder.path() / "run");
    const std::vector<double> losses = other.run(3);
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-10 * expected[i]);
  }
}

/// Saves in one precision and continues in another.
TEST(MeshChange, NumbersAreRoundedToThePrecisionThatIsAskedFor) {
  const ScratchFolder folder(world());
  if (world().rank() == 0) write_tokens(folder.path());
  world().barrier();
  const MeshChoice choice = choices({world().size()}).front();
  const auto train = [&](const std::string& precision) {
    return Training(recipe_on(choice, {precision, "adamw", "none", false}, folder.path()), world());
  };
  Training wide = train("fp32");
  wide.run(3);
  wide.save(folder.path() / "fp32");
  for (const auto& [precision, dtype] : {std::pair("bf16_mixed", at::kFloat),
                                         {"bf16", at::kBFloat16},
                                         {"fp16_mixed", at::kFloat},
                                         {"fp64", at::kDouble}}) {
    Training other = train(precision);
    const ResumePoint resumed = other.resume(folder.path() / "fp32");
    if (world().rank() == 0) {
      const std::string change = "train.precision: " + std::string(precision) + ", was fp32";
      EXPECT_NE(std::find(resumed.changes.begin(), resumed.changes.end(), change), resumed.changes.end());
    }
    other.save(folder.path() / precision);
    world().barrier();
    if (world().rank() != 0) continue;
    const Manifest from = read_manifest(newest(folder.path() / "fp32")),
                   to = read_manifest(newest(folder.path() / precision));
    CheckpointReader exact(newest(folder.path() / "fp32"), from), rounded(newest(folder.path() / precision), to);
    for (const auto& [name, stored] : from.tensors) {
      const Box all{std::vector<int64_t>(stored.shape.size(), 0), stored.shape};
      const at::Tensor a = at::empty(stored.shape, at::kFloat), b = at::empty(stored.shape, dtype);
      exact.read({name, stored.shape, all, a});
      rounded.read({name, stored.shape, all, b});
      EXPECT_EQ(to.tensors.at(name).dtype, dtype) << name;
      EXPECT_TRUE(at::equal(a.to(dtype), b)) << name << " in " << precision;
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
