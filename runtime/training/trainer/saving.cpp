#include "runtime/training/trainer/saving.h"

#include <utility>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/progress.h"
#include "mesh/host_map.h"
#include "runtime/training/checkpoint/checkpoint_reader.h"
#include "runtime/training/checkpoint/damage.h"
#include "runtime/training/checkpoint/manifest_excerpt.h"

namespace meshtrain {
namespace {

/// Returns the part of rank 0's manifest that this rank needs. It contains only the pieces of this rank, so memory and
/// time do not grow with the number of ranks that wrote the checkpoint. Every rank must call it.
Manifest share_manifest(const Group& world, const Manifest& manifest, const Trainer& trainer) {
  constexpr int kRanksAtOnce = 256;  // bounds rank 0's memory for requests and answers
  std::vector<Piece> wanted;
  for (const ShardTensor& numbers : trainer.shards()) {
    for (Piece& piece : pieces_of(numbers, numbers.range)) wanted.push_back(std::move(piece));
  }
  const ManifestIndex index(manifest);
  Manifest own;
  for (int first = 0; first < world.size(); first += kRanksAtOnce) {
    const bool asks = world.rank() >= first && world.rank() < first + kRanksAtOnce;
    std::vector<std::string> texts = gather_texts(world, asks ? packed(wanted) : "");
    for (std::string& text : texts) {
      if (!text.empty()) text = packed(index.excerpt(unpack_pieces(text)));
    }
    const std::string answer = scatter_texts(world, texts);
    if (asks) own = unpack_excerpt(answer);
  }
  return own;
}

/// Copies the pieces of this rank from the checkpoint in `folder` into `trainer`. Throws InputError when a piece is
/// missing or damaged. Not collective.
void read_shards(const std::filesystem::path& folder, const Manifest& manifest, const Trainer& trainer) {
  CheckpointReader reader(folder, manifest);
  Progress progress("reading of " + folder.string(), 0, "bytes");
  const bool trained = manifest.head.state.step > 0;
  for (const ShardTensor& numbers : trainer.shards()) {
    if (trained || numbers.name.empty()) {
      for (const Piece& piece : pieces_of(numbers, numbers.range)) {
        reader.read(piece);
        progress.advance(static_cast<int64_t>(piece.values.nbytes()));
      }
    } else {
      at::Tensor(numbers.values).zero_();  // the optimizer's state before its first step
    }
    set_aside(numbers.values);
  }
}

}  // namespace

void save(Trainer& trainer, TrainingState state, const std::filesystem::path& folder, const KeptCheckpoints& kept) {
  const Group& world = trainer.mesh().world();
  trainer.write(state);
  CheckpointDisks disks(CheckpointFolder(folder), world, {.has_begun = true});
  disks.settle(state.step - 1);
  CheckpointHead head;
  head.mesh = trainer.mesh().layout().describe();
  Checkpoints checkpoints(kept, std::move(disks), std::move(head), trainer, world);
  checkpoints.save(state);
  checkpoints.finish();
}

std::optional<TrainingState> resume(Trainer& trainer, const std::filesystem::path& folder) {
  const Group& world = trainer.mesh().world();
  std::string newest;
  Manifest manifest;
  agree(world, [&] {
    if (world.rank() != 0) return;
    const CheckpointFolder checkpoints(folder);
    const std::vector<int64_t> steps = checkpoints.steps();
    if (steps.empty()) return;
    newest = checkpoints.step(steps.back()).string();
    manifest = read_manifest(newest);
  });
  newest = broadcast_text(world, newest);
  if (newest.empty()) return std::nullopt;
  return load_checkpoint(newest, manifest, trainer, world);
}

TrainingState load_checkpoint(const std::filesystem::path& folder, const Manifest& manifest, Trainer& trainer,
                              const Group& world, const DamageAdvice& advice) {
  const Manifest own = share_manifest(world, manifest, trainer);
  agree(world, [&] {
    const std::string place = world.coordinate_text() + " on " + host_name() + ": ";
    try {
      read_shards(folder, own, trainer);
    } catch (const DamagedCheckpoint& error) {
      throw InputError(place + error.what() + (advice ? advice(folder) : ""));
    } catch (const InputError& error) {
      throw InputError(place + error.what());
    }
  });
  trainer.resume(own.head.state);
  return own.head.state;
}

}  // namespace meshtrain
