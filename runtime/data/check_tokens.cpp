#include "runtime/data/check_tokens.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <map>
#include <system_error>
#include <utility>
#include <vector>

#include "mesh/error.h"
#include "runtime/data/file_kind.h"
#include "runtime/data/files_beside.h"
#include "runtime/data/token_sidecar.h"
#include "runtime/tokenizer/tokenizer.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

std::string number(int64_t value) {
  return std::to_string(value);
}

/// Returns the location of the first of `keys` that the recipe sets, "x.yaml:12:5: data.dtype"; else the first key.
std::string location_of(const Recipe& recipe, std::initializer_list<std::string> keys) {
  for (const std::string& key : keys) {
    const auto found = recipe.locations.find(key);
    if (found != recipe.locations.end()) return found->second;
  }
  const auto file = recipe.locations.find("");
  return (file == recipe.locations.end() ? "" : file->second + ": ") + *keys.begin();
}

void check_source(const Recipe& recipe, const SourceRecipe& source, const std::string& key,
                  const TokenSidecar& sidecar) {
  const std::string file = source.tokens.string(), says = sidecar_path(source.tokens).string() + " says";
  if (source.dtype != sidecar.data_dtype()) {
    const std::string holds = sidecar.index.empty() ? sidecar.dtype : "tokens with the index " + sidecar.index;
    throw InputError(location_of(recipe, {key + ".dtype", "data.dtype", key + ".tokens"}),
                     file + " would be read as " + source.dtype + ", but holds " + holds + ", as " + says + ": set " +
                         Setting{key + ".dtype", sidecar.data_dtype()});
  }
  std::error_code ignored;
  const auto bytes = static_cast<int64_t>(fs::file_size(source.tokens, ignored));
  if (bytes != sidecar.num_bytes()) {
    throw InputError(location_of(recipe, {key + ".tokens"}),
                     file + " has " + number(bytes) + " bytes, but " + number(sidecar.tokens) + " tokens of " +
                         sidecar.dtype + ", which " + says + ", are " + number(sidecar.num_bytes()) +
                         ": the file was cut short or replaced; prepare it again, or remove the .json file");
  }
  if (source.documents && *source.documents != kDocumentsOfIndex && sidecar.separator &&
      source.documents != sidecar.separator) {
    throw InputError(location_of(recipe, {key + ".documents", "data.documents", key + ".tokens"}),
                     "documents of " + file + " would end with the id " + number(*source.documents) +
                         ", but each ends with " + number(*sidecar.separator) + ", as " + says + ": set " +
                         Setting{key + ".documents", number(*sidecar.separator)});
  }
  const int64_t length = recipe.train.sequence_length;
  if (sidecar.sequence_length && source.layout == "records" && length != *sidecar.sequence_length) {
    const Key own{"train.sequence_length"};
    const bool names_it = recipe.locations.contains(own.path) || !recipe.locations.contains(key + ".tokens");
    throw InputError(location_of(recipe, {own.path, key + ".tokens"}),
                     (names_it ? "" : own + " is ") + number(length) + ", but the records of " + file +
                         " are sequences of " + number(*sidecar.sequence_length) + ", as " + says + ": set " +
                         Setting{own.path, number(*sidecar.sequence_length)} +
                         ", or prepare the data with --sequence-length " + number(length));
  }
  const int64_t vocab_size = recipe.model.shape.vocab_size;
  if (vocab_size >= sidecar.vocabulary_size) return;
  throw InputError(location_of(recipe, {"model.vocab_size", "model.hf"}),
                   "the model's vocab_size is " + number(vocab_size) + ", but " + file + " was made with ids up to " +
                       number(sidecar.vocabulary_size - 1) + ", of the tokenizer " + sidecar.tokenizer + ", as " +
                       says + ": use a model.vocab_size of " + number(sidecar.vocabulary_size) +
                       " or more, or prepare the data with the model's tokenizer");
}

/// Throws InputError for a file that certainly holds no token ids.
void check_kind(const Recipe& recipe, const SourceRecipe& source, const std::string& key) {
  const std::optional<FileKind> kind = kind_of_no_tokens(source.tokens, source.dtype);
  if (!kind || !kind->is_certain) return;
  throw InputError(location_of(recipe, {key + ".tokens"}),
                   source.tokens.string() + " looks like " + kind->name + ", not token ids: " + kind->advice);
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

/// Returns the largest id at each place of `places`: of wider ids these are the largest values of their parts.
std::vector<int64_t> largest_parts(const std::vector<int64_t>& ids, size_t places) {
  std::vector<int64_t> largest(places);
  for (size_t i = 0; i < ids.size(); ++i) largest[i % places] = std::max(largest[i % places], ids[i]);
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

/// Returns true when the run's tokenizer is not the one that `sidecar` names.
bool is_other_tokenizer(const TokenSidecar& sidecar, const std::string& tokenizer) try {
  return !tokenizer.empty() && tokenizer_fingerprint(tokenizer) != sidecar.tokenizer_checksum;
} catch (const InputError&) {  // it does not exist: describe_data() says so
  return false;
}

/// Returns the vocabulary of a tokenizer with `separator`, as sidecars count it; none when it cannot be loaded.
std::optional<int64_t> vocabulary_with(const std::string& tokenizer, std::optional<int64_t> separator) {
  const auto found = try_load_tokenizer(tokenizer);
  return found ? std::optional(std::max(found->vocabulary_size(), separator.value_or(-1) + 1)) : std::nullopt;
}

/// Calls `visit` with every source of `data`, and with that of `evaluate` where there is one, and with its key.
template <class SomeRecipe, class Visit>
void for_each_source(SomeRecipe& recipe, const Visit& visit) {
  if (recipe.data.mixture.empty()) visit(recipe.data, std::string("data"));
  for (size_t i = 0; i < recipe.data.mixture.size(); ++i) visit(recipe.data.mixture[i], recipe.data.source_key(i));
  if (!recipe.evaluate.tokens.empty()) visit(recipe.evaluate, std::string("evaluate"));
}

}  // namespace

TokenizerMatch match_tokenizer(const TokenSidecar& sidecar, const std::string& tokenizer) {
  if (!is_other_tokenizer(sidecar, tokenizer)) return TokenizerMatch::Same;
  const std::optional<int64_t> vocabulary = vocabulary_with(tokenizer, sidecar.separator);
  if (!vocabulary) return TokenizerMatch::Same;
  return *vocabulary == sidecar.vocabulary_size ? TokenizerMatch::OtherChecksum : TokenizerMatch::OtherVocabulary;
}

void check_sidecars(const Recipe& recipe, const std::string& tokenizer) {
  for_each_source(recipe, [&](const SourceRecipe& source, const std::string& key) {
    const std::optional<TokenSidecar> sidecar = read_sidecar(source.tokens);
    if (!sidecar) return check_kind(recipe, source, key);
    check_source(recipe, source, key, *sidecar);
    if (match_tokenizer(*sidecar, tokenizer) != TokenizerMatch::OtherVocabulary) return;  // sidecar_lines() warns
    const std::optional<int64_t> vocabulary = vocabulary_with(tokenizer, sidecar->separator);
    throw InputError(location_of(recipe, {"data.tokenizer", "model.hf"}),
                     "the run's tokenizer is " + tokenizer + ", with ids up to " + number(*vocabulary - 1) + ", but " +
                         source.tokens.string() + " was made with " + sidecar->tokenizer + ", with ids up to " +
                         number(sidecar->vocabulary_size - 1) + ", as " + sidecar_path(source.tokens).string() +
                         " says: set data.tokenizer: " + sidecar->tokenizer +
                         ", or prepare the data with the other one");
  });
}

void check_tokenizer(const Recipe& recipe) {
  const std::string name = recipe.data.tokenizer.string();
  if (name.empty() || name == "bytes") return;
  const auto tokenizer = try_load_tokenizer(name);
  if (!tokenizer) return;  // describe_data() says so when it does not exist
  check_vocabulary(*tokenizer, recipe.model.shape.vocab_size, location_of(recipe, {"data.tokenizer"}) + ": " + name);
}

void take_layouts(Recipe& recipe) {
  const std::map<std::string, std::string> said = recipe.locations;
  for_each_source(recipe, [&](SourceRecipe& source, const std::string& key) {
    if (said.contains(key + ".layout") || said.contains("data.layout")) return;
    const std::optional<TokenSidecar> sidecar = read_sidecar(source.tokens);
    if (!sidecar || sidecar->data_dtype() != source.dtype || sidecar->layout == source.layout) return;
    source.layout = sidecar->layout;
    recipe.locations[key + ".layout"] = sidecar_path(source.tokens).string() + ": " + key + ".layout";
  });
}

std::vector<Notice> sidecar_lines(const Recipe& recipe, const std::string& tokenizer) {
  std::vector<Notice> lines;
  for_each_source(recipe, [&](const SourceRecipe& source, const std::string& key) {
    const std::optional<TokenSidecar> sidecar = read_sidecar(source.tokens);
    for (const Wording& line : {mask_warning(source, key), documents_warning(source, key)}) {
      if (!line.empty()) lines.push_back({line.text(), true});
    }
    if (!sidecar) return;
    const std::string file = sidecar_path(source.tokens).string();
    const auto location = recipe.locations.find(key + ".layout");
    if (location != recipe.locations.end() && location->second.starts_with(file + ": ")) {
      lines.push_back({key + ".layout: " + source.layout + ", as " + file + " says"});
    } else if (source.layout != sidecar->layout) {
      lines.push_back({"warning: " + key + ".layout: " + source.tokens.string() + " is read as " + source.layout +
                           ", but " + file + " says " + sidecar->layout + ": set " + key +
                           ".layout: " + sidecar->layout,
                       true});
    }
    if (!is_other_tokenizer(*sidecar, tokenizer)) return;
    lines.push_back({"warning: the run's tokenizer is " + tokenizer + ", but " + source.tokens.string() +
                         " was made with " + sidecar->tokenizer + ", whose checksum was " +
                         sidecar->tokenizer_checksum + ": set data.tokenizer to that one, or prepare the data again",
                     true});
  });
  return lines;
}

void check_labels(const Recipe& recipe, const Mixture& data) {
  for (size_t i = 0; i < data.sources().size(); ++i) {
    const Dataset& source = data.sources()[i];
    if (source.has_counted_label(source.num_samples())) continue;
    const std::string key = recipe.data.source_key(i);
    throw InputError(location_of(recipe, {key + ".loss_mask", "data.loss_mask", key + ".ignore_id", "data.ignore_id",
                                          key + ".boundary_labels", "data.boundary_labels", key + ".tokens"}),
                     "no label of " + source.path().string() +
                         " counts, so nothing can be trained with it: data.loss_mask, data.ignore_id and "
                         "data.boundary_labels ignore every one: change or leave out the one that does");
  }
}

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

Wording layout_warning(const SourceRecipe& source, int64_t sequence_length, const std::string& key) {
  if (source.layout != "stream" || source.dtype != "megatron" || read_sidecar(source.tokens)) return "";
  const TokenFile tokens(source.tokens, source.dtype);
  const int64_t record = sequence_length + 1;
  if (tokens.size() < 2 * record || tokens.size() % record != 0) return "";
  for (int64_t first = record; first < tokens.size(); first += record) {
    if (tokens.index()->document_starts(first, first + 1).empty()) return "";
  }
  return "warning: " + Key{key + ".layout"} + ": " + source.tokens.string() +
         " is read as stream, but a document begins at every " + number(record) + " tokens (" +
         Key{"train.sequence_length"} + " + 1), as in records: set " + Setting{key + ".layout", "records"};
}

Wording dtype_warning(const SourceRecipe& source, const std::string& key) {
  if (read_sidecar(source.tokens)) return "";
  if (const std::optional<FileKind> kind = kind_of_no_tokens(source.tokens, source.dtype)) {
    return "warning: " + Key{key + ".tokens"} + ": " + source.tokens.string() + " is read as " + source.dtype +
           ", but looks like " + kind->name + ", not token ids: " + kind->advice + " if it is";
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
  return "warning: " + Key{key + ".dtype"} + ": " + source.tokens.string() + " is read as " + source.dtype + ", but " +
         found + ", as if it held " + advice + " if it does";
}

}  // namespace meshtrain
