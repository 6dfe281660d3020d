#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "mesh/base/files/output_file.h"
#include "runtime/training/safetensors/tensor_entry.h"

namespace meshtrain {

/// A writer of a safetensors file, tensor by tensor in any order, which holds one tensor at most. The file appears
/// under its name at finish(), complete; an unfinished one is removed.
class SafetensorsWriter {
 public:
  /// Declares what will be written. The data are laid out in this order, wider dtypes first, so that every tensor is
  /// aligned. Throws std::invalid_argument for a name that comes twice or a dtype that the format lacks, and as
  /// OutputFile does.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorEntry>& entries,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

  /// Writes a declared tensor, from any device, rounded to the declared dtype. Throws std::invalid_argument when it was
  /// not declared, has another shape or is written already; std::runtime_error when the disk fails (full); the file is
  /// then removed.
  void write(const std::string& name, const at::Tensor& tensor);

  /// Returns the file's bytes before those of the tensors.
  const std::string& header() const { return header_; }
  /// Returns the number of tensors that are declared and not written yet.
  int64_t num_missing() const { return num_missing_; }

  /// Makes the file durable under its name. Throws std::logic_error when a declared tensor was not written.
  void finish();

 private:
  struct Slot {
    TensorEntry entry;
    int64_t offset = 0;  // in the file
    bool written = false;
  };

  OutputFile file_;
  std::string header_;
  std::map<std::string, Slot> slots_;
  int64_t num_missing_ = 0;
};

}  // namespace meshtrain
