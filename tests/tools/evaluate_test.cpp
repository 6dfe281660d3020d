// `meshtrain evaluate` as its users run it.

#include <cmath>
#include <filesystem>
#include <fstream>

#include "mesh/device/aten.h"
#include "runtime/training/model/ignored_label.h"
#include "runtime/training/safetensors/folder.h"
#include "tests/runtime/training/data/megatron_files.h"
#include "tests/support/files.h"
#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string fixture_model(const std::string& name) {
  return source_folder() + "/tests/fixtures/" + name;
}

class Evaluate : public TrainProgram {
 protected:
  static Words with(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  /// Returns the lines of `meshtrain evaluate ... --json`, which must succeed.
  static std::vector<json> evaluate(int ranks, const Words& arguments) {
    Words words = {"evaluate", "--json"};
    words = with(words, arguments);
    const Ending ending = ranks == 1 ? run_meshtrain(words) : run_meshtrain_on_ranks(ranks, words);
    EXPECT_EQ(ending.status, 0) << ending.err;
    std::vector<json> found;
    for (size_t begin = 0; begin < ending.out.size();) {
      const size_t end = ending.out.find('\n', begin);
      found.push_back(json::parse(ending.out.substr(begin, end - begin)));
      begin = end + 1;
    }
    return found;
  }

  /// Writes held-out tokens that differ from the run's own: 41 samples of 17.
  void write_held_out() const {
    std::string tokens;
    for (int i = 0; i < 41 * 17; ++i) tokens += static_cast<char>(i * 7 % 64);
    write("held_out.bin", tokens);
  }

  /// Writes packed.bin, 6 records of 17 tokens of two documents each, and its index of Megatron.
  void write_packed() const {
    std::vector<int64_t> ids;
    std::vector<int32_t> lengths;
    for (int64_t i = 0; i < 6 * 17; ++i) ids.push_back(i * 7 % 64);
    for (int i = 0; i < 6; ++i) lengths.insert(lengths.end(), {10, 7});
    write_ids<uint16_t>(path("packed.bin"), ids);
    write("packed.idx", megatron_fields(8, 2, lengths).bytes());
  }

  static double loss_of(const Words& arguments) { return evaluate(1, arguments).at(0).at("loss"); }

  /// Trains a tiny model in fp64, with the held-out loss of its last step, and a checkpoint of steps 2 and 4.
  void train_one() const {
    write_held_out();
    const Ending ending = train(1, {"--set", "model.num_hidden_layers=2", "--set", "checkpoint.every=2", "--set",
                                    "train.precision=fp64", "--set", "evaluate.tokens=" + path("held_out.bin").string(),
                                    "--set", "evaluate.every=2", "--set", "evaluate.samples=5"});
    ASSERT_EQ(ending.status, 0) << ending.err;
  }
};

/// The samples of a fixture as a file of records with a loss mask, and their loss from transformers' logits.
struct FromLogits {
  FromLogits(const std::string& name, const fs::path& folder) {
    const SafetensorsFile reference(fs::path(fixture_model(name)) / "reference.safetensors");
    const at::Tensor inputs = reference.read("inputs"), labels = reference.read("labels");
    const at::Tensor logits = at::log_softmax(reference.read("fp64.logits"), -1);
    std::vector<int64_t> ids;
    std::string mask;
    double sum = 0;
    for (int64_t b = 0; b < inputs.size(0); ++b) {
      for (int64_t s = 0; s < inputs.size(1); ++s) {
        const auto label = labels[b][s].item<int64_t>();
        const bool counts = label != kIgnoredLabel;
        if (s == 0) ids.push_back(inputs[b][0].item<int64_t>()), mask += '\1';
        const bool is_last = s + 1 == inputs.size(1);
        ids.push_back(is_last ? (counts ? label : 0) : inputs[b][s + 1].item<int64_t>());
        mask += counts ? '\1' : '\0';
        if (!counts) continue;
        EXPECT_EQ(ids.back(), label);
        sum -= logits[b][s][label].item<double>();
        ++tokens;
      }
    }
    loss = sum / static_cast<double>(tokens);
    write_ids<uint16_t>(folder / "fixture.bin", ids);
    write_file(folder / "mask.bin", mask);
    arguments = {fixture_model(name),
                 "--tokens",
                 folder / "fixture.bin",
                 "--loss-mask",
                 folder / "mask.bin",
                 "--layout",
                 "records",
                 "--sequence-length",
                 std::to_string(inputs.size(1)),
                 "--precision",
                 "fp64"};
  }
  std::vector<std::string> arguments;
  double loss = 0;
  int64_t tokens = 0;
};

TEST_F(Evaluate, AnAdapterHasTheLossThatPeftComputes) {
  const fs::path adapters = fixture_model("adapters");
  const json cases = json::parse(std::ifstream(adapters / "folders.json"));
  for (const std::string name : {"llama", "phi3"}) {
    const FromLogits base(name, path(""));
    const Words words = with(base.arguments, {"--adapter", (adapters / "folders" / name).string()});
    for (const auto& [ranks, mesh] : {std::pair{1, "dp=1"}, {2, "tp=2"}, {2, "dp=2"}}) {
      const double loss = evaluate(ranks, with(words, {"--mesh", mesh}))[0].at("loss"), expected = cases[name]["loss"];
      EXPECT_NEAR(loss, expected, 1e-10 * expected) << name << " on " << mesh;
      EXPECT_GT(std::abs(loss - base.loss), 0.01);
    }
  }
  train_one();
  const Ending ending = run_meshtrain({"evaluate", path("run"), "--adapter", (adapters / "folders/llama").string()});
  EXPECT_EQ(ending.status, 2);
  EXPECT_TRUE(has(ending.err, "is a checkpoint, which has its own adapters or none: give the folder of the base"))
      << ending.err;
}

TEST_F(Evaluate, AFolderWithExpertsHasItsLossWhereTheyAreCut) {
  const FromLogits expected("qwen3_moe", path(""));
  const double loss = evaluate(2, with(expected.arguments, {"--mesh", "dp=2,ep=2"}))[0].at("loss");
  EXPECT_NEAR(loss, expected.loss, 1e-10 * expected.loss);
}

TEST_F(Evaluate, AFolderHasTheLossOfItsLogitsOnAnyMesh) {
  for (const char* name : {"llama", "qwen3"}) {
    const FromLogits expected(name, path(""));
    for (const auto& [ranks, mesh] :
         {std::pair{1, "dp=1"}, {2, "dp=2"}, {2, "tp=2"}, {2, "cp=2"}, {2, "pp=2"}, {4, "dp=2,tp=2"}}) {
      const std::vector<json> found = evaluate(ranks, with(expected.arguments, {"--mesh", mesh, "--bytes", "100"}));
      ASSERT_EQ(found.size(), 1u);
      const double loss = found[0].at("loss");
      EXPECT_NEAR(loss, expected.loss, 1e-10 * expected.loss) << name << " on " << mesh;
      EXPECT_EQ(found[0].at("tokens"), expected.tokens);
      EXPECT_NEAR(found[0].at("perplexity").get<double>(), std::exp(loss), 1e-9);
      EXPECT_NEAR(found[0].at("bits_per_byte").get<double>(), loss / std::log(2) * 2 * 17 / 100, 1e-10);
      EXPECT_FALSE(found[0].contains("step"));
      const std::string shards = path("shards");
      EXPECT_EQ(evaluate(ranks, with(expected.arguments, {"--mesh", mesh, "--offload", shards}))[0].at("loss"), loss)
          << name << " from disk on " << mesh;
    }
  }
}

TEST_F(Evaluate, ARunHasTheLossesThatItsTrainingFound) {
  train_one();
  const std::vector<json> steps = metrics();
  const auto before = contents(run_dir);
  const std::string run = run_dir.string();
  for (const auto& [ranks, mesh] :
       {std::pair{1, "dp=1"}, {2, "dp=2"}, {2, "tp=2"}, {4, "dp=2,cp=2"}, {4, "pp=2,tp=2"}}) {
    const std::vector<json> found = evaluate(ranks, {run, "--mesh", mesh, "--checkpoints", "all"});
    ASSERT_EQ(found.size(), 2u);
    for (const json& each : found) {
      const json& trained = steps.at(each.at("step").get<size_t>() - 1);
      const double loss = trained.at("eval_loss");
      EXPECT_NEAR(each.at("loss").get<double>(), loss, 1e-10 * loss) << mesh;
      EXPECT_EQ(each.at("tokens"), trained.at("eval_tokens"));
      EXPECT_FALSE(each.contains("bits_per_byte")) << "nobody said how many bytes";
    }
    EXPECT_NE(found[0].at("loss"), found[1].at("loss"));
  }
  const std::vector<json> newest = evaluate(1, {run}), asked = evaluate(1, {run, "--checkpoints", "4"});
  ASSERT_EQ(newest.size(), 1u);
  EXPECT_EQ(newest[0].at("step"), 4);
  EXPECT_EQ(newest[0].at("loss"), asked.at(0).at("loss"));
  EXPECT_EQ(contents(run_dir), before) << "an evaluation writes nothing";
}

TEST_F(Evaluate, OtherTokensAreReadAsTheRunsOwnAre) {
  train_one();
  const std::string run = run_dir.string(), own = path("tokens.bin").string();
  const std::vector<json> found = evaluate(1, {run, "--tokens", own, "--samples", "3", "--micro-batch", "2"});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].at("samples"), 3);
  EXPECT_EQ(found[0].at("tokens"), 3 * 16);
  EXPECT_EQ(evaluate(1, {run, "--tokens", own}).at(0).at("samples"), 100)
      << "evaluate.samples is of the run's own file";
  const Ending text = run_meshtrain({"evaluate", run, fixture_model("llama"), "--tokens", own, "--dtype", "uint8",
                                     "--sequence-length", "16", "--layout", "stream"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_EQ(count(text.out, ": loss "), 2) << text.out;
  EXPECT_EQ(count(text.err, "3 tokens of " + own + " after the last sequence of 16 are not evaluated\n"), 1)
      << "once for the file, not for each model: " << text.err;
}

TEST_F(Evaluate, ASidecarSaysHowTokensAreReadAndHowManyBytesTheyAre) {
  const std::string tokens = path("held.bin").string();
  write("held.txt", std::string(200, '\5'));
  ASSERT_EQ(run_meshtrain({"data", "prepare", "--bytes", path("held.txt"), "--out", tokens, "--dtype", "uint32",
                           "--separator", "7"})
                .status,
            0);
  train_one();
  const Words of_run = {run_dir.string(), "--tokens", tokens, "--sequence-length", "16"};
  std::string sidecar = content(tokens + ".json");
  const std::string vocabulary = "\"vocabulary_size\": 256";
  ASSERT_TRUE(has(sidecar, vocabulary)) << sidecar;
  write("held.bin.json", sidecar.replace(sidecar.find(vocabulary), vocabulary.size(), "\"vocabulary_size\": 64"));
  const json found = evaluate(1, of_run).at(0);
  EXPECT_EQ(found.at("samples"), 12) << "of layout stream, although the run's own file has records";
  EXPECT_NEAR(found.at("bits_per_byte").get<double>(), found.at("loss").get<double>() / std::log(2) * 201 / 200, 1e-12);
  for (const Words& part : {Words{"--samples", "3"}, Words{"--ignore-id", "7"}}) {
    EXPECT_FALSE(evaluate(1, with(of_run, part)).at(0).contains("bits_per_byte")) << part[0];
  }
  EXPECT_EQ(only_complaint(run_meshtrain(with(with({"evaluate"}, of_run), {"--layout", "records"}))),
            "--layout records: " + tokens + " has the layout stream, as " + tokens + ".json says: leave --layout out");
  EXPECT_EQ(only_complaint(run_meshtrain(with(with({"evaluate"}, of_run), {"--dtype", "uint8"}))),
            "--dtype: " + tokens + " would be read as uint8, but holds uint32, as " + tokens +
                ".json says: set --dtype uint32");
  EXPECT_EQ(only_complaint(run_meshtrain(with(with({"evaluate"}, of_run), {"--documents", "9"}))),
            "--documents: documents of " + tokens + " would end with the id 9, but each ends with 7, as " + tokens +
                ".json says: set --documents 7");
  EXPECT_EQ(evaluate(1, with(of_run, {"--documents", "own"})).at(0).at("loss"),
            evaluate(1, with(of_run, {"--documents", "7"})).at(0).at("loss"));
}

TEST_F(Evaluate, TokensOfAnotherTokenizerThanTheModelsAreRefused) {
  const std::string tokens = path("held.bin").string();
  write("held.txt", std::string(200, '\5'));
  ASSERT_EQ(
      run_meshtrain({"data", "prepare", "--bytes", path("held.txt"), "--out", tokens, "--dtype", "uint32"}).status, 0);
  train_one();
  std::string sidecar = content(tokens + ".json");
  const std::string vocabulary = "\"vocabulary_size\": 256";
  ASSERT_TRUE(has(sidecar, vocabulary)) << sidecar;
  write("held.bin.json", sidecar.replace(sidecar.find(vocabulary), vocabulary.size(), "\"vocabulary_size\": 64"));
  const fs::path model = path("model");
  ASSERT_EQ(run_meshtrain({"checkpoint", "export", run_dir, model}).status, 0);
  const Words words = {"evaluate", model, "--tokens", tokens, "--sequence-length", "16"};
  EXPECT_EQ(run_meshtrain(words).status, 0) << "a model without a tokenizer";
  fs::copy(source_folder() + "/tests/tokenizer/fixtures/llama3/tokenizer.json", model);
  EXPECT_EQ(only_complaint(run_meshtrain(words)), "--tokens " + tokens + " was made with the tokenizer bytes, as " +
                                                      tokens + ".json says, but the model's is " + model.string() +
                                                      ", which has other ids: prepare the text with --tokenizer " +
                                                      model.string());
}

TEST_F(Evaluate, DocumentsAreThoseOfTheRunOrNone) {
  write_held_out();
  const Words words = {"--set", "checkpoint.every=4",
                       "--set", "train.precision=fp64",
                       "--set", "data.documents=7",
                       "--set", "data.boundary_labels=ignored",
                       "--set", "evaluate.tokens=" + path("held_out.bin").string()};
  ASSERT_EQ(train(1, words).status, 0);
  const std::string run = run_dir.string();
  const json own = evaluate(1, {run}).at(0), none = evaluate(1, {run, "--documents", "none"}).at(0);
  EXPECT_EQ(evaluate(1, {run, "--documents", "own"}).at(0).at("loss"), own.at("loss"));
  EXPECT_NE(none.at("loss"), own.at("loss"));
  EXPECT_EQ(none.at("tokens"), 41 * 16) << "the boundary's labels count where there are no documents";
  EXPECT_LT(own.at("tokens"), none.at("tokens"));
  run_dir = path("without");
  ASSERT_EQ(train(1, {"--set", "checkpoint.every=4"}).status, 0);
  EXPECT_EQ(
      only_complaint(run_meshtrain({"evaluate", run_dir, "--tokens", path("held_out.bin"), "--documents", "own"})),
      "--documents own: neither the .json file of " + path("held_out.bin").string() +
          " nor the run's data.documents gives the token that ends a document: give its id, or none");
}

// A run that keeps attention inside documents, and the Hugging Face folder of the same weights, have other losses.
TEST_F(Evaluate, ModelsThatTreatDocumentsDifferentlyAreNamed) {
  write_held_out();
  const std::string held = path("held_out.bin").string(), exported = path("exported").string();
  ASSERT_EQ(train(1, {"--set", "checkpoint.every=4", "--set", "data.documents=7", "--set", "train.export=" + exported})
                .status,
            0);
  const Words both = {run_dir.string(), exported, "--tokens", held, "--dtype", "uint8", "--sequence-length", "16"};
  const std::vector<json> found = evaluate(1, both);
  EXPECT_EQ(found.at(0).at("documents"), 7);
  EXPECT_EQ(found.at(1).at("documents"), "none");
  EXPECT_NE(found.at(0).at("loss"), found.at(1).at("loss"));
  const auto warnings = [&](const Words& words) {
    return count(run_meshtrain(with({"evaluate"}, words)).err, "warning: these losses are not comparable");
  };
  const Ending differ = run_meshtrain_on_ranks(2, with({"evaluate"}, both));
  EXPECT_EQ(
      count(differ.err,
            "meshtrain: warning: these losses are not comparable, because documents are treated differently: give "
            "--documents own or --documents none for all: " +
                exported + ": attention crosses documents (none); " + run_dir.string() +
                "/checkpoints/step-00000004: attention stays inside documents (7)\n"),
      1)
      << differ.err;
  EXPECT_EQ(warnings(with(both, {"--documents", "none"})), 0);
  EXPECT_EQ(warnings(with(both, {"--documents", "7"})), 0);
  EXPECT_EQ(warnings({run_dir.string(), "--tokens", held}), 0) << "one model";
  EXPECT_EQ(warnings({exported, exported, "--tokens", held, "--dtype", "uint8", "--sequence-length", "16"}), 0);
}

// Records of two documents each, as data prepare --chat packs them.
TEST_F(Evaluate, AnIndexBesideTokensSaysWhatTheyAre) {
  write_packed();
  const std::string packed = path("packed.bin").string();
  const Words of_folder = {fixture_model("llama"), "--tokens", packed, "--sequence-length", "16"};
  const json found = evaluate(1, of_folder).at(0);
  EXPECT_EQ(found.at("tokens_file"), packed);
  EXPECT_EQ(found.at("documents"), "index");
  EXPECT_EQ(found.at("loss"), loss_of(with(of_folder, {"--dtype", "megatron", "--documents", "index"})));
  EXPECT_NE(found.at("loss"), loss_of(with(of_folder, {"--documents", "none"})));
  EXPECT_NE(found.at("loss"), loss_of(with(of_folder, {"--layout", "records"})));
  const auto says = [&](const Words& more) { return run_meshtrain(with(with({"evaluate"}, of_folder), more)).err; };
  EXPECT_EQ(says({}), "meshtrain: warning: --layout: " + packed +
                          " is read as stream, but a document begins at every 17 tokens (--sequence-length + 1), as in "
                          "records: set --layout records\nattention stays inside the documents of " +
                          path("packed.idx").string() +
                          "; --documents none lets it cross them\n"
                          "5 tokens of " +
                          packed + " after the last sequence of 16 are not evaluated\n");
  EXPECT_EQ(says({"--layout", "records", "--documents", "index"}), "");
  EXPECT_EQ(only_complaint(run_meshtrain(with(with({"evaluate"}, of_folder), {"--dtype", "uint16"}))),
            "--tokens: " + packed +
                ": packed.idx next to it is a Megatron index: use dtype megatron, or move the index away to "
                "read the file as uint16");

  train_one();  // on bytes, without documents: a Megatron file is a stream, and attention crosses its documents
  const Words of_run = {run_dir.string(), "--tokens", packed};
  EXPECT_EQ(loss_of(of_run), loss_of(with(of_run, {"--layout", "stream", "--documents", "none"})));
}

TEST_F(Evaluate, WhatARunSaysOfItsOwnFileDoesNotBindAnother) {
  write_packed();
  const std::string packed = path("packed.bin").string(), other = path("tokens.bin").string();
  ASSERT_EQ(train(1, {"--set", "checkpoint.every=4", "--set",
                      "data={tokens: " + packed + ", dtype: megatron, layout: records, documents: index}"})
                .status,
            0);
  fs::copy(packed, path("held.bin"));
  fs::copy(path("packed.idx"), path("held.idx"));
  EXPECT_EQ(evaluate(1, {run_dir, "--tokens", path("held.bin")}).at(0).at("samples"), 6) << "records, as the run's own";
  const auto refusal = [&](const Words& more) {
    return only_complaint(run_meshtrain(with({"evaluate", run_dir, "--tokens", other}, more)));
  };
  write("held.jsonl", R"({"messages": [{"role": "user", "content": "A question that was not made tokens of"}]})"
                      "\n");
  EXPECT_TRUE(has(only_complaint(run_meshtrain({"evaluate", run_dir, "--tokens", path("held.jsonl")})),
                  "held.jsonl: it looks like JSON Lines text, not token ids: make tokens from it with"));
  EXPECT_EQ(refusal({}), "--dtype must be given: the run's own file is a Megatron file, but " + other +
                             " has neither an index (.idx) nor a .json file next to it: put its index there, or give "
                             "the type of its tokens");
  EXPECT_EQ(refusal({"--dtype", "uint8"}),
            "--documents must be given, because the run keeps attention inside documents: neither the .json file of " +
                other + " nor the run's data.documents gives the token that ends a document: give its id, or none");
  EXPECT_EQ(evaluate(1, {run_dir, "--tokens", other, "--dtype", "uint8", "--documents", "none"}).size(), 1u);
  write("text.txt", std::string(200, '\5'));
  ASSERT_EQ(run_meshtrain({"data", "prepare", "--bytes", path("text.txt"), "--out", path("text.bin"), "--separator",
                           "7", "--dtype", "uint8"})
                .status,
            0);
  std::string sidecar = content(path("text.bin.json"));
  const std::string vocabulary = "\"vocabulary_size\": 256";
  write("text.bin.json", sidecar.replace(sidecar.find(vocabulary), vocabulary.size(), "\"vocabulary_size\": 64"));
  EXPECT_EQ(loss_of({run_dir, "--tokens", path("text.bin")}),
            loss_of({run_dir, "--tokens", path("text.bin"), "--documents", "7", "--layout", "stream"}));
}

TEST_F(Evaluate, AllModelsAreCheckedBeforeTheFirst) {
  ASSERT_EQ(train(1, {"--set", "checkpoint.every=4"}).status, 0);
  const Ending ending =
      run_meshtrain({"evaluate", fixture_model("llama"), run_dir, "--tokens", path("tokens.bin"), "--dtype", "uint8",
                     "--layout", "records", "--sequence-length", "16", "--ignore-id", "70"});
  EXPECT_EQ(ending.out, "") << "the run's vocabulary ends at 63";
  EXPECT_TRUE(has(only_complaint(ending), "checkpoints/step-00000004: --ignore-id is 70, token ids are 0 to 63"))
      << ending.err;
}

TEST_F(Evaluate, MistakesAreOneLine) {
  train_one();
  const std::string run = run_dir.string(), own = path("tokens.bin").string();
  const auto complaint_of = [](const Words& words) { return only_complaint(run_meshtrain(with({"evaluate"}, words))); };
  EXPECT_EQ(complaint_of({fixture_model("llama"), "--sequence-length", "16"}),
            "--tokens must be given: the file of tokens to evaluate on");
  EXPECT_EQ(complaint_of({fixture_model("llama"), "--tokens", own}),
            "--sequence-length must be given: " + fixture_model("llama") +
                " does not give the length of a sample; the model takes up to 256");
  EXPECT_EQ(complaint_of({run, "--tokens", own, "--dtype", "uint33"}),
            "--dtype uint33: \"uint33\" is not one of uint8, uint16, uint32, megatron; did you mean \"uint32\"?");
  const std::string lines = path("held.jsonl");
  write("held.jsonl", R"({"text": "A text that a new user gives to evaluate without making tokens of it first"})"
                      "\n");
  const std::string kind =
      "looks like JSON Lines text, not token ids: make tokens from it with meshtrain data prepare ";
  EXPECT_TRUE(has(complaint_of({run, "--tokens", lines, "--dtype", "uint16"}),
                  "--tokens: " + lines + " " + kind + "--text " + lines));
  EXPECT_EQ(complaint_of({run, "--checkpoints", "3"}), "--checkpoints 3: there is no checkpoint of step 3 in " + run +
                                                           "/checkpoints, which has those of steps 2, 4");
  EXPECT_EQ(complaint_of({run, "--checkpoints", "last"}), "--checkpoints last: give all, or steps, as in 500,1000");
  run_dir = path("without");
  ASSERT_EQ(train(1, {"--set", "checkpoint.every=4"}).status, 0);
  EXPECT_EQ(complaint_of({run_dir}),
            "--tokens must be given: the recipe of " + run_dir.string() +
                "/checkpoints/step-00000004 has no evaluate.tokens: give a file that was not trained on");
  EXPECT_TRUE(has(complaint_of({run, "--samples", "42"}), "--samples: 42 are requested, but "));
  EXPECT_TRUE(has(complaint_of({run, "--mesh", "dp=2"}), "dp=2"));
  EXPECT_EQ(complaint_of({run, "--mesh", "pipeline=1"}),
            "--mesh pipeline=1: unknown axis pipeline; here it is pp: the axes are pp, dp, cp, tp, ep");
  EXPECT_TRUE(has(run_meshtrain_on_ranks(4, {"evaluate", run, "--mesh", "pp=4"}).err,
                  "--mesh: pp=4 makes 4 stages, but the model has only 2 layers: use a smaller pp"));
  EXPECT_EQ(complaint_of({run, "--offload", "/nowhere/shards"}),
            "--offload: /nowhere/shards cannot be made: the folder /nowhere does not exist");
  EXPECT_TRUE(has(complaint_of({path("nothing").string(), "--tokens", own}), "there is no folder "));
}

}  // namespace
}  // namespace meshtrain::testing
