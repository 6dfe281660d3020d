#pragma once

#include "mesh/layout.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/training/transformer/batch.h"

namespace meshtrain {

/// Returns `recipe`, which resolve() has passed for `layout`, with a small model that the mesh cuts in the same way. It
/// keeps
///
///   KV heads       tp divides them; gcd(KV heads / tp, cp), which decides whether Ulysses repeats heads; and whether a
///                  tp rank has several
///   heads          heads / KV heads
///   hidden size    hidden size / (heads * head_dim), as closely as whole numbers allow
///   feed-forward   intermediate size / hidden size, likewise; tp divides it
///   vocabulary     its remainder modulo tp, hence the padding of the last tp rank; fold_ids() maps the token ids named
///                  in `data` into it
///   freezing,      the rules of two layers: the first, and the first that is treated differently, preferably a trained
///   groups         one
///   the rest       sequence, batch, and everything that is not a size of the model
///
/// The model has two layers, or one for each stage of a pipeline, which repeat the two in turn; heads are 8 wide. Where
/// parallel.pipeline.layers are not equal, stages with more layers than the smallest have two. The initial weights are
/// larger, because rows are shorter: activations keep their size. No size grows.
Recipe shrink(const Recipe& recipe, const MeshLayout& layout);

/// Replaces the ids and the counted labels of `batch` by their remainders modulo `vocab_size`: tokens of a larger
/// vocabulary for a shrunk model. Call it after read_step(), which finds documents by the ids in the file.
void fold_ids(StepBatch& batch, int64_t vocab_size);

}  // namespace meshtrain
