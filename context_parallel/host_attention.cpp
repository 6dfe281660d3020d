#include "context_parallel/host_attention.h"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <numbers>
#include <tuple>
#include <utility>

#include "context_parallel/host_heads.h"
#include "mesh/device/aten.h"
#include "mesh/device/host_rows.h"
#include "mesh/device/meta_device.h"
#include "mesh/device/operator.h"

namespace meshtrain {
namespace {

using namespace host_tiles;

/// Positions below which LibTorch's kernel is faster, and features above which sums leave the cache.
constexpr int64_t kFewest = 32, kMostFeatures = 256;

/// The memory of a thread of the forward.
template <class T>
struct ForwardMemory {
  ForwardMemory(Scratch& scratch, int64_t keys, int64_t features)
      : keys_transposed(scratch.tiles<T>(features / kRowsTogether<T>, keys, kRowsTogether<T>)),
        queries(scratch.rows<T>(kTileRows, features)),
        values(scratch.rows<T>(kRowsTogether<T> == 1 ? 0 : padded(keys) / 2, 2 * features)),
        scores(scratch.rows<float>(kTileRows, kTileColumns)),
        exponentials(scratch.rows<T>(kRowsTogether<T> == 1 ? 0 : kTileRows, kTileColumns)),
        sums(scratch.rows<float>(kTileRows, features)) {}

  Tiles<T> keys_transposed;
  Matrix<T> queries, values;
  Matrix<float> scores;
  Matrix<T> exponentials;
  Matrix<float> sums;
};

/// The forward over some tiles of queries, of all heads one after the other.
template <class Set, class T>
class Forward {
 public:
  Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale,
          const at::Tensor& out, const at::Tensor& lse)
      : q_(q), k_(k), v_(v), out_(out), lse_(lse), causal_(causal), scale_(static_cast<float>(scale)) {}

  static int64_t num_tiles(const at::Tensor& q) { return q.size(0) * q.size(1) * tiles_of_head(q); }
  static int64_t scratch_bytes(const at::Tensor& k) {
    Scratch scratch;
    ForwardMemory<T>(scratch, k.size(2), k.size(3));
    return scratch.bytes();
  }

  /// Computes the tiles from `begin` to `end` with scratch_bytes() of memory.
  void compute(int64_t begin, int64_t end, std::byte* memory) {
    Scratch scratch(memory);
    const ForwardMemory<T> mine(scratch, k_.size(2), k_.size(3));
    const ProductGuard<T> multiplying;
    const int64_t tiles = tiles_of_head(q_), heads = q_.size(1), group = heads / k_.size(1);
    int64_t prepared = -1;
    for (int64_t index = begin; index < end; ++index) {
      const int64_t row = index / tiles, batch = row / heads, head = row % heads;
      const int64_t kv_head = head / group;
      if (const int64_t kv_row = batch * k_.size(1) + kv_head; kv_row != prepared) {
        prepare(mine, batch, kv_head);
        prepared = kv_row;
      }
      compute_tile(mine, batch, head, kv_head, index % tiles * kTileRows);
    }
  }

 private:
  static int64_t tiles_of_head(const at::Tensor& q) { return (q.size(2) + kTileRows - 1) / kTileRows; }

  void prepare(const ForwardMemory<T>& mine, int64_t batch, int64_t kv_head) {
    const Matrix<const T> keys = Heads<const T>(k_).of(batch, kv_head);
    for_tiles(k_.size(2), [&](int64_t first, int64_t count) {
      transpose<Set>({keys.row(first), keys.stride}, count, k_.size(3), mine.keys_transposed.from(first));
    });
    if constexpr (kRowsTogether<T> == 2) {
      interleave(Heads<const T>(v_).of(batch, kv_head), k_.size(2), k_.size(3), mine.values);
    }
  }

  void compute_tile(const ForwardMemory<T>& mine, int64_t batch, int64_t head, int64_t kv_head, int64_t query) {
    const int64_t features = q_.size(3), rows = std::min(q_.size(2) - query, kTileRows);
    const int64_t visible = causal_ ? query + rows : k_.size(2);
    const Matrix<const T> queries =
        full_rows({Heads<const T>(q_).of(batch, head).row(query), q_.stride(2)}, rows, features, mine.queries);
    std::array<float, kTileRows> largest, sum;
    largest.fill(-std::numeric_limits<float>::infinity());
    sum.fill(0);
    const RunningSoftmax running{largest.data(), sum.data()};
    for (int64_t key = 0; key < visible; key += kTileColumns) {
      const int64_t columns = std::min(visible - key, kTileColumns);
      multiply<T>(padded(rows), padded(columns), features, queries, mine.keys_transposed.from(key), mine.scores, false);
      Matrix<T> p = mine.exponentials;
      Matrix<const T> values{mine.values.row(key / 2), mine.values.stride};
      if constexpr (kRowsTogether<T> == 1) {  // exponentials replace scores, and values are read where they lie
        p = mine.scores;
        values = {Heads<const T>(v_).of(batch, kv_head).row(key), v_.stride(2)};
      }
      exponentials<Set>(mine.scores, rows, columns, causal_ ? query - key + 1 : columns, causal_ ? 1 : 0,
                        scale_ * std::numbers::log2e_v<float>, running, p, mine.sums, features);
      multiply<T>(padded(rows), features, terms<T>(columns), p, values, mine.sums, key > 0);
    }
    const Matrix<T> out{Heads<T>(out_).of(batch, head).row(query), out_.stride(2)};
    float* const lse = lse_.data_ptr<float>() + batch * lse_.stride(0) + head * lse_.stride(1);
    finish<Set>(running, mine.sums, rows, features, scale_, out, lse + query * lse_.stride(2), lse_.stride(2));
  }

  const at::Tensor &q_, &k_, &v_, &out_, &lse_;
  bool causal_;
  float scale_;
};

template <class Set, class T>
void compute_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal, double scale,
                     const at::Tensor& out, const at::Tensor& lse) {
  using Part = Forward<Set, T>;
  for_ranges(q, Part::num_tiles(q), Part::scratch_bytes(k), [&](int64_t begin, int64_t end, std::byte* memory) {
    Part(q, k, v, causal, scale, out, lse).compute(begin, end, memory);
  });
}

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                                           double scale) {
  TORCH_CHECK(k.sizes() == v.sizes() && q.size(3) == k.size(3) && q.size(1) % k.size(1) == 0 &&
                  (!causal || q.size(2) == k.size(2)),
              "host_attention: queries are ", q.sizes(), ", keys ", k.sizes(), ", values ", v.sizes());
  at::Tensor out = empty_by_position(q);
  at::Tensor lse = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat)).transpose(1, 2);
  for_elements(q.scalar_type(),
               [&]<class Set, class T>(Set, T) { compute_forward<Set, T>(q, k, v, causal, scale, out, lse); });
  return {std::move(out), std::move(lse)};
}

/// Returns true when the loops and products can read the rows of a tensor [B, heads, n, D], D contiguous. Rows must
/// fill registers of floats, or registers of pairs of halves; strides of halves must be even.
bool can_be_read(const at::Tensor& tensor) {
  const int64_t together = tensor.scalar_type() == at::kFloat ? 1 : 2;
  const auto is_full = [&](int64_t stride) { return stride % together == 0; };
  return tensor.size(3) % (together * kLanes) == 0 && tensor.stride(2) >= tensor.size(3) &&
         std::ranges::all_of(tensor.strides().slice(0, 3), is_full);
}

/// Returns true when LibTorch multiplies halves in pairs: not where oneDNN is kept from the processor's instructions.
bool multiplies_pairs() {
  static const bool multiplies = [] {
    std::array<c10::BFloat16, 2 * kLanes * kLanes> halves{};
    std::array<float, kLanes * kLanes> sums{};
    try {
      const ProductGuard<c10::BFloat16> multiplying;
      multiply<c10::BFloat16>(kLanes, kLanes, kLanes, {halves.data(), kLanes}, {halves.data(), 2 * kLanes},
                              {sums.data(), kLanes}, false);
    } catch (const std::exception&) {  // of LibTorch or of oneDNN
      return false;
    }
    return true;
  }();
  return multiplies;
}

}  // namespace

bool has_attention_loops(at::ScalarType dtype) {
  return dtype == at::kFloat ? has_lanes(dtype) : dtype == at::kBFloat16 && lane_set(dtype) == LaneSet::Avx512;
}

bool host_attention_takes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return has_attention_loops(q.scalar_type()) && (q.scalar_type() == at::kFloat || multiplies_pairs()) &&
         is_host(q.device()) && q.size(2) >= kFewest && k.size(2) >= kFewest && q.size(3) <= kMostFeatures &&
         can_be_read(q) && can_be_read(k) && can_be_read(v);
}

AttentionResult host_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                               double scale) {
  static const Operator<decltype(forward)> operation("meshtrain::host_attention");
  auto [out, lse] = operation(q, k, v, causal, scale);
  return {std::move(out), std::move(lse)};
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&forward, &forward>(
      library, "host_attention(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> (Tensor, Tensor)");
}

}  // namespace meshtrain
