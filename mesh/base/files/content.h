#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshtrain {

/// The kinds of content that the first bytes of a file identify; its name does not matter.
enum class Content {
  Unknown,
  Empty,
  Html,         ///< a page that a server sends in place of a file: a sign-in form, an error
  ServerError,  ///< the XML with which object stores report an error
  Zeros,        ///< a file that a download allocated and did not fill
  Gzip,
  Zstd,
  Bzip2,
  Xz,
  Zip,
  Parquet,
  Arrow,
  Numpy,
  MegatronIndex,
  Gguf,
  Pdf,
};

/// The bytes at the beginning of a file that identify its kind.
inline constexpr int64_t kContentBytes = 256;

/// Returns the kind of a file that begins with these bytes: all of a short file, else kContentBytes or more.
Content content_of(std::string_view beginning);

/// Returns "a file compressed by gzip"; "unknown" for Content::Unknown.
std::string_view name(Content content);

/// Returns the end of a message about a file that its reader cannot read, such as ": it is an empty file: download it
/// again". Returns an empty text when the kind is unknown.
std::string describe_content(std::string_view beginning);

/// Returns describe_content(), or for other text a message with its first line. For readers of binary files.
std::string describe_text_for_binary(std::string_view beginning);

}  // namespace meshtrain
