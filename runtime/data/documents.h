#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Samples that hold several documents. Any thread may call; no collective.
namespace meshtrain {

/// For each sequence of a batch the positions at which a document begins, ascending, without 0, where one always does.
using DocumentStarts = std::vector<std::vector<int64_t>>;

/// Where documents begin behind the first of `count` tokens that each end with `separator`, which belongs to the
/// document that it ends: i + 1 for each separator at i, `count` for one at the end. Ascending.
std::vector<int64_t> find_documents(const int64_t* tokens, int64_t count, int64_t separator);

/// The documents of a sample of S tokens: `starts`, 1 to S, without S, where the next sample begins. `labels`, when it
/// is not null, are those of the sample: the first token of each document stops counting as the label of the one
/// before.
std::vector<int64_t> divide_sample(std::vector<int64_t> starts, int64_t sequence_length, int64_t* labels);

/// int64 [B, S] on the CPU, B = starts.size(): how far each position is from the first of its document.
at::Tensor document_positions(const DocumentStarts& starts, int64_t sequence_length);

}  // namespace meshtrain
