#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/hf/carried_over.h"
#include "runtime/hf/export_folder.h"
#include "runtime/model/shape.h"
#include "runtime/safetensors/tensor_entry.h"
#include "runtime/safetensors/writer.h"

namespace meshtrain {

/// Throws InputError as ExportFolder::check() does when weights cannot be exported to `folder`. Returns where they will
/// be, for people. Changes nothing that was there.
std::string check_export_folder(const std::filesystem::path& folder);

/// Data of one of the files that an export is divided into, as transformers divides.
inline constexpr int64_t kMostFileBytes = int64_t{5} << 30;

/// Writes a Hugging Face folder, config.json and safetensors, tensor by tensor in any order. One rank calls. The folder
/// appears under its name at finish(), complete; what an unfinished writer wrote (FOLDER.partial) is removed.
class FolderWriter {
 public:
  /// `tensors`: the model's, with their global shapes; with tied embeddings lm_head.weight is left out, here and in
  /// write(). Files hold at most `max_file_bytes` of data, or one tensor that is larger; several have an index. The
  /// first tensor's dtype is what config.json states. What is `carried` over is copied. Throws InputError as
  /// check_export_folder, write_config_json and copy_carried do, std::runtime_error when the disk fails (full).
  FolderWriter(const std::filesystem::path& folder, const ModelShape& shape, const CarriedOver& carried,
               const std::vector<TensorEntry>& tensors, int64_t max_file_bytes = kMostFileBytes);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  /// As SafetensorsWriter::write.
  void write(const std::string& name, const at::Tensor& tensor);
  /// Throws std::logic_error when a tensor is missing, std::runtime_error when the disk fails, and, naming the folder
  /// with the complete weights, when that cannot get its name.
  void finish();
  /// Where the weights are written, for people.
  const std::string& text() const { return folder_.text(); }

 private:
  struct Part {
    std::string file_name;
    std::vector<TensorEntry> entries;
    std::unique_ptr<SafetensorsWriter> writer;  // open from the part's first tensor to its last
  };

  void divide(const std::vector<TensorEntry>& tensors, int64_t max_file_bytes);
  void write_index();

  ExportFolder folder_;
  bool tied_;
  bool durable_ = false;  // every file is complete and on the disk
  std::vector<Part> parts_;
  std::map<std::string, size_t> part_of_;  // tensor name to its part
  size_t num_finished_ = 0;                // parts
  int64_t total_bytes_ = 0;                // of all tensors
};

}  // namespace meshtrain
