#include "runtime/hf/export.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <system_error>

#include "mesh/error.h"
#include "runtime/data/output_file.h"
#include "runtime/hf/config_json.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHead = "lm_head.weight";

std::string torch_name(at::ScalarType dtype) {
  if (dtype == at::kDouble) return "float64";
  if (dtype == at::kFloat) return "float32";
  if (dtype == at::kBFloat16) return "bfloat16";
  if (dtype == at::kHalf) return "float16";
  throw std::invalid_argument(std::string("weights of dtype ") + c10::toString(dtype) + " are not exported");
}

// Absolute, without a slash at its end.
fs::path plain(const fs::path& folder) {
  if (folder.empty()) throw InputError("the export folder has no name");
  const fs::path path = fs::absolute(folder).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

// Where a folder is written before it has its name.
fs::path partial_of(fs::path folder) {
  return folder += ".partial";
}

}  // namespace

void check_export_folder(const fs::path& folder) {
  const fs::path path = plain(folder);
  const auto fail = [&](const std::string& reason) {
    throw InputError("cannot export to " + path.string() + ": " + reason);
  };
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_directory(status)) fail("it is a file");
  if (fs::exists(status) && !fs::is_empty(path, error)) fail("the folder is not empty; name a new one, or empty it");
  fs::path existing = path.parent_path();
  while (!fs::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  if (!fs::is_directory(existing, error)) fail(existing.string() + " is not a folder");
  if (::access(existing.c_str(), W_OK | X_OK) != 0) fail(existing.string() + ": " + std::strerror(errno));
  const fs::path partial = partial_of(path);
  fs::create_directories(partial, error);  // where even those who may write cannot make anything
  if (error) fail("its folder cannot be made: " + error.message() + ": name one elsewhere");
  for (fs::path made = partial; made != existing && fs::remove(made, error); made = made.parent_path()) {
  }
}

FolderWriter::FolderWriter(const fs::path& folder, const ModelShape& shape, const CarriedOver& carried,
                           const std::vector<TensorEntry>& tensors, int64_t max_file_bytes)
    : folder_(plain(folder)), partial_(partial_of(folder_)), tied_(shape.tie_word_embeddings) {
  if (tensors.empty()) throw std::invalid_argument("an export without tensors");
  check_export_folder(folder_);
  divide(tensors, max_file_bytes);
  const std::string config = write_config_json(shape, torch_name(tensors.front().dtype), further_keys(carried));
  std::error_code error;
  fs::remove_all(partial_, error);  // of a run that was killed
  fs::create_directories(partial_, error);
  if (error) throw std::runtime_error("cannot make " + partial_.string() + ": " + error.message());
  try {
    write_whole(partial_ / "config.json", config);
    copy_carried(carried, partial_);
  } catch (...) {
    fs::remove_all(partial_, error);
    throw;
  }
}

FolderWriter::~FolderWriter() {
  if (finished_) return;
  parts_.clear();
  std::error_code ignored;
  fs::remove_all(partial_, ignored);
}

void FolderWriter::divide(const std::vector<TensorEntry>& tensors, int64_t max_file_bytes) {
  int64_t bytes = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tied_ && tensor.name == kHead) continue;
    const int64_t size = num_bytes(tensor);
    if (parts_.empty() || bytes + size > max_file_bytes) {
      parts_.emplace_back();
      bytes = 0;
    }
    bytes += size;
    total_bytes_ += size;
    parts_.back().entries.push_back(tensor);
    if (!part_of_.try_emplace(tensor.name, parts_.size() - 1).second) {
      throw std::invalid_argument(tensor.name + " is declared twice");
    }
  }
  if (parts_.size() == 1) parts_[0].file_name = "model.safetensors";
  for (size_t i = 0; parts_.size() > 1 && i < parts_.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, parts_.size());
    parts_[i].file_name = name;
  }
}

void FolderWriter::write(const std::string& name, const at::Tensor& tensor) {
  if (tied_ && name == kHead) return;
  const auto found = part_of_.find(name);
  if (found == part_of_.end()) throw std::invalid_argument(name + " was not declared");
  Part& part = parts_[found->second];
  if (part.entries.empty()) throw std::invalid_argument(name + " is written already");
  if (!part.writer) part.writer = std::make_unique<SafetensorsWriter>(partial_ / part.file_name, part.entries);
  part.writer->write(name, tensor);
  if (part.writer->num_missing() > 0) return;
  part.writer->finish();
  part.writer.reset();
  part.entries.clear();
  ++num_finished_;
}

void FolderWriter::finish() {
  if (num_finished_ != parts_.size()) {
    throw std::logic_error(folder_.string() + ": " + std::to_string(parts_.size() - num_finished_) +
                           " of its files still lack tensors");
  }
  if (parts_.size() > 1) write_index();
  if (std::rename(partial_.c_str(), folder_.c_str()) != 0) {
    throw std::runtime_error("cannot write " + folder_.string() + ": " + std::strerror(errno));
  }
  finished_ = true;
  sync_folder(folder_.parent_path());
}

void FolderWriter::write_index() {
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total_bytes_;
  for (const auto& [name, part] : part_of_) index["weight_map"][name] = parts_[part].file_name;
  write_whole(partial_ / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace meshtrain
