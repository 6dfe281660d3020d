#include "runtime/program/recipe/changes.h"

#include <gtest/gtest.h>

#include <functional>

#include "runtime/program/recipe/load.h"

namespace meshtrain {
namespace {

using Lines = std::vector<std::string>;

Recipe recipe() {
  Recipe recipe;
  recipe.name = "tiny";
  recipe.model.shape.family = "llama";
  recipe.model.shape.vocab_size = 64;
  recipe.parallel.mesh = {{"dp", 2}, {"tp", 1}, {"cp", 1}};
  recipe.data.tokens = "/data/tokens.bin";
  recipe.train.sequence_length = 16;
  recipe.optimizer.learning_rate = 1e-3;
  return recipe;
}

RecipeChanges after(const std::function<void(Recipe&)>& change) {
  Recipe changed = recipe();
  change(changed);
  return compare_recipes(to_yaml(recipe()), to_yaml(changed));
}

TEST(RecipeChanges, TheSameRecipeHasNone) {
  const RecipeChanges changes = after([](Recipe&) {});
  EXPECT_EQ(changes.contradictions, Lines{});
  EXPECT_EQ(changes.allowed, Lines{});
}

TEST(RecipeChanges, AnotherTrainingIsAContradiction) {
  const RecipeChanges changes = after([](Recipe& changed) {
    changed.model.shape.vocab_size = 96;
    changed.model.shape.tie_word_embeddings = true;
    changed.model.shape.rope_scaling.emplace().type = "linear";
    changed.data.shuffle = true;
    changed.data.documents = 0;
    changed.train.sequence_length = 32;
    changed.train.seed = 7;
    changed.optimizer.name = "sgd";
  });
  EXPECT_EQ(changes.contradictions,
            (Lines{"model.vocab_size: 96, was 64", "model.rope_scaling.rope_type: linear, was none",
                   "model.rope_scaling.factor: 1, was none", "model.tie_word_embeddings: true, was false",
                   "data.shuffle: true, was false", "data.documents: 0, was none", "train.sequence_length: 32, was 16",
                   "train.seed: 7, was 42", "optimizer.name: sgd, was adamw"}));
  EXPECT_EQ(changes.allowed, Lines{});
}

TEST(RecipeChanges, BeforeTheFirstStepOnlyAnotherModelIsAContradiction) {
  Recipe changed = recipe();
  changed.model.shape.vocab_size = 96;
  changed.data.shuffle = true;
  changed.train.seed = 7;
  changed.optimizer.name = "sgd";
  const RecipeChanges changes = compare_recipes(to_yaml(recipe()), to_yaml(changed), /*trained=*/false);
  EXPECT_EQ(changes.contradictions, Lines{"model.vocab_size: 96, was 64"});
  EXPECT_EQ(changes.allowed,
            (Lines{"data.shuffle: true, was false", "train.seed: 7, was 42", "optimizer.name: sgd, was adamw"}));
}

TEST(RecipeChanges, AdaptersStayButNotTheFolderThatTheyBeganFrom) {
  Recipe before = recipe();
  before.model.shape.adapter = {.rank = 4, .targets = {"q_proj"}, .from = "/adapters/mine"};
  Recipe changed = before;
  changed.model.shape.adapter.from.clear();
  changed.model.shape.adapter.rank = 8;
  const RecipeChanges changes = compare_recipes(to_yaml(before), to_yaml(changed));
  EXPECT_EQ(changes.contradictions, Lines{"adapter.rank: 8, was 4"});
  EXPECT_EQ(changes.allowed, Lines{"adapter.from: none, was /adapters/mine"});
}

TEST(RecipeChanges, HowItIsTrainedMayChange) {
  const RecipeChanges changes = after([](Recipe& changed) {
    changed.model.hf = "/models/other place";
    changed.parallel.mesh = {{"dp", 1}, {"tp", 2}, {"cp", 1}};
    changed.parallel.order = {"tp", "dp", "cp"};
    changed.data.tokens = "/moved/tokens.bin";
    changed.train.precision = "bf16_mixed";
    changed.train.freeze = {"*embed*", "a b"};
    changed.optimizer.learning_rate = 2e-3;
    changed.optimizer.groups = {{"*norm*", 2, 0.5}};
    changed.checkpoint.every = 10;
  });
  EXPECT_EQ(changes.contradictions, Lines{});
  EXPECT_EQ(changes.allowed,
            (Lines{"model.hf: /models/other place, was none", "parallel.mesh.dp: 1, was 2",
                   "parallel.mesh.tp: 2, was 1", "parallel.order: [tp, dp, cp], was [pp, dp, cp, tp]",
                   "data.tokens: /moved/tokens.bin, was /data/tokens.bin", "train.precision: bf16_mixed, was fp32",
                   "train.freeze: [*embed*, a b], was []", "optimizer.learning_rate: 0.002, was 0.001",
                   "optimizer.groups: [{pattern: *norm*, learning_rate_factor: 2, weight_decay: 0.5}], was []",
                   "checkpoint.every: 10, was 0"}));
}

TEST(RecipeChanges, AnotherMixtureIsAContradictionByEntryAndKey) {
  Recipe mixed = recipe();
  mixed.data.tokens.clear();
  mixed.data.mixture.resize(2);
  mixed.data.mixture[0].tokens = "/data/a.bin";
  mixed.data.mixture[1].tokens = "/data/b.bin";
  Recipe changed = mixed;
  changed.data.mixture[0].tokens = "/moved/a.bin";
  EXPECT_EQ(compare_recipes(to_yaml(mixed), to_yaml(changed)).contradictions, Lines{});
  EXPECT_EQ(compare_recipes(to_yaml(mixed), to_yaml(changed)).allowed,
            Lines{"data.mixture[0].tokens: /moved/a.bin, was /data/a.bin"});
  changed.data.mixture[1].weight = 0.5;
  changed.data.mixture[1].shuffle = true;
  EXPECT_EQ(compare_recipes(to_yaml(mixed), to_yaml(changed)).contradictions,
            (Lines{"data.mixture[1].weight: 0.5, was 1", "data.mixture[1].shuffle: true, was false"}));
}

TEST(RecipeChanges, FilesThatComeOrGoAreALineEach) {
  Recipe mixed = recipe();
  mixed.data.tokens.clear();
  for (const char* file : {"/data/a.bin", "/data/b.bin", "/data/c.bin"}) {
    mixed.data.mixture.emplace_back().tokens = file;
    mixed.data.mixture.back().documents = 2;
  }
  Recipe fewer = mixed;
  fewer.data.mixture.resize(1);
  EXPECT_EQ(compare_recipes(to_yaml(mixed), to_yaml(fewer)).contradictions,
            (Lines{"data.mixture[1]: none, was /data/b.bin", "data.mixture[2]: none, was /data/c.bin"}));
  EXPECT_EQ(compare_recipes(to_yaml(fewer), to_yaml(mixed)).contradictions,
            (Lines{"data.mixture[1]: /data/b.bin, was none", "data.mixture[2]: /data/c.bin, was none"}));
  const std::string three = "a mixture of 3 files (/data/a.bin, /data/b.bin, /data/c.bin)";
  const std::string one = "the one file /data/tokens.bin";
  EXPECT_EQ(compare_recipes(to_yaml(recipe()), to_yaml(mixed)).contradictions,
            Lines{"data.mixture: " + three + ", was " + one});
  EXPECT_EQ(compare_recipes(to_yaml(mixed), to_yaml(recipe())).contradictions,
            Lines{"data.mixture: " + one + ", was " + three});
  EXPECT_EQ(compare_recipes(to_yaml(recipe()), to_yaml(mixed), /*trained=*/false).allowed,
            Lines{"data.mixture: " + three + ", was " + one});
  for (const char* file : {"d", "e"}) mixed.data.mixture.emplace_back().tokens = file;
  EXPECT_EQ(compare_recipes(to_yaml(recipe()), to_yaml(mixed)).contradictions,
            Lines{"data.mixture: a mixture of 5 files (/data/a.bin, /data/b.bin, /data/c.bin, d, ...), was " + one});
}

TEST(RecipeChanges, EvaluationMayChange) {
  const RecipeChanges changes = after([](Recipe& changed) {
    changed.evaluate.every = 100;
    changed.evaluate.tokens = "/data/held_out.bin";
  });
  EXPECT_EQ(changes.contradictions, Lines{});
  EXPECT_EQ((Lines{changes.allowed[0], changes.allowed[1]}),
            (Lines{"evaluate.every: 100, was 0", "evaluate.tokens: /data/held_out.bin, was none"}));
}

/// Returns a readable recipe with `more` lines.
std::string full(const std::string& more) {
  return to_yaml(parse_recipe(R"(
name: tiny
model: {hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1, vocab_size: 64}
data: {tokens: /data/tokens.bin, dtype: uint8, layout: stream}
train: {sequence_length: 16, global_batch: 4, steps: 3}
optimizer: {learning_rate: 0.1}
)" + more));
}

TEST(RecipeChanges, WhatGoesWithoutSayingIsNotTold) {
  const std::string plain = full(""), evaluated = full("evaluate: {every: 3, tokens: /data/b.bin, shuffle: true}\n");
  EXPECT_EQ(compare_recipes(plain, evaluated).allowed,
            (Lines{"evaluate.every: 3, was 0", "evaluate.tokens: /data/b.bin, was none",
                   "evaluate.shuffle: true, was none"}));
  EXPECT_EQ(compare_recipes(evaluated, plain).allowed,
            (Lines{"evaluate.every: 0, was 3", "evaluate.tokens: none, was /data/b.bin",
                   "evaluate.shuffle: none, was true"}));
  EXPECT_EQ(compare_recipes(plain, full("checkpoint: {keep_last: 2}\n")).allowed,
            Lines{"checkpoint.keep_last: 2, was 0"});
  EXPECT_EQ(compare_recipes(plain, full("parallel: {fsdp: {offload: {to: disk, path: /disk}}}\n")).allowed,
            (Lines{"parallel.fsdp.offload.to: disk, was none", "parallel.fsdp.offload.path: /disk, was none"}));
}

TEST(RecipeChanges, TheMeshOfAnImportIsNone) {
  const std::string imported = full(""), run = full("parallel: {mesh: {dp: 2, tp: 1, cp: 1}}\n");
  EXPECT_EQ(compare_recipes(imported, run, /*trained=*/false).allowed, Lines{});
  EXPECT_EQ(compare_recipes(run, full("parallel: {mesh: {dp: 1, tp: 1, cp: 1}}\n")).allowed,
            Lines{"parallel.mesh.dp: 1, was 2"});
}

TEST(RecipeChanges, KeysThatAreNotThereAnyMoreAreTold) {
  const RecipeChanges changes = compare_recipes("train: {seed: 1, old: 2}\ndata: {gone: null}", "train: {seed: 1}");
  EXPECT_EQ(changes.allowed, Lines{"train.old: none, was 2"});
  EXPECT_EQ(changes.contradictions, Lines{});
}

}  // namespace
}  // namespace meshtrain
