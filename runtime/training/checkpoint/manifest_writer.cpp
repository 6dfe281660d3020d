#include "runtime/training/checkpoint/manifest_writer.h"

#include <torch/version.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "mesh/base/version.h"
#include "runtime/training/checkpoint/manifest_seal.h"
#include "runtime/training/checkpoint/packer.h"
#include "runtime/training/safetensors/tensor_entry.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

/// Text that goes to a sink in large blocks, and its checksum.
class SealedText {
 public:
  explicit SealedText(const std::function<void(std::string_view)>& sink) : sink_(sink) {}

  SealedText& operator+=(std::string_view text) {
    waiting_ += text;
    if (waiting_.size() >= kBlock) pass_on();
    return *this;
  }
  void append(int64_t number) {
    char digits[20];
    *this += {digits, static_cast<size_t>(std::to_chars(digits, digits + sizeof digits, number).ptr - digits)};
  }
  void seal() {
    sum_.add(waiting_);
    waiting_.append(kManifestSeal).append(checksum_text(sum_.value())).append(kManifestEnd);
    sink_(waiting_);
  }

 private:
  static constexpr size_t kBlock = 1 << 20;

  void pass_on() {
    sum_.add(waiting_);
    sink_(waiting_);
    waiting_.clear();
  }

  const std::function<void(std::string_view)>& sink_;
  RunningChecksum sum_;
  std::string waiting_;
};

struct Part {
  StoredFile file;
  std::map<std::string, StoredTensor> tensors;
};

Part unpack(const std::string& bytes) {
  Unpacker unpacker(bytes);
  Part part;
  part.file.name = unpacker.text();
  part.file.header = unpacker.plain<uint64_t>();
  for (int64_t count = unpacker.number(); count > 0; --count) {
    std::string name = unpacker.text();
    const auto dtype = unpacker.plain<at::ScalarType>();
    const std::vector<int64_t> shape = unpacker.numbers();
    StoredTensor& tensor = part.tensors.try_emplace(std::move(name), dtype, shape).first->second;
    for (int64_t pieces = unpacker.number(); pieces > 0; --pieces) {
      Box box = unpacker.box(shape.size());
      tensor.pieces.push_back({0, std::move(box), unpacker.plain<uint64_t>()});
    }
  }
  return part;
}

/// A tensor of the complete checkpoint.
struct NumberedTensor {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  int64_t number = 0;  // by name
};

std::map<std::string, NumberedTensor> number_tensors(const std::vector<std::string>& parts) {
  std::map<std::string, NumberedTensor> tensors;
  for (const std::string& bytes : parts) {
    if (bytes.empty()) continue;
    const Part part = unpack(bytes);
    for (const auto& [name, tensor] : part.tensors) {
      const NumberedTensor& known = tensors.try_emplace(name, NumberedTensor{tensor.dtype, tensor.shape}).first->second;
      if (known.dtype != tensor.dtype || known.shape != tensor.shape)
        throw std::runtime_error(name + " has another dtype or shape in " + part.file.name);
    }
  }
  int64_t number = 0;
  for (auto& [name, tensor] : tensors) tensor.number = number++;
  return tensors;
}

ordered_json json_of(const CheckpointHead& head) {
  ordered_json object;
  object["format"] = kManifestFormat;
  object["versions"] = {{"meshtrain", version()}, {"torch", TORCH_VERSION}, {kScheduleVersion, kSchedule}};
  object["step"] = head.state.step;
  object["samples"] = head.state.num_samples;
  object["updates"] = head.state.num_updates;
  object["skipped_in_a_row"] = head.state.num_skipped;
  if (head.state.loss_scale) {
    object["loss_scale"] = {{"value", head.state.loss_scale->value},
                            {"finite_steps", head.state.loss_scale->num_finite}};
  }
  if (head.state.recent) {
    object["recent_steps"] = {{"losses", head.state.recent->losses}, {"grad_norms", head.state.recent->grad_norms}};
  }
  object["mesh"] = head.mesh;
  object["data"] = ordered_json::object();
  for (const auto& [key, print] : head.data) {
    object["data"][key] = {{"bytes", print.bytes}, {"xxh3", checksum_text(print.checksum)}};
  }
  object["recipe"] = head.recipe;
  return object;
}

void append_tensor(SealedText& text, const std::string& name, const NumberedTensor& tensor) {
  ordered_json entry;
  entry["name"] = name;
  entry["dtype"] = safetensors_dtype(tensor.dtype).value();
  entry["shape"] = tensor.shape;
  text += entry.dump();
}

void append_file(SealedText& text, const Part& part, const std::map<std::string, NumberedTensor>& tensors) {
  text += "{\"name\":" + json(part.file.name).dump() + ",\"header\":\"" + checksum_text(part.file.header) +
          "\",\"pieces\":[";
  std::string checksums;
  const char* separator = "";
  for (const auto& [name, tensor] : part.tensors) {
    const int64_t number = tensors.at(name).number;
    for (const StoredPiece& piece : tensor.pieces) {
      text += separator;
      separator = ",";
      text.append(number);
      for (const std::vector<int64_t>* values : {&piece.box.start, &piece.box.size}) {
        for (const int64_t value : *values) {
          text += ",";
          text.append(value);
        }
      }
      checksums += checksum_text(piece.checksum);
    }
  }
  text += "],\"xxh3\":\"" + checksums + "\"}";
}

}  // namespace

void ManifestPart::add(const std::string& tensor, at::ScalarType dtype, const std::vector<int64_t>& shape,
                       const Box& box, uint64_t checksum) {
  tensors_.try_emplace(tensor, dtype, shape).first->second.pieces.push_back({0, box, checksum});
}

std::string ManifestPart::packed() const {
  Packer packer;
  packer.text(file_.name);
  packer.plain(file_.header);
  packer.number(static_cast<int64_t>(tensors_.size()));
  for (const auto& [name, tensor] : tensors_) {
    packer.text(name);
    packer.plain(tensor.dtype);
    packer.numbers(tensor.shape);
    packer.number(static_cast<int64_t>(tensor.pieces.size()));
    for (const StoredPiece& piece : tensor.pieces) {
      packer.box(piece.box);
      packer.plain(piece.checksum);
    }
  }
  return packer.take();
}

void write_manifest(const CheckpointHead& head, const std::vector<std::string>& parts,
                    const std::function<void(std::string_view)>& sink) {
  const std::map<std::string, NumberedTensor> tensors = number_tensors(parts);
  std::string top = json_of(head).dump(1, ' ', false, json::error_handler_t::replace);
  top.resize(top.rfind('\n'));  // the closing brace comes last
  SealedText text(sink);
  text += top;
  text += ",\n \"tensors\": [";
  const char* separator = "\n  ";
  for (const auto& [name, tensor] : tensors) {
    text += separator;
    separator = ",\n  ";
    append_tensor(text, name, tensor);
  }
  text += "\n ],\n";
  text += kManifestFiles;
  separator = "\n  ";
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    text += separator;
    separator = ",\n  ";
    append_file(text, unpack(part), tensors);
  }
  text += "\n";
  text += kManifestFilesEnd;
  text.seal();
}

std::string manifest_text(const CheckpointHead& head, const std::vector<std::string>& parts) {
  std::string text;
  write_manifest(head, parts, [&](std::string_view block) { text += block; });
  return text;
}

}  // namespace meshtrain
