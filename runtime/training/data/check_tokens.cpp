#include "runtime/training/data/check_tokens.h"

#include <algorithm>
#include <vector>

#include "mesh/base/error.h"
#include "runtime/training/data/file_kind.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {
namespace {

std::string number(int64_t value) {
  return std::to_string(value);
}

constexpr int64_t kBlockIds = int64_t{1} << 15;
constexpr int64_t kLeastIds = 64;  // fewer say nothing
constexpr int64_t kPlaces = 8;     // bytes of the widest id

/// Returns ids of the beginning, the middle and the end of a file; blocks begin at multiples of kPlaces.
std::vector<int64_t> some_ids(const TokenFile& tokens) {
  std::vector<int64_t> ids;
  const int64_t size = tokens.size() / kPlaces * kPlaces, block = std::min(kBlockIds, size);
  for (const int64_t first : {int64_t{0}, (size - block) / 2 / kPlaces * kPlaces, size - block}) {
    ids.resize(ids.size() + static_cast<size_t>(block));
    tokens.read(first, block, ids.data() + ids.size() - block);
  }
  return ids;
}

/// Returns, for each offset below `num_parts`, the largest of every `num_parts`-th id. When ids are wider than read,
/// these are the largest values of their parts.
std::vector<int64_t> largest_parts(const std::vector<int64_t>& ids, size_t num_parts) {
  std::vector<int64_t> largest(num_parts);
  for (size_t i = 0; i < ids.size(); ++i) largest[i % num_parts] = std::max(largest[i % num_parts], ids[i]);
  return largest;
}

bool are_zero(const std::vector<int64_t>& parts, size_t from) {
  return std::all_of(parts.begin() + static_cast<std::ptrdiff_t>(from), parts.end(),
                     [](int64_t part) { return part == 0; });
}

constexpr int64_t kUpperParts = 32;  // 16-bit parts above: of vocabularies up to two million; bytes: of up to 8,192 ids

bool looks_like_pairs(int64_t lower, int64_t upper, int64_t large) {
  return (upper == 0 && lower > 0) || (upper < kUpperParts && lower >= large);
}

/// Returns the dtype of ids whose halves are read as uint16; std::nullopt when they are no halves.
std::optional<std::string> dtype_of_uint16_parts(const std::vector<int64_t>& ids) {
  constexpr int64_t kLargeId = 4096;
  const std::vector<int64_t> two = largest_parts(ids, 2), four = largest_parts(ids, 4);
  if (are_zero(four, 2) && looks_like_pairs(four[0], four[1], kLargeId)) return "int64";
  if (looks_like_pairs(two[0], two[1], kLargeId)) return "uint32";
  return std::nullopt;
}

/// Returns the dtype of ids whose bytes are read as uint8, as dtype_of_uint16_parts() does.
std::optional<std::string> dtype_of_bytes(const std::vector<int64_t>& ids) {
  constexpr int64_t kLargeByte = 128;  // beyond ASCII: every second character of a text is no control character
  const std::vector<int64_t> two = largest_parts(ids, 2), four = largest_parts(ids, 4), eight = largest_parts(ids, 8);
  const bool has_ids = eight[0] > 0 || eight[1] > 0;
  if (has_ids && are_zero(eight, 3)) return "int64";
  if (has_ids && four[2] < kUpperParts && four[3] == 0) return "uint32";
  if (looks_like_pairs(two[0], two[1], kLargeByte)) return "uint16";
  return std::nullopt;
}

bool looks_like_uint16(const std::vector<int64_t>& ids) {
  const auto large = std::count_if(ids.begin(), ids.end(), [](int64_t id) { return id >= 1 << 16; });
  return large > static_cast<int64_t>(ids.size()) * 9 / 10;
}

}  // namespace

std::optional<std::string> other_dtype(const TokenFile& tokens) {
  if (tokens.index() || tokens.size() < kLeastIds) return std::nullopt;
  const std::vector<int64_t> ids = some_ids(tokens);
  if (tokens.dtype() == "uint8") return dtype_of_bytes(ids);
  if (tokens.dtype() == "uint16") return dtype_of_uint16_parts(ids);
  const std::vector<int64_t> halves = largest_parts(ids, 2);
  if (halves[1] == 0 && halves[0] > 0) return "int64";
  return looks_like_uint16(ids) ? std::optional<std::string>("uint16") : std::nullopt;
}

std::string advice_on_int64() {
  return "int64, which is not read: write the ids as uint32";
}

Wording layout_warning(const SourceOptions& source, int64_t sequence_length, const std::string& key) {
  if (source.layout != SampleLayout::Stream || source.dtype != "megatron" || read_sidecar(source.tokens)) return "";
  const TokenFile tokens(source.tokens, source.dtype);
  const int64_t record = sequence_length + 1;
  if (tokens.size() < 2 * record || tokens.size() % record != 0) return "";
  for (int64_t first = record; first < tokens.size(); first += record) {
    if (tokens.index()->document_starts(first, first + 1).empty()) return "";
  }
  return Key{key + ".layout"} + ": " + source.tokens.string() + " is read as stream, but a document begins at every " +
         number(record) + " tokens (" + Key{"train.sequence_length"} + " + 1), as in records: set " +
         Setting{key + ".layout", "records"};
}

Wording dtype_warning(const SourceOptions& source, const std::string& key) {
  if (read_sidecar(source.tokens)) return "";
  if (const std::optional<FileKind> kind = kind_of_no_tokens(source.tokens, source.dtype)) {
    return Key{key + ".tokens"} + ": " + source.tokens.string() + " is read as " + source.dtype + ", but looks like " +
           kind->name + ", not token ids: " + kind->advice + " if it is";
  }
  const std::optional<std::string> other = other_dtype(TokenFile(source.tokens, source.dtype));
  if (!other) return "";
  const bool are_bytes = source.dtype == "uint8", are_halves = source.dtype == "uint32" && *other == "int64";
  const std::string found = *other == "uint16" && !are_bytes ? "nearly all ids are 65,536 or more"
                            : are_bytes                      ? "its upper bytes are 0 or small"
                            : are_halves                     ? "every second id is 0"
                            : *other == "int64"              ? "three of four ids are 0 or small"
                                                             : "every second id is 0 or small";
  const Wording advice =
      *other == "int64" ? Wording(advice_on_int64()) : *other + ": set " + Setting{key + ".dtype", *other};
  return Key{key + ".dtype"} + ": " + source.tokens.string() + " is read as " + source.dtype + ", but " + found +
         ", as if it held " + advice + " if it does";
}

}  // namespace meshtrain
