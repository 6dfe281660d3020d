#include "tests/checkpoint/format_1.h"

#include <nlohmann/json.hpp>

#include "runtime/training/safetensors/tensor_entry.h"

namespace meshtrain::testing {

using nlohmann::ordered_json;

std::string format_1_text(const Manifest& manifest) {
  const TrainingState& state = manifest.head.state;
  ordered_json head = {{"format", 1},
                       {"versions", manifest.head.versions},
                       {"step", state.step},
                       {"samples", state.num_samples},
                       {"updates", state.num_updates},
                       {"skipped_in_a_row", state.num_skipped}};
  if (state.loss_scale)
    head["loss_scale"] = {{"value", state.loss_scale->value}, {"finite_steps", state.loss_scale->num_finite}};
  head["mesh"] = manifest.head.mesh;
  head["data"] = ordered_json::object();
  for (const auto& [key, print] : manifest.head.data) {
    head["data"][key] = {{"bytes", print.bytes}, {"xxh3", checksum_text(print.checksum)}};
  }
  head["recipe"] = manifest.head.recipe;
  std::string text = head.dump(1);
  text.resize(text.rfind('\n'));
  text += ",\n \"files\": [";
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    ordered_json file = {{"name", manifest.files[i].name},
                         {"header", checksum_text(manifest.files[i].header)},
                         {"tensors", ordered_json::object()}};
    for (const auto& [name, tensor] : manifest.tensors) {
      ordered_json pieces;
      for (const StoredPiece& piece : tensor.pieces) {
        if (piece.file != i) continue;
        pieces.push_back(
            {{"start", piece.box.start}, {"size", piece.box.size}, {"xxh3", checksum_text(piece.checksum)}});
      }
      if (pieces.empty()) continue;
      file["tensors"][name] = {
          {"dtype", safetensors_dtype(tensor.dtype).value()}, {"shape", tensor.shape}, {"pieces", pieces}};
    }
    text += (i == 0 ? "\n  " : ",\n  ") + file.dump();
  }
  text += "\n ]";
  return text + ",\n \"xxh3\": \"" + checksum_text(checksum(text.data(), text.size())) + "\"\n}\n";
}

}  // namespace meshtrain::testing
