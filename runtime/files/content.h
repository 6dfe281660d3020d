#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace meshtrain {

/// The kinds of content that the first bytes of a file tell, whatever its name is.
enum class Content {
  Unknown,
  Empty,
  Html,         ///< as a server sends in place of a file: a form to sign in, a text about an error
  ServerError,  ///< the XML that object stores answer
  Zeros,        ///< as a download leaves that reserved its room
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

/// Bytes at the beginning of a file that tell its kind.
inline constexpr int64_t kContentBytes = 256;

/// Returns the kind of a file that begins with these bytes: all of a short file, else kContentBytes or more.
Content content_of(std::string_view beginning);

/// Returns "a file compressed by gzip"; "unknown" for Content::Unknown.
std::string_view name(Content content);

/// Returns the end of a message about a file that its reader cannot read: ": it is empty: download it again", or an
/// empty text where the first bytes tell nothing.
std::string describe_content(std::string_view beginning);

/// Returns describe_content(); of other text its first words, for readers of binary files.
std::string describe_text_for_binary(std::string_view beginning);

}  // namespace meshtrain
