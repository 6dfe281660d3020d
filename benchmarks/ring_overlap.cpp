// How much of the time that keys and values travel is hidden behind attention: forward and backward over links on which
// all hops of a ring together take a given share of the time that its attention takes without a delay. The other
// algorithms have the same links.
//
//   tools/build release ring_overlap_benchmark
//   tools/ranks 2 build/release/benchmarks/ring_overlap_benchmark    # and 4
//
// The link is made: a collective is done no sooner than after those before it on the same rank and its own bytes. Who
// waits sleeps, so with more ranks than cores some of what is hidden is hidden by other ranks' work.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "context_parallel/choice.h"
#include "mesh/backends/mpi/mpi.h"
#include "mesh/device/aten.h"
#include "mesh/forwarding.h"
#include "mesh/traffic.h"

namespace meshtrain {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr int kRepetitions = 7;
constexpr double kShares[] = {0.25, 0.5, 1};
constexpr int64_t kHeads = 8, kKeyValueHeads = 2, kHeadDim = 64;

/// A collective that is not done before a moment.
class Arrival final : public Work::State {
 public:
  Arrival(Work inner, Clock::time_point moment) : inner_(std::move(inner)), moment_(moment) {}
  void wait() override {
    inner_.wait();
    std::this_thread::sleep_until(moment_);
  }

 private:
  Work inner_;
  Clock::time_point moment_;
};

/// Decorates a backend with a slow link.
class SlowLink final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  Work issue(const Collective& collective) override {
    Work work = inner()->issue(collective);
    TrafficLedger ledger;
    ledger.record(rank(), size(), collective);
    const double bytes = static_cast<double>(ledger.total().sent_bytes);
    const Milliseconds time = per_byte_ * bytes;
    sent_ += bytes;
    free_ = std::max(free_, Clock::now()) + std::chrono::duration_cast<Clock::duration>(time);
    return Work(std::make_shared<Arrival>(std::move(work), free_));
  }

  void restart(Milliseconds per_byte) { per_byte_ = per_byte, sent_ = 0; }
  double sent_bytes() const { return sent_; }

 protected:
  std::shared_ptr<Backend> decorate(std::shared_ptr<Backend> part) override { return part; }

 private:
  Milliseconds per_byte_{0};
  double sent_ = 0;
  Clock::time_point free_;
};

class Benchmark {
 public:
  Benchmark()
      : backend_(mpi_backend()),
        link_(std::make_shared<SlowLink>(backend_)),
        world_(group_of(backend_)),
        slow_(group_of(link_)) {}

  void run() {
    if (world_.rank() == 0) {
      std::printf("%d ranks, fp32, %d heads, %d KV heads of %d; best of %d\n\n", world_.size(),
                  static_cast<int>(kHeads), static_cast<int>(kKeyValueHeads), static_cast<int>(kHeadDim), kRepetitions);
      std::printf("| tokens a rank | | no delay, ms |");
      for (const double share : kShares) std::printf(" travel %.2f: ms, with it, hidden |", share);
      std::printf("\n|---|---|---|");
      for (size_t i = 0; i < std::size(kShares); ++i) std::printf("---|");
      std::printf("\n");
    }
    for (const int64_t tokens : {128, 256, 512, 1024}) compare(tokens);
  }

 private:
  static Group group_of(std::shared_ptr<Backend> backend) {
    std::vector<int64_t> ranks;
    for (int rank = 0; rank < backend->size(); ++rank) ranks.push_back(rank);
    const std::string coordinate = "rank " + std::to_string(backend->rank());
    return Group(std::move(backend), "cp", std::move(ranks), coordinate);
  }

  /// Attention of one algorithm over one link: the shortest of its times.
  struct Run {
    ContextAlgorithm algorithm;
    double share;
    double time = std::numeric_limits<double>::infinity();
    double travel = 0;
  };

  /// Rows of one length: every algorithm and link in turn, again and again.
  void compare(int64_t tokens) {
    const double per_byte = attention_time_per_byte(tokens);
    std::vector<Run> runs;
    for (const auto algorithm : {ContextAlgorithm::Ring, ContextAlgorithm::AllGather, ContextAlgorithm::Ulysses}) {
      runs.push_back({algorithm, 0});
      for (const double share : kShares) runs.push_back({algorithm, share});
    }
    for (int i = 0; i < kRepetitions; ++i) {
      for (Run& run : runs) {
        link_->restart(Milliseconds(run.share * per_byte));
        run.time = std::min(run.time, attend(tokens, run.algorithm));
        run.travel = run.share * per_byte * link_->sent_bytes();
      }
    }
    if (world_.rank() != 0) return;
    double without = 0;
    for (const Run& run : runs) {
      if (run.share == 0) {
        without = run.time;
        std::printf("%s| %d | %s | %.1f |", &run == &runs.front() ? "" : "\n", static_cast<int>(tokens),
                    name(run.algorithm), without);
      } else {
        std::printf(" %.0f, %.1f, %.0f %% |", run.travel, run.time, 100 * (1 - (run.time - without) / run.travel));
      }
    }
    std::printf("\n");
  }

  /// Milliseconds of a ring's attention for each byte that it sends.
  double attention_time_per_byte(int64_t tokens) {
    double time = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kRepetitions; ++i) {
      link_->restart(Milliseconds(0));
      time = std::min(time, attend(tokens, ContextAlgorithm::Ring));
    }
    at::Tensor of_rank_0 = at::tensor({time / link_->sent_bytes()}, at::kDouble);
    world_.broadcast(of_rank_0, 0).wait();
    return of_rank_0.item<double>();
  }

  /// Milliseconds of one forward and backward, of the slowest rank.
  double attend(int64_t tokens, ContextAlgorithm algorithm) const {
    const auto heads = [&](int64_t count) { return at::randn({1, tokens, count, kHeadDim}).set_requires_grad(true); };
    const at::Tensor q = heads(kHeads), k = heads(kKeyValueHeads), v = heads(kKeyValueHeads);
    const at::Tensor gradient = at::randn({1, tokens, kHeads, kHeadDim}).transpose(1, 2);
    const auto kind =
        algorithm == ContextAlgorithm::Ulysses ? SequenceLayout::Kind::Contiguous : SequenceLayout::Kind::ZigZag;
    const SequenceLayout layout(kind, tokens * world_.size(), world_.size(), world_.rank());
    world_.barrier();
    const Clock::time_point start = Clock::now();
    attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), layout, slow_, algorithm, {0.125})
        .backward(gradient);
    world_.barrier();
    return Milliseconds(Clock::now() - start).count();
  }

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<SlowLink> link_;
  Group world_;
  Group slow_;
};

}  // namespace
}  // namespace meshtrain

int main() {
  at::set_num_threads(1);
  meshtrain::Benchmark().run();
}
