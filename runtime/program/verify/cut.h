#pragma once

#include <cstdint>

#include "runtime/program/recipe/recipe.h"

namespace meshtrain {

/// Returns `recipe` for at most `ranks` ranks, with the same axes and modes, for a proof of a mesh that is too large to
/// start. `ranks` is at least 2.
///
///   tp, cp, pp    2 ranks where there were more, in this order, as far as `ranks` go
///   dp            the largest power of two that the remaining ranks allow, up to its size
///   ep            the largest common divisor of its size and the ranks of dp x cp x tp, or half of them if each expert
///                 had copies
///   hybrid_shard  half of the ranks of dp x cp share a copy
///   stages        2 on a rank where there were more; a list of layers keeps its first and last entries
///   sequence      at most 256 tokens; a sliding window keeps its share of the sequence
///   batch         at most 2 samples in a micro-batch, 2 micro-batches in a step, with a pipeline 2 for each of its
///   ranks
///
/// A recipe whose mesh fits keeps that, and gets the shorter sequence and the smaller batch.
Recipe cut(const Recipe& recipe, int64_t ranks);

}  // namespace meshtrain
