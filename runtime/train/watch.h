#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "mesh/group.h"

namespace meshtrain {

/// Looks after the ranks of this host. One that is gone without a word (killed, by the kernel when memory runs out)
/// ends the job: one of those that are left says which it was and where it was seen last, and aborts. Launchers end a
/// job too, most of them; they know neither.
///
/// A thread of its own writes every few hundredths of a second where this rank is, into memory that the ranks of a host
/// share, and sees whether the process of the next one is there. Where there is none, or processes cannot see each
/// other, nobody is looked after.
class Watch {
 public:
  /// `place`: where this rank is, "step 5, backward of block 0"; called on the thread. Every rank of `world` must
  /// construct one.
  Watch(const Group& world, std::function<std::string()> place);
  /// This rank ends, and says itself why. No collective.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

 private:
  class Board;
  void look();

  std::function<std::string()> place_;
  std::unique_ptr<Board> board_;
  std::mutex mutex_;
  std::condition_variable ending_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace meshtrain
