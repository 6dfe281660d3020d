#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "mesh/base/error.h"
#include "tests/support/messages.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {

/// A recipe with the required keys only.
inline const std::string kSmallRecipe = R"(model:
  family: llama
  hidden_size: 64
  num_hidden_layers: 2
  num_attention_heads: 4
  intermediate_size: 96
  vocab_size: 256
data:
  tokens: tokens.bin
train:
  sequence_length: 32
  global_batch: 8
  steps: 10
optimizer:
  learning_rate: 1.0e-3
)";

/// A folder for the recipes of one test.
class RecipeFolder {
 public:
  std::filesystem::path write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = folder_.path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
};

/// Returns the message of the InputError that `action` throws. Fails the test when it throws none or its message has
/// lines that are no items of a list.
inline std::string input_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(is_one_message(message)) << message;
    return message;
  }
  ADD_FAILURE() << "no InputError";
  return {};
}

}  // namespace meshtrain::testing
