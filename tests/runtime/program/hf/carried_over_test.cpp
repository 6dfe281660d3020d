#include "runtime/program/hf/carried_over.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "mesh/base/error.h"
#include "runtime/program/hf/config_json.h"
#include "tests/support/files.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using testing::content;
using testing::has;
using testing::ScratchFolder;
using testing::write_file;

const char* const kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": [2, 5], "pad_token_id": null,
  "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 8192, "model_type": "llama",
  "num_attention_heads": 4, "num_hidden_layers": 1, "dtype": "float32", "transformers_version": "5.0.0",
  "use_cache": true, "rope_parameters": {"rope_theta": 5000, "rope_type": "default"}, "vocab_size": 100})";

class CarriedOverTest : public ::testing::Test {
 protected:
  CarriedOverTest() {
    write_file(source_ / "config.json", kConfig);
    shape_ = read_config_json(source_ / "config.json");
    std::filesystem::create_directory(out_);
  }
  json config(const CarriedOver& carried) const {
    return json::parse(write_config_json(shape_, "bfloat16", further_keys(carried)));
  }

  ScratchFolder scratch_;
  std::filesystem::path source_ = scratch_.path() / "source", out_ = scratch_.path() / "out";
  ModelShape shape_;
};

TEST_F(CarriedOverTest, KeysThatAreNotTheShape) {
  const CarriedOver carried = carried_over(source_, shape_);
  EXPECT_EQ(carried.model, source_);
  EXPECT_TRUE(carried.tokenizer.empty() && carried.left_out.empty());
  const json written = config(carried);
  EXPECT_EQ(written["bos_token_id"], 1);
  EXPECT_EQ(written["eos_token_id"], json({2, 5}));
  EXPECT_TRUE(written.at("pad_token_id").is_null());
  EXPECT_EQ(written["transformers_version"], "5.0.0");
  EXPECT_EQ(written["use_cache"], true);
  EXPECT_EQ(written["max_position_embeddings"], 8192);
  EXPECT_EQ(written["torch_dtype"], "bfloat16");
  EXPECT_EQ(written["rope_theta"], 5000);
  EXPECT_FALSE(written.contains("dtype") || written.contains("rope_parameters"));
  write_file(out_ / "config.json", written.dump());
  EXPECT_EQ(write_config_json(read_config_json(out_ / "config.json"), ""), write_config_json(shape_, ""));
}

TEST_F(CarriedOverTest, FilesOfTheTokenizerAndNoOthers) {
  const std::vector<std::string> names = {
      "added_tokens.json", "chat_template.jinja",   "merges.txt", "tokenizer.json", "special_tokens_map.json",
      "tokenizer.model",   "tokenizer_config.json", "vocab.json"};
  for (const std::string& name : names) write_file(source_ / name, "content of " + name);
  write_file(source_ / "README.md", "not this");
  write_file(source_ / "tokenizer.json.d/x", "nor this");
  write_file(source_ / "generation_config.json", "{\"temperature\": 0.5}");
  const CarriedOver carried = carried_over(source_, shape_);
  copy_carried(carried, out_);
  for (const std::string& name : names) EXPECT_EQ(content(out_ / name), "content of " + name);
  EXPECT_EQ(content(out_ / "generation_config.json"), "{\"temperature\": 0.5}");
  const auto count = std::distance(std::filesystem::directory_iterator(out_), {});
  EXPECT_EQ(static_cast<size_t>(count), names.size() + 1);
  EXPECT_EQ(describe(carried), ", with the tokenizer of " + source_.string());
}

TEST_F(CarriedOverTest, AGenerationConfigIsMadeOfTheEndsOfATextAlone) {
  copy_carried(carried_over(source_, shape_), out_);
  EXPECT_EQ(json::parse(content(out_ / "generation_config.json")),
            json::parse(R"({"_from_model_config": true, "bos_token_id": 1, "eos_token_id": [2, 5]})"));
  std::filesystem::remove(out_ / "generation_config.json");
  copy_carried({}, out_);
  EXPECT_TRUE(std::filesystem::is_empty(out_));
}

TEST_F(CarriedOverTest, EndsComeFromATokenizerWhereNoModelSaysThem) {
  const std::filesystem::path tokenizer = scratch_.path() / "tokenizer";
  std::filesystem::copy(testing::source_folder() + "/tests/tokenizer/fixtures/llama3", tokenizer);
  CarriedOver carried;
  carried.tokenizer = tokenizer;
  const json written = config(carried);
  EXPECT_TRUE(written.at("bos_token_id").is_number() && written.at("eos_token_id").is_number()) << written;
  copy_carried(carried, out_);
  EXPECT_EQ(json::parse(content(out_ / "generation_config.json"))["eos_token_id"], written["eos_token_id"]);
  carried.model = source_;
  EXPECT_EQ(config(carried)["bos_token_id"], 1) << "the model's own come first";
  EXPECT_FALSE(has(describe(carried), "eos_token_id"));
  carried.document_end = 9;
  EXPECT_EQ(config(carried)["eos_token_id"], json({2, 5})) << "before what ended documents";
  write_file(tokenizer / "tokenizer.json", "{\"of another\": \"kind\"}");
  carried.model.clear();
  EXPECT_FALSE(config(carried).contains("bos_token_id"));
  EXPECT_EQ(config(carried)["eos_token_id"], 9);
  EXPECT_EQ(describe(carried), ", with the tokenizer of " + tokenizer.string());
  carried.document_end.reset();
  const std::string unknown = "; it has no eos_token_id, because no token is known to end a text: ";
  EXPECT_TRUE(has(describe(carried), unknown) && has(describe(carried), " can take it from --tokenizer"));
  EXPECT_TRUE(has(describe(CarriedOver()), unknown));
  write_file(tokenizer / "generation_config.json", "{\"eos_token_id\": 3}");
  EXPECT_FALSE(has(describe(carried), unknown)) << "there it is named";
}

TEST_F(CarriedOverTest, NothingOfAFolderThatIsGoneOrHasAnotherModel) {
  EXPECT_TRUE(carried_over({}, shape_).left_out.empty());
  CarriedOver carried = carried_over(scratch_.path() / "none", shape_);
  EXPECT_TRUE(carried.model.empty() && has(carried.left_out, "none no longer exists")) << carried.left_out;
  shape_.rope_theta = 10000;
  carried = carried_over(source_, shape_);
  EXPECT_TRUE(carried.model.empty() && has(carried.left_out, "source now has a different model")) << carried.left_out;
  EXPECT_TRUE(has(describe(carried), "; nothing was copied from the recipe's model.hf: "));
  write_file(source_ / "config.json", "{");
  carried = carried_over(source_, shape_);
  EXPECT_TRUE(carried.model.empty() && has(carried.left_out, "not valid JSON")) << carried.left_out;
}

}  // namespace
}  // namespace meshtrain
