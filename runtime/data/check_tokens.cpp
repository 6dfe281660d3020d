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
    throw InputError(location_of(recipe, {key + ".dtype", "data.dtype", key + ".tokens"}) + ": " + file +
                     " would be read as " + source.dtype + ", but holds " + holds + ", as " + says + ": set " + key +
                     ".dtype: " + sidecar.data_dtype());
  }
  std::error_code ignored;
  const auto bytes = static_cast<int64_t>(fs::file_size(source.tokens, ignored));
  if (bytes != sidecar.num_bytes()) {
    throw InputError(location_of(recipe, {key + ".tokens"}) + ": " + file + " has " + number(bytes) + " bytes, but " +
                     number(sidecar.tokens) + " tokens of " + sidecar.dtype + ", which " + says + ", are " +
                     number(sidecar.num_bytes()) +
                     ": the file was cut short or replaced; prepare it again, or remove the .json file");
  }
  if (source.documents && *source.documents != kDocumentsOfIndex && sidecar.separator &&
      source.documents != sidecar.separator) {
    throw InputError(location_of(recipe, {key + ".documents", "data.documents", key + ".tokens"}) + ": documents of " +
                     file + " would end with the id " + number(*source.documents) + ", but each ends with " +
                     number(*sidecar.separator) + ", as " + says + ": set " + key +
                     ".documents: " + number(*sidecar.separator));
  }
  const int64_t length = recipe.train.sequence_length;
  if (sidecar.sequence_length && source.layout == "records" && length != *sidecar.sequence_length) {
    throw InputError(location_of(recipe, {"train.sequence_length", key + ".tokens"}) + ": train.sequence_length is " +
                     number(length) + ", but the records of " + file + " are sequences of " +
                     number(*sidecar.sequence_length) + ", as " + says +
                     ": set train.sequence_length: " + number(*sidecar.sequence_length) +
                     ", or prepare the data with --sequence-length " + number(length));
  }
  const int64_t vocab_size = recipe.model.shape.vocab_size;
  if (vocab_size >= sidecar.vocabulary_size) return;
  throw InputError(location_of(recipe, {"model.vocab_size", "model.hf"}) + ": the model's vocab_size is " +
                   number(vocab_size) + ", but " + file + " was made with ids up to " +
                   number(sidecar.vocabulary_size - 1) + ", of the tokenizer " + sidecar.tokenizer + ", as " + says +
                   ": use a model.vocab_size of " + number(sidecar.vocabulary_size) +
                   " or more, or prepare the data with the model's tokenizer");
}

/// Throws InputError for a file that certainly holds no token ids.
void check_kind(const Recipe& recipe, const SourceRecipe& source, const std::string& key) {
  const std::optional<FileKind> kind = kind_of_no_tokens(source.tokens, source.dtype);
  if (!kind || !kind->is_certain) return;
  throw InputError(location_of(recipe, {key + ".tokens"}) + ": " + source.tokens.string() + " looks like " +
                   kind->name + ", not token ids: " + kind->advice);
}

constexpr int64_t kBlockIds = int64_t{1} << 15;
constexpr int64_t kLeastIds = 64;  // fewer say nothing

/// Returns ids of the beginning, the middle and the end of a file; blocks begin at even places.
std::vector<int64_t> some_ids(const TokenFile& tokens) {
  std::vector<int64_t> ids;
  const int64_t size = tokens.size() / 2 * 2, block = std::min(kBlockIds, size);
  for (const int64_t first : {int64_t{0}, (size - block) / 4 * 2, size - block}) {
    ids.resize(ids.size() + static_cast<size_t>(block));
    tokens.read(first, block, ids.data() + ids.size() - block);
  }
  return ids;
}

bool looks_like_uint32(const std::vector<int64_t>& ids) {
  constexpr int64_t kUpperHalves = 32, kLargeId = 4096;  // of vocabularies up to two million
  int64_t upper = 0, lower = 0;
  for (size_t i = 0; i < ids.size(); i += 2) {
    lower = std::max(lower, ids[i]);
    upper = std::max(upper, ids[i + 1]);
  }
  return (upper == 0 && lower > 0) || (upper < kUpperHalves && lower >= kLargeId);
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

void check_sidecars(const Recipe& recipe, const std::string& tokenizer) {
  for_each_source(recipe, [&](const SourceRecipe& source, const std::string& key) {
    const std::optional<TokenSidecar> sidecar = read_sidecar(source.tokens);
    if (!sidecar) return check_kind(recipe, source, key);
    check_source(recipe, source, key, *sidecar);
    if (!is_other_tokenizer(*sidecar, tokenizer)) return;
    const std::optional<int64_t> vocabulary = vocabulary_with(tokenizer, sidecar->separator);
    if (!vocabulary || *vocabulary == sidecar->vocabulary_size) return;  // sidecar_lines() warns
    throw InputError(location_of(recipe, {"data.tokenizer", "model.hf"}) + ": the run's tokenizer is " + tokenizer +
                     ", with ids up to " + number(*vocabulary - 1) + ", but " + source.tokens.string() +
                     " was made with " + sidecar->tokenizer + ", with ids up to " +
                     number(sidecar->vocabulary_size - 1) + ", as " + sidecar_path(source.tokens).string() +
                     " says: set data.tokenizer: " + sidecar->tokenizer + ", or prepare the data with the other one");
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

std::vector<std::string> sidecar_lines(const Recipe& recipe, const std::string& tokenizer) {
  std::vector<std::string> lines;
  for_each_source(recipe, [&](const SourceRecipe& source, const std::string& key) {
    const std::optional<TokenSidecar> sidecar = read_sidecar(source.tokens);
    for (const std::string& line : {mask_warning(source, key), documents_warning(source, key)}) {
      if (!line.empty()) lines.push_back(line);
    }
    if (!sidecar) return;
    const std::string file = sidecar_path(source.tokens).string();
    const auto location = recipe.locations.find(key + ".layout");
    if (location != recipe.locations.end() && location->second.starts_with(file + ": ")) {
      lines.push_back(key + ".layout: " + source.layout + ", as " + file + " says");
    } else if (source.layout != sidecar->layout) {
      lines.push_back("warning: " + key + ".layout: " + source.tokens.string() + " is read as " + source.layout +
                      ", but " + file + " says " + sidecar->layout + ": set " + key + ".layout: " + sidecar->layout);
    }
    if (!is_other_tokenizer(*sidecar, tokenizer)) return;
    lines.push_back("warning: the run's tokenizer is " + tokenizer + ", but " + source.tokens.string() +
                    " was made with " + sidecar->tokenizer + ", whose checksum was " + sidecar->tokenizer_checksum +
                    ": set data.tokenizer to that one, or prepare the data again");
  });
  return lines;
}

void check_labels(const Recipe& recipe, const Mixture& data) {
  for (size_t i = 0; i < data.sources().size(); ++i) {
    const Dataset& source = data.sources()[i];
    if (source.has_counted_label(source.num_samples())) continue;
    const std::string key = recipe.data.source_key(i);
    throw InputError(location_of(recipe, {key + ".loss_mask", "data.loss_mask", key + ".ignore_id", "data.ignore_id",
                                          key + ".boundary_labels", "data.boundary_labels", key + ".tokens"}) +
                     ": no label of " + source.path().string() +
                     " counts, so nothing can be trained with it: data.loss_mask, data.ignore_id and "
                     "data.boundary_labels ignore every one: change or leave out the one that does");
  }
}

std::optional<std::string> other_dtype(const TokenFile& tokens) {
  if (tokens.index() || tokens.size() < kLeastIds) return std::nullopt;
  if (tokens.dtype() == "uint16" && looks_like_uint32(some_ids(tokens))) return "uint32";
  if (tokens.dtype() == "uint32" && looks_like_uint16(some_ids(tokens))) return "uint16";
  return std::nullopt;
}

std::string layout_warning(const SourceRecipe& source, int64_t sequence_length, const std::string& key) {
  if (source.layout != "stream" || source.dtype != "megatron" || read_sidecar(source.tokens)) return "";
  const TokenFile tokens(source.tokens, source.dtype);
  const int64_t record = sequence_length + 1;
  if (tokens.size() < 2 * record || tokens.size() % record != 0) return "";
  for (int64_t first = record; first < tokens.size(); first += record) {
    if (tokens.index()->document_starts(first, first + 1).empty()) return "";
  }
  return "warning: " + key + ".layout: " + source.tokens.string() +
         " is read as stream, but a document begins at every " + number(record) +
         " tokens (train.sequence_length + 1), as in records: set " + key + ".layout: records";
}

std::string dtype_warning(const SourceRecipe& source, const std::string& key) {
  if (read_sidecar(source.tokens)) return "";
  if (const std::optional<FileKind> kind = kind_of_no_tokens(source.tokens, source.dtype)) {
    return "warning: " + key + ".tokens: " + source.tokens.string() + " is read as " + source.dtype +
           ", but looks like " + kind->name + ", not token ids: " + kind->advice + " if it is";
  }
  const std::optional<std::string> other = other_dtype(TokenFile(source.tokens, source.dtype));
  if (!other) return "";
  const std::string found = *other == "uint32" ? "every second id is 0 or small" : "nearly all ids are 65,536 or more";
  return "warning: " + key + ".dtype: " + source.tokens.string() + " is read as " + source.dtype + ", but " + found +
         ", as if it held " + *other + ": set " + key + ".dtype: " + *other + " if it does";
}

}  // namespace meshtrain
