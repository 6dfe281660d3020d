#include "runtime/training/safetensors/writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace meshtrain {

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorEntry>& entries,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path, PageCache::Dropped), num_missing_(static_cast<int64_t>(entries.size())) {
  std::vector<TensorEntry> ordered = entries;
  std::stable_sort(ordered.begin(), ordered.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (TensorEntry& entry : ordered) {
    const auto dtype = safetensors_dtype(entry.dtype);
    if (!dtype) throw std::invalid_argument(entry.name + ": safetensors has no dtype " + c10::toString(entry.dtype));
    const int64_t end = offset + num_bytes(entry);
    header[entry.name] = {{"dtype", *dtype}, {"shape", entry.shape}, {"data_offsets", {offset, end}}};
    const std::string name = entry.name;
    if (!slots_.try_emplace(name, Slot{std::move(entry), offset, false}).second) {
      throw std::invalid_argument(name + " is declared twice");
    }
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  header_.assign(reinterpret_cast<const char*>(&length), sizeof length);
  header_ += text;
  file_.append(header_.data(), header_.size());
  for (auto& [name, slot] : slots_) slot.offset += static_cast<int64_t>(header_.size());
}

void SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const auto found = slots_.find(name);
  if (found == slots_.end()) throw std::invalid_argument(name + " was not declared");
  Slot& slot = found->second;
  if (slot.written) throw std::invalid_argument(name + " is written already");
  if (tensor.sizes() != at::IntArrayRef(slot.entry.shape)) {
    throw std::invalid_argument(name + " has shape " + describe_shape(tensor.sizes().vec()) + ", declared was " +
                                describe_shape(slot.entry.shape));
  }
  const at::Tensor data = tensor.detach().to(at::kCPU, slot.entry.dtype).contiguous();
  file_.write_at(slot.offset, data.const_data_ptr(), data.nbytes());
  slot.written = true;
  --num_missing_;
}

void SafetensorsWriter::finish() {
  for (const auto& [name, slot] : slots_) {
    if (!slot.written) throw std::logic_error(file_.path().string() + ": " + name + " was not written");
  }
  file_.finish();
}

}  // namespace meshtrain
