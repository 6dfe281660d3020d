#pragma once

#include <filesystem>
#include <string>

#include "runtime/training/model/shape.h"

namespace meshtrain {

/// Reads a Hugging Face config.json of the families of families.h, as transformers 4 and 5 write it: rope_theta and
/// rope_scaling at the top or inside rope_parameters, the scaling's "type" or "rope_type" one of default, linear,
/// llama3, yarn and dynamic, of Phi 3 default and longrope. An absent key has transformers' default, except for sizes,
/// which are required (num_key_value_heads may be absent from a llama). Throws InputError naming file and key when a
/// value is missing or impossible, when it needs arithmetic that is not available (other rotary scalings, dropout,
/// quantisation), and for any key that is not known to leave the numbers unchanged. Keys of a scaling that its type
/// does not use are ignored, as in transformers. Where its versions disagree the newest decides: yarn's factor is the
/// one that is written, not max_position_embeddings / original_max_position_embeddings.
///
/// pad_token_id is negative there when it counts from the end of the vocabulary; beyond the vocabulary it is none.
/// transformers keeps that row's gradient at zero in the embedding, which model.freeze_padding_row asks for.
ModelShape read_config_json(const std::filesystem::path& file);

/// Returns the config.json of `shape`, for transformers 4 and 5. `dtype`: that of the weights beside it, as torch names
/// it ("bfloat16"). `others`: a JSON object of further keys, which come last; keys that `shape` or `dtype` determine
/// are ignored in it. Throws InputError for a shape that the family's config.json cannot express.
std::string write_config_json(const ModelShape& shape, const std::string& dtype, const std::string& others = "{}");

}  // namespace meshtrain
