#include "runtime/training/safetensors/folder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/content.h"
#include "mesh/base/files/download.h"
#include "mesh/base/files/json_object.h"
#include "mesh/base/size_text.h"
#include "runtime/training/safetensors/folder_kind.h"

namespace meshtrain {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr uint64_t kMostHeaderBytes = 100'000'000;  // the format's own limit

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what) {
  throw InputError(file.string() + ": " + what);
}

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& tensor, const std::string& what) {
  fail(file, "tensor \"" + tensor + "\" " + what);
}

json parse_object(const std::filesystem::path& file, std::string_view text) {
  std::set<std::string> seen;
  const auto refuse_twice = [&](int depth, json::parse_event_t event, json& value) {
    if (depth == 1 && event == json::parse_event_t::key && !seen.insert(value.get<std::string>()).second) {
      fail(file, value.get<std::string>(), "appears twice");
    }
    return true;
  };
  return parse_json_object(file.string() + ": damaged, its header", text, refuse_twice);
}

// Returns a list of whole numbers that are not negative; std::nullopt when the value is anything else.
std::optional<std::vector<int64_t>> integers(const json& tensor, const char* key) {
  const auto list = tensor.find(key);
  if (list == tensor.end() || !list->is_array()) return std::nullopt;
  std::vector<int64_t> result;
  for (const json& number : *list) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > uint64_t{INT64_MAX}) return std::nullopt;
    result.push_back(number.get<int64_t>());
  }
  return result;
}

struct EntryRange {
  TensorEntry entry;
  int64_t begin;  // in the data part
  int64_t end;
};

EntryRange read_entry(const std::filesystem::path& file, const std::string& name, const json& tensor) {
  if (!tensor.is_object()) fail(file, name, "is not a JSON object in the header");
  const auto dtype_name = tensor.find("dtype");
  if (dtype_name == tensor.end() || !dtype_name->is_string()) fail(file, name, "has no dtype");
  const auto dtype = dtype_of_safetensors(dtype_name->get<std::string>());
  if (!dtype) fail(file, name, "has dtype " + dtype_name->get<std::string>() + ", which is not known");
  const auto shape = integers(tensor, "shape");
  if (!shape) fail(file, name, "has no proper shape");
  const auto offsets = integers(tensor, "data_offsets");
  if (!offsets || offsets->size() != 2 || (*offsets)[0] > (*offsets)[1]) fail(file, name, "has no proper data_offsets");
  EntryRange range{{name, *dtype, *shape}, (*offsets)[0], (*offsets)[1]};
  int64_t bytes = 0;
  try {
    bytes = num_bytes(range.entry);
  } catch (const std::overflow_error&) {
    fail(file, name, "has the impossible shape " + describe_shape(*shape));
  }
  if (bytes != range.end - range.begin) {
    fail(file, name,
         "takes " + std::to_string(range.end - range.begin) + " bytes, its shape " + describe_shape(*shape) + " of " +
             dtype_name->get<std::string>() + " needs " + std::to_string(bytes));
  }
  return range;
}

/// A reader of runs of a file in ascending order: it reads a long run by itself, short ones that lie close together at
/// once.
class RunReader {
 public:
  /// `end`: that of the last run. `distance`: from the beginning of one run to that of the next.
  RunReader(const FileReader& file, int64_t end, int64_t distance)
      : file_(file), end_(end), together_(distance < kClose) {}

  void read(int64_t offset, std::byte* target, int64_t bytes) {
    if (!together_ || bytes >= kClose) return file_.read(offset, target, bytes);
    if (offset + bytes > begin_ + window_.size()) {
      begin_ = offset;
      window_ = file_.read(offset, std::min(kWindow, end_ - offset));
    }
    std::memcpy(target, window_.data() + (offset - begin_), static_cast<size_t>(bytes));
  }

 private:
  static constexpr int64_t kClose = 16 << 10, kWindow = 256 << 10;

  const FileReader& file_;
  int64_t end_;
  bool together_;
  int64_t begin_ = 0;
  FileBytes window_;
};

// Reads the box of a tensor at `offset`, run by run: the dims that the box covers completely, and the one before them,
// are contiguous.
void read_box(const FileReader& file, int64_t offset, std::byte* target, const std::vector<int64_t>& shape,
              const Box& box, int64_t element) {
  size_t outer = shape.size();  // dims before it are walked through
  int64_t run = element;
  while (outer > 0) {
    --outer;
    run *= box.size[outer];
    if (box.size[outer] != shape[outer]) break;
  }
  std::vector<int64_t> stride(shape.size(), element);
  for (size_t dim = shape.size(); dim-- > 1;) stride[dim - 1] = stride[dim] * shape[dim];
  for (size_t dim = 0; dim < shape.size(); ++dim) offset += box.start[dim] * stride[dim];
  int64_t end = offset + run;
  for (size_t dim = 0; dim < outer; ++dim) end += (box.size[dim] - 1) * stride[dim];
  RunReader reader(file, end, outer == 0 ? run : stride[outer - 1]);
  std::vector<int64_t> at(outer, 0);
  while (true) {
    reader.read(offset, target, run);
    target += run;
    size_t dim = outer;
    while (dim > 0) {
      --dim;
      offset += stride[dim];
      if (++at[dim] < box.size[dim]) break;
      offset -= stride[dim] * box.size[dim];
      at[dim] = 0;
      if (dim == 0) return;
    }
    if (outer == 0) return;
  }
}

/// Returns a text with the number of missing files of an index. `weights`: its weight_map.
std::string describe_missing(const std::filesystem::path& folder, const json& weights) {
  std::set<std::string> all;
  for (const auto& [name, file] : weights.items()) {
    if (file.is_string()) all.insert(file.get<std::string>());
  }
  const auto missing = std::ranges::count_if(all, [&](const std::string& file) { return !has_entry(folder / file); });
  return ", as " + std::to_string(missing) + " of its " + counted(all.size(), "file") +
         (missing == 1 ? " is" : " are") + ": finish the download";
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const FileBytes beginning = file_.read(0, std::min(file_.size(), kContentBytes));
  uint64_t length = 0;
  if (file_.size() >= kLengthBytes) std::memcpy(&length, beginning.data(), kLengthBytes);  // little-endian, as we are
  const uint64_t rest = static_cast<uint64_t>(std::max(file_.size() - kLengthBytes, int64_t{0}));
  if (length == 0 || length > rest || length > kMostHeaderBytes) {
    const std::string content = describe_text_for_binary(beginning.text());
    if (!content.empty()) fail(path, "not a safetensors file" + content);
  }
  if (file_.size() < kLengthBytes) {
    fail(path, "cut short: " + std::to_string(file_.size()) + " bytes are too few for a safetensors file");
  }
  if (length > rest || length > kMostHeaderBytes) {
    fail(path, "cut short, or not a safetensors file: its header should take " + std::to_string(length) + " bytes, " +
                   std::to_string(rest) + " follow");
  }
  parse(static_cast<int64_t>(length));
}

void SafetensorsFile::parse(int64_t header_bytes) {
  const FileBytes header = file_.read(kLengthBytes, header_bytes);
  const json object = parse_object(path(), header.text());
  data_begin_ = kLengthBytes + header_bytes;
  std::vector<EntryRange> tensors;
  for (const auto& [name, value] : object.items()) {
    if (name != "__metadata__") {
      tensors.push_back(read_entry(path(), name, value));
      continue;
    }
    if (!value.is_object()) fail(path(), "damaged, its __metadata__ is not a JSON object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) fail(path(), "damaged, its __metadata__ has \"" + key + "\" that is not a string");
      metadata_[key] = text.get<std::string>();
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const EntryRange& a, const EntryRange& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  const int64_t data_bytes = file_.size() - data_begin_;
  int64_t expected = 0;
  for (EntryRange& tensor : tensors) {
    if (tensor.end > data_bytes) {
      fail(path(), tensor.entry.name,
           "ends at byte " + std::to_string(tensor.end) + " of the data, of which there are " +
               std::to_string(data_bytes) + ": the file was cut short");
    }
    if (tensor.begin != expected) {
      fail(path(), tensor.entry.name, tensor.begin < expected ? "overlaps another" : "has a gap before it");
    }
    expected = tensor.end;
    index_[tensor.entry.name] = entries_.size();
    offsets_.push_back(data_begin_ + tensor.begin);
    entries_.push_back(std::move(tensor.entry));
  }
  if (expected != data_bytes) {
    fail(path(), "damaged, " + std::to_string(data_bytes - expected) + " bytes after the last tensor");
  }
}

size_t SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) fail(path(), "has no tensor \"" + name + "\"");
  return found->second;
}

const TensorEntry& SafetensorsFile::entry(const std::string& name) const {
  return entries_[find(name)];
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const std::vector<int64_t>& shape = entry(name).shape;
  return read(name, {std::vector<int64_t>(shape.size(), 0), shape});
}

at::Tensor SafetensorsFile::read(const std::string& name, const Box& box) const {
  const size_t index = find(name);
  const TensorEntry& found = entries_[index];
  bool inside = box.start.size() == found.shape.size() && box.size.size() == found.shape.size();
  for (size_t dim = 0; inside && dim < found.shape.size(); ++dim) {
    inside = box.start[dim] >= 0 && box.size[dim] >= 0 && box.start[dim] <= found.shape[dim] - box.size[dim];
  }
  if (!inside) {
    fail(path(), name,
         "has shape " + describe_shape(found.shape) + ", the part from " + describe_shape(box.start) + " of shape " +
             describe_shape(box.size) + " does not lie in it");
  }
  at::Tensor result = at::empty(box.size, at::TensorOptions().dtype(found.dtype));
  if (result.numel() == 0) return result;
  try {
    read_box(file_, offsets_[index], static_cast<std::byte*>(result.mutable_data_ptr()), found.shape, box,
             static_cast<int64_t>(c10::elementSize(found.dtype)));
  } catch (const InputError& error) {
    fail_to_read(name, error.what());
  }
  return result;
}

void SafetensorsFile::for_each_block(const std::string& name,
                                     const std::function<void(std::string_view block)>& visit) const {
  const size_t index = find(name);
  try {
    file_.for_each_block(offsets_[index], num_bytes(entries_[index]), visit);
  } catch (const InputError& error) {
    fail_to_read(name, error.what());
  }
}

void SafetensorsFile::fail_to_read(const std::string& name, const std::string& reason) const {
  throw InputError(reason + ", for tensor \"" + name + "\"");
}

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) : folder_(folder) {
  const std::filesystem::path single = folder / "model.safetensors";
  const std::filesystem::path index = folder / "model.safetensors.index.json";
  if (has_entry(single)) {
    files_.emplace_back(single);
    for (const TensorEntry& tensor : files_[0].entries()) locations_[tensor.name] = {0, tensor.name};
  } else if (has_entry(index)) {
    open_index(index);
  } else {
    throw InputError(describe_no_weights(folder));
  }
}

void SafetensorsFolder::open_index(const std::filesystem::path& index) {
  const json object = parse_object(index, read_all(index).text());
  const auto weights = object.find("weight_map");
  if (weights == object.end() || !weights->is_object()) fail(index, "has no weight_map");
  std::map<std::string, size_t> opened;
  for (const auto& [name, file] : weights->items()) {
    if (!file.is_string()) fail(index, name, "has no file name");
    const std::filesystem::path file_name = file.get<std::string>();
    if (!file_name.has_filename() || file_name.has_parent_path() || file_name == "." || file_name == "..") {
      fail(index, name,
           "is listed in \"" + file_name.string() + "\", which is not the name of a file in the same folder");
    }
    const auto [known, first] = opened.try_emplace(file_name.string(), files_.size());
    if (first && !has_entry(folder_ / file_name)) {
      fail(index, name,
           "is listed in " + file_name.string() + ", which is missing" + describe_missing(folder_, *weights));
    }
    if (first) files_.emplace_back(folder_ / file_name);
    if (const SafetensorsFile& listed = files_[known->second]; !listed.contains(name)) {
      fail(listed.path(), "has no tensor \"" + name + "\", though " + index.filename().string() +
                              " lists it there: the files belong to different models: download the folder again");
    }
    locations_[name] = {known->second, name};
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const auto& [name, dtype, shape] : files_[i].entries()) {
      if (locations_.try_emplace(name, Location{i, name}).first->second.file != i) repeated_.push_back(name);
    }
  }
}

std::vector<std::string> SafetensorsFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, location] : locations_) names.push_back(name);
  return names;
}

std::vector<std::filesystem::path> SafetensorsFolder::files() const {
  std::vector<std::filesystem::path> paths;
  for (const SafetensorsFile& file : files_) paths.push_back(file.path());
  return paths;
}

const SafetensorsFolder::Location& SafetensorsFolder::location(const std::string& name) const {
  const auto found = locations_.find(name);
  if (found == locations_.end()) fail(folder_, "has no tensor \"" + name + "\"");
  return found->second;
}

const TensorEntry& SafetensorsFolder::entry(const std::string& name) const {
  return files_[location(name).file].entry(location(name).name);
}

at::Tensor SafetensorsFolder::read(const std::string& name) const {
  return files_[location(name).file].read(location(name).name);
}

at::Tensor SafetensorsFolder::read(const std::string& name, const Box& box) const {
  return files_[location(name).file].read(location(name).name, box);
}

void SafetensorsFolder::rename(const std::string& name, const std::string& to) {
  Location found = location(name);
  if (locations_.try_emplace(to, std::move(found)).second) locations_.erase(name);
}

}  // namespace meshtrain
