#pragma once

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <random>
#include <string>

#include "tests/support/files.h"
#include "tests/support/scratch.h"

namespace meshtrain::testing {

/// Returns `text` as the program gzip writes it.
inline std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// Returns `text` as the program zstd writes it.
inline std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

/// Tests of compressed files, once for each ending: ".gz" and ".zst".
class CompressedFiles : public ::testing::TestWithParam<const char*> {
 protected:
  std::string ending() const { return GetParam(); }
  std::string packed(const std::string& text) const { return ending() == ".gz" ? gzip(text) : zstd(text); }
  /// Writes a file of these bytes, called `name` and the ending. Returns its path.
  std::filesystem::path file(const std::string& name, const std::string& bytes) const {
    write_file(scratch_.path() / (name + ending()), bytes);
    return scratch_.path() / (name + ending());
  }

 private:
  ScratchFolder scratch_;
};

/// Returns text that compresses to about half.
inline std::string long_text(size_t bytes) {
  std::mt19937_64 random(3);
  std::string text;
  while (text.size() < bytes) text += static_cast<char>('a' + random() % 16);
  return text;
}

}  // namespace meshtrain::testing
