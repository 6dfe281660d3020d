#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace meshtrain {

/// The choice of files below folders, by globs as matches() in glob.h has them. A glob with a slash is compared
/// with the path below the folder, any other with the file's name alone. Files that are inputs themselves are always
/// taken.
struct FileFilter {
  std::vector<std::string> include;  ///< a file has to match one of these; empty: every file is taken
  std::vector<std::string> exclude;  ///< a file that matches one of these is left out, whatever `include` says
};

/// Lists the files that `inputs` name, in their order, for text and for bytes alike. A folder stands for the files
/// below it that `filter` takes, in the order of their paths, hidden folders (.git) left out. A link to a file is that
/// file; a link to a folder is followed when it is an input, and left out below a folder, so loops of links end.
/// `output` itself, its sidecar, OUT.partial and the folder OUT.parts are left out. Throws InputError when
///   an input is missing, cannot be read, or is itself `output`, its sidecar or OUT.parts;
///   a link, given or in a folder, leads to nothing;
///   a download has not ended (is_unfinished_download());
///   two names lead to the same file;
///   the globs leave no file of a folder.
std::vector<std::filesystem::path> input_files(const std::vector<std::filesystem::path>& inputs,
                                               const std::filesystem::path& output, const FileFilter& filter = {});

/// Returns the globs of `filter` that match no file below the folders among `inputs`, as options: "--include *.md".
/// Throws as input_files() does for a folder that cannot be read.
std::vector<std::string> unmatched_globs(const std::vector<std::filesystem::path>& inputs,
                                         const std::filesystem::path& output, const FileFilter& filter);

/// Returns the folder of the parts of `output` while it is being made: OUT.parts.
std::filesystem::path parts_folder(const std::filesystem::path& output);

}  // namespace meshtrain
