#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace meshtrain {

/// A kind of file that is not token ids.
struct FileKind {
  std::string name;         ///< "JSON Lines text"
  std::string advice;       ///< what to do with it: "make tokens of it with meshtrain data prepare --text FILE"
  bool is_certain = false;  ///< no token file begins so; else the bytes could be ids
};

/// Returns what `file` is where it would be read as tokens of `dtype` but begins as something else does: as compressed
/// text, Parquet, an archive, an array of NumPy, Megatron's index, JSON, the JSON of a tokenizer; or as
/// other text, which is certain from 4 KiB on where it has spaces and line ends. Returns std::nullopt for token ids,
/// for tokens of uint8, which text is, for a file with an index of Megatron beside it, and for one that does not exist
/// or cannot be read.
std::optional<FileKind> kind_of_no_tokens(const std::filesystem::path& file, const std::string& dtype);

/// Returns the end of a message about such a file: ": it looks like JSON Lines text: ADVICE"; an empty text for any
/// other, and for one with a sidecar.
std::string describe_no_tokens(const std::filesystem::path& file, const std::string& dtype);

}  // namespace meshtrain
