// Attention inside packed documents: variable-length calls against one call per document on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "context_parallel/block_attention.h"
#include "context_parallel/local.h"
#include "mesh/device/aten.h"
#include "mesh/device/cuda/plugin.h"
#include "tests/gpu/kernel_counter.h"
#include "tests/gpu/reference.h"

namespace meshtrain::testing {
namespace {

constexpr double kPackedScale = 0.1;
constexpr char kFlashForward[] = "_flash_attention_forward", kFlashBackward[] = "_flash_attention_backward";
const std::vector<DtypeTolerance> kHalves = {{at::kBFloat16, 1e-2}, {at::kHalf, 2e-3}};

/// Returns q, k, v and the gradient of the output: [rows, heads, D], parts of larger tensors.
std::vector<at::Tensor> made(int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads, int64_t head_dim,
                             at::ScalarType dtype) {
  const auto of = [&](int64_t count, int64_t rows) {
    return fresh({rows, count + 1, head_dim}).to(dtype).to(gpu()).narrow(1, 0, count);
  };
  return {of(heads, queries), of(kv_heads, keys), of(kv_heads, keys), of(heads, queries)};
}

at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.to(at::kCPU).to(at::kDouble);
}

/// Returns the begin of each sequence of these lengths, and the end of the last.
at::Tensor ends_of(const std::vector<int64_t>& lengths) {
  std::vector<int> ends = {0};
  for (const int64_t length : lengths) ends.push_back(ends.back() + static_cast<int>(length));
  return at::tensor(ends, at::kInt).to(gpu());
}

struct Packed {
  std::vector<int64_t> queries, keys;  // of each sequence
  bool causal;
};

TEST(PackedAttentionOnGpu, IsAttentionOfEachSequence) {
  const std::vector<Packed> all = {
      {{1, 2, 37, 560, 1, 129}, {1, 2, 37, 560, 1, 129}, true},  // documents
      {{1, 1, 1}, {1, 1, 1}, true},                              // documents of one token
      {{640}, {640}, true},
      {{5, 300}, {513, 64}, false},  // rectangles: causal would have another meaning
      {{1, 1}, {7, 200}, false},
  };
  struct Heads {
    int64_t heads, kv_heads, head_dim;
  };
  for (const auto& [dtype, tolerance] : kHalves) {
    for (const auto& [heads, kv_heads, head_dim] :
         {Heads{4, 2, 64}, Heads{2, 2, 128}, Heads{3, 1, 8}, Heads{2, 1, 256}}) {
      for (const Packed& packed : all) {
        const at::Tensor query_ends = ends_of(packed.queries), key_ends = ends_of(packed.keys);
        const PackedLengths lengths{query_ends, key_ends, *std::ranges::max_element(packed.queries),
                                    *std::ranges::max_element(packed.keys)};
        const std::vector<at::Tensor> device =
            made(std::reduce(packed.queries.begin(), packed.queries.end()),
                 std::reduce(packed.keys.begin(), packed.keys.end()), heads, kv_heads, head_dim, dtype);
        poison({device[0], device[1]});
        const AttentionResult seen =
            attend_packed(device[0], device[1], device[2], lengths, packed.causal, {kPackedScale});
        ASSERT_EQ(seen.lse.sizes(), at::IntArrayRef({heads, device[0].size(0)}));
        ASSERT_EQ(seen.lse.scalar_type(), at::kFloat);
        EXPECT_TRUE(seen.out.is_contiguous());
        // The backward gets results over all keys: here, as if there were more keys than these.
        const AttentionResult given{seen.out, seen.lse + 0.5};
        poison({device[0], device[1]});
        const AttentionGradients gradients = attend_packed_backward(device[3], device[0], device[1], device[2], given,
                                                                    lengths, packed.causal, {kPackedScale});
        int64_t query = 0, key = 0;
        std::vector<at::Tensor> outs, lses, dqs, dks, dvs;
        for (size_t i = 0; i < packed.queries.size(); ++i) {
          const int64_t n = packed.queries[i], m = packed.keys[i];
          const auto of = [](const at::Tensor& tensor, int64_t first, int64_t count) {
            return on_host(tensor).narrow(0, first, count).transpose(0, 1).unsqueeze(0);
          };
          const at::Tensor q = of(device[0], query, n), k = of(device[1], key, m), v = of(device[2], key, m);
          const AttentionResult wanted = attend(q, k, v, packed.causal ? Pairs::Causal : Pairs::All, {kPackedScale});
          const AttentionGradients expected =
              attend_backward(of(device[3], query, n), q, k, v, {of(seen.out, query, n), wanted.lse + 0.5},
                              packed.causal ? Pairs::Causal : Pairs::All, {kPackedScale});
          const auto back = [](const at::Tensor& tensor) { return tensor[0].transpose(0, 1); };
          outs.push_back(back(wanted.out));
          lses.push_back(wanted.lse[0]);
          dqs.push_back(back(expected.q));
          dks.push_back(back(expected.k));
          dvs.push_back(back(expected.v));
          query += n;
          key += m;
        }
        const std::string what = c10::str(dtype, " ", device[0].sizes(), " ", device[1].sizes(), " in ",
                                          packed.queries.size(), packed.causal ? " causal" : "");
        const at::Tensor dv = at::cat(dvs);
        const auto near = [&](const at::Tensor& found, const std::vector<at::Tensor>& parts) {
          const at::Tensor expected = at::cat(parts);
          // Gradients of q and k are zero for sequences with one key: their error is relative to the gradient of v.
          const bool zero = expected.norm().item<double>() < 1e-9 * dv.norm().item<double>();
          return zero ? on_host(found).norm().item<double>() / dv.norm().item<double>() : error_of(found, expected);
        };
        EXPECT_LE(near(seen.out, outs), tolerance) << what;
        EXPECT_LE(error_of(seen.lse, at::cat(lses, 1)), 1e-3) << what;
        EXPECT_LE(near(gradients.q, dqs), tolerance) << what;
        EXPECT_LE(near(gradients.k, dks), tolerance) << what;
        EXPECT_LE(near(gradients.v, dvs), tolerance) << what;
      }
    }
  }
}

// All ranks of a ring, one after the other: lengths of 1, 2 and 512 and more, documents across chunks, different
// documents in each row.
TEST(PackedAttentionOnGpu, PassesOfARingAreAsOnTheHost) {
  constexpr int64_t kLength = 640, kBatch = 3, kHeads = 4, kKvHeads = 2, kHeadDim = 16;
  constexpr int kRanks = 2;
  const auto tensors = [&](int64_t heads) { return fresh({kBatch, kLength, heads, kHeadDim}); };
  const std::vector<at::Tensor> full = {tensors(kHeads), tensors(kKvHeads), tensors(kKvHeads), tensors(kHeads)};
  for (const auto& [dtype, tolerance] : kHalves) {
    for (const auto kind : {SequenceLayout::Kind::Contiguous, SequenceLayout::Kind::ZigZag}) {
      for (int rank = 0; rank < kRanks; ++rank) {
        const SequenceLayout layout =
            SequenceLayout(kind, kLength, kRanks, rank).with_documents({{1, 3, 40, 580, 581}, {}, {400}});
        const auto run = [&](at::Device device, at::ScalarType numbers) {
          const auto local = [&](const at::Tensor& tensor, int of) {
            const at::Tensor part = SequenceLayout(kind, kLength, kRanks, of).take(tensor, 1);
            return part.to(dtype).to(numbers).to(device).transpose(1, 2);
          };
          const at::Tensor q = local(full[0], rank), grad = local(full[3], rank);
          const auto calls = [&](int hop) {
            return hop_calls(layout, kBatch, (rank + hop) % kRanks, kernel_call_options(q, layout, {kPackedScale}));
          };
          RunningAttention running(q, {kPackedScale});
          for (int hop = 0; hop < kRanks; ++hop) {
            const int source = (rank + hop) % kRanks;
            for (const KernelCall& call : calls(hop)->calls)
              running.add(call, local(full[1], source), local(full[2], source));
          }
          const AttentionResult attended = running.finish();
          std::vector<at::Tensor> results = {attended.out, attended.lse};
          RunningGradients gradients(grad, q, attended, {kPackedScale});
          for (int hop = 0; hop < kRanks; ++hop) {
            const int source = (rank + hop) % kRanks;
            const at::Tensor k = local(full[1], source), v = local(full[2], source);
            const at::Tensor dk = at::zeros(k.sizes(), attended.lse.options()), dv = at::zeros_like(dk);
            for (const KernelCall& call : calls(hop)->calls) gradients.add(call, k, v, dk, dv);
            results.insert(results.end(), {dk, dv});
          }
          results.push_back(gradients.queries());
          return results;
        };
        const KernelCounter calls;
        const std::vector<at::Tensor> seen = run(gpu(), dtype);
        EXPECT_LE(calls.count(kFlashForward), 2 * kRanks);
        EXPECT_EQ(calls.all(), calls.count(kFlashForward) + calls.count(kFlashBackward)) << "of another kernel";
        const std::vector<at::Tensor> wanted = run(at::kCPU, at::kDouble);
        for (size_t i = 0; i < seen.size(); ++i) {
          if (wanted[i].count_nonzero().item<int64_t>() == 0) {
            EXPECT_EQ(seen[i].count_nonzero().item<int64_t>(), 0) << i;
          } else {
            EXPECT_LE(error_of(seen[i], wanted[i]), tolerance) << i << " " << dtype << " rank " << rank;
          }
        }
      }
    }
  }
}

/// Runs one rank's attention, forward and backward, over documents with these starts.
void run_local(const std::vector<int64_t>& starts, int64_t length, at::ScalarType dtype, int64_t head_dim = 64) {
  const SequenceLayout layout = SequenceLayout::unsharded(length).with_documents({starts});
  const at::Tensor q = fresh({1, length, 2, head_dim}).to(dtype).to(gpu()).transpose(1, 2);
  LocalAttention local(layout, 1, {kPackedScale}, kernel_call_options(q, layout, {kPackedScale}));
  AttentionCall::Forward forward = local.forward(q, q, q);
  local.backward(q, forward.saved);
}

// cuDNN builds and keeps a plan for each exact shape; flash and Efficient keep nothing.
TEST(PackedAttentionOnGpu, CuDnnNeverSeesADividedSample) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const int64_t head_dim : {64, 264}) {
      const KernelCounter calls;
      for (const int64_t first : {513, 600, 700}) run_local({first}, 1300, dtype, head_dim);
      const bool packed = dtype != at::kFloat && head_dim <= 256;
      EXPECT_EQ(calls.cudnn(), 0) << dtype;
      EXPECT_EQ(calls.count(kFlashForward), packed ? 3 : 0) << dtype << " " << head_dim;
      EXPECT_EQ(calls.count(kFlashBackward), packed ? 3 : 0) << dtype << " " << head_dim;
    }
  }
  const KernelCounter calls;
  run_local({}, 1300, at::kBFloat16);
  EXPECT_GE(calls.cudnn(), 2) << "nothing is divided";
  EXPECT_EQ(calls.count(kFlashForward), 0);
}

TEST(PackedAttentionOnGpu, CallsAreFewWhateverTheDocuments) {
  std::vector<int64_t> tokens;
  for (int64_t i = 1; i < 300; ++i) tokens.push_back(i);
  for (const std::vector<int64_t>& starts : {std::vector<int64_t>{1}, {1, 3, 70, 200}, tokens}) {
    const KernelCounter calls;
    run_local(starts, 300, at::kBFloat16);
    EXPECT_EQ(calls.count(kFlashForward), 1);
    EXPECT_EQ(calls.count(kFlashBackward), 1);
  }
}

// Halves have flash's own window, other numbers tiles. The second row is one document.
TEST(PackedAttentionOnGpu, WindowsAreAsOnTheHost) {
  constexpr int64_t kLength = 700;
  const auto tensors = [](int64_t heads) { return fresh({2, kLength, heads, 64}); };
  const std::vector<at::Tensor> full = {tensors(4), tensors(2), tensors(2), tensors(4)};
  for (const auto& [dtype, tolerance] : std::vector<DtypeTolerance>{{at::kFloat, 1e-4}, {at::kBFloat16, 1e-2}}) {
    for (const bool divided : {false, true}) {
      for (const int64_t window : {2, 100, 513}) {
        const AttentionRule rule{kPackedScale, window};
        SequenceLayout layout = SequenceLayout::unsharded(kLength);
        if (divided) layout = layout.with_documents({{1, 40, 300}, {}});
        const auto run = [&](at::Device device, at::ScalarType numbers) {
          std::vector<at::Tensor> of;
          for (const at::Tensor& tensor : full) of.push_back(tensor.to(dtype).to(numbers).to(device).transpose(1, 2));
          LocalAttention local(layout, 2, rule, kernel_call_options(of[0], layout, rule));
          const AttentionCall::Forward forward = local.forward(of[0], of[1], of[2]);
          const AttentionGradients gradients = local.backward(of[3], forward.saved);
          return std::vector<at::Tensor>{forward.out, gradients.q, gradients.k, gradients.v};
        };
        const KernelCounter calls;
        const std::vector<at::Tensor> seen = run(gpu(), dtype);
        EXPECT_EQ(calls.count(kFlashForward), dtype == at::kFloat ? 0 : 1);
        EXPECT_EQ(calls.cudnn(), 0);
        const std::vector<at::Tensor> wanted = run(at::kCPU, at::kDouble);
        for (size_t i = 0; i < seen.size(); ++i) {
          EXPECT_LE(error_of(seen[i], wanted[i]), tolerance) << i << " " << dtype << " window " << window;
        }
      }
    }
  }
}

// In fp32 the tiles of a window are the batch of one call. CUDA's grid takes 65,535; LibTorch 2.11 divides larger
// calls.
TEST(PackedAttentionOnGpu, WindowsOfManyTilesAreAsOnTheHost) {
  constexpr int64_t kWindow = 2, kLength = kWindow * 65537;
  const AttentionRule rule{kPackedScale, kWindow};
  std::vector<at::Tensor> full;
  for (int i = 0; i < 4; ++i) full.push_back(fresh({1, kLength, 1, 4}));
  const auto run = [&](at::Device device, at::ScalarType dtype) {
    std::vector<at::Tensor> of;
    for (const at::Tensor& tensor : full) of.push_back(tensor.to(at::kFloat).to(dtype).to(device).transpose(1, 2));
    LocalAttention local(SequenceLayout::unsharded(kLength), 1, rule,
                         kernel_call_options(of[0], SequenceLayout::unsharded(kLength), rule));
    const AttentionCall::Forward forward = local.forward(of[0], of[1], of[2]);
    const AttentionGradients gradients = local.backward(of[3], forward.saved);
    return std::vector<at::Tensor>{forward.out, gradients.q, gradients.k, gradients.v};
  };
  const std::vector<at::Tensor> seen = run(gpu(), at::kFloat), wanted = run(at::kCPU, at::kDouble);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_LE(error_of(seen[i], wanted[i]), 1e-4) << i;
}

// A capture fails on everything that the host would have to wait for.
TEST(PackedAttentionOnGpu, TheHostDoesNotWait) {
  const SequenceLayout layout = SequenceLayout::unsharded(600).with_documents({{1, 40}, {599}});
  const at::Tensor q = fresh({2, 600, 2, 64}).to(at::kBFloat16).to(gpu()).transpose(1, 2);
  const auto run = [&] {  // a layer: reuses the calls of the first one
    LocalAttention local(layout, 2, {kPackedScale}, kernel_call_options(q, layout, {kPackedScale}));
    const AttentionCall::Forward forward = local.forward(q, q, q);
    const AttentionGradients gradients = local.backward(q, forward.saved);
    return at::cat({forward.out, gradients.q, gradients.k, gradients.v});
  };
  const at::Tensor wanted = run();
  const auto graph = open_cuda_plugin().make_graph(gpu().index());
  at::Tensor found;
  graph->record([&] { found = run(); });
  graph->replay();
  EXPECT_LE(error_of(found, wanted), 1e-3) << "dq is added by atomics";
}

}  // namespace
}  // namespace meshtrain::testing
