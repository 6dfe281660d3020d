#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/files.h"

namespace meshtrain::testing {

/// Folders that fixtures/generate.py writes.
inline const std::vector<std::string> kHuggingFaceFixtures = {"gpt2", "llama3", "smollm2", "qwen", "flags", "merged"};

/// Folders that fixtures/generate_shapes.py writes.
inline const std::vector<std::string> kShapes = {"mistral", "llama2", "gemma", "nfkc", "words", "nfkd", "partial"};

inline std::filesystem::path fixture(const std::string& name) {
  return source_folder() + "/tests/tokenizer/fixtures/" + name;
}

/// A reader of little-endian numbers and sized texts, one after the other.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : bytes_(content(file)) {}

  bool done() const { return at_ == bytes_.size(); }
  template <typename Number>
  Number number() {
    Number value;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text(uint32_t size) {
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  std::string text() { return text(number<uint32_t>()); }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

inline std::vector<std::string> corpus() {
  std::vector<std::string> texts;
  for (Reader reader(fixture("corpus.bin")); !reader.done();) texts.push_back(reader.text());
  return texts;
}

}  // namespace meshtrain::testing
