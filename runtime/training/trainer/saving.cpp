#include "runtime/training/trainer/saving.h"

#include <algorithm>
#include <set>
#include <system_error>
#include <utility>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/log.h"
#include "mesh/base/progress.h"
#include "mesh/base/size_text.h"
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

/// Throws InputError when `folder` belongs to a run that is not among `runs`.
void check_runs(const CheckpointFolder& folder, const Trainer::Runs& runs) {
  const std::vector<std::string> owners = folder.owners();
  std::error_code failed;
  const bool is_known =
      owners.empty() ? folder.steps().empty() ||
                           std::filesystem::equivalent(runs.resumed, folder.folder() / runs.resumed.filename(), failed)
                     : std::ranges::all_of(owners, [&](const std::string& id) { return runs.ids.contains(id); });
  if (is_known) return;
  throw InputError("cannot save in " + folder.folder().string() + ", which belongs to another run: resume() from it " +
                   "before the first step, or choose another folder");
}

/// Throws InputError when the checkpoint has parameters that the model does not have, which the next save() would lose.
void check_parameters(const std::string& checkpoint, const Manifest& manifest, const ParameterIndex& index) {
  std::set<std::string> known;
  for (const ParameterIndex::Entry& entry : index.entries()) known.insert(entry.name);
  size_t num_lost = 0;
  std::string names;
  for (const auto& [name, tensor] : manifest.tensors) {
    if (known.contains(name) || !manifest.is_parameter(name)) continue;
    if (++num_lost <= 3) names += (num_lost == 1 ? " " : ", ") + name;
  }
  if (num_lost == 0) return;
  throw InputError(checkpoint + " has " + counted(num_lost, "parameter") + " that the model does not have:" + names +
                   (num_lost > 3 ? ", ..." : "") +
                   ": resume it with the model that saved it, or choose another folder");
}

void warn_of_abandoned(const CheckpointFolder& folder) {
  const std::vector<int64_t> steps = folder.abandoned();
  if (steps.empty()) return;
  const std::string name = folder.step(*std::ranges::max_element(steps)).filename().string();
  log_warning(folder.folder().string() + " has abandoned checkpoints only, so nothing is resumed: rename abandoned-" +
              name + " to " + name + " to resume from it");
}

}  // namespace

void save(Trainer& trainer, TrainingState state, const std::filesystem::path& folder, const KeptCheckpoints& kept) {
  const Group& world = trainer.mesh().world();
  trainer.write(state);
  agree(world, [&] {
    if (world.rank() == 0) check_runs(CheckpointFolder(folder), trainer.runs());
  });
  CheckpointDisks disks(CheckpointFolder(folder), world, {.resumed = trainer.runs().resumed, .has_begun = true});
  trainer.runs().ids.insert(disks.run());
  disks.settle(state.step);
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
    if (steps.empty()) {
      warn_of_abandoned(checkpoints);
    } else {
      newest = checkpoints.step(steps.back()).string();
      manifest = read_manifest(newest);
      check_parameters(newest, manifest, trainer.index());
      trainer.runs().resumed = newest;
    }
    for (const std::string& id : checkpoints.owners())
      trainer.runs().ids.insert(id);  // not of a folder that is refused
  });
  newest = broadcast_text(world, newest);
  if (newest.empty()) return std::nullopt;
  return load_checkpoint(newest, manifest, trainer, world);
}

TrainingState load_checkpoint(const std::filesystem::path& folder, const Manifest& manifest, Trainer& trainer,
                              const Group& world, const DamageAdvice& advice) {
  const Manifest own = share_manifest(world, manifest, trainer);
  agree(world, [&] {
    const std::string rank_text = world.coordinate_text() + " on " + host_name() + ": ";
    try {
      read_shards(folder, own, trainer);
    } catch (const DamagedCheckpoint& error) {
      throw InputError(rank_text + error.what() + (advice ? advice(folder) : ""));
    } catch (const InputError& error) {
      throw InputError(rank_text + error.what());
    }
  });
  trainer.resume(own.head.state);
  return own.head.state;
}

}  // namespace meshtrain
