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

/// A queue of one item, which a thread fills while the caller works on the item before. The thread issues no
/// collectives; debuggers show it as "read-ahead".
template <class Item>
class ReadAhead {
 public:
  /// Calls read(i) for i = `begin`, ..., `end` - 1 on one thread, the first at once.
  ReadAhead(int64_t begin, int64_t end, std::function<Item(int64_t)> read)
      : thread_([this, begin, end, read = std::move(read)] { run(begin, end, read); }) {}
  /// Waits for the read in progress.
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

  /// Returns the next item, of at most `end` - `begin`, and starts to read the one after it. Throws the exception of
  /// read() for this item; there are no items after it.
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
    at::get_num_threads();   // initialises first: a later call would replace the 1
    omp_set_num_threads(1);  // for this thread only: the step uses the cores
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
  std::thread thread_;  // last member: the thread uses the others
};

}  // namespace meshtrain
