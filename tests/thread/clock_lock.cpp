// gcc 12's thread sanitizer does not know pthread_mutex_clocklock, by which std::timed_mutex waits: everything after
// that lock would be reported as a race. Here it is made of a call that the sanitizer knows.
#include <pthread.h>

#include <ctime>

extern "C" int pthread_mutex_clocklock(pthread_mutex_t* mutex, clockid_t clock, const timespec* end) noexcept {
  constexpr long kSecond = 1'000'000'000;
  timespec now{}, until{};
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &until);
  const long nanoseconds = until.tv_nsec + end->tv_nsec - now.tv_nsec;  // from -1 s to 2 s
  const long seconds = (nanoseconds + kSecond) / kSecond - 1;           // rounded down
  until.tv_sec += end->tv_sec - now.tv_sec + seconds;
  until.tv_nsec = nanoseconds - seconds * kSecond;
  return pthread_mutex_timedlock(mutex, &until);
}
