#include "runtime/checkpoint/manifest.h"

#include <torch/version.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "runtime/checkpoint/damage.h"
#include "runtime/files/json_object.h"
#include "runtime/safetensors/tensor_entry.h"

namespace meshtrain {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kFormat = 1;
constexpr uint64_t kMost = uint64_t{1} << 60;  // of any number: what is added to it is far from an overflow
constexpr std::string_view kSeal = ",\n \"xxh3\": \"", kEnd = "\"\n}\n";  // around the checksum of what is before it

/// Reads values of a manifest; throws std::invalid_argument, "its "step" is no whole number", when there is another.
class Fields {
 public:
  explicit Fields(const json& object, std::string place = "it") : object_(object), place_(std::move(place)) {
    if (!object.is_object()) throw std::invalid_argument(place_ + " is not a JSON object");
  }

  const json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) throw std::invalid_argument(place_ + " has no \"" + key + "\"");
    return *found;
  }
  int64_t number(const char* key) const { return whole(at(key), key); }
  double real(const char* key) const {
    if (!at(key).is_number()) refuse(key, "a number");
    return at(key).get<double>();
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(key, "a text");
    return at(key).get<std::string>();
  }
  std::vector<int64_t> numbers(const char* key) const {
    if (!at(key).is_array()) refuse(key, "a list");
    std::vector<int64_t> result;
    for (const json& each : at(key)) result.push_back(whole(each, key));
    return result;
  }
  const json& list(const char* key) const {
    if (!at(key).is_array()) refuse(key, "a list");
    return at(key);
  }
  Fields map(const char* key) const { return Fields(at(key), "\"" + std::string(key) + "\""); }
  uint64_t checksum(const char* key) const {
    const std::optional<uint64_t> value = checksum_of_text(text(key));
    if (!value) refuse(key, "a checksum of 16 hexadecimal digits");
    return *value;
  }
  bool contains(const char* key) const { return object_.contains(key); }
  auto items() const { return object_.items(); }

 private:
  [[noreturn]] void refuse(const char* key, const char* what) const {
    throw std::invalid_argument("\"" + std::string(key) + "\" of " + place_ + " is not " + what);
  }
  int64_t whole(const json& value, const char* key) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMost) refuse(key, "a whole number");
    return value.get<int64_t>();
  }

  const json& object_;
  std::string place_;
};

bool lies_in(const Box& box, const std::vector<int64_t>& shape) {
  if (box.start.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.size[dim] < 1 || box.size[dim] > shape[dim] || box.start[dim] > shape[dim] - box.size[dim]) return false;
  }
  return true;
}

/// The pieces of a tensor are all of it, each element once.
void check_cover(const std::string& name, StoredTensor& tensor) {
  const int64_t needed = Box{{}, tensor.shape}.numel();
  int64_t found = 0;
  std::vector<const Box*> boxes;
  for (const StoredPiece& piece : tensor.pieces) {
    found += piece.box.numel();  // cannot overflow before it is more than what is needed twice
    boxes.push_back(&piece.box);
    if (found > needed) break;
  }
  if (found != needed) {
    throw std::invalid_argument("the pieces of " + name +
                                (found > needed ? " have more than its " : " lack some of its ") +
                                std::to_string(needed) + " elements");
  }
  if (tensor.shape.empty()) return;
  std::sort(boxes.begin(), boxes.end(), [](const Box* a, const Box* b) { return a->start[0] < b->start[0]; });
  for (size_t i = 0; i < boxes.size(); ++i) {
    for (size_t j = i + 1; j < boxes.size() && boxes[j]->start[0] < boxes[i]->start[0] + boxes[i]->size[0]; ++j) {
      if (!intersect(*boxes[i], *boxes[j])) continue;
      throw std::invalid_argument("pieces " + describe(*boxes[i]) + " and " + describe(*boxes[j]) + " of " + name +
                                  " overlap");
    }
  }
}

void add_pieces(Manifest& manifest, const std::string& name, const Fields& fields) {
  const std::optional<at::ScalarType> dtype = dtype_of_safetensors(fields.text("dtype"));
  if (!dtype) throw std::invalid_argument(name + " has dtype " + fields.text("dtype") + ", which is not known");
  const std::vector<int64_t> shape = fields.numbers("shape");
  num_bytes(TensorEntry{name, *dtype, shape});  // throws when that is impossible
  StoredTensor& tensor = manifest.tensors.try_emplace(name, StoredTensor{*dtype, shape, {}}).first->second;
  if (tensor.dtype != *dtype || tensor.shape != shape) {
    throw std::invalid_argument(name + " has another dtype or shape in " + manifest.files.back().name);
  }
  for (const json& entry : fields.list("pieces")) {
    const Fields piece(entry, "a piece of " + name);
    const Box box{piece.numbers("start"), piece.numbers("size")};
    if (!lies_in(box, shape))
      throw std::invalid_argument("a piece of " + name + " does not lie in " + describe_shape(shape));
    tensor.pieces.push_back({manifest.files.size() - 1, box, piece.checksum("xxh3")});
  }
}

void add_file(Manifest& manifest, const json& entry) {
  const Fields file(entry, "a file");
  const std::filesystem::path name = file.text("name");
  if (!name.has_filename() || name.has_parent_path() || name == "." || name == ".." ||
      name.string().find('\0') != std::string::npos) {
    throw std::invalid_argument("\"" + name.string() + "\" is not the name of a file beside it");
  }
  manifest.files.push_back({name.string(), file.checksum("header")});
  for (const auto& [tensor, fields] : file.map("tensors").items()) add_pieces(manifest, tensor, Fields(fields, tensor));
}

CheckpointHead parse_head(const Fields& fields) {
  CheckpointHead head;
  TrainingState& state = head.state;
  state.step = fields.number("step");
  state.num_samples = fields.number("samples");
  state.num_updates = fields.number("updates");
  state.num_skipped = fields.number("skipped_in_a_row");
  if (fields.contains("loss_scale")) {
    const Fields scale = fields.map("loss_scale");
    state.loss_scale = {scale.real("value"), scale.number("finite_steps")};
    if (!(state.loss_scale->value > 0)) throw std::invalid_argument("its loss scale is not above 0");
  }
  if (state.step == 0 && (state.num_samples > 0 || state.num_updates > 0 || state.num_skipped > 0 || state.loss_scale))
    throw std::invalid_argument("it is of step 0, before which nothing can have been trained");
  head.mesh = fields.text("mesh");
  head.recipe = fields.text("recipe");
  for (const auto& [program, version] : fields.map("versions").items()) {
    if (!version.is_string()) throw std::invalid_argument("the version of " + program + " is not a text");
    head.versions[program] = version.get<std::string>();
  }
  for (const auto& [key, file] : fields.map("data").items()) {
    const Fields print(file, key);
    head.data[key] = {print.number("bytes"), print.checksum("xxh3")};
  }
  return head;
}

void check_seal(const std::string& text) {
  const size_t seal = text.rfind(kSeal), sum = seal + kSeal.size();
  if (seal == std::string::npos || text.size() < sum + kEnd.size() || !text.ends_with(kEnd)) {
    throw std::invalid_argument("it was cut short: it does not end with its checksum");
  }
  const std::string said = text.substr(sum, text.size() - kEnd.size() - sum),
                    found = checksum_text(checksum(text.data(), seal));
  if (said != found) throw std::invalid_argument("its checksum is " + found + ", not " + said.substr(0, 16));
}

Manifest parse(const std::string& text, const std::string& file_name) {
  check_seal(text);
  const json object = parse_json_object(file_name + " is damaged: it", text);
  const Fields fields(object);
  const int64_t format = fields.number("format");
  if (format > kFormat) {
    throw NewerCheckpoint(file_name + " was written by a newer meshtrain, in format " + std::to_string(format) +
                          "; this one reads up to " + std::to_string(kFormat) + ": use the version that wrote it");
  }
  if (format < 1) throw std::invalid_argument("it is of format " + std::to_string(format) + ", the first is 1");
  Manifest manifest{parse_head(fields), {}, {}};
  for (const json& file : fields.list("files")) add_file(manifest, file);
  std::set<std::string> names;
  for (const StoredFile& file : manifest.files) {
    if (!names.insert(file.name).second) throw std::invalid_argument("it names " + file.name + " twice");
  }
  int64_t bytes = 0;
  for (auto& [name, tensor] : manifest.tensors) {
    check_cover(name, tensor);
    if (__builtin_add_overflow(bytes, num_bytes(TensorEntry{name, tensor.dtype, tensor.shape}), &bytes)) {
      throw std::overflow_error("it has more bytes than can be counted");
    }
  }
  return manifest;
}

ordered_json json_of(const CheckpointHead& head) {
  ordered_json object;
  object["format"] = kFormat;
  object["versions"] = {{"meshtrain", MESHTRAIN_VERSION}, {"torch", TORCH_VERSION}};
  object["step"] = head.state.step;
  object["samples"] = head.state.num_samples;
  object["updates"] = head.state.num_updates;
  object["skipped_in_a_row"] = head.state.num_skipped;
  if (head.state.loss_scale) {
    object["loss_scale"] = {{"value", head.state.loss_scale->value},
                            {"finite_steps", head.state.loss_scale->num_finite}};
  }
  object["mesh"] = head.mesh;
  object["data"] = ordered_json::object();
  for (const auto& [key, print] : head.data) {
    object["data"][key] = {{"bytes", print.bytes}, {"xxh3", checksum_text(print.checksum)}};
  }
  object["recipe"] = head.recipe;
  return object;
}

}  // namespace

int64_t Manifest::num_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors)
    bytes += meshtrain::num_bytes(TensorEntry{name, tensor.dtype, tensor.shape});
  return bytes;
}

void ManifestPart::add(const std::string& tensor, at::ScalarType dtype, const std::vector<int64_t>& shape,
                       const Box& box, uint64_t checksum) {
  tensors_.try_emplace(tensor, StoredTensor{dtype, shape, {}}).first->second.pieces.push_back({0, box, checksum});
}

std::string ManifestPart::text() const {
  ordered_json file;
  file["name"] = file_.name;
  file["header"] = checksum_text(file_.header);
  file["tensors"] = ordered_json::object();
  for (const auto& [name, tensor] : tensors_) {
    ordered_json& entry = file["tensors"][name];
    entry["dtype"] = safetensors_dtype(tensor.dtype).value();
    entry["shape"] = tensor.shape;
    for (const StoredPiece& piece : tensor.pieces) {
      entry["pieces"].push_back(
          {{"start", piece.box.start}, {"size", piece.box.size}, {"xxh3", checksum_text(piece.checksum)}});
    }
  }
  return file.dump();
}

std::string manifest_text(const CheckpointHead& head, const std::vector<std::string>& parts) {
  std::string text = json_of(head).dump(1, ' ', false, json::error_handler_t::replace);
  text.resize(text.rfind('\n'));  // the closing brace comes last
  text += ",\n \"files\": [";
  const char* separator = "\n  ";
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    text += separator + part;
    separator = ",\n  ";
  }
  text += "\n ]";
  const std::string sum = checksum_text(checksum(text.data(), text.size()));
  return text.append(kSeal).append(sum).append(kEnd);
}

Manifest parse_manifest(const std::string& text, const std::string& name) try {
  return parse(text, name);
} catch (const NewerCheckpoint&) {
  throw;
} catch (const InputError& error) {
  throw DamagedCheckpoint(error.what());
} catch (const std::invalid_argument& error) {
  throw DamagedCheckpoint(name + " is damaged: " + error.what());
} catch (const std::overflow_error& error) {
  throw DamagedCheckpoint(name + " is damaged: " + error.what());
}

}  // namespace meshtrain
