#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "runtime/text/prepare/input_files.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {

/// Writes the bytes of `inputs`, one after the other, as the token ids 0 to 255 of a token file of `dtype`, each file
/// that is not empty followed by `separator` when there is one. Returns the number of tokens. The files are those of
/// input_files(). `output` appears complete or not at all, and after it its sidecar (TokenSidecar) with `command`.
/// Throws InputError as input_files() does, when an input cannot be read, there are no bytes at all, the separator does
/// not fit into `dtype`, or the sidecar's path is taken; std::runtime_error when the disk fails (full).
int64_t prepare_bytes(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output,
                      const std::string& dtype, std::optional<int64_t> separator = {}, const FileFilter& filter = {},
                      const std::string& command = "");

/// Writes a few lines about a token file to `out`: how many tokens, smallest and largest id, how the ids are spread,
/// which are the most frequent, how many documents end with `separator` when there is one and how long they are, and
/// `samples` runs (1) of `count` ids (32): the first ids of the file, and of equal pieces of it, after the next
/// separator when there is one. The runs are shown as text too, decoded by `tokenizer`, or without one when every id of
/// the file is a byte. Of packed conversations, unless `count` is given, `samples` complete ones are shown instead, by
/// default 3. For a Megatron file (dtype megatron) the lines also say how many documents its index lists, of packed
/// samples without those of padding. Where a loss mask lies beside the tokens (mask_beside()) the lines say how many
/// tokens count as labels, and which of a run. Runs of packed samples begin where records do. The first line is written
/// after the complete file has been read. Throws InputError as TokenFile does, for an id that is negative, and when the
/// separator does not fit into `dtype`.
void inspect_tokens(std::ostream& out, const std::filesystem::path& file, const std::string& dtype,
                    std::optional<int64_t> count = {}, std::optional<int64_t> separator = {},
                    const Tokenizer* tokenizer = nullptr, std::optional<int64_t> samples = {});

}  // namespace meshtrain
