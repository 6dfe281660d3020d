#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Functions for samples that hold several documents. Any thread may call; no collective.
namespace meshtrain {

/// The positions at which documents begin, for each sequence of a batch: ascending, without 0, where one always begins.
using DocumentStarts = std::vector<std::vector<int64_t>>;

/// Returns where documents begin after the first, in `count` tokens: i + 1 for each `separator` at i, as it belongs to
/// the document that it ends, and so `count` for one at the end. Ascending.
std::vector<int64_t> find_documents(const int64_t* tokens, int64_t count, int64_t separator);

/// Divides a sample of S tokens at `starts`, 1 to S, and returns these without S, where the next sample begins.
/// `labels`, unless null, are those of the sample: the first token of each document no longer counts as a label of the
/// document before.
std::vector<int64_t> divide_sample(std::vector<int64_t> starts, int64_t sequence_length, int64_t* labels);

/// Returns the distance of each position from the first of its document: int64 [B, S] on the CPU, B = starts.size().
at::Tensor document_positions(const DocumentStarts& starts, int64_t sequence_length);

}  // namespace meshtrain
