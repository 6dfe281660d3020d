// What rank 0 of a large job does for a checkpoint: the manifest of N ranks written, read, and cut into excerpts.
//   /usr/bin/time -v build/release/benchmarks/manifest_scale_benchmark N
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "mesh/box.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/manifest_excerpt.h"

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
  const std::vector<Matrix> all = matrices();
  std::vector<std::string> parts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    meshtrain::ManifestPart part({"rank-" + std::to_string(rank), 7});
    for (const meshtrain::Piece& piece : pieces_of(all, rank, ranks)) {
      part.add(piece.tensor, at::kFloat, piece.shape, piece.box, static_cast<uint64_t>(rank));
    }
    parts.push_back(part.text());
  }
  meshtrain::CheckpointHead head;
  auto begin = Clock::now();
  head.state.step = 1;
  const std::string text = meshtrain::manifest_text(head, parts);
  std::printf("%ld ranks: manifest.json %.1f MiB, written in %.2f s, peak %.0f MiB\n", static_cast<long>(ranks),
              static_cast<double>(text.size()) / (1 << 20), since(begin), peak_mib());
  parts = {};
  begin = Clock::now();
  const meshtrain::Manifest manifest = meshtrain::parse_manifest(text, "manifest");
  std::printf("read in %.2f s, peak %.0f MiB\n", since(begin), peak_mib());
  begin = Clock::now();
  const meshtrain::ManifestIndex index(manifest);
  std::printf("index in %.2f s\n", since(begin));
  begin = Clock::now();
  size_t bytes = 0, most = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::string answer = packed(index.excerpt(pieces_of(all, rank, ranks)));
    bytes += answer.size();
    most = std::max(most, answer.size());
  }
  std::printf("excerpts in %.2f s, %.1f MiB, the largest %.1f KiB\n", since(begin),
              static_cast<double>(bytes) / (1 << 20), static_cast<double>(most) / 1024);
  return 0;
}
