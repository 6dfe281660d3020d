#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace meshtrain {

/// The value of SourceOptions::documents for the word `index`: documents end where the index of a Megatron file says.
inline constexpr int64_t kDocumentsOfIndex = -1;

/// The layout of samples of S tokens in a token file. Sample i begins at token i (S + 1) in Records, at i S in Stream.
enum class SampleLayout { Records, Stream };

/// Returns the layout's name in sidecars and recipes.
constexpr const char* name(SampleLayout layout) {
  return layout == SampleLayout::Stream ? "stream" : "records";
}

/// A token file and how it is read.
struct SourceOptions {
  std::filesystem::path tokens;
  std::string source;            ///< the command that makes `tokens`, shown when the file is missing; may be empty
  std::string dtype = "uint16";  ///< uint8 uint16 uint32, or megatron: the dtype in the file's index
  SampleLayout layout = SampleLayout::Records;
  std::optional<int64_t> ignore_id;
  std::filesystem::path loss_mask;  ///< empty: none
  bool shuffle = false;
  std::optional<int64_t> documents;  ///< the token that ends a document; attention does not cross documents
  bool boundaries_count = true;      ///< the first token of a document counts as the label of the one before
};

/// One of several files that samples are taken from.
struct MixedSource : SourceOptions {
  double weight = 1;  ///< share of the samples: this over the sum of all weights
};

struct DataOptions : SourceOptions {
  std::filesystem::path tokenizer;   ///< that of the tokens, for generate; `bytes`: each id is a byte; empty: none
  std::vector<MixedSource> mixture;  ///< empty: the one file `tokens`; otherwise `tokens` is empty

  /// Returns the files that samples are taken from, one or more.
  std::vector<MixedSource> sources() const {
    if (!mixture.empty()) return mixture;
    const MixedSource only{*this};
    return {only};
  }
  /// Returns the key of source `i`: "data", "data.mixture[1]".
  std::string source_key(size_t i) const {
    return mixture.empty() ? "data" : "data.mixture[" + std::to_string(i) + "]";
  }
};

/// The file of samples that the model is evaluated on; without `tokens` there is no evaluation.
struct EvaluationOptions : SourceOptions {
  int64_t every = 0;               ///< steps between evaluations; 0: only after the last step
  std::optional<int64_t> samples;  ///< how many of the first samples are used; none: all
};

}  // namespace meshtrain
