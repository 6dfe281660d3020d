#include "runtime/text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "mesh/base/unicode/utf8.h"

namespace meshtrain {

MergeTable::MergeTable(std::span<const Merge> merges)
    : slots_(std::bit_ceil(2 * merges.size() + 2), Merge{.left = kFree}), mask_(slots_.size() - 1) {
  for (const Merge& merge : merges) {
    size_t i = slot(merge.left, merge.right);
    while (slots_[i].left != kFree && (slots_[i].left != merge.left || slots_[i].right != merge.right)) {
      i = (i + 1) & mask_;
    }
    slots_[i] = merge;
  }
}

Bpe::Bpe(BpeOptions options) : options_(std::move(options)), merges_(options_.merges), byte_ids_(256) {
  options_.merges = {};
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const auto found = options_.ids.find(std::string(1, static_cast<char>(byte)));
    if (found != options_.ids.end()) byte_ids_[byte] = found->second;
  }
  if (!options_.of_characters) return;
  for (const auto& [text, id] : options_.ids) {
    if (text.empty()) continue;
    const char* at = text.data();
    const uint32_t character = next_code_point(at);
    if (at == text.data() + text.size()) character_ids_.emplace(character, id);
  }
}

BpeWords::BpeWords(const Bpe& bpe) : bpe_(bpe), memory_(kWords) {}

void BpeWords::encode(std::string_view word, std::vector<int64_t>& ids) {
  if (word.empty()) return;
  CachedWord* remembered = nullptr;
  if (word.size() <= kWordBytes) {
    char padded[24] = {};
    std::memcpy(padded, word.data(), word.size());
    uint64_t parts[3];
    std::memcpy(parts, padded, sizeof parts);
    uint64_t hash = word.size();
    for (const uint64_t part : parts) hash = (std::rotl(hash, 29) ^ part) * 0x9E3779B97F4A7C15;
    remembered = &memory_[(hash ^ hash >> 32) % kWords];
    if (remembered->bytes == word.size() && std::memcmp(remembered->word, padded, kWordBytes) == 0) {
      ids.insert(ids.end(), remembered->ids, remembered->ids + remembered->count);
      return;
    }
  }
  const size_t first = ids.size();
  const auto full = bpe_.options_.whole_words ? bpe_.options_.ids.find(std::string(word)) : bpe_.options_.ids.end();
  if (full != bpe_.options_.ids.end()) {
    ids.push_back(full->second);
  } else {
    merge(word);
    for (const Symbol& symbol : symbols_) {
      if (symbol.alive) ids.push_back(symbol.id);
    }
  }
  const size_t count = ids.size() - first;
  if (remembered == nullptr || count > kWordIds) return;
  *remembered = {};
  remembered->bytes = static_cast<uint8_t>(word.size());
  remembered->count = static_cast<uint8_t>(count);
  std::memcpy(remembered->word, word.data(), word.size());
  std::transform(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), remembered->ids,
                 [](int64_t id) { return static_cast<uint32_t>(id); });
}

void BpeWords::begin(std::string_view word) {
  symbols_.clear();
  if (bpe_.options_.of_characters) return begin_characters(word);
  bool in_unknown = false;
  for (const char c : word) {
    const std::optional<uint32_t>& known = bpe_.byte_ids_[static_cast<unsigned char>(c)];
    const bool fused = !known && in_unknown && bpe_.options_.fuse_unknown;
    in_unknown = !known;
    const std::optional<uint32_t>& id = known ? known : bpe_.options_.unknown;
    if (id && !fused) add(*id);
  }
}

// As tokenizers' merge_word does, an unknown token is added when the next known character or the end comes, after the
// bytes of characters between.
void BpeWords::begin_characters(std::string_view word) {
  bool pending = false;
  const std::optional<uint32_t>& unknown = bpe_.options_.unknown;
  for (const char *at = word.data(), *end = at + word.size(); at != end;) {
    const char* const begin = at;
    const auto known = bpe_.character_ids_.find(next_code_point(at));
    if (known != bpe_.character_ids_.end()) {
      if (std::exchange(pending, false)) add(*unknown);
      add(known->second);
      continue;
    }
    if (add_fallback({begin, static_cast<size_t>(at - begin)}) || !unknown) continue;
    if (pending && !bpe_.options_.fuse_unknown) add(*unknown);
    pending = true;
  }
  if (pending) add(*unknown);
}

// Adds the tokens of a character's bytes. Returns false when there are not all of them.
bool BpeWords::add_fallback(std::string_view character) {
  const std::vector<std::optional<uint32_t>>& ids = bpe_.options_.fallback;
  const auto id_of = [&](char byte) { return ids[static_cast<unsigned char>(byte)]; };
  if (ids.empty() || !std::ranges::all_of(character, [&](char byte) { return id_of(byte).has_value(); })) return false;
  for (const char byte : character) add(*id_of(byte));
  return true;
}

void BpeWords::add(uint32_t id) {
  const auto here = static_cast<int64_t>(symbols_.size());
  if (here > 0) symbols_.back().next = here;
  symbols_.push_back({id, here - 1, -1, true});
}

// Queues the pair of the symbol at `at` and its successor if they merge. The heap's top is the next pair to merge.
void BpeWords::note(int64_t at) {
  const int64_t next = at < 0 ? -1 : symbols_[static_cast<size_t>(at)].next;
  if (next < 0) return;
  const Merge* found = bpe_.merges_.find(symbols_[static_cast<size_t>(at)].id, symbols_[static_cast<size_t>(next)].id);
  if (found != nullptr) heap_.push_back({found->rank, found->merged, at});
}

void BpeWords::merge(std::string_view word) {
  const auto later = [](const Pair& a, const Pair& b) { return a.rank != b.rank ? a.rank > b.rank : a.at > b.at; };
  begin(word);
  heap_.clear();
  for (size_t i = 0; i < symbols_.size(); ++i) note(static_cast<int64_t>(i));
  std::make_heap(heap_.begin(), heap_.end(), later);
  const auto note_and_sift = [&](int64_t at) {
    const size_t before = heap_.size();
    note(at);
    if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), later);
  };
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Pair pair = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[static_cast<size_t>(pair.at)];
    if (!left.alive || left.next < 0) continue;
    Symbol& right = symbols_[static_cast<size_t>(left.next)];
    const Merge* found = bpe_.merges_.find(left.id, right.id);
    if (found == nullptr || found->merged != pair.merged) continue;  // another merge has taken one of the two
    left.id = pair.merged;
    left.next = right.next;
    right.alive = false;
    if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = pair.at;
    note_and_sift(left.previous);
    note_and_sift(pair.at);
  }
}

}  // namespace meshtrain
