#include "runtime/training/trainer/checkpoints.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "mesh/agree.h"
#include "mesh/base/error.h"
#include "mesh/base/files/output_file.h"
#include "mesh/base/log.h"
#include "mesh/device/aten.h"
#include "mesh/host_map.h"
#include "runtime/training/checkpoint/manifest_writer.h"
#include "runtime/training/trainer/ownership.h"

namespace meshtrain {
namespace {

constexpr const char* kManifest = "manifest.json";

std::vector<Piece> owned_pieces(const Trainer& trainer) {
  std::vector<Piece> owned;
  for (const ShardTensor& numbers : trainer.shards()) {
    std::vector<Piece> pieces =
        pieces_of(numbers, owned_range(*numbers.buffer, group_of(*numbers.buffer, trainer.groups()).replicas));
    std::move(pieces.begin(), pieces.end(), std::back_inserter(owned));
  }
  return owned;
}

/// Returns the time after which a rank reports that its disk is slow, and between further reports.
std::chrono::milliseconds slow_write() {
  constexpr double kSeconds = 60;
  const char* const asked = std::getenv("MESHTRAIN_SLOW_WRITE");
  const double seconds = asked ? std::strtod(asked, nullptr) : kSeconds;
  return std::chrono::milliseconds(static_cast<int64_t>(1000 * (seconds > 0 ? seconds : kSeconds)));
}

/// Returns true when some data is in a file, which is for data that memory cannot hold twice.
bool is_on_disk(const Trainer& trainer) {
  return trainer.shard_memory().is_on_disk() || trainer.state_memory().is_on_disk();
}

std::string file_of(int rank) {
  char name[32];
  std::snprintf(name, sizeof name, "rank-%05d.safetensors", rank);
  return name;
}

/// Writes the manifest and returns its number of bytes.
size_t write_manifest_file(const std::filesystem::path& file, const CheckpointHead& head,
                           const std::vector<std::string>& parts) try {
  OutputFile output(file);
  size_t bytes = 0;
  write_manifest(head, parts, [&](std::string_view block) {
    output.append(block.data(), block.size());
    bytes += block.size();
  });
  output.finish();
  return bytes;
} catch (const InputError& error) {  // the program made this path: not the user's error
  throw std::runtime_error(error.what());
}

}  // namespace

Checkpoints::Checkpoints(const KeptCheckpoints& kept, CheckpointDisks disks, CheckpointHead head,
                         const Trainer& trainer, const Group& world)
    : kept_(kept),
      disks_(std::move(disks)),
      head_(std::move(head)),
      world_(world.with_purpose("checkpoint")),
      trainer_(trainer),
      pieces_(owned_pieces(trainer), file_of(world.rank()), /*copies=*/!is_on_disk(trainer)) {}

Checkpoints::~Checkpoints() {
  if (stage_ == Stage::Failed) disks_.remove(head_.state.step);
}

void Checkpoints::save(const TrainingState& state) {
  begun_ = std::chrono::steady_clock::now();
  head_.state = state;
  complete_or_fail([&] { disks_.begin(state.step); });
  trainer_.await_copies();
  pieces_.save(disks_.partial(state.step));
  stage_ = Stage::Pieces;
  if (is_on_disk(trainer_)) await_disk();  // pieces are not copied, and the next step changes them
}

bool Checkpoints::done_within(std::chrono::milliseconds patience) const {
  if (stage_ == Stage::Pieces) return pieces_.done(patience);
  return !manifest_.valid() || manifest_.wait_for(patience) == std::future_status::ready;
}

void Checkpoints::await_disk() const {
  const auto start = std::chrono::steady_clock::now();
  while (!done_within(slow_write())) {
    const std::string name = stage_ == Stage::Pieces ? file_of(world_.rank()) : kManifest;
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    log_warning(world_.coordinate_text() + " on " + host_name() + ": still writing " +
                (disks_.partial(head_.state.step) / name).string() + " after " +
                std::to_string(std::lround(time.count())) + " s");
  }
}

std::optional<WrittenCheckpoint> Checkpoints::advance() {
  if (stage_ == Stage::Idle || stage_ == Stage::Failed) return std::nullopt;
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
  while (stage_ == Stage::Pieces || stage_ == Stage::Manifest) {
    await_disk();
    completed = advance();
  }
  return completed;
}

void Checkpoints::gather_parts() {
  std::string part;
  complete_or_fail([&] {
    agree(world_, [&] {
      part = pieces_.wait();
      trainer_.check_written();  // otherwise the pieces may be zeros that were read from the disk
    });
  });
  std::vector<std::string> parts = gather_texts(world_, part);
  stage_ = Stage::Manifest;
  if (world_.rank() != 0) return;
  const std::filesystem::path file = disks_.partial(head_.state.step) / kManifest;
  manifest_ = std::async(std::launch::async, [file, head = head_, parts = std::move(parts)] {
    return write_manifest_file(file, head, parts);
  });
}

void Checkpoints::complete() {
  const int64_t step = head_.state.step;
  complete_or_fail([&] {
    const std::filesystem::path folder = disks_.partial(step);
    agree(world_, [&] {
      if (world_.rank() == 0) expect_file(folder / kManifest, manifest_.get());
      pieces_.expect_file_in(folder);
    });
    disks_.complete(step);
  });
  stage_ = Stage::Idle;
  disks_.retire(kept_.last, kept_.every);
}

void Checkpoints::complete_or_fail(const std::function<void()>& action) try {
  action();
} catch (const AgreedError& error) {
  fail(error.what());
} catch (const InputError& error) {
  fail(error.what());
}

void Checkpoints::fail(const std::string& reason) {
  stage_ = Stage::Failed;
  throw AgreedError("the checkpoint of step " + std::to_string(head_.state.step) + " was not written: " + reason);
}

}  // namespace meshtrain
