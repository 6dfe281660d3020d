#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/hf/carried_over.h"
#include "runtime/hf/safetensors_writer.h"
#include "runtime/hf/tensor_entry.h"
#include "runtime/model/shape.h"

namespace meshtrain {

/// Throws InputError when weights cannot be exported to `folder`: it exists and is not an empty folder, or the folder
/// that it should be made in cannot be made or written to. Changes nothing that was there.
void check_export_folder(const std::filesystem::path& folder);

/// Data of one of the files that an export is divided into, as transformers divides.
inline constexpr int64_t kMostFileBytes = int64_t{5} << 30;

/// Writes a Hugging Face folder, config.json and safetensors, tensor by tensor in any order. One rank calls. The folder
/// appears under its name at finish(), whole; what an unfinished writer wrote (FOLDER.partial) is removed.
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
  /// Throws std::logic_error when a tensor is missing.
  void finish();

 private:
  struct Part {
    std::string file_name;
    std::vector<TensorEntry> entries;
    std::unique_ptr<SafetensorsWriter> writer;  // open from the part's first tensor to its last
  };

  void divide(const std::vector<TensorEntry>& tensors, int64_t max_file_bytes);
  void write_index();

  std::filesystem::path folder_;
  std::filesystem::path partial_;
  bool tied_;
  bool finished_ = false;
  std::vector<Part> parts_;
  std::map<std::string, size_t> part_of_;  // tensor name to its part
  size_t num_finished_ = 0;                // parts
  int64_t total_bytes_ = 0;                // of all tensors
};

}  // namespace meshtrain
