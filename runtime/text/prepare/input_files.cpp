#include "runtime/text/prepare/input_files.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <system_error>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/download.h"
#include "mesh/base/files/glob.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

fs::path with_ending(fs::path path, const char* ending) {
  path += ending;
  return path;
}

bool same(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

/// Throws InputError for a link that leads to nothing.
void refuse_dangling(const fs::path& path) {
  if (const std::string dangling = describe_dangling(path); !dangling.empty()) {
    throw InputError("cannot read " + path.string() + ": " + dangling);
  }
}

/// Throws InputError for a file whose download has not ended.
void refuse_unfinished(const fs::path& file) {
  if (!is_unfinished_download(file)) return;
  throw InputError(
      "cannot read " + file.string() + ": its name ends in " + file.extension().string() +
      ", so its download is not complete: finish the download, leave the file out (--exclude), or rename it");
}

/// The files below one folder that a filter takes.
class FileSelection {
 public:
  FileSelection(const fs::path& folder, const FileFilter& filter) : folder_(folder), filter_(filter) {}

  bool takes(const fs::path& file) const {
    return (filter_.include.empty() || matches_one(filter_.include, file)) && !matches_one(filter_.exclude, file);
  }

  bool matches_glob(const std::string& glob, const fs::path& file) const {
    const bool has_folder = glob.find('/') != std::string::npos;
    return matches(glob, (has_folder ? file.lexically_relative(folder_) : file.filename()).generic_string());
  }

 private:
  bool matches_one(const std::vector<std::string>& globs, const fs::path& file) const {
    return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) { return matches_glob(glob, file); });
  }

  const fs::path& folder_;
  const FileFilter& filter_;
};

/// Calls `visit` with every file and link below `folder`, but for hidden folders and that of parts.
template <class Visit>
void for_each_file(const fs::path& folder, const fs::path& parts, const Visit& visit) {
  try {
    for (fs::recursive_directory_iterator entry(folder), end; entry != end; ++entry) {
      if (entry->is_symlink() || !entry->is_directory()) {
        visit(*entry);
      } else if (entry->path().filename().string().starts_with('.') || same(entry->path(), parts)) {
        entry.disable_recursion_pending();
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw InputError("cannot read " + folder.string() + ": " + error.code().message());
  }
}

void collect(const fs::path& folder, const fs::path& parts, const FileSelection& chosen, std::vector<fs::path>& files) {
  for_each_file(folder, parts, [&](const fs::directory_entry& entry) {
    if (!chosen.takes(entry.path())) return;  // a link: wherever it leads
    refuse_dangling(entry.path());
    if (entry.is_regular_file()) files.push_back(entry.path());
  });
  if (const fs::path open = unfinished_hub_download(folder); !open.empty()) {
    throw InputError("the download into " + folder.string() + " is not complete, as " + open.string() +
                     " shows: run it again, or remove that file");
  }
}

std::vector<fs::path> files_of(const fs::path& input, const fs::path& parts, const FileFilter& filter) {
  refuse_dangling(input);
  std::error_code error;
  const fs::file_status status = fs::status(input, error);
  if (!fs::exists(status)) throw InputError("cannot read " + input.string() + ": there is no such file or folder");
  std::vector<fs::path> files;
  if (!fs::is_directory(status)) return {input};
  collect(input, parts, FileSelection(input, filter), files);
  if (files.empty() && (!filter.include.empty() || !filter.exclude.empty())) {
    throw InputError("--include and --exclude leave no file of " + input.string() +
                     ": change the globs, or leave the folder out");
  }
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.generic_string() < b.generic_string(); });
  return files;
}

/// Throws InputError, with both names, when two of `files` are the same file.
void refuse_repeated(const std::vector<fs::path>& files) {
  std::map<std::pair<dev_t, ino_t>, const fs::path*> known;
  for (const fs::path& file : files) {
    struct stat found {};
    if (::stat(file.c_str(), &found) != 0) continue;  // opening it will report why
    const auto [first, is_new] = known.try_emplace({found.st_dev, found.st_ino}, &file);
    if (is_new) continue;
    throw InputError("the inputs " + first->second->string() + " and " + file.string() +
                     " are the same file: leave one out (to take a text more often, give its token file a weight in "
                     "data.mixture)");
  }
}

}  // namespace

fs::path parts_folder(const fs::path& output) {
  return with_ending(output, ".parts");
}

std::vector<fs::path> input_files(const std::vector<fs::path>& inputs, const fs::path& output,
                                  const FileFilter& filter) {
  std::vector<fs::path> files;
  const std::vector<fs::path> own = {output, with_ending(output, ".partial"), sidecar_path(output),
                                     with_ending(sidecar_path(output), ".partial"),
                                     with_ending(sidecar_path(output), ".replacing")};
  for (const fs::path& input : inputs) {
    if (same(input, output)) {
      throw InputError("--out " + output.string() + " is the same file as the input " + input.string() +
                       ": name another one to write");
    }
    if (same(input, sidecar_path(output))) {
      throw InputError("the input " + input.string() + " is the description of --out " + output.string() +
                       ", which data prepare replaces: name another one to write");
    }
    if (same(input, parts_folder(output))) {
      throw InputError("the input " + input.string() +
                       " is the folder that data prepare needs for the parts of --out " + output.string() +
                       ": name another one to write");
    }
    for (fs::path& file : files_of(input, parts_folder(output), filter)) {
      const bool is_own = std::any_of(own.begin(), own.end(), [&](const fs::path& one) { return same(file, one); });
      if (is_own) continue;
      refuse_unfinished(file);
      files.push_back(std::move(file));
    }
  }
  refuse_repeated(files);
  return files;
}

std::vector<std::string> unmatched_globs(const std::vector<fs::path>& inputs, const fs::path& output,
                                         const FileFilter& filter) {
  std::vector<std::pair<std::string, std::string>> open;  // an option and its glob
  for (const std::string& glob : filter.include) open.emplace_back("--include ", glob);
  for (const std::string& glob : filter.exclude) open.emplace_back("--exclude ", glob);
  for (const fs::path& input : inputs) {
    std::error_code ignored;
    if (open.empty() || !fs::is_directory(input, ignored)) continue;
    const FileSelection chosen(input, filter);
    for_each_file(input, parts_folder(output), [&](const fs::directory_entry& entry) {
      std::erase_if(open, [&](const auto& glob) { return chosen.matches_glob(glob.second, entry.path()); });
    });
  }
  std::vector<std::string> found;
  for (const auto& [option, glob] : open) found.push_back(option + glob);
  return found;
}

}  // namespace meshtrain
