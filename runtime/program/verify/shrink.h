#pragma once

#include "mesh/layout.h"
#include "runtime/program/recipe/recipe.h"
#include "runtime/training/transformer/batch.h"

namespace meshtrain {

/// `recipe`, which resolve() has passed for `layout`, with a small model that the mesh cuts in the same way. Kept are
///
///   KV heads       tp divides them; gcd(KV heads / tp, cp), which decides whether Ulysses repeats heads; and whether a
///                  tp rank has several
///   heads          heads / KV heads
///   hidden size    hidden size / (heads * head_dim), as near as whole numbers allow
///   feed-forward   intermediate size / hidden size, in the same way; tp divides it
///   vocabulary     its remainder modulo tp, so the padding of the last tp rank; token ids named in `data` are folded
///                  into it as fold_ids() does
///   freezing,      those of the parameters that two layers stand for: the first, and the first that is treated in
///   groups         another way, one that is trained if that is not
///   sequence, batch, everything that is no size of the model
///
/// Two layers, or one for each stage of a pipeline, which represent the two in turns; heads of 8. The initial weights
/// are larger, as the rows they meet are shorter: activations keep their size. Never larger than before; what is small
/// already is left alone.
Recipe shrink(const Recipe& recipe, const MeshLayout& layout);

/// The ids and the counted labels of `batch` modulo `vocab_size`: tokens of a larger vocabulary for a shrunk model.
/// After read_step, which finds documents by the ids as they are in the file.
void fold_ids(StepBatch& batch, int64_t vocab_size);

}  // namespace meshtrain
