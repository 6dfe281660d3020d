#include "runtime/train/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "mesh/error.h"

namespace meshtrain {

RunDirectory::RunDirectory(std::filesystem::path folder, bool resume) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) throw InputError("cannot create the run directory " + folder_.string() + ": " + error.message());
  lock_ = open((folder_ / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_ < 0)
    throw InputError("cannot write in the run directory " + folder_.string() + ": " + std::strerror(errno));
  if (flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    close(lock_);
    throw InputError("the run directory " + folder_.string() + " is in use by another run; choose another --run-dir");
  }
  if (!resume && std::filesystem::exists(metrics())) {
    close(lock_);
    throw InputError("the run directory " + folder_.string() +
                     " holds a run; continue it with --resume, choose another --run-dir, or remove it");
  }
}

RunDirectory::~RunDirectory() {
  close(lock_);
}

void RunDirectory::write_recipe(const std::string& yaml) const {
  const std::filesystem::path file = folder_ / "recipe.yaml", beside = folder_ / "recipe.yaml.partial";
  std::ofstream out(beside);
  out << yaml << std::flush;
  out.close();
  if (!out) {
    std::error_code ignored;
    std::filesystem::remove(beside, ignored);
    throw std::runtime_error("cannot write " + file.string() + ": " + std::strerror(errno));
  }
  std::filesystem::rename(beside, file);
}

}  // namespace meshtrain
