#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/training/model/block.h"
#include "runtime/training/safetensors/tensor_entry.h"
#include "tensor_parallel/embedding.h"
#include "tensor_parallel/linear_cross_entropy.h"
#include "tensor_parallel/vocabulary_logits.h"

namespace meshtrain {

/// The inputs of all layers of a forward, besides the activations that each hands to the next.
struct ForwardPass {
  const Sequence& sequence;
  /// int64 [T], already shifted, kIgnoredLabel where not counted; the head then returns the sum of the losses.
  /// Undefined: it fills `logits`.
  at::Tensor labels = {};
  /// Receives the logits of the token after the last: of one sequence, without recording, sequence or context parallel.
  std::optional<VocabularyLogits>* logits = nullptr;
  LogitsZLoss z_loss = {};  ///< of the logits, in training
};

/// Attention or the feed-forward layer of a block, with the norms before and after it. A block's sublayers, called in
/// order, compute the same as the block's forward. Each uses only its own parameters.
struct Sublayer {
  std::string name;                    ///< "block 3 attention", "block 3 feed-forward"
  std::vector<Parameter*> parameters;  ///< valid as long as the model lives
  /// `x`: the block's input. `before`: the result of the previous sublayer; undefined for the first. The last one
  /// returns the block's result. Every rank of tp and cp must call it.
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& before, const ForwardPass& pass)> forward;
};

/// A part of the forward, whose parameters are used nowhere else, save for `borrowed` ones. The first layer takes ids,
/// int64 [T], the same on every tp rank; each returns the residual stream [T, M] (its tp part under sequence parallel)
/// for the next; the last returns the sum of the losses, a scalar whose value is computed by its backward
/// (linear_cross_entropy.h), or at once without recording. Every rank of tp and cp must call `forward`.
struct Layer {
  std::string name;                    ///< "embedding", "block 3", "head"
  std::vector<Parameter*> parameters;  ///< valid as long as the model lives
  Parameter* borrowed = nullptr;       ///< a parameter of another layer that this one uses too: tied embeddings
  std::function<at::Tensor(const at::Tensor& input, const ForwardPass& pass)> forward;
  std::vector<Sublayer> sublayers = {};  ///< of a block; their parameters are those of the layer, in the same order
  std::vector<Parameter*> experts = {};  ///< of a block: experts that are cut over ep; not among `parameters`
  /// Sets the function in which the weights of `experts` are there. Call it only where there are some.
  std::function<void(WithExperts)> use_experts_in = {};
};

/// A language model, cut as its Parallelism says. Layers are named as in a Hugging Face checkpoint.
class Transformer {
 public:
  /// Declares the parameters; they have no storage until FSDP or a loader binds some. Throws InputError when heads, KV
  /// heads or feed-forward features do not divide over tp. `residual_dtype`: of the residual stream, that of `options`
  /// or wider; none: that of `options`.
  Transformer(const ModelShape& shape, const Parallelism& parallelism, const at::TensorOptions& options,
              const Recomputation& recomputation = {}, std::optional<at::ScalarType> residual_dtype = {});
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  /// Lets lookups of token `id` give the embedding no gradient; that of a tied head stays.
  void freeze_embedding_row(int64_t id) { embedding_.freeze_row(id); }

  /// Returns an empty tensor for the residual stream of `num_tokens` tokens, as layers return it.
  at::Tensor empty_residual(int64_t num_tokens, at::Device device) const;

  /// Returns the embedding, the blocks, and the head with the norm before it, in the order of the forward.
  std::vector<Layer> layers();
  /// Returns the parameters of all layers, in their order; a head with a borrowed weight comes second, as in exported
  /// files.
  std::vector<Parameter*> parameters();

 private:
  at::Tensor embed(const at::Tensor& ids) const;
  at::Tensor head_input(const at::Tensor& x) const;
  at::Tensor head(const at::Tensor& x, const ForwardPass& pass) const;
  /// Returns the weight of the head: the embedding's when they are tied.
  const Parameter& head_weight() const { return head_ ? *head_ : embedding_.weight(); }

  int64_t hidden_size_;
  at::ScalarType residual_dtype_;
  TensorParallel tensor_parallel_;
  VocabParallelEmbedding embedding_;
  std::vector<std::unique_ptr<Block>> blocks_;
  RmsNorm norm_;
  double embedding_scale_;
  double logits_scaling_;
  double softcap_;
  std::optional<Parameter> head_;
  std::vector<Adapter> head_adapter_;  // one or none
};

/// Returns the parameters of a model of this shape without its adapters, none of them cut, as if each had `dtype`: in
/// the order of Transformer::parameters(), without any memory for them.
std::vector<TensorEntry> declared_tensors(const ModelShape& shape, at::ScalarType dtype);
/// Returns the same of its adapters.
std::vector<TensorEntry> declared_adapters(const ModelShape& shape, at::ScalarType dtype);

}  // namespace meshtrain
