#include "runtime/config/fields.h"
#include "runtime/config/reader.h"

namespace meshtrain {

void begin_layout(const Reader& reader, SourceRecipe& source) {
  if (reader.has("dtype") && source.dtype == "megatron") source.layout = "stream";
}

bool names_mixture(const Reader& reader) {
  if (reader.has("mixture") && !reader.has_items("mixture") && !reader.has("tokens")) {
    reader.fail("mixture", "is an empty list: name its files, or one file alone as data.tokens");
  }
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
