#pragma once

namespace meshtrain {

/// The way in which an RMSNorm applies its weight to normalised values in halves.
enum class NormWeight {
  Rounded,  ///< values are rounded, then multiplied by the weight (Llama)
  Wide,     ///< values are multiplied by the weight, then rounded (OLMo 2)
  PlusOne,  ///< values are multiplied by 1 + weight, then rounded (Gemma)
};

/// The norms of a block: before attention and feed-forward, after them (before they are added), or both.
enum class NormPlacement { Before, After, Both };

/// RMSNorm of queries and keys: none, over each head, or over all heads at once.
enum class QueryKeyNorm { None, EachHead, AllHeads };

/// The function of the gate in the feed-forward layer.
enum class Activation { Silu, GeluTanh };

}  // namespace meshtrain
