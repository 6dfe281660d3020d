#include "runtime/program/recipe/check_data.h"

#include <filesystem>
#include <initializer_list>
#include <map>
#include <optional>
#include <system_error>

#include "mesh/base/error.h"
#include "runtime/text/prepare/sidecar_tokenizer.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/training/data/file_kind.h"
#include "runtime/training/data/files_beside.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

/// Returns the location of the first of `keys` that the recipe sets, "x.yaml:12:5: data.dtype"; else the first key.
std::string location_of(const Recipe& recipe, std::initializer_list<std::string> keys) {
  for (const std::string& key : keys) {
    const auto found = recipe.locations.find(key);
    if (found != recipe.locations.end()) return found->second;
  }
  const auto file = recipe.locations.find("");
  return (file == recipe.locations.end() ? "" : file->second + ": ") + *keys.begin();
}

void check_source(const Recipe& recipe, const SourceOptions& source, const std::string& key,
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
                     file + " has " + std::to_string(bytes) + " bytes, but " + std::to_string(sidecar.tokens) +
                         " tokens of " + sidecar.dtype + ", which " + says + ", are " +
                         std::to_string(sidecar.num_bytes()) +
                         ": the file was cut short or replaced; prepare it again, or remove the .json file");
  }
  if (source.documents && *source.documents != kDocumentsOfIndex && sidecar.separator &&
      source.documents != sidecar.separator) {
    throw InputError(location_of(recipe, {key + ".documents", "data.documents", key + ".tokens"}),
                     "documents of " + file + " would end with the id " + std::to_string(*source.documents) +
                         ", but each ends with " + std::to_string(*sidecar.separator) + ", as " + says + ": set " +
                         Setting{key + ".documents", std::to_string(*sidecar.separator)});
  }
  const int64_t length = recipe.train.sequence_length;
  if (sidecar.sequence_length && source.layout == SampleLayout::Records && length != *sidecar.sequence_length) {
    const Key own{"train.sequence_length"};
    const bool names_it = recipe.locations.contains(own.path) || !recipe.locations.contains(key + ".tokens");
    throw InputError(location_of(recipe, {own.path, key + ".tokens"}),
                     (names_it ? "" : own + " is ") + std::to_string(length) + ", but the records of " + file +
                         " are sequences of " + std::to_string(*sidecar.sequence_length) + ", as " + says + ": set " +
                         Setting{own.path, std::to_string(*sidecar.sequence_length)} +
                         ", or prepare the data with --sequence-length " + std::to_string(length));
  }
  const int64_t vocab_size = recipe.model.shape.vocab_size;
  if (vocab_size >= sidecar.vocabulary_size) return;
  throw InputError(location_of(recipe, {"model.vocab_size", "model.hf"}),
                   "the model's vocab_size is " + std::to_string(vocab_size) + ", but " + file +
                       " was made with ids up to " + std::to_string(sidecar.vocabulary_size - 1) +
                       ", of the tokenizer " + sidecar.tokenizer + ", as " + says + ": use a model.vocab_size of " +
                       std::to_string(sidecar.vocabulary_size) +
                       " or more, or prepare the data with the model's tokenizer");
}

/// Throws InputError for a file that certainly holds no token ids.
void check_kind(const Recipe& recipe, const SourceOptions& source, const std::string& key) {
  const std::optional<FileKind> kind = kind_of_no_tokens(source.tokens, source.dtype);
  if (!kind || !kind->is_certain) return;
  throw InputError(location_of(recipe, {key + ".tokens"}),
                   source.tokens.string() + " looks like " + kind->name + ", not token ids: " + kind->advice);
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
  for_each_source(recipe, [&](const SourceOptions& source, const std::string& key) {
    const std::optional<TokenSidecar> sidecar = read_sidecar(source.tokens);
    if (!sidecar) return check_kind(recipe, source, key);
    check_source(recipe, source, key, *sidecar);
    if (match_tokenizer(*sidecar, tokenizer) != TokenizerMatch::OtherVocabulary) return;  // sidecar_lines() warns
    const std::optional<int64_t> vocabulary = vocabulary_with(tokenizer, sidecar->separator);
    throw InputError(location_of(recipe, {"data.tokenizer", "model.hf"}),
                     "the run's tokenizer is " + tokenizer + ", with ids up to " + std::to_string(*vocabulary - 1) +
                         ", but " + source.tokens.string() + " was made with " + sidecar->tokenizer +
                         ", with ids up to " + std::to_string(sidecar->vocabulary_size - 1) + ", as " +
                         sidecar_path(source.tokens).string() + " says: set data.tokenizer: " + sidecar->tokenizer +
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
  for_each_source(recipe, [&](SourceOptions& source, const std::string& key) {
    if (said.contains(key + ".layout") || said.contains("data.layout")) return;
    const std::optional<TokenSidecar> sidecar = read_sidecar(source.tokens);
    if (!sidecar || sidecar->data_dtype() != source.dtype || sidecar->layout == source.layout) return;
    source.layout = sidecar->layout;
    recipe.locations[key + ".layout"] = sidecar_path(source.tokens).string() + ": " + key + ".layout";
  });
}

std::vector<Notice> sidecar_lines(const Recipe& recipe, const std::string& tokenizer) {
  std::vector<Notice> lines;
  for_each_source(recipe, [&](const SourceOptions& source, const std::string& key) {
    const std::optional<TokenSidecar> sidecar = read_sidecar(source.tokens);
    for (const Wording& line : {mask_warning(source, key), documents_warning(source, key)}) {
      if (!line.empty()) lines.push_back({line.text(), true});
    }
    if (!sidecar) return;
    const std::string file = sidecar_path(source.tokens).string();
    const auto location = recipe.locations.find(key + ".layout");
    if (location != recipe.locations.end() && location->second.starts_with(file + ": ")) {
      lines.push_back({key + ".layout: " + name(source.layout) + ", as " + file + " says"});
    } else if (source.layout != sidecar->layout) {
      lines.push_back({key + ".layout: " + source.tokens.string() + " is read as " + name(source.layout) + ", but " +
                           file + " says " + name(sidecar->layout) + ": set " + key +
                           ".layout: " + name(sidecar->layout),
                       true});
    }
    if (!is_other_tokenizer(*sidecar, tokenizer)) return;
    lines.push_back({"the run's tokenizer is " + tokenizer + ", but " + source.tokens.string() + " was made with " +
                         sidecar->tokenizer + ", whose checksum was " + sidecar->tokenizer_checksum +
                         ": set data.tokenizer to that one, or prepare the data again",
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
                         "data.boundary_labels together ignore all of them: change or remove one");
  }
}

}  // namespace meshtrain
