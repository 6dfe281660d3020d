#include "runtime/training/checkpoint/checkpoint_reader.h"

#include "mesh/base/files/file_reader.h"
#include "mesh/device/aten.h"
#include "runtime/training/checkpoint/damage.h"

namespace meshtrain {
namespace {

/// Returns `box` relative to the first element of `outer`.
Box within(Box box, const Box& outer) {
  for (size_t dim = 0; dim < box.start.size(); ++dim) box.start[dim] -= outer.start[dim];
  return box;
}

}  // namespace

Manifest read_manifest(const std::filesystem::path& folder) try {
  return parse_manifest(FileReader(folder / "manifest.json"));
} catch (const DamagedCheckpoint&) {
  throw;
} catch (const NewerCheckpoint&) {
  throw;
} catch (const InputError& error) {
  throw DamagedCheckpoint(error.what());
}

CheckpointReader::CheckpointReader(std::filesystem::path folder, const Manifest& manifest)
    : folder_(std::move(folder)), manifest_(manifest) {}

void CheckpointReader::read(const Piece& piece) {
  const at::NoGradGuard no_grad;
  const auto found = manifest_.tensors.find(piece.tensor);
  if (found == manifest_.tensors.end()) {
    throw InputError(folder_.string() + " has no " + piece.tensor +
                     ": it was saved with a different model, optimizer, momentum or set of trained parameters");
  }
  const StoredTensor& stored = found->second;
  if (stored.shape != piece.shape) {
    throw InputError(folder_.string() + ": " + piece.tensor + " has shape " + describe_shape(stored.shape) + ", but " +
                     describe_shape(piece.shape) + " in the model");
  }
  for (const StoredPiece& source : stored.pieces) {
    const std::optional<Box> shared = intersect(source.box, piece.box);
    if (!shared) continue;
    const Box own = within(*shared, source.box);
    part(piece.values, within(*shared, piece.box)).copy_(values(piece.tensor, source, own));
  }
}

at::Tensor CheckpointReader::read(const std::string& tensor) {
  const auto found = manifest_.tensors.find(tensor);
  if (found == manifest_.tensors.end()) throw InputError(folder_.string() + " has no " + tensor);
  const StoredTensor& stored = found->second;
  for (const StoredPiece& piece : stored.pieces) file_of(tensor, piece);
  const at::Tensor values = at::empty(stored.shape, at::TensorOptions().dtype(stored.dtype));
  read({tensor, stored.shape, {std::vector<int64_t>(stored.shape.size(), 0), stored.shape}, values});
  return values;
}

const SafetensorsFile& CheckpointReader::file(size_t index) try {
  const auto found = files_.find(index);
  if (found != files_.end()) return found->second;
  const StoredFile& stored = manifest_.files[index];
  SafetensorsFile opened(folder_ / stored.name);
  const FileBytes header = opened.header();
  const uint64_t sum = checksum(header.data(), static_cast<size_t>(header.size()));
  if (sum != stored.header) {
    throw InputError(opened.path().string() + ": its header is damaged: its checksum is " + checksum_text(sum) +
                     ", but manifest.json has " + checksum_text(stored.header));
  }
  return files_.emplace(index, std::move(opened)).first->second;
} catch (const InputError& error) {
  throw DamagedCheckpoint(error.what());
}

const SafetensorsFile& CheckpointReader::file_of(const std::string& tensor, const StoredPiece& piece) {
  const std::string name = piece_name(tensor, piece.box);
  const auto fail = [&](const std::string& what) {
    throw DamagedCheckpoint((folder_ / manifest_.files[piece.file].name).string() + ": " + name + " " + what);
  };
  const SafetensorsFile* source = nullptr;
  try {
    source = &file(piece.file);
  } catch (const DamagedCheckpoint& error) {
    throw DamagedCheckpoint(name + " is unreadable: " + error.what());
  }
  if (!source->contains(name)) fail("is missing, although manifest.json lists it");
  const TensorEntry& entry = source->entry(name);
  if (entry.dtype != manifest_.tensors.at(tensor).dtype || entry.shape != piece.box.size)
    fail("has a dtype or shape that differs from manifest.json");
  return *source;
}

void CheckpointReader::check(const std::string& tensor, const StoredPiece& piece, uint64_t found) {
  if (found == piece.checksum) {
    proven_.insert(piece_name(tensor, piece.box));
    return;
  }
  throw DamagedCheckpoint((folder_ / manifest_.files[piece.file].name).string() + ": " + piece_name(tensor, piece.box) +
                          " is damaged: its checksum is " + checksum_text(found) + ", but manifest.json has " +
                          checksum_text(piece.checksum));
}

void CheckpointReader::prove(const std::string& tensor, const StoredPiece& piece) try {
  if (proven_.contains(piece_name(tensor, piece.box))) return;
  RunningChecksum sum;
  file_of(tensor, piece).for_each_block(piece_name(tensor, piece.box), [&](std::string_view block) { sum.add(block); });
  check(tensor, piece, sum.value());
} catch (const DamagedCheckpoint&) {
  throw;
} catch (const InputError& error) {  // of the disk
  throw DamagedCheckpoint(error.what());
}

// Reads a piece once if all of it is needed, as on the mesh that wrote it; otherwise verifies it first and then reads
// the part.
at::Tensor CheckpointReader::values(const std::string& tensor, const StoredPiece& piece, const Box& box) try {
  const std::string name = piece_name(tensor, piece.box);
  if (box.size != piece.box.size) {
    prove(tensor, piece);
    return file_of(tensor, piece).read(name, box);
  }
  at::Tensor values = file_of(tensor, piece).read(name);
  check(tensor, piece, checksum(values.const_data_ptr(), values.nbytes()));
  return values;
} catch (const DamagedCheckpoint&) {
  throw;
} catch (const InputError& error) {  // of the disk
  throw DamagedCheckpoint(error.what());
}

}  // namespace meshtrain
