// What rank 0 of a large job does for a checkpoint: the manifest of N ranks written, read, and cut into excerpts.
//   manifest_scale_benchmark N FILE         writes it
//   manifest_scale_benchmark N FILE read    reads it, in a process of its own
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "mesh/base/files/output_file.h"
#include "mesh/box.h"
#include "runtime/training/checkpoint/manifest.h"
#include "runtime/training/checkpoint/manifest_excerpt.h"
#include "runtime/training/checkpoint/manifest_writer.h"

namespace {

using meshtrain::Box;
using Clock = std::chrono::steady_clock;

constexpr int64_t kTensorParallel = 8, kLayers = 32;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double mib(size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

struct Matrix {
  std::string name;
  std::vector<int64_t> shape;
};

/// The large matrices of Llama 3 8B, cut by rows over tp and then flat over the other ranks, with AdamW's state.
std::vector<Matrix> matrices() {
  std::vector<Matrix> all;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    for (const auto& [name, shape] : {std::pair{"self_attn.q_proj.weight", std::vector<int64_t>{4096, 4096}},
                                      {"self_attn.k_proj.weight", {1024, 4096}},
                                      {"self_attn.v_proj.weight", {1024, 4096}},
                                      {"self_attn.o_proj.weight", {4096, 4096}},
                                      {"mlp.gate_proj.weight", {14336, 4096}},
                                      {"mlp.up_proj.weight", {14336, 4096}},
                                      {"mlp.down_proj.weight", {4096, 14336}}}) {
      for (const char* state : {"", ".exp_avg", ".exp_avg_sq"}) all.push_back({prefix + name + state, shape});
    }
  }
  return all;
}

/// The boxes of rank `rank`: a layer's matrices lie end to end in a buffer, of which it has one range.
std::vector<meshtrain::Piece> pieces_of(const std::vector<Matrix>& all, int64_t rank, int64_t ranks) {
  const int64_t shards = ranks / kTensorParallel, tp = rank % kTensorParallel, shard = rank / kTensorParallel;
  constexpr size_t kPerLayer = 7 * 3;
  std::vector<meshtrain::Piece> pieces;
  for (size_t first = 0; first < all.size(); first += kPerLayer) {
    for (size_t state = 0; state < 3; ++state) {
      int64_t total = 0, offset = 0;
      for (size_t i = state; i < kPerLayer; i += 3) {
        total += all[first + i].shape[0] / kTensorParallel * all[first + i].shape[1];
      }
      const int64_t begin = total * shard / shards, end = total * (shard + 1) / shards;
      for (size_t i = state; i < kPerLayer; i += 3) {
        const Matrix& matrix = all[first + i];
        const std::vector<int64_t> local{matrix.shape[0] / kTensorParallel, matrix.shape[1]};
        const int64_t numel = local[0] * local[1];
        const int64_t from = std::max<int64_t>(begin - offset, 0), to = std::min(end - offset, numel);
        if (from < to) {
          for (Box box : meshtrain::boxes_of(local, from, to)) {
            box.start[0] += tp * local[0];
            pieces.push_back({matrix.name, matrix.shape, box, {}});
          }
        }
        offset += numel;
      }
    }
  }
  return pieces;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t ranks = argc > 1 ? std::atoll(argv[1]) : 1024;
  const std::filesystem::path file = argc > 2 ? argv[2] : "/tmp/manifest_scale.json";
  const std::vector<Matrix> all = matrices();
  const double at_rest = peak_mib();
  if (argc <= 3) {  // else the file is read alone, so that the peak is that of reading
    std::vector<std::string> parts;
    size_t bytes = 0, written = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      meshtrain::ManifestPart part({"rank-" + std::to_string(rank), 7});
      for (const meshtrain::Piece& piece : pieces_of(all, rank, ranks)) {
        part.add(piece.tensor, at::kFloat, piece.shape, piece.box, static_cast<uint64_t>(rank) * 0x9e3779b97f4a7c15);
      }
      parts.push_back(part.packed());
      bytes += parts.back().size();
    }
    meshtrain::CheckpointHead head;
    head.state.step = 1;
    const auto begin = Clock::now();
    meshtrain::OutputFile output(file);
    meshtrain::write_manifest(head, parts, [&](std::string_view block) {
      output.append(block.data(), block.size());
      written += block.size();
    });
    output.finish();
    std::printf("%ld ranks: parts %.1f MiB, manifest.json %.1f MiB, written in %.2f s, peak %.0f MiB, %.0f at rest\n",
                static_cast<long>(ranks), mib(bytes), mib(written), since(begin), peak_mib(), at_rest);
    return 0;
  }
  auto begin = Clock::now();
  const meshtrain::Manifest manifest = meshtrain::parse_manifest(meshtrain::FileReader(file));
  std::printf("read in %.2f s, peak %.0f MiB, %.0f at rest\n", since(begin), peak_mib(), at_rest);
  begin = Clock::now();
  const meshtrain::ManifestIndex index(manifest);
  std::printf("index in %.2f s\n", since(begin));
  size_t bytes = 0, most = 0;
  double seconds = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::string question = packed(pieces_of(all, rank, ranks));
    begin = Clock::now();
    const std::string answer = packed(index.excerpt(meshtrain::unpack_pieces(question)));
    seconds += since(begin);
    bytes += answer.size();
    most = std::max(most, answer.size());
  }
  std::printf("excerpts in %.2f s, %.1f MiB, the largest %.1f KiB, peak %.0f MiB\n", seconds, mib(bytes),
              static_cast<double>(most) / 1024, peak_mib());
  return 0;
}
