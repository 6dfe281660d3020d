#include "runtime/training/model/unused_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"
#include "mesh/device/aten.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/tensor_names.h"
#include "runtime/training/model/transformer.h"

namespace meshtrain {
namespace {

/// Returns true for tensors that transformers ignores in silence.
bool is_spare(const std::string& name, const ModelShape& shape) {
  return (shape.tie_word_embeddings && name == kHead) || name.find("rotary_emb.inv_freq") != std::string::npos;
}

std::string describe_value(const at::Tensor& value) {
  return fmt::format("{:.9g}", value.item().toDouble());
}

[[noreturn]] void refuse_head(const SafetensorsFolder& weights, const std::string& difference) {
  throw InputError(
      weights.path().string() + ": config.json has tie_word_embeddings: true, but " + kHead + " is not " + kEmbedding +
      ": " + difference +
      ". Set tie_word_embeddings to false there for a model with both (as transformers reads the folder), or remove " +
      kHead + " from its files for a model that uses the embedding as its head");
}

}  // namespace

std::vector<std::string> weight_warnings(const SafetensorsFolder& weights, const ModelShape& shape) {
  std::set<std::string> used;
  for (const TensorEntry& tensor : folder_tensors(shape, declared_tensors(shape, at::kFloat))) used.insert(tensor.name);
  std::vector<std::string> unused, warnings;
  for (const std::string& name : weights.names()) {
    if (!used.contains(name) && !is_spare(name, shape)) unused.push_back(name);
  }
  const std::string folder = weights.path().string();
  const auto warn = [&](const std::vector<std::string>& names, const std::string& one, const std::string& several) {
    if (names.empty()) return;
    warnings.push_back(counted(names.size(), "tensor") + " in " + folder + (names.size() == 1 ? one : several) +
                       describe_names(names));
  };
  const std::string rest = " not part of the model that its config.json describes, and not used: ";
  warn(unused, " is" + rest, " are" + rest);
  const std::string repeated =
      " in two files, and read from the file that the index lists (other programs take the last): ";
  warn(weights.repeated(), " is" + repeated, " are" + repeated);
  return warnings;
}

void check_tied_head(const SafetensorsFolder& weights, const ModelShape& shape, const Box& box) {
  constexpr int64_t kElements = 1 << 22;  // compared at once
  if (!shape.tie_word_embeddings || !weights.contains(kHead) || !weights.contains(kEmbedding)) return;
  const std::vector<int64_t>& extents = weights.entry(kEmbedding).shape;
  if (extents != weights.entry(kHead).shape) {
    refuse_head(weights, "it has shape " + describe_shape(weights.entry(kHead).shape) + ", the embedding " +
                             describe_shape(extents));
  }
  if (c10::multiply_integers(box.size) == 0) return;
  const int64_t rows = std::max<int64_t>(1, kElements / box.size[1]);
  for (int64_t row = 0; row < box.size[0]; row += rows) {
    const Box part{{box.start[0] + row, box.start[1]}, {std::min(rows, box.size[0] - row), box.size[1]}};
    const at::Tensor head = weights.read(kHead, part), embedding = weights.read(kEmbedding, part);
    const at::Tensor unequal =
        head.dtype() == embedding.dtype() ? head.ne(embedding) : head.to(at::kDouble).ne(embedding.to(at::kDouble));
    const at::Tensor differs = unequal.logical_and(head.isnan().logical_and(embedding.isnan()).logical_not());
    if (!differs.any().item<bool>()) continue;
    const int64_t first = differs.flatten().to(at::kByte).argmax().item<int64_t>();
    refuse_head(weights,
                "the first difference is at " +
                    describe_shape({part.start[0] + first / part.size[1], part.start[1] + first % part.size[1]}) +
                    ", " + describe_value(head.flatten()[first]) + " in the head and " +
                    describe_value(embedding.flatten()[first]) + " in the embedding");
  }
}

void check_tied_head(const SafetensorsFolder& weights, const ModelShape& shape) {
  check_tied_head(weights, shape, {{0, 0}, {shape.vocab_size, shape.hidden_size}});
}

}  // namespace meshtrain
