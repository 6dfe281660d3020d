#pragma once

#include <c10/core/ScalarType.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "mesh/box.h"
#include "runtime/checkpoint/training_state.h"
#include "runtime/files/checksum.h"

namespace meshtrain {

/// A safetensors file of one rank.
struct StoredFile {
  std::string name;
  uint64_t header;  ///< checksum of what stands before its tensors
};

/// A piece as it is in a checkpoint: the tensor piece_name() of one of its files.
struct StoredPiece {
  size_t file;  ///< of Manifest::files
  Box box;
  uint64_t checksum;
};

struct StoredTensor {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  std::vector<StoredPiece> pieces;  ///< disjoint; together the whole tensor
};

/// What a checkpoint says of itself besides its pieces.
struct CheckpointHead {
  TrainingState state;
  std::string recipe;                                ///< as run, of to_yaml()
  std::string mesh;                                  ///< "dp=2,cp=2,tp=2", outermost axis first
  std::map<std::string, Fingerprint> data;           ///< files by the key that names them
  std::map<std::string, std::string> versions = {};  ///< of programs that wrote it
};

/// manifest.json of a checkpoint.
struct Manifest {
  CheckpointHead head;
  std::vector<StoredFile> files;
  std::map<std::string, StoredTensor> tensors;

  int64_t num_bytes() const;  ///< of all pieces
};

/// A rank's pieces for manifest_text(): its file, and the checksum of each.
class ManifestPart {
 public:
  explicit ManifestPart(StoredFile file) : file_(std::move(file)) {}

  void add(const std::string& tensor, at::ScalarType dtype, const std::vector<int64_t>& shape, const Box& box,
           uint64_t checksum);
  /// JSON on one line.
  std::string text() const;

 private:
  StoredFile file_;
  std::map<std::string, StoredTensor> tensors_;
};

/// manifest.json of `head`, with the versions of this program, and the parts of all ranks; empty ones say nothing. Its
/// last line is the checksum of those before it.
std::string manifest_text(const CheckpointHead& head, const std::vector<std::string>& parts);

/// Reads it. `name`: of the file, for messages. Whatever it says is checked: the checksum, that pieces lie in their
/// tensors, do not overlap and leave nothing out, that files are plain names. Throws DamagedCheckpoint,
/// and NewerCheckpoint for a format of later versions.
Manifest parse_manifest(const std::string& text, const std::string& name);

}  // namespace meshtrain
