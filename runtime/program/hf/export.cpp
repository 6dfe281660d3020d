#include "runtime/program/hf/export.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "mesh/base/files/output_file.h"
#include "mesh/device/aten.h"
#include "runtime/program/hf/config_json.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

std::string torch_name(at::ScalarType dtype) {
  if (dtype == at::kDouble) return "float64";
  if (dtype == at::kFloat) return "float32";
  if (dtype == at::kBFloat16) return "bfloat16";
  if (dtype == at::kHalf) return "float16";
  throw std::invalid_argument(std::string("weights of dtype ") + c10::toString(dtype) + " are not exported");
}

}  // namespace

std::string check_export_folder(const fs::path& folder) {
  const ExportFolder target(folder);
  target.check();
  return target.text();
}

FolderWriter::FolderWriter(const fs::path& folder, const ModelShape& shape, const CarriedOver& carried,
                           const std::vector<TensorEntry>& tensors, int64_t max_file_bytes)
    : shape_(shape), folder_(folder), tied_(shape.tie_word_embeddings) {
  if (tensors.empty()) throw std::invalid_argument("an export must have tensors");
  divide(folder_tensors(shape, tensors), max_file_bytes);
  const std::string config = write_config_json(shape, torch_name(tensors.front().dtype), further_keys(carried));
  folder_.begin();
  try {
    write_atomically(folder_.partial() / "config.json", config);
    copy_carried(carried, folder_.partial());
  } catch (...) {
    folder_.discard();
    throw;
  }
}

FolderWriter::~FolderWriter() {
  parts_.clear();
  if (!durable_) folder_.discard();
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
  for (const FolderTensor& stored : folder_parts(shape_, name, tensor.sizes().vec())) {
    const at::Tensor values = part(tensor, stored.part);
    if (values.numel() == c10::multiply_integers(stored.shape)) {
      write_stored(stored.name, stored.turned(values).reshape(stored.shape));
    } else {
      write_rows(name, stored, values);
    }
  }
}

void FolderWriter::write_rows(const std::string& name, const FolderTensor& stored, const at::Tensor& values) {
  auto& parts = waiting_[stored.name];
  if (!parts.try_emplace(stored.first_row, values.clone()).second) {  // the caller may use its memory again
    throw std::invalid_argument(name + " has already been written");
  }
  int64_t rows = 0;
  std::vector<at::Tensor> all;
  for (const auto& [first_row, part] : parts) {
    rows += part.size(0);
    all.push_back(part);
  }
  if (rows < stored.shape[0]) return;
  const at::Tensor full = at::cat(all);
  waiting_.erase(stored.name);
  write_stored(stored.name, full);
}

void FolderWriter::write_stored(const std::string& name, const at::Tensor& tensor) {
  const auto found = part_of_.find(name);
  if (found == part_of_.end()) throw std::invalid_argument(name + " was not declared");
  Part& part = parts_[found->second];
  if (part.entries.empty()) throw std::invalid_argument(name + " has already been written");
  if (!part.writer) part.writer = std::make_unique<SafetensorsWriter>(folder_.partial() / part.file_name, part.entries);
  part.writer->write(name, tensor);
  if (part.writer->num_missing() > 0) return;
  part.writer->finish();
  part.writer.reset();
  part.entries.clear();
  ++num_finished_;
}

void FolderWriter::finish() {
  if (num_finished_ != parts_.size()) {
    throw std::logic_error(folder_.text() + ": " + std::to_string(parts_.size() - num_finished_) +
                           " of its files still lack tensors");
  }
  if (parts_.size() > 1) write_index();
  durable_ = true;
  folder_.complete();
}

void FolderWriter::write_index() {
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total_bytes_;
  for (const auto& [name, part] : part_of_) index["weight_map"][name] = parts_[part].file_name;
  write_atomically(folder_.partial() / "model.safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace meshtrain
