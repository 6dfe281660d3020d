#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Samples that hold several documents, each ended by a separator token: the separator belongs to the document that it
/// ends, and the next token begins another. Any thread may call; no collective.
namespace meshtrain {

/// For each sequence of a batch the positions at which a document begins, ascending, without 0, where one always does.
using DocumentStarts = std::vector<std::vector<int64_t>>;

/// The documents of `tokens` (int64 [B, S] on the CPU): i + 1 behind each separator at i that is not the last token.
/// Empty when every sequence is one document.
DocumentStarts find_documents(const at::Tensor& tokens, int64_t separator);

/// int64 [B, S] on the CPU, B = starts.size(): how far each position is from the first of its document.
at::Tensor document_positions(const DocumentStarts& starts, int64_t sequence_length);

}  // namespace meshtrain
