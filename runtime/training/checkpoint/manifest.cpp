#include "runtime/training/checkpoint/manifest.h"

#include <functional>
#include <set>
#include <stdexcept>

#include "mesh/base/files/json_object.h"
#include "runtime/training/checkpoint/damage.h"
#include "runtime/training/checkpoint/manifest_seal.h"
#include "runtime/training/safetensors/tensor_entry.h"

namespace meshtrain {
namespace {

using nlohmann::json;

constexpr uint64_t kLargestNumber = uint64_t{1} << 60;  // accepted: sums of several do not overflow
constexpr size_t kChecksumDigits = 16;                  // of a checksum
constexpr int64_t kTail = kManifestSeal.size() + kChecksumDigits + kManifestEnd.size();

/// A reader of values of a manifest. Throws std::invalid_argument, "its "step" is not a whole number", for a value of
/// another kind.
class Fields {
 public:
  explicit Fields(const json& object, std::string subject = "it") : object_(object), subject_(std::move(subject)) {
    if (!object.is_object()) throw std::invalid_argument(subject_ + " is not a JSON object");
  }

  const json& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) throw std::invalid_argument(subject_ + " has no \"" + key + "\"");
    return *found;
  }
  int64_t number(const char* key) const { return full(at(key), key); }
  double real(const char* key) const {
    if (!at(key).is_number()) refuse(key, "a number");
    return at(key).get<double>();
  }
  std::vector<double> reals(const char* key) const {
    std::vector<double> result;
    for (const json& each : list(key)) {
      if (!each.is_number()) refuse(key, "a list of numbers");
      result.push_back(each.get<double>());
    }
    return result;
  }
  std::string text(const char* key) const {
    if (!at(key).is_string()) refuse(key, "a text");
    return at(key).get<std::string>();
  }
  std::vector<int64_t> numbers(const char* key) const {
    if (!at(key).is_array()) refuse(key, "a list");
    std::vector<int64_t> result;
    for (const json& each : at(key)) result.push_back(full(each, key));
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
    throw std::invalid_argument("\"" + std::string(key) + "\" of " + subject_ + " is not " + what);
  }
  int64_t full(const json& value, const char* key) const {
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kLargestNumber) refuse(key, "a whole number");
    return value.get<int64_t>();
  }

  const json& object_;
  std::string subject_;
};

bool lies_in(const Box& box, const std::vector<int64_t>& shape) {
  if (box.start.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (box.size[dim] < 1 || box.size[dim] > shape[dim] || box.start[dim] > shape[dim] - box.size[dim]) return false;
  }
  return true;
}

/// Checks that the pieces of a tensor cover it, each element once.
void check_cover(const std::string& name, const StoredTensor& tensor) {
  const int64_t needed = Box{{}, tensor.shape}.numel();
  int64_t found = 0;
  for (const StoredPiece& piece : tensor.pieces) {
    found += piece.box.numel();  // cannot overflow before it is more than what is needed twice
    if (found > needed) break;
  }
  if (found != needed) {
    throw std::invalid_argument("the pieces of " + name +
                                (found > needed ? " have more than its " : " lack some of its ") +
                                std::to_string(needed) + " elements");
  }
  if (tensor.shape.empty()) return;
  const StoredPieces& pieces = tensor.pieces;
  const std::vector<uint32_t> order = pieces.by_row();
  for (size_t i = 0; i < order.size(); ++i) {
    const Box box = pieces[order[i]].box;
    for (size_t j = i + 1; j < order.size() && pieces.first_row(order[j]) < box.start[0] + box.size[0]; ++j) {
      if (!pieces.intersects(order[j], box)) continue;
      throw std::invalid_argument("pieces " + describe(box) + " and " + describe(pieces[order[j]].box) + " of " + name +
                                  " overlap");
    }
  }
}

/// The tensors of a manifest by their numbers.
using TensorTable = std::vector<std::pair<std::string, StoredTensor*>>;

StoredTensor& add_tensor(Manifest& manifest, const std::string& name, const Fields& fields) {
  const std::optional<at::ScalarType> dtype = dtype_of_safetensors(fields.text("dtype"));
  if (!dtype) throw std::invalid_argument(name + " has dtype " + fields.text("dtype") + ", which is not known");
  const std::vector<int64_t> shape = fields.numbers("shape");
  num_bytes(TensorEntry{name, *dtype, shape});  // throws when that is impossible
  StoredTensor& tensor = manifest.tensors.try_emplace(name, *dtype, shape).first->second;
  if (tensor.dtype != *dtype || tensor.shape != shape) {
    throw std::invalid_argument(name + " has another dtype or shape " +
                                (manifest.files.empty() ? "twice" : "in " + manifest.files.back().name));
  }
  return tensor;
}

void add_piece(Manifest& manifest, const std::string& name, StoredTensor& tensor, const Box& box, uint64_t checksum) {
  if (!lies_in(box, tensor.shape))
    throw std::invalid_argument("a piece of " + name + " does not lie in " + describe_shape(tensor.shape));
  tensor.pieces.push_back({manifest.files.size() - 1, box, checksum});
}

/// Adds the pieces of a file of format 1, {"model.x": {"dtype": ..., "shape": [...], "pieces": [{"start": [...],
/// "size": [...], "xxh3": "..."}]}}.
void add_pieces_of_format_1(Manifest& manifest, const Fields& file) {
  for (const auto& [name, value] : file.map("tensors").items()) {
    const Fields fields(value, name);
    StoredTensor& tensor = add_tensor(manifest, name, fields);
    for (const json& entry : fields.list("pieces")) {
      const Fields piece(entry, "a piece of " + name);
      add_piece(manifest, name, tensor, {piece.numbers("start"), piece.numbers("size")}, piece.checksum("xxh3"));
    }
  }
}

/// Adds the pieces of a file: [number of the tensor, start and size of the box along each dim, and so on], and
/// the checksums one after another.
void add_pieces(Manifest& manifest, const TensorTable& tensors, const Fields& file) {
  const std::string& name = manifest.files.back().name;
  const std::vector<int64_t> numbers = file.numbers("pieces");
  const std::string checksums = file.text("xxh3");
  size_t next = 0, num_pieces = 0;
  while (next < numbers.size()) {
    const auto index = static_cast<size_t>(numbers[next++]);
    if (index >= tensors.size())
      throw std::invalid_argument("a piece of " + name + " belongs to a tensor that is not listed");
    const auto& [tensor_name, tensor] = tensors[index];
    const size_t num_dims = tensor->shape.size();
    if (numbers.size() - next < 2 * num_dims)
      throw std::invalid_argument("the pieces of " + name + " end in the middle of one");
    const auto start = numbers.begin() + static_cast<std::ptrdiff_t>(next),
               size = start + static_cast<std::ptrdiff_t>(num_dims);
    const std::string digits =
        checksums.substr(std::min(checksums.size(), kChecksumDigits * num_pieces++), kChecksumDigits);
    const std::optional<uint64_t> checksum = checksum_of_text(digits);
    if (!checksum) throw std::invalid_argument("a piece of " + tensor_name + " in " + name + " has no checksum");
    add_piece(manifest, tensor_name, *tensor, {{start, size}, {size, size + (size - start)}}, *checksum);
    next += 2 * num_dims;
  }
  if (checksums.size() != kChecksumDigits * num_pieces)
    throw std::invalid_argument(name + " has more checksums than its " + std::to_string(num_pieces) + " pieces");
}

void add_file(Manifest& manifest, const Fields& file) {
  const std::filesystem::path name = file.text("name");
  if (!name.has_filename() || name.has_parent_path() || name == "." || name == ".." ||
      name.string().find('\0') != std::string::npos) {
    throw std::invalid_argument("\"" + name.string() + "\" is not the name of a file in the same folder");
  }
  manifest.files.push_back({name.string(), file.checksum("header")});
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
  if (fields.contains("recent_steps")) {
    const Fields recent = fields.map("recent_steps");
    state.recent = {recent.reals("losses"), recent.reals("grad_norms")};
    if (state.recent->losses.size() != state.recent->grad_norms.size())
      throw std::invalid_argument("its recent steps have different numbers of losses and gradient norms");
  }
  if (state.step == 0 &&
      (state.num_samples > 0 || state.num_updates > 0 || state.num_skipped > 0 || state.loss_scale || state.recent))
    throw std::invalid_argument("it is of step 0, but has trained samples, updates, skipped steps or a loss scale");
  head.mesh = fields.text("mesh");
  head.recipe = fields.text("recipe");
  for (const auto& [program, version] : fields.map("versions").items()) {
    if (!version.is_string()) throw std::invalid_argument("the version of " + program + " is not a string");
    head.versions[program] = version.get<std::string>();
  }
  for (const auto& [key, file] : fields.map("data").items()) {
    const Fields print(file, key);
    head.data[key] = {print.number("bytes"), print.checksum("xxh3")};
  }
  return head;
}

/// Verifies the checksum at the end. Returns how many bytes it covers.
int64_t check_seal(const FileReader& file) {
  const int64_t sealed = file.size() - kTail;
  if (sealed < 0) throw std::invalid_argument("it was cut short: it does not end with its checksum");
  std::string tail;
  file.for_each_block(sealed, kTail, [&](std::string_view block) { tail += block; });
  if (!tail.starts_with(kManifestSeal) || !tail.ends_with(kManifestEnd))
    throw std::invalid_argument("it was cut short: it does not end with its checksum");
  RunningChecksum sum;
  file.for_each_block(0, sealed, [&](std::string_view block) { sum.add(block); });
  const std::string said = tail.substr(kManifestSeal.size(), kChecksumDigits), found = checksum_text(sum.value());
  if (said != found) throw std::invalid_argument("its checksum is " + found + ", not " + said);
  return sealed;
}

/// Calls `visit` with each line of the first `count` bytes.
void for_each_line(const FileReader& file, int64_t count, const std::function<void(std::string_view line)>& visit) {
  std::string begun;
  file.for_each_block(0, count, [&](std::string_view block) {
    for (size_t end = block.find('\n'); end != std::string_view::npos; end = block.find('\n')) {
      begun += block.substr(0, end);
      visit(begun);
      begun.clear();
      block.remove_prefix(end + 1);
    }
    begun += block;
  });
  visit(begun);
}

/// A reader of the manifest's lines: the head, then a line for each file.
class LineReader {
 public:
  explicit LineReader(std::string file_name) : file_name_(std::move(file_name)) {}

  void add(std::string_view line) {
    if (stage_ == Stage::Ended) throw std::invalid_argument("it has lines after its files");
    if (stage_ == Stage::Head) {
      if (line == kManifestFiles) return read_head();
      (head_ += line) += '\n';
    } else if (line == kManifestFilesEnd) {
      stage_ = Stage::Ended;
    } else {
      if (line.ends_with(',')) line.remove_suffix(1);
      read_file(line);
    }
  }

  Manifest take() {
    if (stage_ != Stage::Ended) throw std::invalid_argument("it has no \"files\" with a line each");
    std::set<std::string> names;
    for (const StoredFile& file : manifest_.files) {
      if (!names.insert(file.name).second) throw std::invalid_argument("it names " + file.name + " twice");
    }
    int64_t bytes = 0;
    for (const auto& [name, tensor] : manifest_.tensors) {
      check_cover(name, tensor);
      if (__builtin_add_overflow(bytes, num_bytes(TensorEntry{name, tensor.dtype, tensor.shape}), &bytes)) {
        throw std::overflow_error("it has more bytes than can be counted");
      }
    }
    return std::move(manifest_);
  }

 private:
  enum class Stage { Head, Files, Ended };

  json parse(std::string_view text) const { return parse_json_object(file_name_ + " is damaged: it", text); }

  void read_head() {
    if (head_.ends_with(",\n")) head_.resize(head_.size() - 2);
    const json object = parse(head_ + "}");
    const Fields fields(object);
    format_ = fields.number("format");
    if (format_ > kManifestFormat) {
      throw NewerCheckpoint(file_name_ + " was written by a newer meshtrain, in format " + std::to_string(format_) +
                            "; this one reads up to " + std::to_string(kManifestFormat) +
                            ": use the version that wrote it");
    }
    if (format_ < 1)
      throw std::invalid_argument("its format is " + std::to_string(format_) + ", but the first format is 1");
    manifest_.head = parse_head(fields);
    stage_ = Stage::Files;
    if (format_ == 1) return;
    for (const json& entry : fields.list("tensors")) {
      const Fields tensor(entry, "a tensor");
      const std::string name = tensor.text("name");
      if (manifest_.tensors.contains(name)) throw std::invalid_argument("it names " + name + " twice");
      tensors_.emplace_back(name, &add_tensor(manifest_, name, tensor));
    }
  }

  void read_file(std::string_view line) {
    const json object = parse(line);
    const Fields file(object, "a file");
    add_file(manifest_, file);
    if (format_ == 1) return add_pieces_of_format_1(manifest_, file);
    add_pieces(manifest_, tensors_, file);
  }

  const std::string file_name_;
  Stage stage_ = Stage::Head;
  std::string head_;
  int64_t format_ = 0;
  Manifest manifest_;
  TensorTable tensors_;  // of manifest_
};

}  // namespace

Manifest parse_manifest(const FileReader& file) try {
  const int64_t sealed = check_seal(file);
  LineReader lines(file.path().string());
  for_each_line(file, sealed, [&](std::string_view line) { lines.add(line); });
  return lines.take();
} catch (const NewerCheckpoint&) {
  throw;
} catch (const InputError& error) {
  throw DamagedCheckpoint(error.what());
} catch (const std::invalid_argument& error) {
  throw DamagedCheckpoint(file.path().string() + " is damaged: " + error.what());
} catch (const std::overflow_error& error) {
  throw DamagedCheckpoint(file.path().string() + " is damaged: " + error.what());
}

int64_t Manifest::num_bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, tensor] : tensors)
    bytes += meshtrain::num_bytes(TensorEntry{name, tensor.dtype, tensor.shape});
  return bytes;
}

}  // namespace meshtrain
