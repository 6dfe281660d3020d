#include "context_parallel/capped_attention.h"

#include <algorithm>
#include <limits>

#include "mesh/device/aten.h"
#include "mesh/device/half_precision.h"

namespace meshtrain {
namespace {

/// Queries [begin, end) of a block, and the keys [key, key_end) that they see: no others are computed.
struct Tile {
  int64_t begin, end, key, key_end;
};

std::vector<Tile> tiles_of(const at::Tensor& q, int64_t num_keys, Pairs pairs, int64_t window) {
  const int64_t num_queries = q.size(2), scores_of_query = q.size(0) * q.size(1) * num_keys;
  const int64_t count = std::max<int64_t>(1, kMostScores / std::max<int64_t>(1, scores_of_query));
  std::vector<Tile> tiles;
  for (int64_t begin = 0; begin < num_queries; begin += count) {
    const int64_t end = std::min(begin + count, num_queries);
    if (pairs == Pairs::All) {
      tiles.push_back({begin, end, 0, num_keys});
    } else {
      tiles.push_back({begin, end, window > 0 ? std::max<int64_t>(begin - window + 1, 0) : 0, end});
    }
  }
  return tiles;
}

/// Attention of one block, with query heads that share a KV head as rows of one matrix, [B, K, H / K * n, ...].
class CappedBlock {
 public:
  CappedBlock(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Pairs pairs, const AttentionRule& rule)
      : dtype_(accumulation_dtype(q.scalar_type())),
        pairs_(pairs),
        rule_(rule),
        q_(q),
        k_(k.to(dtype_)),
        v_(v.to(dtype_)),
        tiles_(tiles_of(q, k.size(2), pairs, rule.window)) {}

  const std::vector<Tile>& tiles() const { return tiles_; }
  at::ScalarType dtype() const { return dtype_; }

  /// Returns the queries of a tile of `tensor` [B, H, n, ...] as rows of their KV heads.
  at::Tensor rows_of(const at::Tensor& tensor, const Tile& tile) const {
    const at::Tensor part = tensor.narrow(2, tile.begin, tile.end - tile.begin).to(dtype_);
    return part.unflatten(1, {k_.size(1), -1}).flatten(2, 3);
  }
  /// Does the inverse.
  at::Tensor queries_of(const at::Tensor& rows) const {
    return rows.unflatten(2, {q_.size(1) / k_.size(1), -1}).flatten(1, 2);
  }
  at::Tensor queries(const Tile& tile) const { return rows_of(q_, tile); }
  at::Tensor keys(const Tile& tile) const { return k_.narrow(2, tile.key, tile.key_end - tile.key); }
  at::Tensor values(const Tile& tile) const { return v_.narrow(2, tile.key, tile.key_end - tile.key); }

  /// Returns tanh(score / softcap) for all pairs of a tile.
  at::Tensor bent(const Tile& tile) const {
    return queries(tile).matmul(keys(tile).transpose(2, 3)).mul_(rule_.scale / rule_.softcap).tanh_();
  }
  /// Returns the capped scores; minus infinity for pairs that do not count.
  at::Tensor capped(const at::Tensor& bent, const Tile& tile) const {
    const at::Tensor scores = bent.mul(rule_.softcap);
    if (pairs_ == Pairs::All) return scores;
    const at::TensorOptions options = q_.options().dtype(at::kLong);
    const at::Tensor distance =
        at::arange(tile.begin, tile.end, options).unsqueeze(1) - at::arange(tile.key, tile.key_end, options);  // [n, m]
    at::Tensor hidden = distance.lt(0);
    if (rule_.window > 0) hidden.bitwise_or_(distance.ge(rule_.window));
    const int64_t sharing = q_.size(1) / k_.size(1);
    scores.unflatten(2, {sharing, -1}).masked_fill_(hidden, -std::numeric_limits<double>::infinity());
    return scores;
  }

 private:
  at::ScalarType dtype_;
  Pairs pairs_;
  AttentionRule rule_;
  at::Tensor q_, k_, v_;
  std::vector<Tile> tiles_;
};

}  // namespace

AttentionResult attend_capped(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, Pairs pairs,
                              const AttentionRule& rule) {
  const CappedBlock block(q, k, v, pairs, rule);
  AttentionResult all{empty_by_position(q, block.dtype()),
                      at::empty(q.sizes().slice(0, 3), q.options().dtype(block.dtype()))};
  for (const Tile& tile : block.tiles()) {
    const at::Tensor scores = block.capped(block.bent(tile), tile);
    const at::Tensor largest = scores.amax(3, /*keepdim=*/true);
    const at::Tensor shares = scores.sub_(largest).exp_(), sum = shares.sum(3, /*keepdim=*/true);
    const at::Tensor out = shares.matmul(block.values(tile)).div_(sum), lse = sum.log().add_(largest);
    const int64_t count = tile.end - tile.begin;
    all.out.narrow(2, tile.begin, count).copy_(block.queries_of(out));
    all.lse.narrow(2, tile.begin, count).copy_(block.queries_of(lse).squeeze(3));
  }
  return all;
}

AttentionGradients attend_capped_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionResult& attended, Pairs pairs,
                                          const AttentionRule& rule) {
  const CappedBlock block(q, k, v, pairs, rule);
  AttentionGradients all{empty_by_position(q, block.dtype()), empty_by_position(k, block.dtype()).zero_(),
                         empty_by_position(v, block.dtype()).zero_()};
  for (const Tile& tile : block.tiles()) {
    const at::Tensor grad = block.rows_of(grad_out, tile), bent = block.bent(tile);
    const at::Tensor lse = block.rows_of(attended.lse.unsqueeze(3), tile);
    const at::Tensor shares = block.capped(bent, tile).sub_(lse).exp_();
    const at::Tensor delta = (grad * block.rows_of(attended.out, tile)).sum(3, /*keepdim=*/true);
    const at::Tensor of_shares = grad.matmul(block.values(tile).transpose(2, 3)).sub_(delta);
    // The cap's derivative is 1 - tanh^2.
    const at::Tensor of_scores = of_shares.mul_(shares).mul_(bent.square().neg_().add_(1)).mul_(rule.scale);
    const int64_t num_keys = tile.key_end - tile.key;
    all.q.narrow(2, tile.begin, tile.end - tile.begin).copy_(block.queries_of(of_scores.matmul(block.keys(tile))));
    all.k.narrow(2, tile.key, num_keys).add_(of_scores.transpose(2, 3).matmul(block.queries(tile)));
    all.v.narrow(2, tile.key, num_keys).add_(shares.transpose(2, 3).matmul(grad));
  }
  return all;
}

}  // namespace meshtrain
