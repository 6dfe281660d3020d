#include "runtime/program/recipe/validate.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/program/recipe/sharding.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/runtime/program/recipe/fitting_recipe.h"
#include "tests/runtime/program/recipe/recipe_folder.h"

namespace meshtrain::testing {
namespace {

const MeshLayout kMesh({{"dp", 2}, {"cp", 2}, {"tp", 2}});

std::string refusal(const std::function<void(Recipe&)>& change, const MeshLayout& mesh = kMesh) {
  Recipe recipe = fitting_recipe();
  change(recipe);
  return input_error([&] { resolve(recipe, mesh); });
}

TEST(Validate, AcceptsWhatFits) {
  Recipe recipe = fitting_recipe();
  resolve(recipe, kMesh);
  resolve(recipe, MeshLayout({{"tp", 4}, {"dp", 1}, {"cp", 1}}));
  for (const char* mode : {"no_shard", "shard_optimizer", "shard_grad_op", "full_shard", "hybrid_shard"}) {
    recipe.parallel.fsdp.mode = mode;
    resolve(recipe, kMesh);
  }
  recipe.parallel.fsdp.unit = "sublayer";
  resolve(recipe, kMesh);
  recipe.parallel.fsdp = {"hybrid_shard", 2, {"dp"}};
  resolve(recipe, kMesh);
  for (const char* algorithm : {"ring", "ulysses", "all_gather"}) {
    for (const char* layout : {"auto", "contiguous", "zigzag"}) {
      recipe.parallel.context = {algorithm, layout};
      resolve(recipe, kMesh);
    }
  }
  recipe.parallel.sequence_parallel = "on";
  recipe.parallel.backend = "mpi";
  recipe.train.precision = "bf16";
  recipe.train.stochastic_rounding = true;
  resolve(recipe, kMesh);
  recipe.train.precision = "fp16_mixed";
  recipe.train.stochastic_rounding = false;
  recipe.train.loss_scale.emplace();
  recipe.parallel.fsdp.reduce_dtype = "fp16";
  recipe.device = "cpu";
  recipe.schedule = {.name = Schedule::Wsd, .warmup_steps = 4, .decay_steps = 6, .min_ratio = 0.1};
  recipe.data.ignore_id = 65535;
  recipe.data.documents = 255;
  recipe.data.boundaries_count = false;
  recipe.train.global_batch = 4;
  resolve(recipe, kMesh);
}

TEST(Validate, NamesPlacesThatTheRecipeKnows) {
  const RecipeFolder folder;
  folder.write("tokens.bin", std::string(64, 'a'));
  const std::string file = folder.write("a.yaml", kSmallRecipe).string();
  const auto refused = [&](const std::vector<std::string>& overrides) {
    return input_error([&] { resolve(load_recipe(file, overrides, ""), kMesh); });
  };
  EXPECT_EQ(refused({"train.micro_batch=8"}),
            file +
                ":12:17: train.global_batch: 8 is not a multiple of dp x micro_batch = 2 x 8 = 16: change "
                "train.global_batch, train.micro_batch or the mesh");
  EXPECT_EQ(refused({"schedule.warmup_steps=11"}), "--set schedule.warmup_steps=11: 11 is more than train.steps 10");
  EXPECT_EQ(refused({"schedule={name: wsd}"}),
            file + ": schedule.decay_steps: wsd needs at least 1, the length of its decay");
}

TEST(Validate, NamesWhatTpDoesNotDivide) {
  const MeshLayout tp8({{"dp", 1}, {"cp", 1}, {"tp", 8}}), tp3({{"dp", 1}, {"cp", 1}, {"tp", 3}});
  EXPECT_EQ(refusal([](Recipe&) {}, tp8),
            "model.num_key_value_heads: 4 does not divide over tp=8: use a mesh whose tp divides it");
  EXPECT_EQ(refusal([](Recipe&) {}, tp3),
            "model.num_attention_heads: 8 does not divide over tp=3: use a mesh whose tp divides it");
  EXPECT_EQ(refusal([](Recipe& recipe) { recipe.model.shape.intermediate_size = 97; }),
            "model.intermediate_size: 97 does not divide over tp=2: use a mesh whose tp divides it");
}

TEST(Validate, NamesTheBatch) {
  EXPECT_EQ(refusal([](Recipe& recipe) { recipe.train.global_batch = 6; }),
            "train.global_batch: 6 is not a multiple of dp x micro_batch = 2 x 2 = 4: change train.global_batch, "
            "train.micro_batch or the mesh");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.train.phases = {{1000, 4}, {2000, 10}, {{}, 8}};
            }),
            "train.global_batch: 10 is not a multiple of dp x micro_batch = 2 x 2 = 4: change train.global_batch, "
            "train.micro_batch or the mesh");
}

TEST(Validate, NamesLongropeBesideDocuments) {
  const auto with = [](int64_t original, bool documents) {
    return [=](Recipe& recipe) {
      RopeScaling& scaling = recipe.model.shape.rope_scaling.emplace();
      scaling.type = "longrope";
      scaling.original_max_position_embeddings = original;
      if (documents) recipe.data.documents = 0;
    };
  };
  Recipe short_enough = fitting_recipe(), one_document = fitting_recipe();
  const int64_t length = short_enough.train.sequence_length;
  with(length, true)(short_enough);
  with(length / 2, false)(one_document);
  resolve(short_enough, kMesh);
  resolve(one_document, kMesh);
  EXPECT_EQ(refusal(with(length / 2, true)),
            "train.sequence_length: " + std::to_string(length) +
                " is beyond the model's original_max_position_embeddings " + std::to_string(length / 2) +
                ", where longrope depends on the length of each document: use at most that, or samples of one document "
                "(without data.documents)");
}

TEST(Validate, NamesTheSequence) {
  const auto length = [](int64_t value, const std::string& layout) {
    return [=](Recipe& recipe) {
      recipe.train.sequence_length = value;
      recipe.parallel.context.layout = layout;
    };
  };
  EXPECT_EQ(refusal(length(33, "auto")),
            "train.sequence_length: 33 is not a multiple of cp = 2, the parts that ranks hold: "
            "change train.sequence_length or the mesh");
  EXPECT_EQ(refusal(length(34, "zigzag")),
            "train.sequence_length: 34 is not a multiple of 2 x cp = 4, the chunks of layout zigzag: "
            "change train.sequence_length or the mesh, or set parallel.context.layout: contiguous");
  Recipe recipe = fitting_recipe();
  length(34, "auto")(recipe);
  resolve(recipe, kMesh);
  length(33, "zigzag")(recipe);
  resolve(recipe, MeshLayout({{"dp", 2}, {"cp", 1}, {"tp", 2}}));  // nothing is cut
}

TEST(Validate, NamesHeadsThatUlyssesCannotShareOut) {
  const auto ulysses = [](Recipe& recipe) { recipe.parallel.context.algorithm = "ulysses"; };
  Recipe recipe = fitting_recipe();
  ulysses(recipe);
  resolve(recipe, kMesh);                                          // two KV heads on each tp rank
  resolve(recipe, MeshLayout({{"dp", 1}, {"cp", 2}, {"tp", 4}}));  // one KV head, which two ranks have
  EXPECT_EQ(
      refusal(ulysses, MeshLayout({{"dp", 1}, {"cp", 4}, {"tp", 4}})),
      "parallel.context.algorithm: ulysses divides the 2 query heads of a tensor-parallel rank over cp=4, "
      "which does not divide them: use ring or all_gather, or a mesh with num_attention_heads a multiple of tp x cp");
}

TEST(Validate, NamesSequenceParallel) {
  const auto odd = [](Recipe& recipe) {
    recipe.train.micro_batch = 1;
    recipe.train.sequence_length = 30;
    recipe.parallel.sequence_parallel = "on";
  };
  EXPECT_EQ(refusal(odd),
            "parallel.sequence_parallel: on needs micro_batch x sequence_length / cp = 1 x 15 = 15 tokens to divide "
            "over tp=2: change one of them, or use auto or off");
  Recipe recipe = fitting_recipe();
  odd(recipe);
  recipe.parallel.sequence_parallel = "auto";
  resolve(recipe, kMesh);
}

TEST(Validate, NamesWhatCannotBeSharded) {
  const auto with = [](FsdpRecipe fsdp) { return refusal([&](Recipe& recipe) { recipe.parallel.fsdp = fsdp; }); };
  EXPECT_EQ(
      with({"hybrid_shard", 3, {}}),
      "parallel.fsdp.shard_size: 3 does not divide the 4 ranks over dp x cp that hybrid_shard has on this mesh: use "
      "1, 2, 4");
  EXPECT_EQ(with({"full_shard", 2, {}}),
            "parallel.fsdp.shard_size: belongs to mode hybrid_shard, but the mode is full_shard: change the mode or "
            "leave shard_size out");
  FsdpRecipe sublayers{"full_shard", {}, {}};
  sublayers.unit = "sublayer";
  sublayers.unit_layers = 2;
  EXPECT_EQ(with(sublayers),
            "parallel.fsdp.unit: sublayer makes units inside each block, but parallel.fsdp.unit_layers puts 2 blocks "
            "into a unit: leave one of the two keys out");
  EXPECT_EQ(with({"full_shard", {}, {"cp"}}),
            "parallel.fsdp.shard_axes: parameters are cut over dp, or over dp and cp: use [dp] or [dp, cp]");
  EXPECT_EQ(with({"full_shard", {}, {"dp", "dp"}}),
            "parallel.fsdp.shard_axes: dp is named twice: use [dp] or [dp, cp]");
}

TEST(ShardingChoice, OfAutoIsFullShardWithoutTp) {
  const auto chosen = [](const FsdpRecipe& fsdp, int64_t dp, int64_t cp, int64_t tp) {
    Recipe recipe = fitting_recipe();
    recipe.parallel.fsdp = fsdp;
    return describe(sharding_choice(recipe, MeshLayout({{"dp", dp}, {"cp", cp}, {"tp", tp}})));
  };
  EXPECT_EQ(chosen({}, 2, 2, 2), "no_shard over dp, 2 ranks");
  EXPECT_EQ(chosen({}, 2, 1, 1), "full_shard over dp, 2 ranks");
  EXPECT_EQ(chosen({}, 2, 2, 1), "full_shard over dp x cp, 4 ranks");
  EXPECT_EQ(chosen({}, 1, 1, 1), "no_shard over dp, 1 rank");
  EXPECT_EQ(chosen({"full_shard", {}, {"dp"}}, 2, 2, 2), "full_shard over dp, 2 ranks");
  EXPECT_EQ(chosen({"full_shard", {}, {"dp"}}, 1, 2, 2), "no_shard over dp, 1 rank");
  EXPECT_EQ(chosen({"hybrid_shard", 2, {}}, 4, 1, 2), "hybrid_shard over dp, 4 ranks, 2 to a copy");
  EXPECT_EQ(chosen({"hybrid_shard", {}, {}}, 4, 1, 2), "hybrid_shard over dp, 4 ranks, those of a host to a copy");
}

TEST(Validate, NamesWhatDoesNotGoWithADevice) {
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.parallel.backend = "nccl";
              recipe.device = "cpu";
            }),
            "parallel.backend: nccl communicates between GPUs, but device is cpu: use device cuda, or backend mpi");
  Recipe recipe = fitting_recipe();
  recipe.device = "cuda";
  recipe.train.offload_activations = true;
  resolve(recipe, kMesh);
}

TEST(Validate, NamesWhatBelongsToAnotherPrecision) {
  EXPECT_EQ(
      refusal([](Recipe& recipe) { recipe.parallel.fsdp.reduce_dtype = "fp16"; }),
      "parallel.fsdp.reduce_dtype: fp16 needs train.precision fp16_mixed, but it is fp32: change the precision or "
      "leave it out");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.train.precision = "fp16_mixed";
              recipe.parallel.fsdp.reduce_dtype = "bf16";
            }),
            "parallel.fsdp.reduce_dtype: bf16 needs train.precision bf16_mixed, but it is fp16_mixed: change the "
            "precision or leave it out");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.train.precision = "bf16_mixed";
              recipe.train.stochastic_rounding = true;
            }),
            "train.stochastic_rounding: true needs train.precision bf16, but it is bf16_mixed: change the precision or "
            "leave it out");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.train.precision = "bf16";
              recipe.train.stochastic_rounding = true;
              recipe.optimizer.name = "muon";
            }),
            "train.stochastic_rounding: true rounds what adamw and sgd change, but optimizer.name is muon: use one of "
            "them, or train.precision bf16_mixed");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.train.precision = "fp64";
              recipe.optimizer.state_dtype = at::kFloat;
            }),
            "optimizer.state_dtype: fp32 is less than train.precision fp64: leave it out, or use another precision");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.train.precision = "fp64";
              recipe.train.residual_dtype = "fp32";
            }),
            "train.residual_dtype: fp32 is less than train.precision fp64: leave it out, or use another precision");
  EXPECT_EQ(refusal([](Recipe& recipe) { recipe.train.loss_scale.emplace(); }),
            "train.loss_scale: needs train.precision fp16_mixed, but it is fp32: change the precision or leave it out");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.train.precision = "fp16_mixed";
              recipe.train.loss_scale = LossScaleOptions{.initial = 2, .min = 4};
            }),
            "train.loss_scale.min: 4 is more than train.loss_scale.initial 2");
}

TEST(Validate, NamesTheSchedule) {
  EXPECT_EQ(refusal([](Recipe& recipe) { recipe.schedule.warmup_steps = 11; }),
            "schedule.warmup_steps: 11 is more than train.steps 10");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.schedule = {.name = Schedule::Wsd, .warmup_steps = 4, .decay_steps = 0, .min_ratio = 0};
            }),
            "schedule.decay_steps: wsd needs at least 1, the length of its decay");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.schedule = {.name = Schedule::Wsd, .warmup_steps = 4, .decay_steps = 7, .min_ratio = 0};
            }),
            "schedule.decay_steps: 7 is more than the 6 steps that train.steps 10 leaves after schedule.warmup_steps "
            "4");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.schedule = {.name = Schedule::Cosine, .warmup_steps = 4};
              recipe.schedule.total_steps = 3;
            }),
            "schedule.warmup_steps: 4 is more than schedule.total_steps 3");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.schedule = {.name = Schedule::Cosine};
              recipe.schedule.total_steps = 3;
              recipe.schedule.delay = 1;
            }),
            "schedule.total_steps: the learning rate is 0 after step 4, and train.steps is 10: set more, or a "
            "schedule.min_ratio above 0");
}

TEST(Validate, NamesAnIdThatTheFileCannotHold) {
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.data.dtype = "uint8";
              recipe.data.ignore_id = 256;
            }),
            "data.ignore_id: 256 does not fit into a file of uint8, whose ids end at 255");
  EXPECT_EQ(refusal([](Recipe& recipe) { recipe.data.documents = 65536; }),
            "data.documents: 65536 does not fit into a file of uint16, whose ids end at 65535");
}

TEST(Validate, NamesASeparatorThatTheModelDoesNotHave) {
  EXPECT_EQ(refusal([](Recipe& recipe) { recipe.data.documents = 256; }),
            "data.documents: 256 is not a token of the model, whose ids end at 255: name the id that ends a document, "
            "or use a model.vocab_size above it");
}

TEST(Validate, NamesTheSourceThatIsWrong) {
  EXPECT_EQ(refusal([](Recipe& recipe) { recipe.data.documents = kDocumentsOfIndex; }),
            "data.documents: index needs a Megatron file, but data.dtype is uint16: name the id that ends a "
            "document, or use dtype megatron");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.data.mixture.resize(2);
              recipe.data.mixture[1].documents = 256;
            }),
            "data.mixture[1].documents: 256 is not a token of the model, whose ids end at 255: name the id that ends a "
            "document, or use a model.vocab_size above it");
  EXPECT_EQ(refusal([](Recipe& recipe) {
              recipe.evaluate.tokens = "held_out.bin";
              recipe.evaluate.dtype = "uint8";
              recipe.evaluate.ignore_id = 256;
            }),
            "evaluate.ignore_id: 256 does not fit into a file of uint8, whose ids end at 255");
  Recipe megatron = fitting_recipe();
  megatron.data.dtype = "megatron";
  megatron.data.documents = kDocumentsOfIndex;
  megatron.data.ignore_id = 70000;
  resolve(megatron, kMesh);
}

TEST(Validate, NamesBoundariesWithoutDocuments) {
  EXPECT_EQ(refusal([](Recipe& recipe) { recipe.data.boundaries_count = false; }),
            "data.boundary_labels: ignored needs data.documents, the id of the token that ends a document: name it, or "
            "leave data.boundary_labels out");
}

}  // namespace
}  // namespace meshtrain::testing
