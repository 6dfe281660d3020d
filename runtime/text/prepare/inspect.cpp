#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <numeric>
#include <ostream>

#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
#include "mesh/base/unicode/utf8.h"
#include "runtime/text/prepare/prepare.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/training/data/check_tokens.h"
#include "runtime/training/data/file_kind.h"
#include "runtime/training/data/files_beside.h"
#include "runtime/training/data/token_file.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {
namespace {

constexpr int64_t kInspectedTokens = int64_t{1} << 16;
constexpr int64_t kShownTokens = 32, kShownConversations = 3;
constexpr int64_t kCountedIds = int64_t{1} << 22;  // smaller ids are counted one by one
constexpr size_t kMostFrequent = 8;

struct Statistics {
  int64_t min = 0;
  int64_t max = 0;
  std::array<int64_t, 64> by_bits{};  // [b]: ids of b binary digits
  std::vector<int64_t> by_id;         // empty when the file has ids of kCountedIds or more
};

struct Documents {
  int64_t count = 0;
  int64_t shortest = 0;
  int64_t longest = 0;
  int64_t padding = 0;  // not counted in the others
};

/// The loss mask of a token file: which tokens count as labels.
class Mask {
 public:
  explicit Mask(const std::filesystem::path& file) : file_(file) {}

  const std::filesystem::path& path() const { return file_.path(); }
  int64_t size() const { return file_.size(); }
  bool counts(int64_t token) const { return count(token, 1) > 0; }
  int64_t count(int64_t first, int64_t num_tokens) const {
    int64_t found = 0;
    file_.for_each_block(first, num_tokens, [&](std::string_view block) {
      found += static_cast<int64_t>(block.size()) - std::count(block.begin(), block.end(), '\0');
    });
    return found;
  }

 private:
  FileReader file_;
};

template <typename Visit>
void for_each_id(const TokenFile& tokens, Visit&& visit) {
  std::vector<int64_t> ids(static_cast<size_t>(kInspectedTokens));
  Progress progress("ids", tokens.size(), "tokens");
  for (int64_t first = 0; first < tokens.size(); first += kInspectedTokens) {
    progress.set(first);
    const int64_t count = std::min(kInspectedTokens, tokens.size() - first);
    tokens.read(first, count, ids.data());
    for (int64_t i = 0; i < count; ++i) visit(ids[static_cast<size_t>(i)]);
  }
}

void add_document(Documents& documents, int64_t length) {
  documents.shortest = documents.count == 0 ? length : std::min(documents.shortest, length);
  documents.longest = std::max(documents.longest, length);
  ++documents.count;
}

Documents measure_documents(const TokenFile& tokens, int64_t separator) {
  Documents result;
  int64_t length = 0;
  for_each_id(tokens, [&](int64_t id) {
    ++length;
    if (id != separator) return;
    add_document(result, length);
    length = 0;
  });
  if (length > 0) add_document(result, length);
  return result;
}

/// `padding`: a mask when documents without a label that counts are padding, else null.
Documents measure_documents(const MegatronIndex& index, const Mask* padding) {
  constexpr int64_t kAtOnce = int64_t{1} << 16;
  Documents result;
  for (int64_t first = 0; first < index.num_documents(); first += kAtOnce) {
    const int64_t count = std::min(kAtOnce, index.num_documents() - first);
    const std::vector<int64_t> starts = index.starts_of(first, count + 1);
    for (size_t i = 1; i < starts.size(); ++i) {
      const int64_t length = starts[i] - starts[i - 1];
      if (padding != nullptr && padding->count(starts[i - 1], length) == 0) {
        ++result.padding;
      } else {
        add_document(result, length);
      }
    }
  }
  return result;
}

Statistics measure(const TokenFile& tokens) {
  Statistics result;
  const IdRange ids = tokens.range(0, tokens.size());
  if (ids.least < 0) {
    throw InputError(tokens.path().string() + ": it has the id " + std::to_string(ids.least) +
                     ", which is negative: the file does not hold token ids");
  }
  result.min = ids.least;
  result.max = ids.most;
  if (result.max < kCountedIds) result.by_id.resize(static_cast<size_t>(result.max) + 1);
  for_each_id(tokens, [&](int64_t id) {
    ++result.by_bits[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(id)))];
    if (!result.by_id.empty()) ++result.by_id[static_cast<size_t>(id)];
  });
  return result;
}

std::string percent(int64_t part, int64_t total) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100.0 * static_cast<double>(part) / static_cast<double>(total));
  return text;
}

// Returns `bytes` on one line; those that do not print, or are not UTF-8, as \\xHH.
std::string as_text(std::string_view bytes) {
  std::string text;
  const auto escape = [&](std::string_view part) {
    for (const char c : part) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      text += escaped;
    }
  };
  while (!bytes.empty()) {
    const char *begin = bytes.data(), *end = begin + valid_utf8(bytes);
    for (const char* at = begin; at != end;) {
      const char* const character = at;
      const uint32_t c = next_code_point(at);
      const std::string_view part(character, static_cast<size_t>(at - character));
      if (c == '\n') {
        text += "\\n";
      } else if (c == '\t') {
        text += "\\t";
      } else if (c == '\\') {
        text += "\\\\";
      } else if (c < 0x20 || (c >= 0x7F && c < 0xA0)) {
        escape(part);
      } else {
        text += part;
      }
    }
    bytes.remove_prefix(static_cast<size_t>(end - begin));
    if (bytes.empty()) break;
    escape(bytes.substr(0, 1));
    bytes.remove_prefix(1);
  }
  return text;
}

int64_t after_separator(const TokenFile& tokens, int64_t from, int64_t separator) {
  std::vector<int64_t> ids(static_cast<size_t>(kInspectedTokens));
  for (int64_t first = from; first < tokens.size(); first += kInspectedTokens) {
    const int64_t count = std::min(kInspectedTokens, tokens.size() - first);
    tokens.read(first, count, ids.data());
    const auto end = ids.begin() + count;
    const auto found = std::find(ids.begin(), end, separator);
    if (found != end) return first + (found - ids.begin()) + 1;
  }
  return tokens.size();
}

/// Writes the runs of a sample's ids that count as labels.
void write_counted(const std::vector<int64_t>& ids, const std::vector<bool>& counts, const Tokenizer* text_of,
                   std::ostream& out) {
  out << "of which count";
  std::vector<int64_t> run;
  bool is_first = true;
  for (size_t i = 0; i <= ids.size(); ++i) {
    if (i < ids.size() && counts[i]) {
      run.push_back(ids[i]);
    } else if (!run.empty()) {
      out << (is_first ? "" : " |");
      if (text_of != nullptr) {
        out << " " << as_text(text_of->decode(run));
      } else {
        for (const int64_t id : run) out << " " << id;
      }
      is_first = false;
      run.clear();
    }
  }
  out << (is_first ? " none" : "") << "\n";
}

void write_sample(const TokenFile& tokens, int64_t first, int64_t count, const Mask* mask, const Tokenizer* text_of,
                  std::ostream& out) {
  std::vector<int64_t> ids(static_cast<size_t>(std::min(count, tokens.size() - first)));
  if (ids.empty()) return;
  tokens.read(first, static_cast<int64_t>(ids.size()), ids.data());
  const std::string label = first == 0 ? "first" : "at " + std::to_string(first);
  out << label << std::string(label.size() < 13 ? 13 - label.size() : 0, ' ');
  for (const int64_t id : ids) out << " " << id;
  out << "\n";
  if (text_of != nullptr) out << "as text       " << as_text(text_of->decode(ids)) << "\n";
  if (mask == nullptr) return;
  std::vector<bool> counts;
  for (size_t i = 0; i < ids.size(); ++i) counts.push_back(mask->counts(first + static_cast<int64_t>(i)));
  write_counted(ids, counts, text_of, out);
}

/// Writes complete conversations: the first of the file, and of equal pieces of it.
void write_conversations(const TokenFile& tokens, int64_t samples, const Mask* mask, const Tokenizer* text_of,
                         std::ostream& out) {
  const MegatronIndex& index = *tokens.index();
  const int64_t num_documents = index.num_documents();
  int64_t next = 0;  // the first document that was not looked at
  for (int64_t sample = 0; sample < samples; ++sample) {
    next = std::max(next, num_documents / samples * sample + num_documents % samples * sample / samples);
    for (bool is_shown = false; next < num_documents && !is_shown; ++next) {
      const std::vector<int64_t> bounds = index.starts_of(next, 2);
      is_shown = mask == nullptr || mask->count(bounds[0], bounds[1] - bounds[0]) > 0;  // padding has no label
      if (is_shown) write_sample(tokens, bounds[0], bounds[1] - bounds[0], mask, text_of, out);
    }
  }
}

void write_frequent(const Statistics& statistics, int64_t size, std::ostream& out) {
  std::vector<int64_t> ids(statistics.by_id.size());
  std::iota(ids.begin(), ids.end(), int64_t{0});
  const auto count = [&](int64_t id) { return statistics.by_id[static_cast<size_t>(id)]; };
  const size_t shown = std::min(kMostFrequent, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(shown), ids.end(),
                    [&](int64_t a, int64_t b) { return count(a) != count(b) ? count(a) > count(b) : a < b; });
  const auto unused = std::count(statistics.by_id.begin(), statistics.by_id.end(), 0);
  out << "distinct      " << with_separators(static_cast<int64_t>(ids.size()) - unused) << "\n";
  out << "most frequent";
  for (size_t i = 0; i < shown && count(ids[i]) > 0; ++i) {
    out << (i == 0 ? " " : ", ") << ids[i] << " (" << percent(count(ids[i]), size) << ")";
  }
  out << "\n";
}

void write_sidecar_lines(const TokenSidecar& sidecar, const TokenFile& tokens, std::ostream& out) {
  out << "made by       " << sidecar.command << "\n";
  out << "tokenizer     " << sidecar.tokenizer << ", ids 0 to " << sidecar.vocabulary_size - 1 << ", separator "
      << (sidecar.separator ? std::to_string(*sidecar.separator) : "none") << "\n";
  if (sidecar.text_bytes) out << "text          " << counted(*sidecar.text_bytes, "byte") << "\n";
  if (sidecar.sequence_length) {
    out << "packed        in records for sequences of " << counted(*sidecar.sequence_length, "token") << "\n";
  }
  if (sidecar.dtype == tokens.dtype() && sidecar.tokens == tokens.size()) return;
  out << "changed       its .json file has " << counted(sidecar.tokens, "token") << " of " << sidecar.dtype << "\n";
}

/// Returns the mask that lies beside the tokens, and writes a line about it. Returns std::nullopt without one, and when
/// it is of other tokens.
std::optional<Mask> find_mask(const TokenFile& tokens, std::ostream& out) {
  const std::filesystem::path file = mask_beside(tokens.path());
  if (file.empty()) return std::nullopt;
  out << "loss mask     " << file.string() << ": ";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) {
    out << "the .json file names it, but it does not exist\n";
    return std::nullopt;
  }
  std::optional<Mask> mask(file);
  if (mask->size() != tokens.size()) {
    out << counted(mask->size(), "byte") << ", but one for each token is needed\n";
    return std::nullopt;
  }
  const int64_t count = mask->count(0, mask->size());
  out << counted(count, "token") << (count == 1 ? " counts" : " count") << " as labels ("
      << percent(count, tokens.size()) << ")\n";
  return mask;
}

}  // namespace

void inspect_tokens(std::ostream& out, const std::filesystem::path& file, const std::string& dtype,
                    std::optional<int64_t> asked_count, std::optional<int64_t> separator, const Tokenizer* tokenizer,
                    std::optional<int64_t> asked_samples) {
  const int64_t count = asked_count.value_or(kShownTokens);
  if (count < 0) throw InputError("cannot show the first " + std::to_string(count) + " tokens");
  if (separator && dtype != "megatron") check_token("--separator", *separator, dtype);
  if (asked_samples.value_or(1) < 1) throw InputError("cannot show " + std::to_string(*asked_samples) + " samples");
  const TokenFile tokens(file, dtype);
  const Statistics statistics = measure(tokens);
  out << "file          " << file.string() << "\n";
  out << "tokens        " << with_separators(tokens.size()) << " of " << tokens.width()
      << (tokens.width() == 1 ? " byte" : " bytes") << " (" << (tokens.index() ? "Megatron's " : "") << tokens.dtype()
      << ")\n";
  const std::optional<TokenSidecar> sidecar = read_sidecar(file);
  if (sidecar) write_sidecar_lines(*sidecar, tokens, out);
  const std::optional<Mask> mask = find_mask(tokens, out);
  if (const std::optional<FileKind> kind = kind_of_no_tokens(file, dtype); kind && !sidecar) {
    out << "looks like    " << kind->name << ", not token ids: " << kind->advice << "\n";
  } else if (const std::optional<std::string> other = other_dtype(tokens)) {
    out << "looks like    " << (*other == "int64" ? advice_on_int64() : *other + ": --dtype " + *other + " shows it so")
        << "\n";
  }
  out << "ids           " << statistics.min << " to " << statistics.max << "\n";
  for (size_t bits = 0; bits < statistics.by_bits.size(); ++bits) {
    if (statistics.by_bits[bits] == 0) continue;
    const int64_t low = bits == 0 ? 0 : int64_t{1} << (bits - 1);
    const int64_t high = (int64_t{1} << bits) - 1;
    out << "  " << low << " to " << high << ": " << with_separators(statistics.by_bits[bits]) << " ("
        << percent(statistics.by_bits[bits], tokens.size()) << ")\n";
  }
  if (!statistics.by_id.empty()) write_frequent(statistics, tokens.size(), out);
  const bool is_packed = sidecar && !sidecar->index.empty();
  const auto write_documents = [&](const Documents& documents, const std::string& by) {
    out << "documents     " << with_separators(documents.count) << " by " << by << ", of " << documents.shortest
        << " to " << counted(documents.longest, "token");
    if (documents.padding > 0) out << "; " << with_separators(documents.padding) << " more of padding";
    out << "\n";
  };
  if (tokens.index())
    write_documents(measure_documents(*tokens.index(), is_packed && mask ? &*mask : nullptr), "the index");
  if (separator) {
    write_documents(measure_documents(tokens, *separator), "separator " + std::to_string(*separator));
  }
  if (tokenizer != nullptr && statistics.max >= tokenizer->vocabulary_size()) {
    out << "unknown       ids of " << tokenizer->vocabulary_size() << " and above are not in the tokenizer\n";
  }
  const std::shared_ptr<const Tokenizer> bytes = load_tokenizer("bytes");
  if (tokenizer == nullptr && statistics.max < 256) tokenizer = bytes.get();
  if (is_packed && tokens.index() && !asked_count) {
    write_conversations(tokens, asked_samples.value_or(kShownConversations), mask ? &*mask : nullptr, tokenizer, out);
    return;
  }
  const int64_t samples = asked_samples.value_or(1);
  for (int64_t sample = 0; sample < samples; ++sample) {
    // size / samples * sample, without overflow
    int64_t first = tokens.size() / samples * sample + tokens.size() % samples * sample / samples;
    if (sample > 0 && separator) first = after_separator(tokens, first, *separator);
    if (is_packed && sidecar->sequence_length) first -= first % (*sidecar->sequence_length + 1);
    write_sample(tokens, first, count, mask ? &*mask : nullptr, tokenizer, out);
  }
}

}  // namespace meshtrain
