#include "runtime/training/data/files_beside.h"

#include <system_error>

#include "runtime/training/data/megatron_index.h"
#include "runtime/training/data/packed_writer.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

/// Returns true when tokens are samples packed into records by PackedWriter. Such files of older programs have no
/// sidecar.
bool are_packed(const SourceOptions& source) {
  if (const std::optional<TokenSidecar> sidecar = read_sidecar(source.tokens)) return !sidecar->index.empty();
  return source.dtype == "megatron" && !mask_beside(source.tokens).empty();
}

/// Returns true when the sidecar says that no record of packed tokens has more than one sample. The rest of such a
/// record is padding, which the sample does not see.
bool has_one_each(const fs::path& tokens) {
  const std::optional<TokenSidecar> sidecar = read_sidecar(tokens);
  return sidecar && sidecar->samples && sidecar->sequence_length &&
         *sidecar->samples * (*sidecar->sequence_length + 1) == sidecar->tokens;
}

}  // namespace

fs::path mask_beside(const fs::path& tokens) {
  const std::optional<TokenSidecar> sidecar = read_sidecar(tokens);
  if (sidecar && !sidecar->loss_mask.empty()) return fs::path(tokens).replace_filename(sidecar->loss_mask);
  const fs::path beside = PackedWriter::mask_of(tokens);
  std::error_code ignored;
  return beside != tokens && fs::is_regular_file(beside, ignored) ? beside : fs::path();
}

Wording mask_warning(const SourceOptions& source, const std::string& key) {
  if (!source.loss_mask.empty()) return "";
  const fs::path mask = mask_beside(source.tokens);
  if (mask.empty()) return "";
  return Key{key + ".loss_mask"} + ": every label of " + source.tokens.string() + " counts, but " + mask.string() +
         " is a loss mask for it: set " + Setting{key + ".loss_mask", mask.string()};
}

Wording documents_warning(const SourceOptions& source, const std::string& key) {
  if (source.documents == kDocumentsOfIndex || !are_packed(source) || has_one_each(source.tokens)) return "";
  return Key{key + ".documents"} + ": " + source.tokens.string() +
         " holds several samples in a sequence, and attention crosses their bounds, which are in " +
         MegatronIndex::path_of(source.tokens).string() + ": set " + Setting{key + ".documents", "index"};
}

}  // namespace meshtrain
