#include "runtime/training/checkpoint/manifest_excerpt.h"

#include <algorithm>
#include <map>

#include "runtime/training/checkpoint/packer.h"

namespace meshtrain {

ManifestIndex::ManifestIndex(const Manifest& manifest) : manifest_(manifest) {
  for (const auto& [name, stored] : manifest.tensors) {
    Tensor tensor{stored, stored.pieces.by_row()};
    for (size_t i = 0; i < stored.pieces.size(); ++i)
      tensor.longest = std::max(tensor.longest, stored.pieces.num_rows(i));
    tensors_.emplace(name, std::move(tensor));
  }
}

Manifest ManifestIndex::excerpt(const std::vector<Piece>& wanted) const {
  std::map<std::string, std::pair<const Tensor*, std::vector<uint32_t>>> found;  // pieces of the tensors asked for
  for (const Piece& piece : wanted) {
    const auto known = tensors_.find(piece.tensor);
    if (known == tensors_.end()) continue;
    const Tensor& tensor = known->second;
    const StoredPieces& pieces = tensor.stored.pieces;
    auto& [of, taken] = found[piece.tensor];
    of = &tensor;
    if (tensor.stored.shape != piece.shape) continue;
    const int64_t row = piece.box.start.empty() ? 0 : piece.box.start[0];
    const int64_t end = row + (piece.box.size.empty() ? 1 : piece.box.size[0]);
    auto at = std::upper_bound(tensor.order.begin(), tensor.order.end(), row - tensor.longest,
                               [&](int64_t first, uint32_t other) { return first < pieces.first_row(other); });
    for (; at != tensor.order.end() && pieces.first_row(*at) < end; ++at) {
      if (pieces.intersects(*at, piece.box)) taken.push_back(*at);
    }
  }
  Manifest excerpt;
  excerpt.head.state = manifest_.head.state;
  std::unordered_map<size_t, size_t> files;  // numbers of the manifest -> of the excerpt
  for (auto& [name, entry] : found) {
    auto& [of, taken] = entry;
    StoredTensor& tensor = excerpt.tensors.try_emplace(name, of->stored.dtype, of->stored.shape).first->second;
    std::sort(taken.begin(), taken.end());
    taken.erase(std::unique(taken.begin(), taken.end()), taken.end());
    for (const uint32_t index : taken) {
      StoredPiece piece = of->stored.pieces[index];
      const auto [file, is_new] = files.try_emplace(piece.file, excerpt.files.size());
      if (is_new) excerpt.files.push_back(manifest_.files[piece.file]);
      piece.file = file->second;
      tensor.pieces.push_back(piece);
    }
  }
  return excerpt;
}

std::string packed(const std::vector<Piece>& pieces) {
  Packer packer;
  packer.number(static_cast<int64_t>(pieces.size()));
  for (const Piece& piece : pieces) {
    packer.text(piece.tensor);
    packer.numbers(piece.shape);
    packer.box(piece.box);
  }
  return packer.take();
}

std::vector<Piece> unpack_pieces(const std::string& bytes) {
  Unpacker unpacker(bytes);
  std::vector<Piece> pieces(static_cast<size_t>(unpacker.number()));
  for (Piece& piece : pieces) {
    piece.tensor = unpacker.text();
    piece.shape = unpacker.numbers();
    piece.box = unpacker.box(piece.shape.size());
  }
  return pieces;
}

std::string packed(const Manifest& excerpt) {
  Packer packer;
  const TrainingState& state = excerpt.head.state;
  for (const int64_t number : {state.step, state.num_samples, state.num_updates, state.num_skipped}) {
    packer.number(number);
  }
  packer.plain(state.loss_scale.has_value());
  if (state.loss_scale) {
    packer.plain(state.loss_scale->value);
    packer.number(state.loss_scale->num_finite);
  }
  packer.plain(state.recent.has_value());
  if (state.recent) {
    packer.number(static_cast<int64_t>(state.recent->losses.size()));
    for (const double loss : state.recent->losses) packer.plain(loss);
    for (const double norm : state.recent->grad_norms) packer.plain(norm);
  }
  packer.number(static_cast<int64_t>(excerpt.files.size()));
  for (const StoredFile& file : excerpt.files) {
    packer.text(file.name);
    packer.plain(file.header);
  }
  packer.number(static_cast<int64_t>(excerpt.tensors.size()));
  for (const auto& [name, tensor] : excerpt.tensors) {
    packer.text(name);
    packer.plain(tensor.dtype);
    packer.numbers(tensor.shape);
    packer.number(static_cast<int64_t>(tensor.pieces.size()));
    for (const StoredPiece& piece : tensor.pieces) {
      packer.number(static_cast<int64_t>(piece.file));
      packer.box(piece.box);
      packer.plain(piece.checksum);
    }
  }
  return packer.take();
}

Manifest unpack_excerpt(const std::string& bytes) {
  Unpacker unpacker(bytes);
  Manifest excerpt;
  TrainingState& state = excerpt.head.state;
  for (int64_t* number : {&state.step, &state.num_samples, &state.num_updates, &state.num_skipped}) {
    *number = unpacker.number();
  }
  if (unpacker.plain<bool>()) {
    const auto value = unpacker.plain<double>();
    state.loss_scale = {value, unpacker.number()};
  }
  if (unpacker.plain<bool>()) {
    TrainingState::RecentSteps& recent = state.recent.emplace();
    const auto count = static_cast<size_t>(unpacker.number());
    for (std::vector<double>* numbers : {&recent.losses, &recent.grad_norms}) {
      while (numbers->size() < count) numbers->push_back(unpacker.plain<double>());
    }
  }
  for (int64_t count = unpacker.number(); count > 0; --count) {
    std::string name = unpacker.text();
    excerpt.files.push_back({std::move(name), unpacker.plain<uint64_t>()});
  }
  for (int64_t count = unpacker.number(); count > 0; --count) {
    std::string name = unpacker.text();
    const auto dtype = unpacker.plain<at::ScalarType>();
    const std::vector<int64_t> shape = unpacker.numbers();
    StoredTensor& tensor = excerpt.tensors.try_emplace(std::move(name), dtype, shape).first->second;
    for (int64_t pieces = unpacker.number(); pieces > 0; --pieces) {
      const auto file = static_cast<size_t>(unpacker.number());
      Box box = unpacker.box(shape.size());
      tensor.pieces.push_back({file, std::move(box), unpacker.plain<uint64_t>()});
    }
  }
  return excerpt;
}

}  // namespace meshtrain
