#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/base/files/file_reader.h"
#include "mesh/box.h"
#include "runtime/training/safetensors/tensor_entry.h"

namespace meshtrain {

/// A safetensors file: 8 bytes of header length, a JSON header (dtype, shape and offsets of each tensor), data. Every
/// error in the file or of the disk is an InputError that names the file and the tensor. No collective; any thread may
/// read.
class SafetensorsFile {
 public:
  /// Reads and checks the header: each tensor's bytes are those of its dtype and shape, and the tensors fill the file
  /// without gap or overlap, as the format demands.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Returns the entries in the order of their data.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  /// Returns the header's "__metadata__".
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  bool contains(const std::string& name) const { return index_.contains(name); }
  /// Returns the entry of a tensor. Throws InputError when there is no such tensor.
  const TensorEntry& entry(const std::string& name) const;

  /// Read the complete tensor, or only the part in `box`, [box.size], as a CPU tensor of the stored dtype. Throw
  /// InputError when there is no such tensor or when the box does not lie in it.
  at::Tensor read(const std::string& name) const;
  at::Tensor read(const std::string& name, const Box& box) const;
  /// Calls `visit` with the tensor's bytes, block by block. Throws InputError when there is no such tensor.
  void for_each_block(const std::string& name, const std::function<void(std::string_view block)>& visit) const;
  /// Returns the file's bytes before those of the tensors.
  FileBytes header() const { return file_.read(0, data_begin_); }

 private:
  size_t find(const std::string& name) const;
  void parse(int64_t header_bytes);
  [[noreturn]] void fail_to_read(const std::string& name, const std::string& reason) const;

  FileReader file_;
  int64_t data_begin_ = 0;
  std::vector<TensorEntry> entries_;
  std::vector<int64_t> offsets_;         // of each entry's data in the file
  std::map<std::string, size_t> index_;  // into entries_
  std::map<std::string, std::string> metadata_;
};

/// The tensors of a Hugging Face folder: those of model.safetensors, or of the files that model.safetensors.index.json
/// lists when there is no such file. As in transformers these files may have tensors that the index does not list.
class SafetensorsFolder {
 public:
  /// Opens and checks every file. Throws InputError when there are none (describe_no_weights()), or when a file or a
  /// tensor that the index lists is missing.
  explicit SafetensorsFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  bool contains(const std::string& name) const { return locations_.contains(name); }
  const TensorEntry& entry(const std::string& name) const;
  at::Tensor read(const std::string& name) const;
  at::Tensor read(const std::string& name, const Box& box) const;
  std::vector<std::string> names() const;
  /// Returns the tensors that are in two files; the file that the index lists is read.
  const std::vector<std::string>& repeated() const { return repeated_; }
  /// Renames a tensor in this object. Does nothing when a tensor with the new name exists.
  void rename(const std::string& name, const std::string& to);
  /// Returns the paths of its safetensors files.
  std::vector<std::filesystem::path> files() const;

 private:
  struct Location {
    size_t file = 0;   // in files_
    std::string name;  // in that file
  };

  const Location& location(const std::string& name) const;
  void open_index(const std::filesystem::path& index);

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Location> locations_;  // by the names of the tensors
  std::vector<std::string> repeated_;
};

}  // namespace meshtrain
