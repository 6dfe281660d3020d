#include "mesh/base/files/content.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace meshtrain {
namespace {

/// A kind of content: its name for people, and the bytes that its files have at an offset.
struct Kind {
  Content content;
  std::string_view name;
  size_t offset = 0;
  std::string_view bytes = {};
};

constexpr std::array<Kind, 15> kKinds = {{
    {Content::Empty, "an empty file"},
    {Content::Html, "a page of HTML"},
    {Content::ServerError, "a server's error message"},
    {Content::Zeros, "nothing but zeros"},
    {Content::Gzip, "a file compressed by gzip", 0, "\x1f\x8b\x08"},
    {Content::Zstd, "a file compressed by zstd", 0, "\x28\xb5\x2f\xfd"},
    {Content::Bzip2, "a file compressed by bzip2", 4, "1AY&SY"},
    {Content::Xz, "a file compressed by xz", 0, "\xfd\x37zXZ"},
    {Content::Zip, "a ZIP archive, perhaps of NumPy or PyTorch", 0, "PK\x03\x04"},
    {Content::Parquet, "a Parquet file", 0, "PAR1"},
    {Content::Arrow, "an Arrow file", 0, std::string_view("ARROW1\0\0", 8)},
    {Content::Numpy, "a NumPy array with its header", 0, "\x93NUMPY"},
    {Content::MegatronIndex, "a Megatron index", 0, std::string_view("MMIDIDX\0\0", 9)},
    {Content::Gguf, "a GGUF file of llama.cpp", 0, std::string_view("GGUF\3\0\0\0", 8)},
    {Content::Pdf, "a PDF", 0, "%PDF-"},
}};

constexpr size_t kFewestZeros = 64;
constexpr std::string_view kSpace = " \t\r\n\xEF\xBB\xBF";

bool begins_with_letters(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() && std::ranges::equal(text.substr(0, lower.size()), lower, [](char a, char b) {
           return std::tolower(static_cast<unsigned char>(a)) == b;
         });
}

}  // namespace

Content content_of(std::string_view beginning) {
  if (beginning.empty()) return Content::Empty;
  if (beginning.size() >= kFewestZeros && beginning.find_first_not_of('\0') == beginning.npos) return Content::Zeros;
  for (const Kind& kind : kKinds) {
    if (kind.bytes.empty() || beginning.size() < kind.offset) continue;
    if (beginning.substr(kind.offset).starts_with(kind.bytes)) return kind.content;
  }
  beginning.remove_prefix(std::min(beginning.find_first_not_of(kSpace), beginning.size()));
  if (begins_with_letters(beginning, "<!doctype html") || begins_with_letters(beginning, "<html")) return Content::Html;
  const bool is_error =
      beginning.starts_with("<?xml") && beginning.substr(0, kContentBytes).find("<Error>") != beginning.npos;
  return is_error ? Content::ServerError : Content::Unknown;
}

std::string_view name(Content content) {
  const auto* const found = std::ranges::find(kKinds, content, &Kind::content);
  return found == kKinds.end() ? "unknown" : found->name;
}

std::string describe_content(std::string_view beginning) {
  const Content content = content_of(beginning);
  if (content == Content::Unknown) return "";
  const bool is_answer = content == Content::Html || content == Content::ServerError;
  return ": it is " + std::string(name(content)) + (is_answer ? ", not the file itself" : "") +
         (content <= Content::Zeros ? ": download it again"
          : content <= Content::Xz  ? ": decompress it first"
                                    : "");
}

std::string describe_text_for_binary(std::string_view beginning) {
  constexpr size_t kShown = 60;
  std::string known = describe_content(beginning);
  const std::string_view begin = beginning.substr(0, kShown);
  const bool is_text = std::ranges::all_of(begin, [](unsigned char c) { return std::isprint(c) || std::isspace(c); });
  if (!known.empty() || !is_text) return known;
  const std::string line(begin.substr(0, begin.find_first_of("\r\n")));
  return ": it is a text that begins \"" + line + "\", not the file itself: download it again";
}

}  // namespace meshtrain
