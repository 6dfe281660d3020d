#include "runtime/training/data/permutation.h"

#include <bit>
#include <stdexcept>
#include <string>

namespace meshtrain {
namespace {

constexpr int kRounds = 8;

}  // namespace

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t hash = a * 0x9E3779B97F4A7C15u + b;
  for (int pass = 0; pass < 2; ++pass) {
    hash += 0x9E3779B97F4A7C15u;
    hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBu;
    hash ^= hash >> 31;
  }
  return hash;
}

Permutation::Permutation(int64_t size, uint64_t key) : size_(static_cast<uint64_t>(size)), key_(key) {
  if (size < 1) throw std::invalid_argument("a permutation of " + std::to_string(size) + " numbers");
  half_bits_ = (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2;
}

int64_t Permutation::operator()(int64_t index) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t value = static_cast<uint64_t>(index);
  if (value >= size_) throw std::out_of_range("number " + std::to_string(index) + " of " + std::to_string(size_));
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (mix(key_ + static_cast<uint64_t>(round), right) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits_) | right;
  } while (value >= size_);
  return static_cast<int64_t>(value);
}

}  // namespace meshtrain
