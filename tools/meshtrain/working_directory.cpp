#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>

// Ends the program with an error line when its working directory no longer exists. MKL's constructor would end such a
// process with its own message, so this check runs before all constructors of shared libraries and uses only system
// calls.

namespace {

__attribute__((no_sanitize("address", "thread", "undefined"))) void check_working_directory(int, char**, char**) {
  static char path[PATH_MAX];
  static constexpr char kLine[] = "meshtrain: the working directory no longer exists: change to another one (cd)\n";
  if (::syscall(SYS_getcwd, path, sizeof path) >= 0 || errno != ENOENT) return;
  ::syscall(SYS_write, STDERR_FILENO, kLine, sizeof kLine - 1);
  ::syscall(SYS_exit_group, 2);
}

__attribute__((section(".preinit_array"), used)) void (*const check)(int, char**, char**) = check_working_directory;

}  // namespace
