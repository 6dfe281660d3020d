#include <algorithm>
#include <limits>
#include <numbers>
#include <tuple>
#include <utility>

#include "context_parallel/host_attention.h"
#include "context_parallel/host_heads.h"
#include "mesh/device/aten.h"
#include "mesh/device/operator.h"

namespace meshtrain {
namespace {

using namespace host_tiles;

/// The memory of a thread of the backward. Halves need operands in more than one order, and sums in fp32.
template <class T>
struct BackwardMemory {
  BackwardMemory(Scratch& scratch, int64_t num_queries, int64_t num_keys, int64_t features)
      : keys_transposed(scratch.tiles<T>(features, num_keys)),
        key_pairs(scratch.tiles<T>(kHalves ? features / 2 : 0, num_keys, 2)),
        queries_transposed(scratch.tiles<T>(features / kRowsTogether<T>, num_queries, kRowsTogether<T>)),
        outputs_transposed(scratch.tiles<T>(features / kRowsTogether<T>, num_queries, kRowsTogether<T>)),
        dq_transposed(scratch.tiles<float>(features, num_queries)),
        keys(scratch.rows<T>(kTileRows, features)),
        values(scratch.rows<T>(kTileRows, features)),
        queries(scratch.rows<T>(kHalves ? padded(num_queries) / 2 : 0, 2 * features)),
        outputs(scratch.rows<T>(kHalves ? padded(num_queries) / 2 : 0, 2 * features)),
        dk(scratch.rows<float>(padded(num_keys), features)),
        dv(scratch.rows<float>(padded(num_keys), features)),
        lse(scratch.rows<float>(1, padded(num_queries))),
        row_product(scratch.rows<float>(1, padded(num_queries))),
        scores(scratch.rows<float>(kTileRows, kTileColumns)),
        products(scratch.rows<float>(kTileRows, kTileColumns)),
        p(scratch.rows<T>(kHalves ? kTileRows : 0, kTileColumns)),
        ds(scratch.rows<T>(kHalves ? kTileRows : 0, kTileColumns)),
        ds_pairs(scratch.rows<T>(kHalves ? kTileRows / 2 : 0, 2 * kTileColumns)) {}

  static constexpr bool kHalves = kRowsTogether<T> == 2;

  Tiles<T> keys_transposed, key_pairs, queries_transposed, outputs_transposed;  ///< of K, K, Q and dO [D, n]
  Tiles<float> dq_transposed;
  Matrix<T> keys, values;      ///< a tile of each
  Matrix<T> queries, outputs;  ///< right operands [n, D] of Q and dO
  Matrix<float> dk, dv, lse, row_product, scores, products;
  Matrix<T> p, ds, ds_pairs;
};

/// The tensors of a backward: inputs and results.
struct BackwardTensors {
  const at::Tensor &grad_out, &q, &k, &v, &out, &lse;
  at::Tensor dq, dk, dv;
};

/// The backward over some KV heads, with all query heads that share them.
template <class Set, class T>
class Backward {
 public:
  Backward(const BackwardTensors& tensors, bool causal, double scale)
      : t_(tensors), causal_(causal), scale_(static_cast<float>(scale)) {}

  static int64_t scratch_bytes(const at::Tensor& q, const at::Tensor& k) {
    Scratch scratch;
    BackwardMemory<T>(scratch, q.size(2), k.size(2), k.size(3));
    return scratch.bytes();
  }

  /// Computes the KV heads from `begin` to `end` of all batch rows with scratch_bytes() of memory.
  void compute(int64_t begin, int64_t end, std::byte* memory) {
    Scratch scratch(memory);
    const BackwardMemory<T> mine(scratch, t_.q.size(2), t_.k.size(2), t_.k.size(3));
    const ProductGuard<T> multiplying;
    for (int64_t row = begin; row < end; ++row) compute_kv_head(mine, row / t_.k.size(1), row % t_.k.size(1));
  }

 private:
  void compute_kv_head(const BackwardMemory<T>& mine, int64_t batch, int64_t kv_head) {
    const int64_t keys = t_.k.size(2), features = t_.k.size(3), group = t_.q.size(1) / t_.k.size(1);
    const Matrix<const T> k = Heads<const T>(t_.k).of(batch, kv_head);
    for_tiles(keys, [&](int64_t first, int64_t count) {
      const Matrix<const T> tile{k.row(first), k.stride};
      if constexpr (kRowsTogether<T> == 1) {
        transpose<Set>(tile, count, features, mine.keys_transposed.from(first));
      } else {
        transpose<Set>(tile, count, features, mine.key_pairs.from(first));
        take_apart(mine.key_pairs.from(first), count, features, mine.keys_transposed.from(first));
      }
    });
    for (int64_t i = 0; i < group; ++i) compute_head(mine, batch, kv_head, kv_head * group + i, i > 0);
    round_rows<Set>(mine.dk, keys, features, Heads<T>(t_.dk).of(batch, kv_head));
    round_rows<Set>(mine.dv, keys, features, Heads<T>(t_.dv).of(batch, kv_head));
  }

  /// Computes dq of a query head, and writes or adds its shares of dk and dv.
  void compute_head(const BackwardMemory<T>& mine, int64_t batch, int64_t kv_head, int64_t head, bool add) {
    const int64_t queries = t_.q.size(2), keys = t_.k.size(2), features = t_.k.size(3);
    const Matrix<const T> k = Heads<const T>(t_.k).of(batch, kv_head), v = Heads<const T>(t_.v).of(batch, kv_head);
    const auto [q_right, out_right] = prepare(mine, batch, head);
    for (int64_t key = 0; key < keys; key += kTileRows) {
      const int64_t rows = std::min(keys - key, kTileRows), begin = causal_ ? key : 0;
      const Matrix<const T> key_rows = full_rows({k.row(key), k.stride}, rows, features, mine.keys);
      const Matrix<const T> value_rows = full_rows({v.row(key), v.stride}, rows, features, mine.values);
      for (int64_t query = begin, columns = 0; query < queries; query += columns) {
        columns = std::min(queries - query, kTileColumns - query % kTileColumns);
        multiply<T>(padded(rows), padded(columns), features, key_rows, mine.queries_transposed.from(query), mine.scores,
                    false);
        multiply<T>(padded(rows), padded(columns), features, value_rows, mine.outputs_transposed.from(query),
                    mine.products, false);
        const TileGradients tile{mine.scores, mine.products, mine.lse.data + query, mine.row_product.data + query,
                                 scale_};
        const int64_t first = causal_ ? key - query : -kTileRows;
        Matrix<T> p = mine.p, ds = mine.ds, ds_right = mine.ds_pairs;
        if constexpr (kRowsTogether<T> == 1) {
          p = mine.scores, ds = ds_right = mine.products;
          tile_gradients<Set>(tile, rows, columns, first, p, ds);
        } else {
          tile_gradients(tile, rows, columns, first, p, ds, ds_right);
        }
        const bool add_rows = add || query > begin;
        multiply<T>(padded(rows), features, terms<T>(columns), p, from_row(out_right, query),
                    {mine.dv.row(key), mine.dv.stride}, add_rows);
        multiply<T>(padded(rows), features, terms<T>(columns), ds, from_row(q_right, query),
                    {mine.dk.row(key), mine.dk.stride}, add_rows);
        multiply<T>(features, padded(columns), terms<T>(rows), mine.keys_transposed.from(key), ds_right,
                    mine.dq_transposed.from(query), key > 0);
      }
    }
    const Matrix<T> dq = Heads<T>(t_.dq).of(batch, head);
    for_tiles(queries, [&](int64_t first, int64_t count) {
      transpose_back<Set>(mine.dq_transposed.from(first), count, features, Matrix<T>{dq.row(first), dq.stride});
    });
  }

  /// Brings a query head's operands into the orders that its products need; returns the right operands [n, D] of Q and
  /// dO.
  std::pair<Matrix<const T>, Matrix<const T>> prepare(const BackwardMemory<T>& mine, int64_t batch, int64_t head) {
    const int64_t queries = t_.q.size(2), features = t_.q.size(3);
    const Matrix<const T> q = Heads<const T>(t_.q).of(batch, head), out = Heads<const T>(t_.out).of(batch, head);
    const Matrix<const T> grad_out = Heads<const T>(t_.grad_out).of(batch, head);
    for_tiles(queries, [&](int64_t first, int64_t count) {
      transpose<Set>({q.row(first), q.stride}, count, features, mine.queries_transposed.from(first));
      transpose<Set>({grad_out.row(first), grad_out.stride}, count, features, mine.outputs_transposed.from(first));
    });
    row_products<Set>(grad_out, out, queries, features, mine.row_product.data);
    const float* const lse = t_.lse.const_data_ptr<float>() + batch * t_.lse.stride(0) + head * t_.lse.stride(1);
    for (int64_t i = 0; i < queries; ++i) mine.lse.data[i] = lse[i * t_.lse.stride(2)] * std::numbers::log2e_v<float>;
    std::fill(mine.lse.data + queries, mine.lse.data + padded(queries), std::numeric_limits<float>::infinity());
    std::fill(mine.row_product.data + queries, mine.row_product.data + padded(queries), 0.0F);
    if constexpr (kRowsTogether<T> == 1) {
      return {q, grad_out};
    } else {
      interleave(q, queries, features, mine.queries);
      interleave(grad_out, queries, features, mine.outputs);
      return {mine.queries, mine.outputs};
    }
  }

  const BackwardTensors& t_;
  bool causal_;
  float scale_;
};

template <class Set, class T>
void compute_backward(const BackwardTensors& tensors, bool causal, double scale) {
  using Part = Backward<Set, T>;
  for_ranges(
      tensors.q, tensors.k.size(0) * tensors.k.size(1), Part::scratch_bytes(tensors.q, tensors.k),
      [&](int64_t begin, int64_t end, std::byte* memory) { Part(tensors, causal, scale).compute(begin, end, memory); });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& grad_out, const at::Tensor& q,
                                                        const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                                                        const at::Tensor& lse, bool causal, double scale) {
  TORCH_CHECK(
      grad_out.sizes() == q.sizes() && out.sizes() == q.sizes() && grad_out.stride(3) == 1 && out.stride(3) == 1,
      "host_attention_backward: queries are ", q.sizes(), ", the output ", out.sizes(), ", its gradient ",
      grad_out.sizes());
  BackwardTensors tensors{
      grad_out, q, k, v, out, lse, empty_by_position(q), empty_by_position(k), empty_by_position(v)};
  for_elements(q.scalar_type(), [&]<class Set, class T>(Set, T) { compute_backward<Set, T>(tensors, causal, scale); });
  return {std::move(tensors.dq), std::move(tensors.dk), std::move(tensors.dv)};
}

}  // namespace

AttentionGradients host_attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const AttentionResult& attended, bool causal,
                                           double scale) {
  TORCH_CHECK(grad_out.scalar_type() == q.scalar_type() && attended.out.scalar_type() == q.scalar_type(),
              "host_attention_backward: q is ", q.scalar_type(), ", its output ", attended.out.scalar_type(),
              " with gradients of ", grad_out.scalar_type());
  static const Operator<decltype(backward)> operation("meshtrain::host_attention_backward");
  auto [dq, dk, dv] = operation(grad_out, q, k, v, attended.out, attended.lse, causal, scale);
  return {std::move(dq), std::move(dk), std::move(dv)};
}

TORCH_LIBRARY_FRAGMENT(meshtrain, library) {
  define<&backward, &backward>(library,
                               "host_attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, "
                               "Tensor lse, bool causal, float scale) -> (Tensor, Tensor, Tensor)");
}

}  // namespace meshtrain
