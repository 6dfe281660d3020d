// Checkpoints of every mesh, exported to Hugging Face folders and imported from them.

#include <gtest/gtest.h>

#include "mesh/base/error.h"
#include "mesh/base/files/glob.h"
#include "mesh/device/aten.h"
#include "runtime/program/convert/export_adapter.h"
#include "runtime/program/convert/export_checkpoint.h"
#include "runtime/program/convert/import_checkpoint.h"
#include "runtime/program/generate/model_source.h"
#include "runtime/program/hf/config_json.h"
#include "runtime/program/hf/peft_config.h"
#include "runtime/program/recipe/decisions.h"
#include "runtime/program/recipe/load.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/model/first_weights.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/transformer.h"
#include "runtime/training/safetensors/folder.h"
#include "tests/checkpoint/training.h"
#include "tests/matrix/cell.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;

const std::string kOutput = "model.layers.0.self_attn.o_proj.weight", kNorm = "model.norm.weight";

struct SavedMesh {
  int64_t dp, tp, cp;
  std::string sharding;
};

/// Returns meshes over the complete world.
std::vector<SavedMesh> meshes() {
  switch (world().size()) {
    case 1:
      return {{1, 1, 1, "no_shard"}};
    case 2:
      return {{2, 1, 1, "full_shard"}, {1, 2, 1, "no_shard"}, {2, 1, 1, "shard_optimizer"}};
    case 4:
      return {{2, 2, 1, "full_shard"}, {2, 1, 2, "shard_grad_op"}, {1, 4, 1, "no_shard"}, {4, 1, 1, "hybrid_shard+"}};
    default:
      return {{2, 2, 2, "full_shard"}, {4, 2, 1, "hybrid_shard"}, {2, 1, 4, "shard_grad_op+"}};
  }
}

struct SavedModel {
  std::string family, precision, optimizer, frozen = "none";
  bool tied = false;
  std::string adapter = "none";
};

class Convert : public ::testing::Test {
 protected:
  Convert() : scratch_(world()) {
    if (world().rank() == 0) write_tokens(scratch_.path());
    world().barrier();
  }

  fs::path path(const std::string& name) const { return scratch_.path() / name; }

  Recipe recipe(const SavedMesh& saved_mesh, const SavedModel& kind) const {
    const Variant variant{kind.family,      kind.tied,      "mha",       "none", "one",
                          kind.precision,   kind.optimizer, kind.frozen,
                          /*groups=*/false, kind.adapter};
    const Cell cell{variant,
                    saved_mesh.dp,
                    saved_mesh.tp,
                    saved_mesh.cp,
                    saved_mesh.cp > 1 ? "ring" : "none",
                    "contiguous",
                    saved_mesh.tp > 1,
                    1,
                    saved_mesh.sharding};
    return recipe_of(cell, world().size() == 1, scratch_.path());
  }

  ScratchFolder scratch_;
};

TEST_F(Convert, ExportsWhatTheTrainerWouldExport) {
  const std::vector<SavedModel> kinds = {{"qwen3", "fp32", "adamw", "parts", true},
                                         {"llama", "bf16_mixed", "muon"},
                                         {"qwen2", "fp16_mixed", "sgd"},
                                         {"llama", "bf16", "adamw"}};
  int number = 0;
  for (const SavedMesh& saved_mesh : meshes()) {
    const SavedModel& kind = kinds[static_cast<size_t>(number) % kinds.size()];
    SCOPED_TRACE(saved_mesh.sharding + " " + kind.family + " " + kind.precision);
    const std::string name = std::to_string(number++);
    Training training(recipe(saved_mesh, kind), world());
    training.run(2);
    training.save(path("run" + name));
    training.export_to(path("gathered" + name));
    world().barrier();
    if (world().rank() != 0) continue;
    const ExportedCheckpoint exported = export_checkpoint(newest(path("run" + name)), path("exported" + name), {});
    EXPECT_EQ(exported.step, 2);
    EXPECT_TRUE(contents(path("exported" + name)) == contents(path("gathered" + name)));

    // The optimizer's weights, rounded once.
    export_checkpoint(newest(path("run" + name)), path("wide" + name), {.dtype = at::kDouble});
    const SafetensorsFolder narrow(path("exported" + name)), wide(path("wide" + name));
    bool rounded = false;
    for (const std::string& tensor : narrow.names()) {
      const at::Tensor values = wide.read(tensor), stored = narrow.read(tensor);
      EXPECT_TRUE(at::equal(values.to(stored.scalar_type()), stored)) << tensor;
      rounded = rounded || !at::equal(stored.to(at::kDouble), values);
    }
    EXPECT_EQ(rounded, kind.precision.ends_with("_mixed"));
  }
  world().barrier();
}

/// Writes a folder of weights of `dtype` for the recipe's model.
void write_folder(const fs::path& folder, const ModelShape& shape, at::ScalarType dtype) {
  const std::vector<TensorEntry> tensors = declared_tensors(shape, dtype);
  FolderWriter writer(folder, shape, {}, tensors, /*max_file_bytes=*/100'000);
  uint64_t seed = 1;
  for (const TensorEntry& tensor : tensors) writer.write(tensor.name, random_tensor(tensor.shape, seed++).mul(0.1));
  writer.finish();
}

TEST_F(Convert, MergesAdapters) {
  const std::vector<SavedModel> kinds = {{"phi3", "bf16_mixed", "adamw", "none", true, "all"},
                                         {"qwen3", "fp32", "adamw", "none", false, "ends"},
                                         {"qwen3", "fp32", "adamw", "none", false, "qv"},
                                         {"qwen2", "fp32", "adamw", "none", false, "all"}};  // has biases
  int number = 0;
  for (const SavedMesh& saved_mesh : meshes()) {
    const SavedModel& kind = kinds[static_cast<size_t>(number) % kinds.size()];
    SCOPED_TRACE(saved_mesh.sharding + " " + kind.family + " " + kind.precision);
    const std::string name = std::to_string(number++);
    const Recipe trained = recipe(saved_mesh, kind);
    Training training(trained, world());
    training.run(2);
    training.save(path("run" + name));
    training.export_to(path("gathered" + name));
    world().barrier();
    if (world().rank() != 0) continue;
    const fs::path checkpoint = newest(path("run" + name));
    export_checkpoint(checkpoint, path("exported" + name), {});
    EXPECT_TRUE(contents(path("exported" + name)) == contents(path("gathered" + name)));

    const Manifest manifest = read_run_manifest(checkpoint);
    CheckpointReader reader(checkpoint, manifest);
    const FirstWeights base({}, trained.model.shape, static_cast<uint64_t>(trained.train.seed));
    const auto weight_of = [&](const std::string& weight) {
      if (manifest.tensors.contains(weight)) return reader.read(weight);
      if (weight == kNorm) return at::ones({64}, dtype_of(kind.precision));
      Parameter parameter = full_parameter(weight, {64, 64}, {Initializer::Kind::Normal, 0.1}, at::kFloat);
      parameter.tensor = at::empty(parameter.shape, dtype_of(kind.precision));
      base.read(parameter);
      return parameter.tensor;
    };
    const SafetensorsFolder exported(path("exported" + name));
    EXPECT_FALSE(exported.contains("model.layers.0.self_attn.o_proj.lora_A.weight"));
    for (const std::string& weight : {kOutput, kNorm}) {
      at::Tensor expected = weight_of(weight).to(at::kDouble);
      const AdapterNames factors = adapter_names(weight);
      EXPECT_EQ(manifest.tensors.contains(factors.a), weight == kOutput && kind.adapter != "qv") << weight;
      if (manifest.tensors.contains(factors.a)) {
        const at::Tensor term =
            at::matmul(reader.read(factors.b).to(at::kDouble), reader.read(factors.a).to(at::kDouble));
        EXPECT_GT(term.abs().max().item<double>(), 0);
        expected = expected + adapter_scale(trained.model.shape.adapter) * term;
      }
      const at::Tensor stored = exported.read(weight);
      EXPECT_TRUE(
          at::allclose(stored.to(at::kDouble), expected, stored.scalar_type() == at::kFloat ? 1e-5 : 0x1p-8, 1e-6))
          << weight;
    }
  }
  world().barrier();
}

TEST_F(Convert, GoesOnFromAnAdapterOfPeft) {
  const std::vector<SavedModel> kinds = {{"phi3", "bf16_mixed", "adamw", "none", true, "all"},
                                         {"qwen3", "fp32", "adamw", "none", false, "ends"},
                                         {"phi3", "fp32", "adamw", "none", false, "qv"},
                                         {"qwen3", "fp32", "adamw", "none", false, "qv"}};
  int number = 0;
  for (const SavedMesh& saved_mesh : meshes()) {
    for (const SavedModel& kind : kinds) {
      SCOPED_TRACE(saved_mesh.sharding + " " + kind.family + " " + kind.precision);
      const std::string name = std::to_string(number++);
      Recipe trained = recipe(saved_mesh, kind);
      if (kind.adapter == "all") trained.model.shape.adapter.train = {"*input_layernorm*"};
      Training training(trained, world());
      training.run(2);
      training.save(path("run" + name));
      if (world().rank() == 0) export_adapter(newest(path("run" + name)), path("peft" + name), {});
      world().barrier();

      const AdapterShape adapter = trained.model.shape.adapter;
      const AdapterShape found = read_peft_folder(path("peft" + name), trained.model.shape);
      EXPECT_EQ(found.rank, adapter.rank);
      EXPECT_EQ(found.alpha, adapter.alpha);
      EXPECT_EQ(found.use_rslora, adapter.use_rslora);
      EXPECT_EQ(found.dropout, adapter.dropout);
      if (kind.adapter == "qv") {
        EXPECT_EQ(found.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
      }
      EXPECT_EQ(found.targets.size(), kind.adapter == "qv" ? 2U : kind.adapter == "ends" ? 3U : 7U);
      EXPECT_TRUE(found.layers.empty());

      trained.model.shape.adapter.from = path("peft" + name);
      Training next(trained, world());
      const auto base_and_adapters = [](Training& of) {
        std::map<std::string, at::Tensor> values;
        of.trainer().fsdp().visit_shards([&](const Parameter& parameter) {
          values[parameter.name] = parameter.tensor.detach().to(at::kDouble).clone();
        });
        return values;
      };
      const auto before = base_and_adapters(training), after = base_and_adapters(next);
      for (const auto& [parameter, values] : before) {
        if (!is_trained(adapter, {}, parameter)) continue;
        EXPECT_TRUE(at::equal(values, after.at(parameter))) << parameter;
      }
    }
  }
  world().barrier();
}

TEST_F(Convert, RefusesToWriteForPeftWhatItCannotSave) {
  if (world().size() > 1) return;
  const auto refusal = [&](const std::string& train, const SavedModel& kind) {
    Recipe trained = recipe(meshes().front(), kind);
    trained.model.shape.adapter.train = {train};
    Training training(trained, world());
    const fs::path folder = path("run " + kind.family + train.substr(1, 4));
    training.save(folder);
    try {
      export_adapter(newest(folder), path("peft"), {});
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const SavedModel phi3{"phi3", "fp32", "adamw", "none", true, "qv"}, llama{"llama", "fp32", "adamw"};
  EXPECT_NE(refusal("*.gate_proj.*", phi3).find("transformers joins it with other layers in one module"),
            std::string::npos);
  EXPECT_NE(refusal("*.q_proj.*", phi3).find("its layer has an adapter"), std::string::npos);
  EXPECT_NE(refusal("*embed_tokens*", phi3).find("it is also the head"), std::string::npos);
  Recipe plain = recipe(meshes().front(), llama);
  Training training(plain, world());
  training.save(path("plain"));
  EXPECT_THROW(export_adapter(newest(path("plain")), path("peft"), {}), InputError);
  EXPECT_FALSE(fs::exists(path("peft")));
}

TEST_F(Convert, RefusesAnotherBaseThanTheAdaptersHad) {
  if (world().size() > 1) return;
  Recipe trained = recipe({1, 1, 1, "no_shard"}, {"llama", "bf16_mixed", "adamw", "none", false, "qv"});
  trained.model.hf = path("base");
  trained.model.init = "pretrained";
  write_folder(path("base"), trained.model.shape, at::kBFloat16);
  Training training(trained, world());
  training.run(2);
  training.save(path("run"));
  export_checkpoint(newest(path("run")), path("merged"), {});
  const SafetensorsFolder base(path("base")), merged(path("merged"));
  const std::string trained_weight = "model.layers.0.self_attn.q_proj.weight", frozen = "model.embed_tokens.weight";
  const at::Tensor base_weight = base.read(frozen).clone();
  EXPECT_TRUE(at::equal(base.read(frozen), merged.read(frozen)));
  EXPECT_FALSE(at::equal(base.read(trained_weight), merged.read(trained_weight)));

  fs::rename(path("base"), path("moved"));
  const std::string gone = message<InputError>([&] { export_checkpoint(newest(path("run")), path("none"), {}); });
  EXPECT_TRUE(has(gone, "no longer exists")) << gone;
  EXPECT_TRUE(has(gone, "--base FOLDER")) << gone;
  export_checkpoint(newest(path("run")), path("again"), {.base = path("moved")});
  EXPECT_TRUE(at::equal(SafetensorsFolder(path("again")).read(trained_weight), merged.read(trained_weight)));
  const ModelSource source = read_model_source(newest(path("run")), {.base = path("moved")});
  EXPECT_EQ(source.hugging_face, path("moved")) << "it has the tokenizer";
  ModelWeights weights(source);
  Parameter embedding = full_parameter(frozen, base_weight.sizes().vec(), {}, at::kBFloat16);
  embedding.tensor = at::empty_like(base_weight);
  weights.read(embedding);
  EXPECT_TRUE(at::equal(embedding.tensor, base_weight));
  write_folder(path("other"), trained.model.shape, at::kFloat);
  EXPECT_TRUE(
      has(message<InputError>([&] { export_checkpoint(newest(path("run")), path("none"), {.base = path("other")}); }),
          "the adapters were trained with weights of "));
  EXPECT_TRUE(has(message<InputError>([&] { read_model_source(path("moved"), {.base = path("moved")}); }),
                  "which has all weights"));
  ModelShape other = trained.model.shape;
  write_folder(path("base"), other, at::kFloat);
  for (const std::string& refusal :
       {message<InputError>([&] { export_checkpoint(newest(path("run")), path("none"), {}); }),
        message<InputError>([&] { training.resume(path("run")); }),
        message<InputError>([&] { ModelWeights(read_model_source(newest(path("run")))); })}) {
    EXPECT_TRUE(has(refusal, "model.hf: weights of ")) << refusal;
    EXPECT_TRUE(has(refusal, "the adapters were trained with weights of ")) << refusal;
  }
}

TEST_F(Convert, ImportsNoBaseOfAdapters) {
  if (world().size() > 1) return;
  const Recipe adapted = recipe(meshes().front(), {"llama", "fp32", "adamw", "none", false, "qv"});
  write_folder(path("base"), adapted.model.shape, at::kFloat);
  const std::string refusal = message<InputError>([&] { import_checkpoint(path("base"), adapted, path("imported")); });
  EXPECT_TRUE(has(refusal, "checkpoints do not contain the base: use meshtrain train with model.hf: ")) << refusal;
  EXPECT_FALSE(fs::exists(path("imported")));
}

// The merged embedding and head of a tied model are two tensors.
TEST_F(Convert, UntiesAHeadWithAnAdapter) {
  if (world().size() > 1) return;
  Recipe tied = recipe(meshes().front(), {"llama", "fp32", "adamw", "none", true, "ends"});
  ASSERT_TRUE(tied.model.shape.tie_word_embeddings);
  Training training(tied, world());
  training.run(2);
  training.save(path("run"));
  export_checkpoint(newest(path("run")), path("merged"), {});
  EXPECT_FALSE(read_config_json(path("merged") / "config.json").tie_word_embeddings);
  const SafetensorsFolder merged(path("merged"));
  const Manifest manifest = read_run_manifest(newest(path("run")));
  CheckpointReader reader(newest(path("run")), manifest);
  const at::Tensor of_embedding = at::matmul(reader.read("model.embed_tokens.lora_embedding_A"),
                                             reader.read("model.embed_tokens.lora_embedding_B").t());
  const at::Tensor of_head = at::matmul(reader.read("lm_head.lora_B.weight"), reader.read("lm_head.lora_A.weight"));
  const double scale = adapter_scale(tied.model.shape.adapter);
  const at::Tensor difference = merged.read(kEmbedding) - merged.read(kHead);
  EXPECT_LT(relative_error(difference, (of_embedding - of_head) * scale), 1e-5);
}

TEST_F(Convert, TrainsFromAnImportAsFromTheFolderItself) {
  const std::vector<std::pair<SavedModel, at::ScalarType>> kinds = {
      {{"qwen3", "fp32", "adamw", "none", true}, at::kFloat},
      {{"llama", "bf16_mixed", "muon"}, at::kFloat},
      {{"qwen2", "fp16_mixed", "sgd"}, at::kBFloat16},
      {{"llama", "bf16", "adamw", "parts"}, at::kBFloat16}};
  int number = 0;
  for (const SavedMesh& saved_mesh : meshes()) {
    const auto& [kind, dtype] = kinds[static_cast<size_t>(number) % kinds.size()];
    SCOPED_TRACE(saved_mesh.sharding + " " + kind.family + " " + kind.precision);
    const std::string name = std::to_string(number++);
    Recipe fresh = recipe(saved_mesh, kind), pretrained = fresh;
    if (kind.optimizer == "sgd") fresh.optimizer.momentum = pretrained.optimizer.momentum = 0.9;
    pretrained.model.hf = path("folder" + name);
    pretrained.model.init = "pretrained";
    if (world().rank() == 0) {
      write_folder(pretrained.model.hf, fresh.model.shape, dtype);
      import_checkpoint(pretrained.model.hf, fresh, path("run" + name));
      export_checkpoint(path("run" + name) / "checkpoints/step-00000000", path("back" + name), {.dtype = dtype});
      const SafetensorsFolder source(pretrained.model.hf), back(path("back" + name));
      EXPECT_EQ(source.names(), back.names());
      for (const std::string& tensor : source.names()) {
        EXPECT_TRUE(at::equal(source.read(tensor), back.read(tensor))) << tensor;
      }
    }
    world().barrier();
    const std::vector<double> expected = Training(pretrained, world()).run(3);
    Training training(fresh, world());
    const ResumePoint resumed = training.resume(path("run" + name) / "checkpoints");
    EXPECT_EQ(resumed.state.step, 0);
    EXPECT_EQ(training.run(3), expected);
    if (kind.precision == "fp16_mixed") continue;  // its loss scale continues from the checkpoint
    training.resume(path("run" + name) / "checkpoints");
    EXPECT_EQ(training.run(3), expected) << "with moments that were there before";
  }
  world().barrier();
}

/// Expects the tensors that `recipe` freezes to be the same in both folders, and the others to have been trained.
void expect_frozen_alone_equal(const Recipe& recipe, const fs::path& before, const fs::path& after) {
  const SafetensorsFolder source(before), trained(after);
  int num_frozen = 0;
  for (const std::string& tensor : source.names()) {
    const bool frozen = first_match(recipe.train.freeze, tensor).has_value();
    EXPECT_EQ(at::equal(source.read(tensor), trained.read(tensor)), frozen) << tensor;
    num_frozen += frozen ? 1 : 0;
  }
  EXPECT_GT(num_frozen, 0);
}

// fp32 folder -> freeze -> train -> checkpoint -> resume -> export. The half would round the frozen weights.
TEST_F(Convert, KeepsFrozenWeightsUnderMixedPrecision) {
  int number = 0;
  for (const SavedMesh& saved_mesh : meshes()) {
    for (const std::string precision : {"bf16_mixed", "fp16_mixed"}) {
      SCOPED_TRACE(saved_mesh.sharding + " " + precision);
      const std::string name = std::to_string(number++);
      Recipe pretrained = recipe(saved_mesh, {"llama", precision, "adamw", "parts"});
      pretrained.model.hf = path("fp32_" + name);
      pretrained.model.init = "pretrained";
      if (world().rank() == 0) write_folder(pretrained.model.hf, pretrained.model.shape, at::kFloat);
      world().barrier();
      Training training(pretrained, world());
      training.run(2);
      training.save(path("frozen" + name));
      Training resumed(pretrained, world());
      resumed.resume(path("frozen" + name));
      EXPECT_EQ(resumed.run(1), training.run(1)) << "gathers round what they gathered before";
      resumed.save(path("resumed" + name));
      if (world().rank() == 0) {
        export_checkpoint(newest(path("resumed" + name)), path("back" + name), {.dtype = at::kFloat});
        expect_frozen_alone_equal(pretrained, pretrained.model.hf, path("back" + name));
      }
      world().barrier();
    }
  }
}

// Freezing when a run is resumed keeps the fp32 weights that were trained so far.
TEST_F(Convert, KeepsMastersThatAreFrozenOnResume) {
  const SavedMesh saved_mesh = meshes().front();
  const Recipe free = recipe(saved_mesh, {"qwen3", "bf16_mixed", "adamw", "none"});
  const Recipe frozen = recipe(saved_mesh, {"qwen3", "bf16_mixed", "adamw", "parts"});
  Training first(free, world());
  first.run(2);
  first.save(path("free"));
  Training second(frozen, world());
  second.resume(path("free"));
  second.run(2);
  second.save(path("frozen"));
  if (world().rank() == 0) {
    export_checkpoint(newest(path("free")), path("before"), {.dtype = at::kFloat});
    export_checkpoint(newest(path("frozen")), path("after"), {.dtype = at::kFloat});
    expect_frozen_alone_equal(frozen, path("before"), path("after"));
  }
  world().barrier();
}

// Checkpoints once had frozen weights in the half, as one that is imported from a folder of the half has.
TEST_F(Convert, ReadsFrozenWeightsThatAreInTheHalf) {
  const SavedMesh saved_mesh = meshes().front();
  const Recipe trained = recipe(saved_mesh, {"llama", "bf16_mixed", "adamw", "parts"});
  if (world().rank() == 0) {
    write_folder(path("half"), trained.model.shape, at::kBFloat16);
    import_checkpoint(path("half"), trained, path("run"));
    export_checkpoint(path("run/checkpoints/step-00000000"), path("before"), {.dtype = at::kFloat});
  }
  world().barrier();
  Training training(trained, world());
  training.resume(path("run/checkpoints"));
  training.run(1);
  training.save(path("saved"));
  if (world().rank() == 0) {
    export_checkpoint(newest(path("saved")), path("after"), {.dtype = at::kFloat});
    expect_frozen_alone_equal(trained, path("before"), path("after"));
  }
  world().barrier();
}

}  // namespace
}  // namespace meshtrain::testing
