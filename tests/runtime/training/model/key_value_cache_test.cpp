#include "runtime/training/model/key_value_cache.h"

#include <gtest/gtest.h>

#include "context_parallel/attention.h"
#include "mesh/device/aten.h"
#include "tests/support/dtype_tolerance.h"
#include "tests/support/world.h"

namespace meshtrain::testing {
namespace {

constexpr int64_t kCached = 23;

// Positions in pieces of any size give the attention of training.
TEST(KeyValueCache, HonoursWindowSoftcapAndSinks) {
  ModelShape shape;
  shape.num_hidden_layers = 1;
  shape.num_key_value_heads = 2;
  shape.head_dim = 8;
  const at::Tensor q = random_tensor({1, 4, kCached, 8}, 1), k = random_tensor({1, 2, kCached, 8}, 2);
  const at::Tensor v = random_tensor({1, 2, kCached, 8}, 3);
  const at::Tensor sinks = random_tensor({4}, 4);
  for (const auto& [softcap, sinks_of] : {std::pair<double, at::Tensor>{0, {}}, {0.7, {}}, {0, sinks}, {0.7, sinks}}) {
    for (const int64_t window : {0, 1, 2, 3, 7, 8, 22, 23, 100}) {
      const AttentionRule rule{0.35, window, softcap, sinks_of};
      const at::Tensor wanted =
          attention(q, k, v, SequenceLayout::unsharded(kCached), Group(), ContextAlgorithm::Ring, rule);
      for (const int64_t at_once : {1, 2, 7, 22, 23}) {
        SCOPED_TRACE(::testing::Message() << "window " << window << " softcap " << softcap << " sinks "
                                          << sinks_of.defined() << " pieces of " << at_once);
        KeyValueCache cache(shape, /*tp=*/1, kCached, q.options());
        for (int64_t begin = 0; begin < kCached; begin += at_once) {
          const int64_t count = std::min(at_once, kCached - begin);
          const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(2, begin, count); };
          const at::Tensor found = cache.attend(0, part(q), part(k), part(v), rule);
          EXPECT_LE(relative_error(found, part(wanted)), 1e-12) << "from " << begin;
        }
      }
    }
  }
}

}  // namespace
}  // namespace meshtrain::testing
