#pragma once

#include <memory>

#include "mesh/device_mesh.h"
#include "runtime/program/generate/language_model.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tools/meshtrain/generate_request.h"
#include "tools/meshtrain/generated_output.h"

namespace meshtrain {

/// Generates the texts of `request` and prints them to `output`, which is null except on rank 0. Rank 0 warns about
/// texts that become longer than `trained_length` (0: unknown). `tokenizer`: finds the request's stop strings; when
/// there are any, the first tp rank of each row must have one. Every rank of `mesh`, the mesh of `model`, must call it.
/// Throws as generate() does.
void generate_texts(const GenerateRequest& request, int64_t trained_length, LanguageModel& model,
                    const std::shared_ptr<const Tokenizer>& tokenizer, const DeviceMesh& mesh, GeneratedOutput* output);

}  // namespace meshtrain
