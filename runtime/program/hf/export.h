#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/program/hf/carried_over.h"
#include "runtime/program/hf/export_folder.h"
#include "runtime/training/model/folder_tensors.h"
#include "runtime/training/model/shape.h"
#include "runtime/training/safetensors/tensor_entry.h"
#include "runtime/training/safetensors/writer.h"

namespace meshtrain {

/// Checks that weights can be exported to `folder` and returns where they will be, for people. Throws InputError as
/// ExportFolder::check() does. Changes nothing that exists.
std::string check_export_folder(const std::filesystem::path& folder);

/// The most bytes of data in one file of an export, as in transformers.
inline constexpr int64_t kMostFileBytes = int64_t{5} << 30;

/// A writer of a Hugging Face folder, config.json and safetensors, tensor by tensor in any order. One rank uses it. The
/// folder appears under its name at finish(), complete; an unfinished one (FOLDER.partial) is removed.
class FolderWriter {
 public:
  /// `tensors`: the model's parameters, with their global shapes; with tied embeddings lm_head.weight is left out, here
  /// and in write(). Files hold at most `max_file_bytes` of data, or one tensor that is larger; several have an index.
  /// The first tensor's dtype is what config.json states. The files of `carried` are copied. Throws InputError as
  /// check_export_folder, write_config_json and copy_carried do, std::runtime_error when the disk fails (full).
  FolderWriter(const std::filesystem::path& folder, const ModelShape& shape, const CarriedOver& carried,
               const std::vector<TensorEntry>& tensors, int64_t max_file_bytes = kMostFileBytes);
  ~FolderWriter();
  FolderWriter(const FolderWriter&) = delete;
  FolderWriter& operator=(const FolderWriter&) = delete;

  /// Writes a parameter, as SafetensorsWriter::write does, in the tensors of folder_parts(). Parts of a tensor that the
  /// family stores as one are kept until all of them are given.
  void write(const std::string& name, const at::Tensor& tensor);
  /// Completes the folder and gives it its name. Throws std::logic_error when a tensor is missing, and
  /// std::runtime_error when the disk fails or the folder with the complete weights, which the message names, cannot be
  /// renamed.
  void finish();
  /// Returns where the weights are written, for people.
  const std::string& text() const { return folder_.text(); }

 private:
  struct Part {
    std::string file_name;
    std::vector<TensorEntry> entries;
    std::unique_ptr<SafetensorsWriter> writer;  // open from the part's first tensor to its last
  };

  void divide(const std::vector<TensorEntry>& tensors, int64_t max_file_bytes);
  void write_rows(const std::string& name, const FolderTensor& stored, const at::Tensor& values);
  void write_stored(const std::string& name, const at::Tensor& tensor);
  void write_index();

  ModelShape shape_;
  ExportFolder folder_;
  bool tied_;
  bool durable_ = false;  // every file is complete and on the disk
  std::vector<Part> parts_;
  std::map<std::string, size_t> part_of_;                         // tensor name to its part
  std::map<std::string, std::map<int64_t, at::Tensor>> waiting_;  // parts of folder tensors by their first row
  size_t num_finished_ = 0;                                       // parts
  int64_t total_bytes_ = 0;                                       // of all tensors
};

}  // namespace meshtrain
