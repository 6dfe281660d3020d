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

/// Writes a few lines about a token file to `out`: the number of tokens, the smallest and the largest id, the
/// distribution of the ids, and the most frequent ones. With `separator` it also writes how many documents end with it,
/// and their lengths. Then it shows `samples` runs (by default 1) of `count` ids (32): the first ids of the file and of
/// equal pieces of it, after the next separator if there is one. The runs are also shown as text, decoded by
/// `tokenizer`, or without one when every id of the file is a byte. For packed conversations without `count`, it shows
/// `samples` complete conversations instead, by default 3. For a Megatron file (dtype megatron) the lines also have the
/// number of documents in its index, for packed samples without those of padding. When a loss mask lies next to the
/// tokens (mask_beside()), the lines say how many tokens count as labels, and which of a run. Runs of packed samples
/// begin where records do. Writes its first line after it has read the complete file. Throws InputError as TokenFile
/// does, for an id that is negative, and when the separator does not fit into `dtype`.
void inspect_tokens(std::ostream& out, const std::filesystem::path& file, const std::string& dtype,
                    std::optional<int64_t> count = {}, std::optional<int64_t> separator = {},
                    const Tokenizer* tokenizer = nullptr, std::optional<int64_t> samples = {});

}  // namespace meshtrain
