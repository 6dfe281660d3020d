#pragma once

#include <c10/core/ScalarType.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/training/checkpoint/manifest.h"

namespace meshtrain {

/// A rank's part of a manifest: its file, and its pieces with the checksum of each.
class ManifestPart {
 public:
  explicit ManifestPart(StoredFile file) : file_(std::move(file)) {}

  /// Adds a piece. `box` must lie in the tensor, which has `shape`.
  void add(const std::string& tensor, at::ScalarType dtype, const std::vector<int64_t>& shape, const Box& box,
           uint64_t checksum);
  /// Packs the part into bytes for write_manifest() on any rank; some 36 a piece.
  std::string packed() const;

 private:
  StoredFile file_;
  std::map<std::string, StoredTensor> tensors_;
};

/// Writes manifest.json to `sink`, block by block, from `head`, the versions of this program and the parts of all
/// ranks, each packed by ManifestPart::packed(); empty ones are skipped. The last line is the checksum of those before
/// it. Throws std::runtime_error when parts contradict each other.
void write_manifest(const CheckpointHead& head, const std::vector<std::string>& parts,
                    const std::function<void(std::string_view)>& sink);
/// Returns that manifest.json as a text.
std::string manifest_text(const CheckpointHead& head, const std::vector<std::string>& parts);

}  // namespace meshtrain
