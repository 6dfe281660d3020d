#include "runtime/text/prepare/prepare_text.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <regex>
#include <system_error>
#include <thread>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/file_lock.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/output_file.h"
#include "mesh/base/log.h"
#include "runtime/text/prepare/sidecar_tokenizer.h"
#include "runtime/training/data/token_file.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostParts = 4096;
constexpr size_t kWriteBytes = size_t{1} << 22;  // written at once
constexpr int64_t kReportedBytes = 1 << 16;      // of text, at once
constexpr const char* kEnding = ".tokens";
constexpr auto kReportInterval = std::chrono::seconds(1);

// The header of a part's file; the tokens follow.
struct PartHeader {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;     // of the inputs
  int64_t not_utf8 = 0;  // of these
  int64_t text_bytes = 0;
};

/// Returns true for the names that data prepare gives to files in OUT.parts.
bool is_own_name(const fs::path& file) {
  static const std::regex names(R"((lock|plan\.json|[0-9]+\.tokens)(\.partial(-.{6})?)?|\.nfs[0-9a-f]+)");
  return std::regex_match(file.filename().string(), names);
}

/// Refuses a link, and a folder with a file that data prepare did not write: such a folder belongs to somebody else.
void check_parts_folder(const fs::path& folder) {
  const std::string needed = "data prepare keeps its parts in " + folder.string() + ", but ";
  constexpr const char* kRemedy = ": name another --out, or move it out of the way";
  std::error_code error;
  const fs::file_status status = fs::symlink_status(folder, error);
  if (status.type() == fs::file_type::not_found) return;
  if (status.type() != fs::file_type::directory) {
    throw InputError(needed + "that is " + (fs::is_symlink(status) ? "a link" : "not a folder") + kRemedy);
  }
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (is_own_name(entry->path()) && entry->symlink_status().type() == fs::file_type::regular) continue;
    throw InputError(needed + "data prepare did not write " + entry->path().filename().string() + " there" + kRemedy);
  }
  if (error) throw InputError("cannot read " + folder.string() + ": " + error.message());
}

/// The folder OUT.parts, locked by one run.
class PartsFolder {
 public:
  // `settings`: everything that the parts depend on. Removes parts that were made with other settings.
  PartsFolder(fs::path folder, const std::string& settings) : folder_(std::move(folder)) {
    check_parts_folder(folder_);
    std::error_code error;
    fs::create_directories(folder_, error);
    lock_.emplace(folder_ / "lock");
    if (lock_->is_taken()) {
      throw InputError(folder_.string() + " is in use: another data prepare writes the same --out");
    }
    if (!lock_->warning().empty()) log_warning(lock_->warning());
    if (saved_settings() == settings) return;
    remove_files("lock");
    write_atomically(folder_ / "plan.json", settings);
  }
  // Removes the folder when it has no part from which a run could continue.
  ~PartsFolder() {
    if (!lock_) return;  // removed
    const std::vector<fs::path> files = own_files();
    const auto is_part = [](const fs::path& file) { return file.extension() == kEnding; };
    if (std::none_of(files.begin(), files.end(), is_part)) remove();
  }
  PartsFolder(const PartsFolder&) = delete;
  PartsFolder& operator=(const PartsFolder&) = delete;

  fs::path file(size_t part) const { return folder_ / (std::to_string(part) + kEnding); }

  // Returns the header of a part; std::nullopt when the part does not exist or is incomplete.
  std::optional<PartHeader> find(size_t part, int64_t width) const {
    std::error_code error;
    const auto size = fs::file_size(file(part), error);
    PartHeader header;
    if (error || size < sizeof header) return std::nullopt;
    std::ifstream(file(part), std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
    const bool full = header.tokens >= 0 && header.tokens < std::numeric_limits<int64_t>::max() / 8 &&
                      size == sizeof header + static_cast<uint64_t>(header.tokens * width);
    return full ? std::optional(header) : std::nullopt;
  }

  /// Throws when another run has taken over the parts, which nothing prevents where the file system has no locks.
  void check_settings(const std::string& settings) const {
    if (saved_settings() == settings) return;
    throw std::runtime_error("another data prepare changed the parts in " + folder_.string() + " at the same time");
  }

  /// Removes the folder, and of what is in it only files of data prepare.
  void remove() {
    remove_files("");
    lock_.reset();  // NFS keeps a file that is open under another name
    std::error_code ignored;
    fs::remove(folder_, ignored);
  }

 private:
  /// Returns the settings that the folder keeps; an empty text when it keeps none. Throws when they cannot be read.
  std::string saved_settings() const {
    const fs::path file = folder_ / "plan.json";
    if (!fs::exists(file)) return "";
    std::ifstream stream(file, std::ios::binary);
    std::string text(std::istreambuf_iterator<char>(stream), {});
    if (!stream.is_open() || stream.bad()) throw std::runtime_error("cannot read " + file.string());
    return text;
  }

  std::vector<fs::path> own_files() const {
    std::error_code ignored;
    std::vector<fs::path> own;
    for (fs::directory_iterator entry(folder_, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
      if (is_own_name(entry->path())) own.push_back(entry->path());
    }
    return own;
  }

  void remove_files(const std::string& but) const {
    std::error_code ignored;
    for (const fs::path& file : own_files()) {
      if (file.filename() != but) fs::remove(file, ignored);
    }
  }

  fs::path folder_;
  std::optional<LockFile> lock_;
};

std::string settings_of(const PrepareTextOptions& options, const std::vector<fs::path>& files, int64_t part_bytes) {
  nlohmann::json settings = {{"version", 3},
                             {"tokenizer", tokenizer_fingerprint(options.tokenizer)},
                             {"dtype", options.dtype},
                             {"document_per_line", options.format.document_per_line},
                             {"field", options.format.key()},
                             {"part_bytes", part_bytes}};
  if (options.separator) settings["separator"] = *options.separator;
  nlohmann::json& inputs = settings["files"] = nlohmann::json::array();
  for (const fs::path& file : files) {
    std::error_code error;
    const auto time = fs::last_write_time(file, error).time_since_epoch().count();
    const auto size = error ? 0 : fs::file_size(file, error);
    if (error) throw InputError("cannot read " + file.string() + ": " + error.message());
    inputs.push_back({fs::absolute(file).string(), size, static_cast<int64_t>(time)});
  }
  return settings.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

/// A writer of a part's tokens into its file.
class PartWriter {
 public:
  PartWriter(const fs::path& path, int64_t width) : file_(path), width_(static_cast<size_t>(width)) {
    file_.append(&header_, sizeof header_);
  }

  void add(const std::vector<int64_t>& ids, size_t text_bytes) {
    const size_t before = block_.size();
    block_.resize(before + ids.size() * width_);
    std::byte* out = block_.data() + before;
    for (const int64_t id : ids) {
      std::memcpy(out, &id, width_);  // little-endian: its low bytes
      out += width_;
    }
    header_.tokens += static_cast<int64_t>(ids.size());
    header_.text_bytes += static_cast<int64_t>(text_bytes);
    ++header_.documents;
    if (block_.size() >= kWriteBytes) write();
  }

  void finish(int64_t bytes, int64_t not_utf8) {
    write();
    header_.bytes = bytes;
    header_.not_utf8 = not_utf8;
    file_.write_at(0, &header_, sizeof header_);
    file_.finish();
  }

 private:
  void write() {
    file_.append(block_.data(), block_.size());
    block_.clear();
  }

  OutputFile file_;
  size_t width_;
  PartHeader header_;
  std::vector<std::byte> block_;
};

/// Ends the work on a part because another one has failed.
struct Stopped {};

/// The parts to make, and the threads that make them.
class Preparation {
 public:
  Preparation(const Tokenizer& tokenizer, const PrepareTextOptions& options, const PartsFolder& folder,
              const std::vector<std::vector<TextPart>>& parts)
      : tokenizer_(tokenizer), options_(options), folder_(folder), parts_(parts), width_(token_width(options.dtype)) {
    progress_.total_parts = static_cast<int64_t>(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      progress_.total_bytes += bytes_of(i);
      const std::optional<PartHeader> done = folder.find(i, width_);
      if (!done) {
        waiting_.push_back(i);
        continue;
      }
      ++progress_.parts;
      ++progress_.kept_parts;
      progress_.bytes += done->bytes;
      progress_.tokens += done->tokens;
      progress_.documents += done->documents;
      progress_.text_bytes += done->text_bytes;
      progress_.not_utf8 += done->not_utf8;
    }
  }

  PrepareTextProgress run(const std::function<void(const PrepareTextProgress&)>& report) {
    if (report) report(progress_);
    std::vector<std::thread> threads;
    running_ = std::clamp(static_cast<size_t>(options_.threads), size_t{1}, std::max(waiting_.size(), size_t{1}));
    for (size_t i = running_; i > 0; --i) threads.emplace_back([this] { take_parts(); });
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kReportInterval, [this] { return running_ == 0; })) {
      const PrepareTextProgress now = progress_;
      lock.unlock();
      if (report) report(now);
      lock.lock();
    }
    lock.unlock();
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    if (report) report(progress_);
    return progress_;
  }

 private:
  int64_t bytes_of(size_t part) const {
    int64_t bytes = 0;
    for (const TextPart& piece : parts_[part]) bytes += piece.end - piece.begin;
    return bytes;
  }

  void take_parts() {
    while (!stopped_) {
      const size_t next = next_++;
      if (next >= waiting_.size()) break;
      try {
        make(waiting_[next]);
      } catch (const Stopped&) {
        break;  // unfinished, and removed by its writer
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_ || waiting_[next] < failed_part_) {
          error_ = std::current_exception();
          failed_part_ = waiting_[next];
        }
        stopped_ = true;
      }
    }
    const std::lock_guard lock(mutex_);
    --running_;
    changed_.notify_all();
  }

  void make(size_t part) {
    PartWriter writer(folder_.file(part), width_);
    std::vector<int64_t> ids;
    PrepareTextProgress made;  // not reported yet
    int64_t left = bytes_of(part), not_utf8 = 0;
    for (const TextPart& piece : parts_[part]) {
      for_each_document(piece, options_.format, [&](const TextDocument& document) {
        if (stopped_) throw Stopped();
        ids.clear();
        tokenizer_.encode(document.text, ids);
        if (options_.separator) ids.push_back(*options_.separator);
        writer.add(ids, document.text.size());
        const int64_t reported = std::min(document.bytes, left);  // a line may continue in the next part
        left -= reported;
        made.bytes += reported;
        made.tokens += static_cast<int64_t>(ids.size());
        made.text_bytes += static_cast<int64_t>(document.text.size());
        ++made.documents;
        not_utf8 += document.not_utf8;
        if (made.bytes >= kReportedBytes) add(std::exchange(made, {}));
      });
    }
    writer.finish(bytes_of(part), not_utf8);
    made.bytes += left;
    made.not_utf8 = not_utf8;
    made.parts = 1;
    add(made);
  }

  void add(const PrepareTextProgress& made) {
    const std::lock_guard lock(mutex_);
    progress_.bytes += made.bytes;
    progress_.tokens += made.tokens;
    progress_.documents += made.documents;
    progress_.text_bytes += made.text_bytes;
    progress_.not_utf8 += made.not_utf8;
    progress_.parts += made.parts;
  }

  const Tokenizer& tokenizer_;
  const PrepareTextOptions& options_;
  const PartsFolder& folder_;
  const std::vector<std::vector<TextPart>>& parts_;
  int64_t width_;
  std::vector<size_t> waiting_;

  std::atomic<size_t> next_ = 0;
  std::atomic<bool> stopped_ = false;
  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  PrepareTextProgress progress_;
  size_t running_ = 0;
  size_t failed_part_ = 0;
  std::exception_ptr error_;
};

void check_ids(const Tokenizer& tokenizer, const PrepareTextOptions& options) {
  const int64_t largest = tokenizer.vocabulary_size() - 1;
  if (largest >> (8 * token_width(options.dtype)) != 0) {
    throw InputError("--dtype: " + options.dtype + " cannot hold the ids of " + options.tokenizer +
                     ", which are 0 to " + std::to_string(largest) + ": use a wider one");
  }
  if (options.separator) check_token("--separator", *options.separator, options.dtype);
}

TokenSidecar sidecar_of(const Tokenizer& tokenizer, const PrepareTextOptions& options,
                        const PrepareTextProgress& done) {
  TokenSidecar sidecar = sidecar_of_origin(tokenizer, options.tokenizer, options.separator, options.command);
  sidecar.dtype = options.dtype;
  sidecar.tokens = done.tokens;
  sidecar.text_bytes = done.text_bytes;
  return sidecar;
}

/// Joins the parts to `output` with its sidecar, which appears only if `check` does not throw.
void join(const PartsFolder& folder, size_t num_parts, const fs::path& output, const TokenSidecar& sidecar,
          const std::function<void()>& check) {
  OutputFile tokens(output);
  for (size_t part = 0; part < num_parts; ++part) {
    const FileReader file(folder.file(part));
    constexpr auto kBegin = static_cast<int64_t>(sizeof(PartHeader));
    file.for_each_block(kBegin, std::max(file.size() - kBegin, int64_t{0}),
                        [&](std::string_view block) { tokens.append(block.data(), block.size()); });
  }
  tokens.sync();
  SidecarReplacement replacement(output, sidecar);
  check();
  replacement.begin();
  tokens.finish();
  replacement.finish();
}

}  // namespace

PrepareTextProgress prepare_text(const Tokenizer& tokenizer, const PrepareTextOptions& options,
                                 const std::function<void(const PrepareTextProgress&)>& report) {
  check_ids(tokenizer, options);
  check_sidecar_path(options.output);
  if (fs::is_directory(options.output))
    throw InputError("cannot write " + options.output.string() + ": it is a folder");
  const std::vector<fs::path> files = input_files(options.inputs, options.output, options.filter);
  check_texts(files, options.format);
  int64_t total = 0;
  for (const std::vector<TextPart>& part : divide_text(files, options.format, options.part_bytes)) {
    for (const TextPart& piece : part) total += piece.end - piece.begin;
  }
  const int64_t part_bytes = std::max(options.part_bytes, total / kMostParts);
  const std::vector<std::vector<TextPart>> parts = divide_text(files, options.format, part_bytes);
  if (parts.empty()) throw InputError("nothing to write to " + options.output.string() + ": the inputs hold no text");
  const std::string settings = settings_of(options, files, part_bytes);
  PartsFolder folder(parts_folder(options.output), settings);
  const PrepareTextProgress done = Preparation(tokenizer, options, folder, parts).run(report);
  if (done.tokens == 0) {
    folder.remove();
    throw InputError("nothing to write to " + options.output.string() + ": the inputs hold no text");
  }
  folder.check_settings(settings);
  join(folder, parts.size(), options.output, sidecar_of(tokenizer, options, done), [&] {
    folder.check_settings(settings);
    if (settings_of(options, files, part_bytes) == settings) return;
    throw InputError("the inputs of " + options.output.string() + " changed while they were read: prepare it again, " +
                     "when nothing writes to them any more");
  });
  folder.remove();
  return done;
}

}  // namespace meshtrain
