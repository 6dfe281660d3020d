#include "runtime/program/watch/siphash.h"

#include <bit>
#include <cstring>

namespace meshtrain {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

uint64_t word_at(const void* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

void round(std::array<uint64_t, 4>& v) {
  v[0] += v[1], v[2] += v[3];
  v[1] = std::rotl(v[1], 13) ^ v[0], v[3] = std::rotl(v[3], 16) ^ v[2];
  v[0] = std::rotl(v[0], 32);
  v[2] += v[1], v[0] += v[3];
  v[1] = std::rotl(v[1], 17) ^ v[2], v[3] = std::rotl(v[3], 21) ^ v[0];
  v[2] = std::rotl(v[2], 32);
}

}  // namespace

uint64_t siphash(const Secret& key, std::string_view bytes) {
  const uint64_t k0 = word_at(key.data()), k1 = word_at(key.data() + 8);
  std::array<uint64_t, 4> v = {k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261,
                               k1 ^ 0x7465646279746573};
  const auto add = [&](uint64_t word) {
    v[3] ^= word;
    for (int i = 0; i < 2; ++i) round(v);
    v[0] ^= word;
  };
  uint64_t last = static_cast<uint64_t>(bytes.size()) << 56;
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) add(word_at(bytes.data()));
  for (size_t i = 0; i < bytes.size(); ++i)
    last |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << 8 * i;
  add(last);
  v[2] ^= 0xff;
  for (int i = 0; i < 4; ++i) round(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

}  // namespace meshtrain
