#include "runtime/config/fields.h"
#include "runtime/config/reader.h"

namespace meshtrain {

void begin_layout(const Reader& reader, SourceRecipe& source) {
  if (reader.has("dtype") && source.dtype == "megatron") source.layout = "stream";
}

bool names_mixture(const Reader& reader) {
  return reader.has_items("mixture");
}

void begin_evaluate(const DataRecipe& data, EvaluateRecipe& evaluate) {
  static_cast<SourceRecipe&>(evaluate) = data;
  evaluate.tokens.clear();  // what belongs to one file, and the order of training
  evaluate.source.clear();
  evaluate.loss_mask.clear();
  evaluate.shuffle = false;
}

}  // namespace meshtrain
