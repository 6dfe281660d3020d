// `meshtrain generate` as its users run it.

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tools/train_program.h"

namespace meshtrain::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Words = std::vector<std::string>;

std::string model(const std::string& name) {
  return source_folder() + "/tests/fixtures/" + name;
}

/// A prompt of a fixture and transformers' continuation.
struct Expected {
  explicit Expected(const std::string& name, size_t index = 1) {
    const json each = json::parse(std::ifstream(model(name) + "/generated.json"))[index];
    prompt = joined(each.at("prompt"), ",");
    tokens = each.at("tokens").get<std::vector<int64_t>>();
  }
  static std::string joined(const std::vector<int64_t>& ids, const std::string& between) {
    std::string text;
    for (const int64_t id : ids) text += (text.empty() ? "" : between) + std::to_string(id);
    return text;
  }
  std::string first(size_t count) const {
    return joined({tokens.begin(), tokens.begin() + static_cast<int64_t>(count)}, " ") + "\n";
  }
  std::string prompt;
  std::vector<int64_t> tokens;
};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Generate, IdsWithoutATokenizerOnAnyMesh) {
  const Expected expected("qwen3");
  const Words words = {"generate", model("qwen3"), "--tokens", expected.prompt, "--max-tokens", "64", "--ignore-eos"};
  const Ending alone = run_meshtrain(words);
  EXPECT_EQ(alone.status, 0) << alone.err;
  EXPECT_EQ(alone.out, expected.first(64));
  EXPECT_TRUE(has(alone.err, " parameters in fp32 on 1 rank, loaded in ")) << alone.err;
  EXPECT_TRUE(has(alone.err, "prompt of 7 in ") && has(alone.err, "then 63 more in ")) << alone.err;
  for (const Words& mesh : {Words{}, {"--mesh", "tp=2"}}) {
    const Ending both = run_meshtrain_on_ranks(2, with(words, mesh));
    EXPECT_EQ(both.status, 0) << both.err;
    EXPECT_EQ(both.out, expected.first(64));
    EXPECT_EQ(count(both.err, "loaded in"), 1) << both.err;
  }
}

TEST(Generate, WithAnAdapterOfPeft) {
  const Words words = {"generate", model("llama"), "--tokens", "5,6", "--max-tokens", "20", "--ignore-eos"};
  const Words adapted = with(words, {"--adapter", model("adapters/folders/llama")});
  const Ending base = run_meshtrain(words), alone = run_meshtrain(adapted);
  EXPECT_EQ(alone.status, 0) << alone.err;
  EXPECT_NE(alone.out, base.out);
  const Ending both = run_meshtrain_on_ranks(2, with(adapted, {"--mesh", "tp=2"}));
  EXPECT_EQ(both.status, 0) << both.err;
  EXPECT_EQ(both.out, alone.out);
  const Ending other = run_meshtrain(with(words, {"--adapter", model("qwen3")}));
  EXPECT_TRUE(has(other.err, "--adapter " + model("qwen3") + ": there is no adapter_config.json in ")) << other.err;
}

TEST(Generate, EndsAtTheEndOfTextOrNot) {
  // config.json names token 2.
  const Words words = {"generate",      model("llama"), "--tokens", "5,6", "--max-tokens", "200",
                       "--temperature", "1.5",          "--seed",   "3",   "--json"};
  const Ending stops = run_meshtrain(words), ignores = run_meshtrain(with(words, {"--ignore-eos"}));
  ASSERT_EQ(stops.status, 0) << stops.err;
  const json ended = json::parse(stops.out), full = json::parse(ignores.out);
  EXPECT_EQ(full.at("tokens").size(), 200u);
  EXPECT_EQ(full.at("ended"), "length");
  const std::vector<int64_t> all = full.at("tokens"), some = ended.at("tokens");
  const auto end = std::find(all.begin(), all.end(), 2);
  ASSERT_NE(end, all.end()) << "take another seed";
  EXPECT_EQ(some, std::vector<int64_t>(all.begin(), end + 1));
  EXPECT_EQ(ended.at("ended"), "eos");
  EXPECT_TRUE(has(stops.err, "ended by token 2")) << stops.err;
  EXPECT_EQ(ended.at("prompt_tokens"), (std::vector<int64_t>{5, 6}));
  EXPECT_FALSE(ended.contains("text"));
  EXPECT_EQ(run_meshtrain(with(words, {"--stop-at-eos"})).out, stops.out);
}

/// A copy of a fixture's model with a generation_config.json.
struct Configured {
  Configured(const std::string& name, const json& config) {
    for (const char* file : {"config.json", "model.safetensors"}) fs::copy(model(name) + "/" + file, folder.path());
    std::ofstream(folder.path() / "generation_config.json") << config;
  }
  std::string path() const { return folder.path(); }
  ScratchFolder folder;
};

TEST(Generate, TheFolderSaysHowUnlessTheCommandLineDoes) {
  const json steered = json::parse(std::ifstream(model("qwen3") + "/steered.json"))[3];
  json config = steered.at("config");
  ASSERT_EQ(config.at("no_repeat_ngram_size"), 2);
  config["num_beams"] = 4;
  const Configured folder("qwen3", config);
  const Words words = {"generate", folder.path(), "--tokens", Expected::joined(steered.at("prompt"), ","),
                       "--ignore-eos"};
  const std::string line = folder.path() +
                           "/generation_config.json: applied max_new_tokens 32, no_repeat_ngram_size 2; not applied "
                           "num_beams 4\n";
  for (const Ending& ending : {run_meshtrain(words), run_meshtrain_on_ranks(2, words)}) {
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(ending.out, Expected::joined(steered.at("tokens"), " ") + "\n");
    EXPECT_EQ(count(ending.err, line), 1) << ending.err;
  }
  const Expected free("qwen3");
  EXPECT_EQ(run_meshtrain(with(words, {"--no-repeat-ngram-size", "0", "--max-tokens", "64"})).out, free.first(64));
  const Ending ignoring = run_meshtrain(with(words, {"--ignore-generation-config", "--max-tokens", "64"}));
  EXPECT_EQ(ignoring.out, free.first(64));
  EXPECT_FALSE(has(ignoring.err, "applied")) << ignoring.err;
  // The same by the command line.
  EXPECT_EQ(run_meshtrain({"generate", model("qwen3"), "--tokens", Expected::joined(steered.at("prompt"), ","),
                           "--max-tokens", "32", "--ignore-eos", "--no-repeat-ngram-size", "2"})
                .out,
            Expected::joined(steered.at("tokens"), " ") + "\n");
}

TEST(Generate, EachRuleHasAnOption) {
  const json all = json::parse(std::ifstream(model("llama") + "/steered.json"));
  const std::vector<Words> options = {{"--repetition-penalty", "1.3"},
                                      {"--repetition-penalty", "0.8", "--no-repeat-ngram-size", "4"},
                                      {"--no-repeat-ngram-size", "1"},
                                      {"--no-repeat-ngram-size", "2"},
                                      {}};
  for (size_t i = 0; i < options.size(); ++i) {
    Words words = {"generate", model("llama"), "--tokens", Expected::joined(all[i].at("prompt"), ","),
                   "--json",   "--max-tokens", "32",       "--ignore-eos"};
    const json& keys = all[i].at("config");
    for (const std::vector<int64_t>& word : keys.value("bad_words_ids", std::vector<std::vector<int64_t>>())) {
      words = with(words, {"--bad-words", Expected::joined(word, ",")});
    }
    const Ending ending = run_meshtrain(with(words, options[i]));
    ASSERT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(json::parse(ending.out).at("tokens"), all[i].at("tokens")) << keys;
  }
}

TEST(Generate, DrawsWhereTheFolderSaysSo) {
  const Configured folder("llama", {{"do_sample", true}, {"temperature", 1.5}, {"top_k", 20}, {"min_p", 0.05}});
  const Words shared = {"--tokens", "5,6", "--max-tokens", "40", "--seed", "3", "--ignore-eos"};
  const auto out = [&](const std::string& path, const Words& more) {
    const Ending ending = run_meshtrain(with(with({"generate", path}, shared), more));
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending.out;
  };
  const std::string drawn = out(folder.path(), {});
  EXPECT_EQ(out(model("llama"), {"--temperature", "1.5", "--top-k", "20", "--min-p", "0.05"}), drawn);
  EXPECT_EQ(out(folder.path(), {"--temperature", "0"}), out(model("llama"), {}));
  EXPECT_EQ(out(folder.path(), {"--top-k", "0", "--min-p", "0"}),
            out(model("llama"), {"--temperature", "1.5", "--top-k", "0"}));
  EXPECT_EQ(out(model("llama"), {"--temperature", "1.5"}),
            out(model("llama"), {"--temperature", "1.5", "--top-k", "50"}));
  EXPECT_NE(out(model("llama"), {"--temperature", "9"}), out(model("llama"), {"--temperature", "9", "--top-k", "0"}));
}

TEST(Generate, LengthsOfTheFolder) {
  const auto length = [](const json& config, const Words& more) {
    const Configured folder("llama", config);
    const Ending ending =
        run_meshtrain(with({"generate", folder.path(), "--tokens", "5,6,7", "--json", "--ignore-eos"}, more));
    return ending.status == 0 ? std::to_string(json::parse(ending.out).at("tokens").size()) : only_complaint(ending);
  };
  EXPECT_EQ(length({{"max_new_tokens", 5}}, {}), "5");
  EXPECT_EQ(length({{"max_new_tokens", 5}, {"max_length", 9}}, {}), "5");
  EXPECT_EQ(length({{"max_length", 9}}, {}), "6") << "the prompt counts";
  EXPECT_EQ(length({{"max_length", 9}}, {"--max-tokens", "7"}), "7");
  EXPECT_EQ(length({{"max_length", 9999}}, {}), "253") << "what max_position_embeddings leaves";
  EXPECT_TRUE(has(length({{"max_length", 3}}, {}), "prompt 1 takes 3 of max_length 3: nothing can follow, as "));
}

TEST(Generate, EndsAtAString) {
  const Expected expected("llama");
  const std::string characters(expected.tokens.begin(), expected.tokens.end());
  const std::string string = characters.substr(5, 2);
  const size_t last = characters.find(string) + 1;
  const Configured folder("llama", {{"stop_strings", {string, "not there"}}});
  const Words words = {"generate", folder.path(), "--tokens", expected.prompt, "--json", "--ignore-eos"};
  const auto check = [&](const Ending& ending) {
    ASSERT_EQ(ending.status, 0) << ending.err;
    const json line = json::parse(ending.out);
    EXPECT_EQ(line.at("tokens"),
              std::vector<int64_t>(expected.tokens.begin(), expected.tokens.begin() + static_cast<int64_t>(last) + 1));
    EXPECT_EQ(line.at("ended"), "stop");
    EXPECT_TRUE(has(ending.err, "ended by a stop string")) << ending.err;
  };
  check(run_meshtrain(with(words, {"--tokenizer", "bytes"})));
  check(run_meshtrain_on_ranks(2, with(words, {"--tokenizer", "bytes"})));
  check(run_meshtrain({"generate", model("llama"), "--tokens", expected.prompt, "--json", "--ignore-eos", "--tokenizer",
                       "bytes", "--stop", string}));
  const Ending without = run_meshtrain(words);
  EXPECT_EQ(json::parse(without.out).at("ended"), "length");
  EXPECT_TRUE(has(without.err, "not applied stop_strings ") && has(without.err, "(there is no tokenizer)"))
      << without.err;
}

TEST(Generate, SeveralPromptsOneAfterAnother) {
  const Expected first("llama", 1), second("llama", 2);
  const Words words = {"generate",    model("llama"), "--tokens", first.prompt,  "--tokens",
                       second.prompt, "--max-tokens", "20",       "--ignore-eos"};
  for (const Ending& ending : {run_meshtrain(words), run_meshtrain_on_ranks(2, words)}) {
    EXPECT_EQ(ending.status, 0) << ending.err;
    EXPECT_EQ(ending.out, "==> prompt 1 <==\n" + first.first(20) + "\n==> prompt 2 <==\n" + second.first(20));
  }
}

// stdout and stderr go into one pipe, as a launcher sends them to one terminal: the text of one write() stays together.
TEST(Generate, OnSeveralRanksATextIsWholeAmongTheLines) {
  const Expected first("llama", 1), second("llama", 2);
  const Ending ending = run_program({"/bin/sh", "-c",
                                     "exec 2>&1; exec '" + source_folder() + "/tools/ranks' 2 '" + build_folder() +
                                         "/meshtrain' generate '" + model("llama") + "' --tokens " + first.prompt +
                                         " --tokens " + second.prompt + " --max-tokens 20 --ignore-eos"});
  EXPECT_EQ(ending.status, 0) << ending.out;
  EXPECT_TRUE(has("\n" + ending.out, "\n==> prompt 1 <==\n" + first.first(20))) << ending.out;
  EXPECT_TRUE(has(ending.out, "\n\n==> prompt 2 <==\n" + second.first(20))) << ending.out;
}

TEST(Generate, HeadsThatDoNotDivideOverTpAreRefused) {
  const Ending ending = run_meshtrain_on_ranks(4, {"generate", model("llama_gqa_tied"), "--tokens", "1"});
  EXPECT_TRUE(has(ending.err, "meshtrain: model.num_key_value_heads: 2 does not divide over tp=4")) << ending.err;
}

TEST(Generate, WhatIsWrongIsSaidInOneLine) {
  const auto complaint = [](const Words& more) { return only_complaint(run_meshtrain(with({"generate"}, more))); };
  const std::string llama = model("llama");
  EXPECT_TRUE(has(complaint({llama}), "--prompt, --prompt-file or --tokens"));
  EXPECT_TRUE(has(complaint({llama, "--prompt", "a"}), "prompt 1 is text, but the model's folder has no tokenizer"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1,x"}), "--tokens: \"1,x\""));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1,97"}), "prompt 1 has token 97, the model's vocabulary has 97"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--prompt", "a"}), "--prompt"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--top-p", "0.5"}), "--temperature"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--top-p", "1.5"}), "--top-p"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--top-p", "nan"}), "--top-p: nan"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--temperature", "nan"}), "--temperature: nan"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--temperature", "1", "--min-p", "2"}), "--min-p: 2"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--repetition-penalty", "0"}), "--repetition-penalty: 0"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--bad-words", "1,97"}), "--bad-words: token 97 does not exist"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--bad-words", "x"}), "--bad-words: \"x\""));
  EXPECT_EQ(complaint({llama, "--tokens", "1", "--stop", "a"}), "--stop needs a text: give --tokenizer");
  for (const std::string seed : {"-1", "ten", "9223372036854775808", "99999999999999999999"}) {
    EXPECT_EQ(complaint({llama, "--tokens", "1", "--seed", seed}),
              "meshtrain generate: --seed: " + seed +
                  " is not a whole number from 0 to 9223372036854775807: see meshtrain generate --help");
  }
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--max-tokens", "0"}), "--max-tokens"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1,2", "--max-tokens", "255"}),
                  "prompt 1 takes 2 of max_position_embeddings 256: give at most --max-tokens 254"));
  std::string long_prompt = "1";
  for (int i = 1; i < 256; ++i) long_prompt += ",1";
  EXPECT_TRUE(has(complaint({llama, "--tokens", long_prompt}), "256: nothing can follow"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--mesh", "tp=2"}), "tp=2"));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--mesh", "dp=2"}), "dp=2"));
  const ScratchFolder folder;
  const std::string prompts = folder.path() / "prompts.jsonl";
  std::ofstream(prompts) << "{\"tokens\": [1]}\n{\"foo\": 1}\n";
  EXPECT_EQ(complaint({llama, "--prompt-file", prompts}),
            prompts + ":2: the object has neither \"prompt\" nor \"tokens\"");
  std::ofstream(prompts) << "{\"tokens\": [1]}\n{\"tokens\": []}\n";
  EXPECT_EQ(complaint({llama, "--prompt-file", prompts}),
            prompts + ":2: tokens is an empty list: name a token to continue from");
  const std::string both = folder.path() / "both.NDJSON";
  std::ofstream(both) << "\n{\"tokens\": [1], \"text\": \"a\"}\n{\"tokens\": [1], \"prompt\": \"a\"}\n";
  EXPECT_EQ(complaint({llama, "--prompt-file", both}),
            both + ":3: the object has both \"prompt\" and \"tokens\": leave one out");
  const std::string gpt2 = source_folder() + "/tests/tokenizer/fixtures/gpt2";
  EXPECT_EQ(complaint({llama, "--prompt", "a", "--tokenizer", gpt2}),
            "--tokenizer " + gpt2 +
                ": its ids go up to 1100, but those of the model up to 96: give the tokenizer that the model was "
                "trained with");
  EXPECT_EQ(
      complaint({llama, "--prompt", "a", "--tokenizer", llama + "/config.json"}),
      llama +
          "/config.json: is not a tokenizer.json, because it has no model: give a tokenizer.json, a SentencePiece "
          "*.model, a folder with one of them, or the word bytes");
  EXPECT_TRUE(has(complaint({source_folder(), "--tokens", "1"}), "there is no config.json in " + source_folder()));
  EXPECT_TRUE(has(complaint({llama, "--tokens", "1", "--precision", "fp8"}), "--precision"));
  EXPECT_TRUE(has(complaint({llama, "--prompt", "a", "--tokenizer", "/nowhere"}), "/nowhere"));
}

TEST(Generate, WhatIsWrongOnAMeshIsSaidOnce) {
  EXPECT_EQ(only_complaint(run_meshtrain_on_ranks(2, {"generate", model("llama"), "--tokens", "1", "--mesh", "cp=2"})),
            "mesh dp=1,cp=2,tp=1: generate has the axes dp (different prompts) and tp (one prompt together): leave cp "
            "out and give its 2 ranks to dp or tp, as in --mesh tp=2");
  EXPECT_EQ(only_complaint(run_meshtrain_on_ranks(2, {"generate", model("llama"), "--tokens", "1", "--mesh", "pp=2"})),
            "mesh pp=2,dp=1,cp=1,tp=1: generate has the axes dp (different prompts) and tp (one prompt together): "
            "leave pp out and give its 2 ranks to dp or tp, as in --mesh tp=2");
  const Ending heads = run_meshtrain_on_ranks(3, {"generate", model("llama"), "--tokens", "1"});
  EXPECT_EQ(count(heads.err, "meshtrain: "), 1) << heads.err;
  EXPECT_TRUE(has(heads.err, "tp")) << heads.err;
}

class GenerateFromRun : public TrainProgram {};

TEST_F(GenerateFromRun, TextOfBytes) {
  // Its tokens are 0 to 49, repeated.
  ASSERT_EQ(train(2, {"--mesh", "dp=2", "--set", "train.steps=60", "--set", "checkpoint.every=60", "--set",
                      "parallel.fsdp.mode=full_shard"})
                .status,
            0);
  write("prompt", "!\"#$\n");
  const auto text = [&](const Words& more) {
    const Ending ending = run_meshtrain(with({"generate", run_dir, "--tokenizer", "bytes", "--max-tokens", "6"}, more));
    EXPECT_EQ(ending.status, 0) << ending.err;
    return ending.out;
  };
  EXPECT_EQ(text({"--prompt", "!\"#$"}), "%&'()*\n") << "what it has been trained on";
  EXPECT_EQ(text({"--prompt-file", path("prompt")}), "%&'()*\n");
  const Ending from_stdin =
      run_program({"/bin/sh", "-c",
                   "'" + build_folder() + "/meshtrain' generate '" + run_dir.string() +
                       "' --tokenizer bytes --max-tokens 6 --prompt - < '" + path("prompt").string() + "'"});
  EXPECT_EQ(from_stdin.out, "%&'()*\n") << from_stdin.err;
  const json line = json::parse(text({"--prompt", "!\"#$", "--json"}));
  EXPECT_EQ(line.at("prompt"), "!\"#$");
  EXPECT_EQ(line.at("text"), "%&'()*");
  EXPECT_EQ(line.at("tokens"), (std::vector<int64_t>{37, 38, 39, 40, 41, 42}));
}

TEST_F(GenerateFromRun, AFolderThatIsGoneIsNamedWithWhatToDo) {
  fs::create_directory(path("hf"));
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy(model("llama") + "/" + file, path("hf") / file);
  ASSERT_EQ(train(1, {"--set", "model=null", "--set", "model.hf=" + path("hf").string(), "--set", "checkpoint.every=4"})
                .status,
            0);
  const Words words = {"generate", run_dir, "--max-tokens", "2"};
  EXPECT_FALSE(has(run_meshtrain(with(words, {"--tokens", "1"})).err, "model.hf"));
  fs::remove_all(path("hf"));
  const std::string gone = "model.hf of the run's recipe, " + path("hf").string() + ", no longer exists";
  EXPECT_EQ(only_complaint(run_meshtrain(with(words, {"--prompt", "a"}))),
            "prompt 1 is a text, and " + gone + ": give --tokenizer, the file or folder where its tokenizer is now");
  const Ending ending = run_meshtrain(with(words, {"--tokens", "1"}));
  EXPECT_EQ(ending.status, 0) << ending.err;
  EXPECT_TRUE(has(ending.err, gone + ", and no token is known to end a text: give --tokenizer\n")) << ending.err;
  EXPECT_FALSE(has(run_meshtrain(with(words, {"--tokens", "1", "--ignore-eos"})).err, gone));
}

TEST_F(GenerateFromRun, WhatEndsItsDocumentsEndsItsTexts) {
  // Its tokens are 0 to 49, repeated.
  ASSERT_EQ(train(1, {"--set", "train.steps=60", "--set", "checkpoint.every=60", "--set", "data.documents=40"}).status,
            0);
  const Words words = {"generate", run_dir, "--tokens", "33,34,35,36", "--max-tokens", "6"};
  EXPECT_EQ(run_meshtrain(words).out, "37 38 39 40\n");
  EXPECT_EQ(run_meshtrain(with(words, {"--ignore-eos"})).out.substr(0, 12), "37 38 39 40 ");
}

TEST_F(GenerateFromRun, ACheckpointWithoutItsManifestIsNamedWithTheOthers) {
  ASSERT_EQ(train(1, {"--set", "checkpoint.every=2"}).status, 0);
  const fs::path newest = run_dir / "checkpoints/step-00000004";
  fs::remove(newest / "manifest.json");
  const std::string damaged = "the checkpoint " + newest.string() + " has no manifest.json: it is damaged";
  for (const fs::path& folder : {run_dir, newest}) {
    EXPECT_EQ(only_complaint(run_meshtrain({"generate", folder, "--tokens", "1"})),
              damaged + "; its folder also has checkpoints of step 2: give one of these");
  }
  fs::remove_all(run_dir / "checkpoints/step-00000002");
  EXPECT_EQ(only_complaint(run_meshtrain({"generate", run_dir, "--tokens", "1"})),
            damaged + ", and its folder has no other checkpoint");
}

}  // namespace
}  // namespace meshtrain::testing
