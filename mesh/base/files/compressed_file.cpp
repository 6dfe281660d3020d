#include "mesh/base/files/compressed_file.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/base/error.h"
#include "mesh/base/files/content.h"
#include "mesh/base/files/file_reader.h"

namespace meshtrain {
namespace {

constexpr size_t kCompressedBlock = size_t{1} << 18;
constexpr std::string_view kGzipMark = "\x1f\x8b";
constexpr uint32_t kZstdMark = 0xFD2FB528, kSkippableMark = 0x184D2A50, kSkippableMask = 0xFFFFFFF0;

}  // namespace

Compression compression_of(const std::filesystem::path& file) {
  std::string ending = file.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending == ".gz" ? Compression::Gzip : ending == ".zst" ? Compression::Zstd : Compression::None;
}

std::filesystem::path uncompressed_name(const std::filesystem::path& file) {
  return compression_of(file) == Compression::None ? file.filename() : file.stem();
}

/// The compressed bytes, block by block, and the program's part, which a kind of compression overrides.
class CompressedFile::Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : file_(file), block_(kCompressedBlock) {}
  virtual ~Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  virtual size_t read(char* to, size_t count) = 0;
  int64_t position() const { return read_ - static_cast<int64_t>(waiting().size()); }

 protected:
  /// Returns the compressed bytes that nothing has taken yet, reading more when there are none; empty at the end.
  std::string_view input() {
    if (waiting().empty()) {
      begin_ = 0;
      end_ = static_cast<size_t>(std::min<int64_t>(file_.size() - read_, static_cast<int64_t>(kCompressedBlock)));
      file_.read(read_, block_.data(), static_cast<int64_t>(end_));
      read_ += static_cast<int64_t>(end_);
    }
    return waiting();
  }
  void take(size_t count) { begin_ += count; }

  /// Returns true when `text` is what the file begins with, or the next member at position().
  bool begins_with(std::string_view text) const {
    std::string found(text.size(), '\0');
    if (file_.size() - position() < static_cast<int64_t>(text.size())) return false;
    file_.read(position(), found.data(), static_cast<int64_t>(found.size()));
    return found == text;
  }
  uint32_t next_mark() const {
    uint32_t mark = 0;
    if (file_.size() - position() >= 4) file_.read(position(), &mark, 4);
    return mark;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError("cannot read " + file_.path().string() + ": " + what);
  }
  [[noreturn]] void fail_other(const std::string& what) const {
    const std::string content = describe_content(file_.read(0, std::min(file_.size(), kContentBytes)).text());
    fail(what + (content.empty() ? ": give it another name" : content));
  }
  [[noreturn]] void fail_cut_short() const {
    fail("it is cut short, as its compressed text does not end within its " + std::to_string(file_.size()) +
         " bytes: bring a complete copy");
  }
  [[noreturn]] void fail_damaged(const std::string& reason) const {
    fail("it is damaged before byte " + std::to_string(position()) + " (" + reason + "): bring another copy");
  }

 private:
  std::string_view waiting() const { return std::string_view(block_.data() + begin_, end_ - begin_); }

  FileReader file_;
  std::vector<char> block_;
  size_t begin_ = 0, end_ = 0;
  int64_t read_ = 0;
};

class CompressedFile::Gzip final : public Reader {
 public:
  explicit Gzip(const std::filesystem::path& file) : Reader(file) {
    if (!begins_with(kGzipMark)) fail_other("its name ends in .gz, but it is not compressed by gzip");
    constexpr int kGzipOnly = 16;
    if (inflateInit2(&stream_, kGzipOnly + MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  ~Gzip() override { inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  size_t read(char* to, size_t count) override {
    const size_t most = std::min<size_t>(count, std::numeric_limits<uInt>::max());
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(most);
    while (stream_.avail_out == most && most > 0) {
      const std::string_view bytes = input();
      if (bytes.empty() && ended_) return 0;
      if (bytes.empty()) fail_cut_short();
      if (ended_ && !begin_member(bytes)) continue;
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream_.avail_in = static_cast<uInt>(bytes.size());
      const int status = inflate(&stream_, Z_NO_FLUSH);
      take(bytes.size() - stream_.avail_in);
      if (status == Z_MEM_ERROR) throw std::bad_alloc();
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
        fail_damaged(stream_.msg != nullptr ? stream_.msg : "gzip");
      }
      ended_ = status == Z_STREAM_END;
    }
    return most - stream_.avail_out;
  }

 private:
  /// Begins the member after one that has ended. Returns false for zeros that fill up a tape's block.
  bool begin_member(std::string_view bytes) {
    if (bytes.front() == '\0') {
      take(std::min(bytes.find_first_not_of('\0'), bytes.size()));
      return false;
    }
    if (!begins_with(kGzipMark))
      fail("at byte " + std::to_string(position()) + " other bytes follow its compressed text");
    inflateReset(&stream_);
    ended_ = false;
    return true;
  }

  z_stream stream_{};
  bool ended_ = false;
};

class CompressedFile::Zstd final : public Reader {
 public:
  explicit Zstd(const std::filesystem::path& file) : Reader(file), stream_(ZSTD_createDStream()) {
    if (stream_ == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
    if (!is_frame()) fail_other("its name ends in .zst, but it is not compressed by zstd");
  }

  size_t read(char* to, size_t count) override {
    ZSTD_outBuffer out{to, count, 0};
    while (out.pos == 0 && count > 0) {
      const std::string_view bytes = input();
      if (bytes.empty() && ended_) return 0;
      if (bytes.empty() && !flushes_) fail_cut_short();
      if (ended_ && !is_frame()) {
        fail("at byte " + std::to_string(position()) + " other bytes follow its compressed text");
      }
      ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
      const size_t status = ZSTD_decompressStream(stream_.get(), &out, &in);
      if (ZSTD_isError(status)) fail_damaged(ZSTD_getErrorName(status));
      take(in.pos);
      ended_ = status == 0;
      flushes_ = !ended_ && out.pos == out.size;  // it may hold more of what it has read
    }
    return out.pos;
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  bool is_frame() const {
    const uint32_t mark = next_mark();
    return mark == kZstdMark || (mark & kSkippableMask) == kSkippableMark;
  }

  std::unique_ptr<ZSTD_DStream, Free> stream_;
  bool ended_ = false, flushes_ = false;
};

CompressedFile::CompressedFile(const std::filesystem::path& file) {
  if (compression_of(file) == Compression::Gzip) {
    reader_ = std::make_unique<Gzip>(file);
  } else {
    reader_ = std::make_unique<Zstd>(file);
  }
}

CompressedFile::~CompressedFile() = default;

size_t CompressedFile::read(char* to, size_t count) {
  return reader_->read(to, count);
}

int64_t CompressedFile::position() const {
  return reader_->position();
}

}  // namespace meshtrain
