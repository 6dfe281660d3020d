#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <numeric>
#include <sstream>

#include "mesh/error.h"
#include "runtime/data/prepare.h"
#include "runtime/data/token_file.h"

namespace meshtrain {
namespace {

constexpr int64_t kBlockTokens = int64_t{1} << 16;
constexpr int64_t kCountedIds = int64_t{1} << 22;  // ids below are counted one by one
constexpr size_t kMostFrequent = 8;

struct Statistics {
  int64_t min = 0;
  int64_t max = 0;
  std::array<int64_t, 33> by_bits{};  // [b]: ids of b binary digits
  std::vector<int64_t> by_id;         // empty when the file has ids of kCountedIds or more
};

struct Documents {
  int64_t count = 0;
  int64_t shortest = 0;
  int64_t longest = 0;
};

template <typename Visit>
void for_each_id(const TokenFile& tokens, Visit&& visit) {
  std::vector<int64_t> ids(static_cast<size_t>(kBlockTokens));
  for (int64_t first = 0; first < tokens.size(); first += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, tokens.size() - first);
    tokens.read(first, count, ids.data());
    for (int64_t i = 0; i < count; ++i) visit(ids[static_cast<size_t>(i)]);
  }
}

Documents measure_documents(const TokenFile& tokens, int64_t separator) {
  Documents result;
  int64_t length = 0;
  const auto end_document = [&] {
    result.shortest = result.count == 0 ? length : std::min(result.shortest, length);
    result.longest = std::max(result.longest, length);
    ++result.count;
    length = 0;
  };
  for_each_id(tokens, [&](int64_t id) {
    ++length;
    if (id == separator) end_document();
  });
  if (length > 0) end_document();
  return result;
}

Statistics measure(const TokenFile& tokens) {
  Statistics result;
  for (int64_t first = 0; first < tokens.size(); first += kBlockTokens) {
    result.max = std::max(result.max, tokens.max(first, std::min(kBlockTokens, tokens.size() - first)));
  }
  result.min = result.max;
  if (result.max < kCountedIds) result.by_id.resize(static_cast<size_t>(result.max) + 1);
  for_each_id(tokens, [&](int64_t id) {
    result.min = std::min(result.min, id);
    ++result.by_bits[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(id)))];
    if (!result.by_id.empty()) ++result.by_id[static_cast<size_t>(id)];
  });
  return result;
}

std::string percent(int64_t part, int64_t whole) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

std::string as_text(const std::vector<int64_t>& bytes) {
  std::string text;
  for (const int64_t byte : bytes) {
    char escaped[8];
    if (byte == '\n') {
      text += "\\n";
    } else if (byte == '\t') {
      text += "\\t";
    } else if (byte == '\\') {
      text += "\\\\";
    } else if (byte < 0x20 || byte >= 0x7F) {
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned>(byte));
      text += escaped;
    } else {
      text += static_cast<char>(byte);
    }
  }
  return text;
}

void write_frequent(const Statistics& statistics, int64_t size, std::ostream& out) {
  std::vector<int64_t> ids(statistics.by_id.size());
  std::iota(ids.begin(), ids.end(), int64_t{0});
  const auto count = [&](int64_t id) { return statistics.by_id[static_cast<size_t>(id)]; };
  const size_t shown = std::min(kMostFrequent, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(shown), ids.end(),
                    [&](int64_t a, int64_t b) { return count(a) != count(b) ? count(a) > count(b) : a < b; });
  const auto unused = std::count(statistics.by_id.begin(), statistics.by_id.end(), 0);
  out << "distinct      " << static_cast<int64_t>(ids.size()) - unused << "\n";
  out << "most frequent";
  for (size_t i = 0; i < shown && count(ids[i]) > 0; ++i) {
    out << (i == 0 ? " " : ", ") << ids[i] << " (" << percent(count(ids[i]), size) << ")";
  }
  out << "\n";
}

}  // namespace

std::string inspect_tokens(const std::filesystem::path& file, const std::string& dtype, int64_t count,
                           std::optional<int64_t> separator) {
  if (count < 0) throw InputError("cannot show the first " + std::to_string(count) + " tokens");
  if (separator) check_token("--separator", *separator, dtype);
  const TokenFile tokens(file, dtype);
  const Statistics statistics = measure(tokens);
  std::ostringstream out;
  out << "file          " << file.string() << "\n";
  out << "tokens        " << tokens.size() << " of " << tokens.width() << (tokens.width() == 1 ? " byte" : " bytes")
      << " (" << dtype << ")\n";
  out << "ids           " << statistics.min << " to " << statistics.max << "\n";
  for (size_t bits = 0; bits < statistics.by_bits.size(); ++bits) {
    if (statistics.by_bits[bits] == 0) continue;
    const int64_t low = bits == 0 ? 0 : int64_t{1} << (bits - 1);
    const int64_t high = (int64_t{1} << bits) - 1;
    out << "  " << low << " to " << high << ": " << statistics.by_bits[bits] << " ("
        << percent(statistics.by_bits[bits], tokens.size()) << ")\n";
  }
  if (!statistics.by_id.empty()) write_frequent(statistics, tokens.size(), out);
  if (separator) {
    const Documents documents = measure_documents(tokens, *separator);
    out << "documents     " << documents.count << " by separator " << *separator << ", of " << documents.shortest
        << " to " << documents.longest << " tokens\n";
  }
  std::vector<int64_t> first(static_cast<size_t>(std::min(count, tokens.size())));
  if (first.empty()) return out.str();
  tokens.read(0, static_cast<int64_t>(first.size()), first.data());
  out << "first         ";
  for (size_t i = 0; i < first.size(); ++i) out << (i == 0 ? "" : " ") << first[i];
  out << "\n";
  if (statistics.max < 256) out << "as text       " << as_text(first) << "\n";
  return out.str();
}

}  // namespace meshtrain
