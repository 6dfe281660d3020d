#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fsdp/fsdp.h"
#include "runtime/model/block.h"
#include "tensor_parallel/embedding.h"
#include "tensor_parallel/vocabulary_logits.h"

namespace meshtrain {

/// A Llama-family language model, cut as its Parallelism says. Layers are named as in a Hugging Face checkpoint.
class Transformer {
 public:
  /// Declares the parameters; they have no storage until `units()` have been given some. Throws InputError when heads,
  /// KV heads or feed-forward features do not divide over tp. `unit_layers`: blocks of a unit, at least 1; the last may
  /// have fewer.
  Transformer(const ModelShape& shape, const Parallelism& parallelism, const at::TensorOptions& options,
              const Recomputation& recomputation = {}, int64_t unit_layers = 1);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  /// Sum of the losses of the counted tokens. ids and labels: int64 [T], the tokens of `sequence`, the same on every
  /// tp rank; labels are already shifted, kIgnoredLabel where not counted. `units` has those of units(). Every rank of
  /// tp, cp and `units` must call it. The value is there when its backward has run (linear_cross_entropy.h); without
  /// recording, at once.
  at::Tensor loss(const at::Tensor& ids, const at::Tensor& labels, const Sequence& sequence, Fsdp& units) const;

  /// Logits of what follows the last token of one sequence: ids int64 [s], those of `sequence`, whole on every tp rank,
  /// without sequence parallel and context parallel. Records nothing for autograd. Every rank of tp and `units` must
  /// call it.
  VocabularyLogits next_logits(const at::Tensor& ids, const Sequence& sequence, Fsdp& units) const;

  /// What is reduced together, in the order of the forward. With tied embeddings the embedding, the final norm and the
  /// head are the first unit, one of the whole step.
  std::vector<UnitSpec> units();
  std::vector<Parameter*> parameters();

 private:
  /// What the last block gives: [T, M] (its tp part under sequence parallel).
  at::Tensor stream(const at::Tensor& ids, const Sequence& sequence, Fsdp& units) const;
  /// The head's weight: the embedding's when they are tied.
  const Parameter& head() const { return head_ ? *head_ : embedding_.weight(); }

  /// The unit that the final norm and the head are in.
  size_t unit_of_head() const;
  /// Behind the last block of the unit that begins with `first`.
  size_t end_of_unit(size_t first) const;

  Parallelism parallelism_;
  size_t unit_layers_;
  VocabParallelEmbedding embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  RmsNorm norm_;
  std::optional<Parameter> head_;
};

}  // namespace meshtrain
