#include "runtime/training/checkpoint/inspect.h"

#include <map>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "runtime/training/checkpoint/checkpoint_folder.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/checkpoint/damage.h"
#include "runtime/training/safetensors/tensor_entry.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

int64_t bytes_of(const StoredTensor& tensor) {
  return num_bytes(TensorEntry{"", tensor.dtype, tensor.shape});
}

struct Total {
  size_t num_tensors = 0;
  int64_t num_bytes = 0;
};

/// A file that cannot be read.
struct LostFile {
  std::string reason;
  int64_t num_pieces = 0;
};

std::string describe_totals(const Manifest& manifest) {
  std::map<std::pair<std::string, std::string>, Total> totals;
  for (const auto& [name, tensor] : manifest.tensors) {
    const std::string kind = manifest.is_parameter(name) ? "weights" : name.substr(name.rfind('.') + 1);
    Total& total = totals[{kind, *safetensors_dtype(tensor.dtype)}];
    ++total.num_tensors;
    total.num_bytes += bytes_of(tensor);
  }
  std::string text;
  for (const auto& [kind, total] : totals) {
    text += "  " + kind.first + " in " + kind.second + ": " + counted(total.num_tensors, "tensor") + ", " +
            size_text(total.num_bytes) + "\n";
  }
  return text;
}

std::string describe_state(const CheckpointHead& head) {
  const TrainingState& state = head.state;
  std::string text = "  step " + std::to_string(state.step) + ": ";
  text += state.step == 0
              ? "weights alone, before the first step"
              : counted(state.num_samples, "sample") + " seen, " + counted(state.num_updates, "update") + " made";
  if (state.num_skipped > 0) text += ", the last " + counted(state.num_skipped, "step") + " skipped";
  if (state.loss_scale) {
    text += ", loss scale " + std::to_string(state.loss_scale->value) + " for " +
            counted(state.loss_scale->num_finite, "step");
  }
  if (state.recent) {
    text += ", losses and norms of " + counted(state.recent->losses.size(), "recent step") + " to find outliers";
  }
  text += "\n  written on mesh " + head.mesh + " by";
  for (const auto& [program, version] : head.versions) text += " " + program + " " + version;
  for (const auto& [key, file] : head.data) {
    text += "\n  " + key + ": ";
    if (key != kTokenizerKey) text += with_separators(file.bytes) + " bytes, ";  // a tokenizer is of several files
    text += "checksum " + checksum_text(file.checksum);
  }
  return text + "\n";
}

}  // namespace

fs::path find_checkpoint(const fs::path& given) {
  const fs::path path = given.has_filename() ? given : given.parent_path();
  std::error_code error;
  if (fs::exists(path / "manifest.json", error)) return path;
  if (has_name_of_step(path) && fs::is_directory(path, error)) return path;  // a damaged one
  for (const fs::path& folder : {path / "checkpoints", path}) {
    if (fs::exists(folder, error) && !fs::is_directory(folder, error)) continue;
    const CheckpointFolder checkpoints(folder);
    const std::vector<int64_t> steps = checkpoints.steps();
    if (!steps.empty()) return checkpoints.step(steps.back());
  }
  throw InputError("there is no checkpoint in " + path.string() +
                   ": give a folder that has a manifest.json, or the directory of a run that has written one");
}

std::string inspect_checkpoint(const fs::path& folder, bool pieces) {
  const Manifest manifest = read_manifest(folder);
  size_t num_pieces = 0;
  for (const auto& [name, tensor] : manifest.tensors) num_pieces += tensor.pieces.size();
  std::string text = folder.string() + "\n" + describe_state(manifest.head);
  text += "  " + counted(manifest.tensors.size(), "tensor") + " in " + counted(num_pieces, "piece") + " in " +
          counted(manifest.files.size(), "file") + ", " + size_text(manifest.num_bytes()) + "\n" +
          describe_totals(manifest);
  for (const auto& [name, tensor] : manifest.tensors) {
    text += name + " " + *safetensors_dtype(tensor.dtype) + " " + describe_shape(tensor.shape) + ", " +
            counted(tensor.pieces.size(), "piece") + "\n";
    for (size_t i = 0; pieces && i < tensor.pieces.size(); ++i) {
      const StoredPiece& piece = tensor.pieces[i];
      text += "  " + describe(piece.box) + " in " + manifest.files[piece.file].name + ", checksum " +
              checksum_text(piece.checksum) + "\n";
    }
  }
  return text;
}

VerifiedCheckpoint verify_checkpoint(const fs::path& folder) {
  const Manifest manifest = read_manifest(folder);
  CheckpointReader reader(folder, manifest);
  VerifiedCheckpoint verified{0, 0, manifest.num_bytes(), {}};
  std::map<size_t, LostFile> lost;
  Progress progress("verification of " + folder.string(), manifest.num_bytes(), "bytes");
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    try {
      reader.open(i);
    } catch (const DamagedCheckpoint& error) {
      lost[i].reason = error.what();
    }
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    for (const StoredPiece& piece : tensor.pieces) {
      ++verified.num_pieces;
      if (const auto found = lost.find(piece.file); found != lost.end()) {
        ++found->second.num_pieces;
        continue;
      }
      try {
        reader.prove(name, piece);
      } catch (const DamagedCheckpoint& error) {
        ++verified.num_damaged;
        verified.damage.emplace_back(error.what());
      }
      progress.advance(piece.box.numel() * static_cast<int64_t>(c10::elementSize(tensor.dtype)));
    }
  }
  for (const auto& [index, file] : lost) {
    verified.num_damaged += file.num_pieces;
    verified.damage.push_back(file.reason + "; it held " + counted(file.num_pieces, "piece"));
  }
  return verified;
}

}  // namespace meshtrain
