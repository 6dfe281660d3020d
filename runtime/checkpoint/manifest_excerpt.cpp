#include "runtime/checkpoint/manifest_excerpt.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>

namespace meshtrain {
namespace {

class Packer {
 public:
  template <typename Number>
  void number(Number value) {
    char bytes[sizeof value];
    std::memcpy(bytes, &value, sizeof value);
    bytes_.append(bytes, sizeof value);
  }
  void text(const std::string& value) {
    number(value.size());
    bytes_ += value;
  }
  void numbers(const std::vector<int64_t>& values) {
    number(values.size());
    for (const int64_t value : values) number(value);
  }
  void box(const Box& box) {
    numbers(box.start);
    numbers(box.size);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  template <typename Number>
  Number number() {
    Number value;
    std::memcpy(&value, next(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(next(number<size_t>())); }
  std::vector<int64_t> numbers() {
    std::vector<int64_t> values;
    for (auto count = number<size_t>(); count > 0; --count) values.push_back(number<int64_t>());
    return values;
  }
  Box box() {
    std::vector<int64_t> start = numbers();
    return {std::move(start), numbers()};
  }

 private:
  std::string_view next(size_t size) {
    if (size > rest_.size()) throw std::runtime_error("an excerpt of a manifest ends too soon");
    const std::string_view part = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return part;
  }

  std::string_view rest_;
};

int64_t first_row(const Box& box) {
  return box.start.empty() ? 0 : box.start[0];
}

int64_t num_rows(const Box& box) {
  return box.size.empty() ? 1 : box.size[0];
}

}  // namespace

ManifestIndex::ManifestIndex(const Manifest& manifest) : manifest_(manifest) {
  for (const auto& [name, stored] : manifest.tensors) {
    Tensor& tensor = tensors_[name];
    for (const StoredPiece& piece : stored.pieces) {
      tensor.pieces.push_back(&piece);
      tensor.longest = std::max(tensor.longest, num_rows(piece.box));
    }
    std::sort(tensor.pieces.begin(), tensor.pieces.end(),
              [](const StoredPiece* a, const StoredPiece* b) { return first_row(a->box) < first_row(b->box); });
  }
}

Manifest ManifestIndex::excerpt(const std::vector<Piece>& wanted) const {
  Manifest excerpt;
  excerpt.head.state = manifest_.head.state;
  std::map<size_t, size_t> files;  // numbers of the manifest -> of the excerpt
  std::set<const StoredPiece*> taken;
  for (const Piece& piece : wanted) {
    const auto found = manifest_.tensors.find(piece.tensor);
    if (found == manifest_.tensors.end()) continue;
    const StoredTensor& stored = found->second;
    StoredTensor& tensor =
        excerpt.tensors.try_emplace(piece.tensor, StoredTensor{stored.dtype, stored.shape, {}}).first->second;
    if (stored.shape != piece.shape) continue;
    const Tensor& sorted = tensors_.at(piece.tensor);
    const int64_t begin = first_row(piece.box) - sorted.longest, end = first_row(piece.box) + num_rows(piece.box);
    auto at = std::upper_bound(sorted.pieces.begin(), sorted.pieces.end(), begin,
                               [](int64_t row, const StoredPiece* other) { return row < first_row(other->box); });
    for (; at != sorted.pieces.end() && first_row((*at)->box) < end; ++at) {
      if (!intersect((*at)->box, piece.box) || !taken.insert(*at).second) continue;
      const auto [file, is_new] = files.try_emplace((*at)->file, excerpt.files.size());
      if (is_new) excerpt.files.push_back(manifest_.files[(*at)->file]);
      tensor.pieces.push_back({file->second, (*at)->box, (*at)->checksum});
    }
  }
  return excerpt;
}

std::string packed(const std::vector<Piece>& pieces) {
  Packer packer;
  packer.number(pieces.size());
  for (const Piece& piece : pieces) {
    packer.text(piece.tensor);
    packer.numbers(piece.shape);
    packer.box(piece.box);
  }
  return packer.take();
}

std::vector<Piece> unpack_pieces(const std::string& bytes) {
  Unpacker unpacker(bytes);
  std::vector<Piece> pieces(unpacker.number<size_t>());
  for (Piece& piece : pieces) {
    piece.tensor = unpacker.text();
    piece.shape = unpacker.numbers();
    piece.box = unpacker.box();
  }
  return pieces;
}

std::string packed(const Manifest& excerpt) {
  Packer packer;
  const TrainingState& state = excerpt.head.state;
  for (const int64_t number : {state.step, state.num_samples, state.num_updates, state.num_skipped}) {
    packer.number(number);
  }
  packer.number(state.loss_scale.has_value());
  if (state.loss_scale) {
    packer.number(state.loss_scale->value);
    packer.number(state.loss_scale->num_finite);
  }
  packer.number(excerpt.files.size());
  for (const StoredFile& file : excerpt.files) {
    packer.text(file.name);
    packer.number(file.header);
  }
  packer.number(excerpt.tensors.size());
  for (const auto& [name, tensor] : excerpt.tensors) {
    packer.text(name);
    packer.number(tensor.dtype);
    packer.numbers(tensor.shape);
    packer.number(tensor.pieces.size());
    for (const StoredPiece& piece : tensor.pieces) {
      packer.number(piece.file);
      packer.box(piece.box);
      packer.number(piece.checksum);
    }
  }
  return packer.take();
}

Manifest unpack_excerpt(const std::string& bytes) {
  Unpacker unpacker(bytes);
  Manifest excerpt;
  TrainingState& state = excerpt.head.state;
  for (int64_t* number : {&state.step, &state.num_samples, &state.num_updates, &state.num_skipped}) {
    *number = unpacker.number<int64_t>();
  }
  if (unpacker.number<bool>()) {
    const auto value = unpacker.number<double>();
    state.loss_scale = {value, unpacker.number<int64_t>()};
  }
  for (auto count = unpacker.number<size_t>(); count > 0; --count) {
    std::string name = unpacker.text();
    excerpt.files.push_back({std::move(name), unpacker.number<uint64_t>()});
  }
  for (auto count = unpacker.number<size_t>(); count > 0; --count) {
    StoredTensor& tensor = excerpt.tensors[unpacker.text()];
    tensor.dtype = unpacker.number<at::ScalarType>();
    tensor.shape = unpacker.numbers();
    for (auto pieces = unpacker.number<size_t>(); pieces > 0; --pieces) {
      const auto file = unpacker.number<size_t>();
      Box box = unpacker.box();
      tensor.pieces.push_back({file, std::move(box), unpacker.number<uint64_t>()});
    }
  }
  return excerpt;
}

}  // namespace meshtrain
