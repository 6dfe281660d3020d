#include "runtime/training/checkpoint/piece_writer.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <stdexcept>

#include "fsdp/shard_memory.h"
#include "mesh/base/error.h"
#include "mesh/base/files/output_file.h"
#include "mesh/device/device_transfer.h"
#include "runtime/training/checkpoint/manifest.h"
#include "runtime/training/checkpoint/manifest_writer.h"
#include "runtime/training/safetensors/writer.h"

namespace meshtrain {
namespace {

std::vector<TensorEntry> entries_of(const std::vector<Piece>& pieces) {
  std::vector<TensorEntry> entries;
  for (const Piece& piece : pieces) {
    entries.push_back({piece_name(piece.tensor, piece.box), piece.values.scalar_type(), piece.box.size});
  }
  return entries;
}

}  // namespace

PieceWriter::PieceWriter(std::vector<Piece> pieces, std::string file_name, bool copies)
    : pieces_(std::move(pieces)), file_name_(std::move(file_name)), copies_(copies) {
  for (const Piece& piece : pieces_) values_.push_back(piece.values);
}

void PieceWriter::save(const std::filesystem::path& folder) {
  copy();
  writing_ = std::async(std::launch::async, [this, folder] { return pieces_.empty() ? "" : write(folder); });
}

bool PieceWriter::done(std::chrono::milliseconds patience) const {
  return !writing_.valid() || writing_.wait_for(patience) == std::future_status::ready;
}

std::string PieceWriter::wait() {
  return writing_.get();
}

void PieceWriter::expect_file_in(const std::filesystem::path& folder) const {
  if (!pieces_.empty()) expect_file(folder / file_name_, num_bytes_);
}

int64_t PieceWriter::copy_bytes() const {
  int64_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += copies(piece.values) ? static_cast<int64_t>(piece.values.nbytes()) : 0;
  return bytes;
}

void PieceWriter::copy() {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const at::Tensor& values = pieces_[i].values;
    if (!copies(values)) continue;
    if (values_[i].is_same(values)) {
      values_[i] =
          at::empty(values.sizes(), at::TensorOptions(at::kCPU).dtype(values.dtype()).pinned_memory(values.is_cuda()));
    }
    values_[i].copy_(values, /*non_blocking=*/true);
  }
  const auto on_gpu = std::ranges::find_if(pieces_, [](const Piece& piece) { return piece.values.is_cuda(); });
  if (on_gpu != pieces_.end()) wait_for_stream(on_gpu->values.device());
}

std::string PieceWriter::write(const std::filesystem::path& folder) try {
  SafetensorsWriter file(folder / file_name_, entries_of(pieces_));
  ManifestPart part({file_name_, checksum(file.header().data(), file.header().size())});
  num_bytes_ = file.header().size();
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    const at::Tensor values = values_[i].contiguous();
    file.write(piece_name(piece.tensor, piece.box), values);
    num_bytes_ += values.nbytes();
    part.add(piece.tensor, values.scalar_type(), piece.shape, piece.box,
             checksum(values.const_data_ptr(), values.nbytes()));
    set_aside(piece.values);
  }
  file.finish();
  return part.packed();
} catch (const InputError& error) {  // an error in a path, which the user gave correctly: the run has started
  throw std::runtime_error(error.what());
}

}  // namespace meshtrain
