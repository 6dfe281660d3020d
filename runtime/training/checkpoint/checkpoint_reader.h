#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "runtime/training/checkpoint/manifest.h"
#include "runtime/training/checkpoint/piece.h"
#include "runtime/training/safetensors/folder.h"

namespace meshtrain {

/// Reads manifest.json of the checkpoint in `folder`. Throws DamagedCheckpoint when it cannot be read or is damaged.
Manifest read_manifest(const std::filesystem::path& folder);

/// A reader of pieces of a checkpoint, whatever pieces were written. It opens files and reads pieces only when they are
/// needed, and verifies the checksum of each before anything is taken from it. Damage is a DamagedCheckpoint that names
/// file, tensor and box. No collective.
class CheckpointReader {
 public:
  /// `manifest` must outlive this.
  CheckpointReader(std::filesystem::path folder, const Manifest& manifest);

  /// Fills piece.values, converted to their dtype. Throws InputError when the checkpoint has no such tensor, or one of
  /// another shape.
  void read(const Piece& piece);
  /// Opens file `index` of the manifest and verifies its header. Throws DamagedCheckpoint.
  void open(size_t index) { file(index); }
  /// Verifies `piece` of manifest.tensors.at(tensor): its file has it, every byte as it was written. Throws
  /// DamagedCheckpoint.
  void prove(const std::string& tensor, const StoredPiece& piece);
  /// Returns the complete tensor, in the dtype that it is stored in. Throws as read(), before it allocates anything.
  at::Tensor read(const std::string& tensor);

 private:
  const SafetensorsFile& file(size_t index);
  /// Returns the file of `piece`, whose header lists it.
  const SafetensorsFile& file_of(const std::string& tensor, const StoredPiece& piece);
  /// Returns part `box` of `piece`, verified.
  at::Tensor values(const std::string& tensor, const StoredPiece& piece, const Box& box);
  void check(const std::string& tensor, const StoredPiece& piece, uint64_t found);

  std::filesystem::path folder_;
  const Manifest& manifest_;
  std::map<size_t, SafetensorsFile> files_;
  std::set<std::string> proven_;  // piece_name()
};

}  // namespace meshtrain
