#include "runtime/program/recipe/base_weights.h"

#include <algorithm>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/size_text.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

std::string describe(const Fingerprint& print) {
  return counted(print.bytes, "byte") + " with checksum " + checksum_text(print.checksum);
}

Fingerprint fingerprint_of_folder(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  RunningChecksum all;
  Fingerprint sum;
  for (const fs::path& file : files) {
    const Fingerprint each = fingerprint(file);
    sum.bytes += each.bytes;
    all.add(checksum_text(each.checksum));
  }
  sum.checksum = all.value();
  return sum;
}

}  // namespace

std::optional<Fingerprint> base_fingerprint(const Recipe& recipe) {
  if (!recipe.model.shape.adapter || recipe.model.init != "pretrained") return std::nullopt;
  std::error_code failed;
  if (!fs::is_directory(recipe.model.hf, failed)) {
    throw InputError(kBaseKey,
                     recipe.model.hf.string() +
                         " no longer exists: it has the base weights, which checkpoints do not contain; restore the "
                         "folder, or give its new location: --base FOLDER, for train --resume --set model.hf=FOLDER");
  }
  return fingerprint_of_folder(recipe.model.hf);
}

std::string describe_other_base(const CheckpointHead& own, const CheckpointHead& saved) {
  const auto print = [](const CheckpointHead& head) {
    const auto found = head.data.find(kBaseKey);
    return found == head.data.end() ? std::string("none, drawn from train.seed") : describe(found->second);
  };
  if (print(own) == print(saved)) return "";
  return std::string(kBaseKey) + ": weights of " + print(own) + ", but the adapters were trained with weights of " +
         print(saved);
}

void move_base(Recipe& recipe, const fs::path& base) {
  if (base.empty()) return;
  if (!recipe.model.shape.adapter) {
    throw InputError("--base: the run has no adapters, so its checkpoints have all weights: leave it out");
  }
  if (recipe.model.init != "pretrained") {
    throw InputError("--base: the run drew its base weights from train.seed: leave it out");
  }
  recipe.model.hf = base;
}

FirstWeights open_base(const Recipe& recipe, const CheckpointHead& head) {
  CheckpointHead own;
  if (const auto print = base_fingerprint(recipe)) own.data[kBaseKey] = *print;
  if (const std::string other = describe_other_base(own, head); !other.empty()) throw InputError(other);
  ModelShape shape = recipe.model.shape;
  shape.adapter.from.clear();  // all that the folder has is in the checkpoint
  return FirstWeights(recipe.model.init == "pretrained" ? recipe.model.hf : fs::path(), shape,
                      static_cast<uint64_t>(recipe.train.seed));
}

}  // namespace meshtrain
