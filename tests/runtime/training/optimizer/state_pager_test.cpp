// The order of a pager's copies and updates, recorded on the Meta device, and its values on the host.
#include "runtime/training/optimizer/state_pager.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mesh/device/aten.h"

namespace meshtrain {
namespace {

using PagedState = StatePager::State;

/// A record of what happens in an update: "in 2 after 1", "out 3", numbered together; "await 2"; "update part 0 from
/// 0".
class Events final : public CopyWatch {
 public:
  Events() { set_current(this); }
  ~Events() override { set_current(nullptr); }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  int64_t started(CopyDirection direction, int64_t, bool, std::optional<int64_t> after) override {
    add((direction == CopyDirection::ToDevice ? "in " : "out ") + std::to_string(next_) +
        (after ? " after " + std::to_string(*after) : ""));
    return next_++;
  }
  void awaited(int64_t copy) override { add("await " + std::to_string(copy)); }
  void set_before_collectives(std::optional<int64_t>) override {}
  void add(const std::string& event) { all.push_back(event); }

  std::vector<std::string> all;

 private:
  int64_t next_ = 0;
};

std::vector<PagedState> parts_of(const std::vector<int64_t>& sizes, at::Device device) {
  std::vector<PagedState> parts;
  for (const int64_t numel : sizes) parts.push_back({at::zeros({numel}, device)});
  return parts;
}

TEST(StatePager, CopiesThePiecesAroundTheOneThatIsUpdated) {
  Events events;
  StatePager pager(parts_of({64, 32, 64, 64}, at::kMeta), at::kMeta, ShardMemory::on_host(), /*cuts=*/true);
  for (int step = 0; step < 2; ++step) {
    pager.begin();
    for (int part = 0; part < 4; ++part) {
      pager.update_next([&](size_t index, Range, const PagedState&) { events.add("update " + std::to_string(index)); });
    }
  }
  // A piece is copied to a slot after the piece that was there has left it.
  EXPECT_EQ(events.all, (std::vector<std::string>{"in 0",
                                                  "in 1 after 0",
                                                  "await 0",
                                                  "update 0",
                                                  "out 2",  //
                                                  "in 3 after 1",
                                                  "await 1",
                                                  "update 1",
                                                  "out 4 after 2",  //
                                                  "in 5 after 2",
                                                  "await 3",
                                                  "update 2",
                                                  "out 6 after 4",  //
                                                  "await 5",
                                                  "update 3",
                                                  "out 7 after 6",  //
                                                  "in 8 after 7",
                                                  "in 9 after 4",
                                                  "await 8",
                                                  "update 0",  //
                                                  "out 10 after 7",
                                                  "in 11 after 6",
                                                  "await 9",
                                                  "update 1",  //
                                                  "out 12 after 10",
                                                  "in 13 after 10",
                                                  "await 11",
                                                  "update 2",  //
                                                  "out 14 after 12",
                                                  "await 13",
                                                  "update 3",
                                                  "out 15 after 14"}));
  EXPECT_EQ(pager.copy_costs().to_device, 2 * 4 * (64 + 32 + 64 + 64));
  EXPECT_EQ(pager.copy_costs().to_host, pager.copy_costs().to_device);
}

TEST(StatePager, CutsLargePartsWhoseElementsAreUpdatedAlone) {
  const int64_t numel = 2 * StatePager::kPiece + 5;
  for (const bool cuts : {false, true}) {
    StatePager pager(parts_of({7, numel}, at::kMeta), at::kMeta, ShardMemory::on_host(), cuts);
    std::vector<int64_t> begins;
    int64_t elements = 0;
    const auto update = [&](size_t part, Range piece, const PagedState& state) {
      EXPECT_EQ(state[0].numel(), piece.numel);
      begins.push_back(piece.offset);
      if (part == 1) elements += piece.numel;
    };
    pager.begin();
    pager.update_next(update);
    pager.update_next(update);
    EXPECT_EQ(elements, numel);
    EXPECT_EQ(begins, cuts ? (std::vector<int64_t>{0, 0, StatePager::kPiece, 2 * StatePager::kPiece})
                           : (std::vector<int64_t>{0, 0}));
    EXPECT_EQ(pager.device_bytes(), 3 * 4 * (cuts ? StatePager::kPiece : numel + 123)) << "rounded up to 512 bytes";
  }
}

// On the host every copy is complete at once.
TEST(StatePager, UpdatesHaveTheirValuesInTheNextStep) {
  const std::vector<PagedState> parts = {{at::zeros({5}), at::ones({5}, at::kDouble)}, {at::zeros({3}), at::ones({3})}};
  StatePager pager(parts, at::kCPU, ShardMemory(), /*cuts=*/true);
  for (int step = 0; step < 3; ++step) {
    pager.begin();
    for (size_t i = 0; i < parts.size(); ++i) {
      pager.update_next([&](size_t part, Range, const PagedState& state) {
        EXPECT_EQ(part, i);
        at::Tensor(state[0]).add_(static_cast<double>(part) + 1);
        at::Tensor(state[1]).mul_(2);
      });
    }
  }
  pager.finish();
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(parts[i][0].eq(3 * (static_cast<double>(i) + 1)).all().item<bool>()) << parts[i][0];
    EXPECT_TRUE(parts[i][1].eq(8).all().item<bool>()) << parts[i][1];
  }
}

}  // namespace
}  // namespace meshtrain
