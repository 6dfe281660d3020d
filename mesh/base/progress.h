#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace meshtrain {

/// A computation that may take long, for as long as the object lives. While one lives for 10 s or more, a thread prints
/// how far it is to stderr: a line every 10 s, later every twentieth of the time so far, and on a terminal one line
/// that is rewritten each second. MESHTRAIN_PROGRESS is another number of seconds; 0: one line at the end of each
/// Progress. A Progress inside another prints in its place; the time until the first line is that of the outermost.
class Progress {
 public:
  /// `what`: the beginning of each line, "evaluation of runs/mine". `total`: the number of `unit`, in the plural, that
  /// there are to do; 0: not known. Bytes are counted in "bytes".
  explicit Progress(std::string what, int64_t total = 0, std::string unit = "");
  /// A Progress that is inside another prints a line here if one is due.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Counts `count` more as done. Any thread.
  void advance(int64_t count = 1) { done_ += count; }
  void set(int64_t done) { done_ = done; }
  void set_total(int64_t total) { total_ = total; }
  /// Counts what an earlier run has done, which says nothing about the rate.
  void start_at(int64_t done) { done_ = kept_ = done; }
  /// Ends the lines from now on with `text`. Any thread.
  void note(std::string text);

  /// Returns "WHAT: 12,345 of 98,765 tokens, 1,235 tokens/s, 1:10 left", `seconds` after the beginning.
  std::string line(double seconds) const;

  /// Lets this process print no progress: for ranks other than 0.
  static void mute();

 private:
  friend class ProgressLines;

  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const std::string what_, unit_;
  std::atomic<int64_t> total_, done_ = 0, kept_ = 0;
  mutable std::mutex mutex_;  // of the note
  std::string note_;
};

}  // namespace meshtrain
