#pragma once

#include <ATen/Parallel.h>
#include <omp.h>
#include <pthread.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace meshtrain {

/// Items that a thread reads while the one before is worked on: one ahead, no more. The thread issues no collectives;
/// debuggers know it as "read-ahead".
template <class Item>
class ReadAhead {
 public:
  /// The items are read(i) for i = `begin`, ..., `end` - 1. The first is begun at once; `read` is called by one thread.
  ReadAhead(int64_t begin, int64_t end, std::function<Item(int64_t)> read)
      : thread_([this, begin, end, read = std::move(read)] { run(begin, end, read); }) {}
  /// Waits for the item that is being read.
  ~ReadAhead() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The next item, of at most `end` - `begin`; the one after it begins to be read. Throws what read() threw for it;
  /// there are none behind it then.
  Item next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return item_ || error_; });
    if (!item_) std::rethrow_exception(error_);
    Item item = std::move(*item_);
    item_.reset();
    lock.unlock();
    changed_.notify_all();
    return item;
  }

 private:
  void run(int64_t begin, int64_t end, const std::function<Item(int64_t)>& read) try {
    pthread_setname_np(pthread_self(), "read-ahead");
    at::get_num_threads();   // has this thread take over the number of threads,
    omp_set_num_threads(1);  // which are those of the step
    for (int64_t i = begin; i < end; ++i) {
      Item item = read(i);
      std::unique_lock lock(mutex_);
      item_ = std::move(item);
      changed_.notify_all();
      changed_.wait(lock, [&] { return !item_ || stopped_; });
      if (stopped_) return;
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Item> item_;
  std::exception_ptr error_;
  bool stopped_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace meshtrain
