#include "runtime/program/watch/siphash.h"

#include <bit>
#include <cstring>

namespace meshtrain {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

void round(std::array<uint64_t, 4>& v) {
  v[0] += v[1], v[2] += v[3];
  v[1] = std::rotl(v[1], 13) ^ v[0], v[3] = std::rotl(v[3], 16) ^ v[2];
  v[0] = std::rotl(v[0], 32);
  v[2] += v[1], v[0] += v[3];
  v[1] = std::rotl(v[1], 17) ^ v[2], v[3] = std::rotl(v[3], 21) ^ v[0];
  v[2] = std::rotl(v[2], 32);
}

}  // namespace

uint64_t siphash(const Secret& key, std::string bytes) {
  const auto [k0, k1] = std::bit_cast<std::array<uint64_t, 2>>(key);
  std::array<uint64_t, 4> v = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261,
                               k1 ^ 0x7465646279746573};
  const char last = static_cast<char>(bytes.size());
  bytes.resize(bytes.size() / 8 * 8 + 8);
  bytes.back() = last;
  for (size_t i = 0; i < bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, &bytes[i], sizeof word);
    v[3] ^= word;
    round(v), round(v);
    v[0] ^= word;
  }
  v[2] ^= 0xff;
  for (int i = 0; i < 4; ++i) round(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

}  // namespace meshtrain
