#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <string>
#include <vector>

#include "mesh/base/files/checksum.h"
#include "mesh/base/files/file_reader.h"
#include "runtime/training/checkpoint/stored_pieces.h"
#include "runtime/training/checkpoint/training_state.h"

namespace meshtrain {

/// A safetensors file of one rank.
struct StoredFile {
  std::string name;
  uint64_t header;  ///< checksum of the bytes before its tensors
};

struct StoredTensor {
  StoredTensor(at::ScalarType its_dtype, const std::vector<int64_t>& its_shape)
      : dtype(its_dtype), shape(its_shape), pieces(its_shape) {}

  at::ScalarType dtype;
  std::vector<int64_t> shape;
  StoredPieces pieces;  ///< disjoint; together the complete tensor
};

/// The content of a checkpoint besides its pieces.
struct CheckpointHead {
  TrainingState state;
  std::string recipe;                                ///< as run, of to_yaml()
  std::string mesh;                                  ///< "dp=2,cp=2,tp=2", outermost axis first
  std::map<std::string, Fingerprint> data;           ///< data files by the recipe's key that names them
  std::map<std::string, std::string> versions = {};  ///< versions of the programs that wrote it
};

/// The content of a checkpoint's manifest.json.
struct Manifest {
  CheckpointHead head;
  std::vector<StoredFile> files;
  std::map<std::string, StoredTensor> tensors;

  int64_t num_bytes() const;  ///< of all pieces
  /// Returns true unless `tensor` is the optimizer's state of a parameter that is here too: "x.exp_avg" of "x".
  bool is_parameter(const std::string& tensor) const {
    const size_t dot = tensor.rfind('.');
    return dot == std::string::npos || !tensors.contains(tensor.substr(0, dot));
  }
};

/// The entry of CheckpointHead::data that has the checksum of the tokenizer's file (tokenizer_fingerprint()), and no
/// size.
constexpr const char* kTokenizerKey = "data.tokenizer";

/// The format of the manifests that write_manifest() writes. One of format 1, whose files each repeat the names, dtypes
/// and shapes of their tensors, is read too.
constexpr int64_t kManifestFormat = 2;

/// The entry of CheckpointHead::versions that says how schedules are defined, and its value. Checkpoints without it
/// were written when a schedule reached its minimum at the last step, one step earlier than now.
constexpr const char* kScheduleVersion = "schedule";
constexpr const char* kSchedule = "2";

/// Reads manifest.json and checks everything in it: first the checksum; then that pieces lie in their tensors, do not
/// overlap and leave nothing out, and that files are plain names. Reads it line by line, so memory holds its content
/// and not its text. Throws DamagedCheckpoint, and NewerCheckpoint for a format of later versions.
Manifest parse_manifest(const FileReader& file);

}  // namespace meshtrain
