#include "runtime/train/checkpoints.h"

#include <ATen/ATen.h>

#include <cstdio>
#include <system_error>

#include "mesh/agree.h"
#include "mesh/error.h"
#include "mesh/host_map.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/data/output_file.h"
#include "runtime/train/ownership.h"

namespace meshtrain {
namespace {

std::vector<Piece> owned_pieces(const Trainer& trainer) {
  std::vector<Piece> owned;
  for (const ShardTensor& numbers : trainer.shards()) {
    std::vector<Piece> pieces = pieces_of(numbers, owned_range(*numbers.buffer, trainer.keepers()));
    std::move(pieces.begin(), pieces.end(), std::back_inserter(owned));
  }
  return owned;
}

std::string file_of(int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%05d.safetensors", rank);
  return name;
}

void remove_all(const std::vector<std::filesystem::path>& folders) {
  std::error_code ignored;  // what stays is removed by the run that resumes
  for (const std::filesystem::path& folder : folders) std::filesystem::remove_all(folder, ignored);
}

}  // namespace

Checkpoints::Checkpoints(const CheckpointRecipe& recipe, CheckpointFolder folder, CheckpointHead head,
                         const Trainer& trainer, const Group& world)
    : recipe_(recipe),
      folder_(std::move(folder)),
      head_(std::move(head)),
      world_(world.with_purpose("checkpoint")),
      first_of_host_(HostMap::of(world).is_first_of_host(world.rank())),
      pieces_(owned_pieces(trainer), file_of(world.rank()), /*copies=*/!trainer.shard_memory().is_on_disk()) {}

void Checkpoints::save(const TrainingState& state) {
  begun_ = std::chrono::steady_clock::now();
  head_.state = state;
  pieces_.save(folder_.partial(state.step));
  stage_ = Stage::Pieces;
}

bool Checkpoints::done() const {
  if (stage_ == Stage::Pieces) return pieces_.done();
  return !manifest_.valid() || manifest_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

std::optional<WrittenCheckpoint> Checkpoints::advance() {
  if (stage_ == Stage::Idle) return std::nullopt;
  if (stage_ == Stage::Pieces) {
    gather_parts();
    return std::nullopt;
  }
  complete();
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begun_;
  return WrittenCheckpoint{head_.state.step, time.count()};
}

std::optional<WrittenCheckpoint> Checkpoints::finish() {
  std::optional<WrittenCheckpoint> completed;
  while (stage_ != Stage::Idle) completed = advance();
  return completed;
}

void Checkpoints::gather_parts() {
  std::string part;
  agree_or_remove([&] { part = pieces_.wait(); });
  const std::vector<std::string> parts = gather_texts(world_, part);
  stage_ = Stage::Manifest;
  if (world_.rank() != 0) return;
  manifest_ = std::async(std::launch::async, [file = folder_.partial(head_.state.step) / "manifest.json", head = head_,
                                              parts] { write_whole(file, manifest_text(head, parts)); });
}

void Checkpoints::complete() {
  const int64_t step = head_.state.step;
  agree_or_remove([&] {
    if (world_.rank() != 0) return;
    manifest_.get();
    folder_.complete(step);
  });
  stage_ = Stage::Idle;
  if (!first_of_host_) return;
  folder_.complete(step);  // where hosts have disks of their own
  if (removal_.valid()) removal_.wait();
  removal_ = std::async(std::launch::async, remove_all, folder_.retire(recipe_.keep_last, recipe_.keep_every));
}

void Checkpoints::agree_or_remove(const std::function<void()>& action) try {
  agree(world_, action);
} catch (const AgreedError& error) {
  remove(error.what());
} catch (const InputError& error) {
  remove(error.what());
}

void Checkpoints::remove(const std::string& reason) {
  stage_ = Stage::Idle;
  if (first_of_host_) remove_all({folder_.partial(head_.state.step)});
  throw AgreedError("the checkpoint of step " + std::to_string(head_.state.step) + " is not written: " + reason);
}

void read_shards(const std::filesystem::path& folder, const Manifest& manifest, const Trainer& trainer) {
  CheckpointReader reader(folder, manifest);
  const bool trained = manifest.head.state.step > 0;
  for (const ShardTensor& numbers : trainer.shards()) {
    if (trained || numbers.name.empty()) {
      for (const Piece& piece : pieces_of(numbers, numbers.range)) reader.read(piece);
    } else {
      at::Tensor(numbers.values).zero_();  // what an optimizer keeps, before its first step
    }
    set_aside(numbers.values);
  }
}

}  // namespace meshtrain
