#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace meshtrain {

/// Writes the bytes of `inputs`, one after the other, as the token ids 0 to 255 of a token file of `dtype`, each file
/// that is not empty followed by `separator` when there is one. Returns the number of tokens. A folder stands for the
/// files below it in the order of their paths, hidden folders (.git) left out; links to folders are not followed, and
/// `output` itself is never read. `output` appears complete or not at all. Throws InputError when an input is missing
/// or cannot be read, there are no bytes at all, or the separator does not fit into `dtype`; std::runtime_error when
/// the disk fails (full).
int64_t prepare_bytes(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output,
                      const std::string& dtype, std::optional<int64_t> separator = {});

/// Writes a few lines about a token file to `out`: how many tokens, smallest and largest id, how the ids are spread,
/// which are the most frequent, how many documents end with `separator` when there is one and how long they are, and
/// `samples` runs of `count` ids: the first ids of the file, and of equal pieces of it, behind the next separator when
/// there is one. The runs are shown as text too, decoded by `tokenizer`, or without one when every id of the file is a
/// byte. For a Megatron file (dtype megatron) the lines also say how many documents its index lists. The first line is
/// written after the complete file has been read. Throws InputError as TokenFile does, for an id that is negative, and
/// when the separator does not fit into `dtype`.
void inspect_tokens(std::ostream& out, const std::filesystem::path& file, const std::string& dtype, int64_t count,
                    std::optional<int64_t> separator = {}, const Tokenizer* tokenizer = nullptr, int64_t samples = 1);

}  // namespace meshtrain
