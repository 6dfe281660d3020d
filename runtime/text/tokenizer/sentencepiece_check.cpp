#include "runtime/text/tokenizer/sentencepiece_check.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "mesh/base/error.h"

namespace meshtrain {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw InputError("not a SentencePiece model: " + what);
}

/// The fields of a message in Protocol Buffers' encoding, https://protobuf.dev/programming-guides/encoding.
class Message {
 public:
  explicit Message(std::string_view bytes) : bytes_(bytes) {}

  /// Calls `visit` with the number and the content of each field that has a length.
  template <class Visit>
  void for_each(const Visit& visit) {
    while (!bytes_.empty()) {
      const uint64_t tag = varint(5);
      switch (tag & 7) {
        case 0:
          varint(10);
          break;
        case 1:
          take(8);
          break;
        case 2:
          visit(tag >> 3, take(varint(5)));
          break;
        case 5:
          take(4);
          break;
        default:
          fail("it has a field that such a model does not have");
      }
    }
  }

 private:
  uint64_t varint(int most_bytes) {
    uint64_t value = 0;
    for (int i = 0; i < most_bytes; ++i) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7F) << (7 * i);
      if (byte < 0x80) return value;
    }
    fail("it has a number that is too long");
  }
  std::string_view take(uint64_t count) {
    if (count > bytes_.size()) fail("it was cut short");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }

  std::string_view bytes_;
};

/// A unit of a double array as the library Darts-clone lays it out, github.com/s-yata/darts-clone.
struct Unit {
  uint32_t bits;

  bool has_leaf() const { return (bits >> 8 & 1) != 0; }
  uint32_t value() const { return bits & 0x7FFFFFFF; }
  uint32_t label() const { return bits & 0x800000FF; }
  uint32_t offset() const { return bits >> 10 << ((bits & 1U << 9) >> 6); }
};

/// The table of a normalizer: 4 bytes of length, a double array of that many bytes, and the replacements that the array
/// points to, each ended by a zero byte.
class Table {
 public:
  explicit Table(std::string_view blob) {
    uint32_t bytes = 0;
    if (blob.size() <= sizeof bytes) fail("its table of characters was cut short");
    std::memcpy(&bytes, blob.data(), sizeof bytes);
    blob.remove_prefix(sizeof bytes);
    if (bytes >= blob.size() || bytes % sizeof(Unit) != 0 || bytes == 0) fail("its table of characters was cut short");
    units_.resize(bytes / sizeof(Unit));
    std::memcpy(units_.data(), blob.data(), bytes);
    replacements_ = blob.substr(bytes);
  }

  void check() const {
    std::vector<State> states(units_.size());
    std::vector<uint32_t> path = {base(units_[0], 0)};
    // Walks depth first; a finished node knows how many rules may apply after it.
    while (!path.empty()) {
      const uint32_t node = path.back();
      State& state = states[node];
      state.on_path = true;
      bool deeper = false;
      for (; state.next_byte < 256; ++state.next_byte) {
        const Unit unit = units_[node ^ state.next_byte];
        if (unit.label() != state.next_byte) continue;
        const uint32_t child = base(unit, node ^ state.next_byte);
        if (unit.has_leaf()) check_replacement(units_[child].value());
        if (child == node && !unit.has_leaf()) continue;  // a byte 0 in a unit that is not used
        State& next = states[child];
        if (next.on_path) fail("its table of characters has a loop");
        if (!next.done) {
          path.push_back(child);
          deeper = true;
          break;  // and then this byte again
        }
        state.num_rules = std::max(state.num_rules, next.num_rules + (unit.has_leaf() ? 1 : 0));
      }
      if (deeper) continue;
      if (state.num_rules > kMostRules) fail("too many rules of its table of characters apply to one text");
      state.done = true;
      state.on_path = false;
      path.pop_back();
    }
  }

 private:
  static constexpr int kMostRules = 32;             // the most that the library has room for
  static constexpr size_t kMostReplacement = 1024;  // no character is written with as many bytes

  struct State {
    uint32_t next_byte = 0;
    int num_rules = 0;  // on the longest path from here
    bool on_path = false, done = false;
  };

  /// Returns the index of the children of `unit`, which is unit `index`, by their bytes.
  uint32_t base(Unit unit, uint32_t index) const {
    const uint32_t base = index ^ unit.offset();
    if ((base | 0xFF) >= units_.size()) fail("its table of characters leads beyond its end");
    return base;
  }

  void check_replacement(uint32_t place) const {
    if (place >= replacements_.size()) fail("its table of characters leads beyond its replacements");
    const std::string_view rest = replacements_.substr(place, kMostReplacement);
    if (rest.size() == kMostReplacement && rest.find('\0') == std::string_view::npos) {
      fail("its table of characters has a replacement without an end");
    }
  }

  std::vector<Unit> units_;
  std::string_view replacements_;
};

}  // namespace

void check_sentencepiece_tables(const std::string& file, std::string_view model) try {
  constexpr uint64_t kNormalizer = 3, kDenormalizer = 5, kTable = 2;  // of sentencepiece_model.proto
  Message(model).for_each([&](uint64_t field, std::string_view content) {
    if (field != kNormalizer && field != kDenormalizer) return;
    Message(content).for_each([&](uint64_t inner, std::string_view table) {
      if (inner == kTable && !table.empty()) Table(table).check();
    });
  });
} catch (const InputError& error) {
  throw InputError(file + ": " + error.what());
}

}  // namespace meshtrain
