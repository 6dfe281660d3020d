#pragma once

#include <pthread.h>

#include <csignal>
#include <thread>
#include <utility>

namespace meshtrain {

/// Starts a thread that receives no signals: those of the process stay with the threads that expect them.
template <class Body>
std::jthread quiet_thread(Body&& body) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  try {
    std::jthread thread(std::forward<Body>(body));
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
}

}  // namespace meshtrain
