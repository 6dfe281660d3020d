#include "runtime/model/unused_weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "mesh/error.h"
#include "mesh/size_text.h"
#include "runtime/model/folder_tensors.h"
#include "runtime/model/transformer.h"

namespace meshtrain {
namespace {

constexpr const char* kHead = "lm_head.weight";

/// Tensors whose names differ in the number of their layer.
struct NameGroup {
  std::string before, after;     // the number
  std::vector<int64_t> numbers;  // none: a name without a number
};

/// Returns the name as a group of one. Its number is the first part between dots that is one.
NameGroup group_of(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos) {
      return {name.substr(0, begin), name.substr(end), {std::stoll(part)}};
    }
    begin = end + 1;
  }
  return {name, "", {}};
}

/// Returns "model.layers.[0-3].self_attn.q_proj.bias".
std::string describe_names(const NameGroup& group) {
  if (group.numbers.empty()) return group.before;
  const auto [least, most] = std::ranges::minmax(group.numbers);
  std::string number = std::to_string(least);
  if (least != most) number = "[" + number + "-" + std::to_string(most) + "]";
  return group.before + number + group.after;
}

/// Returns true for tensors that transformers ignores in silence.
bool is_spare(const std::string& name, const ModelShape& shape) {
  return (shape.tie_word_embeddings && name == kHead) || name.find("rotary_emb.inv_freq") != std::string::npos;
}

std::string describe_value(const at::Tensor& value) {
  return fmt::format("{:.9g}", value.item().toDouble());
}

[[noreturn]] void refuse_head(const SafetensorsFolder& weights, const std::string& difference) {
  throw InputError(weights.path().string() + ": config.json has tie_word_embeddings: true, but " + kHead + " is not " +
                   kEmbedding + ": " + difference +
                   ". Set tie_word_embeddings to false there for a model with both, as which transformers reads the "
                   "folder, or remove " +
                   kHead + " from its files for one that uses the embedding as its head");
}

}  // namespace

std::string describe_unused(const SafetensorsFolder& weights, const ModelShape& shape) {
  constexpr size_t kMostGroups = 8, kMostBytes = 100;
  std::set<std::string> used;
  for (const TensorEntry& tensor : folder_tensors(shape, declared_tensors(shape, at::kFloat))) used.insert(tensor.name);
  std::map<std::pair<std::string, std::string>, NameGroup> groups;
  size_t count = 0;
  for (const std::string& name : weights.names()) {
    if (used.contains(name) || is_spare(name, shape)) continue;
    ++count;
    const NameGroup found = group_of(name);
    NameGroup& group =
        groups.try_emplace({found.before, found.after}, NameGroup{found.before, found.after, {}}).first->second;
    group.numbers.insert(group.numbers.end(), found.numbers.begin(), found.numbers.end());
  }
  if (groups.empty()) return {};
  std::string names;
  size_t shown = 0;
  for (const auto& [key, group] : groups) {
    if (shown == kMostGroups) break;
    std::string text = describe_names(group);
    if (text.size() > kMostBytes) text = text.substr(0, kMostBytes) + "...";
    names += (shown++ == 0 ? "" : ", ") + text;
  }
  if (groups.size() > shown) names += ", and " + counted(groups.size() - shown, "more name");
  return "warning: " + counted(count, "tensor") + " in " + weights.path().string() + (count == 1 ? " is" : " are") +
         " not part of the model that its config.json describes, and not used: " + names;
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
    const at::Tensor differs =
        head.dtype() == embedding.dtype() ? head.ne(embedding) : head.to(at::kDouble).ne(embedding.to(at::kDouble));
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
