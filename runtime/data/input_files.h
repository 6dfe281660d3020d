#pragma once

#include <filesystem>
#include <vector>

namespace meshtrain {

/// Lists the files that `inputs` name, in their order. A folder stands for the files below it in the order of their
/// paths, hidden folders (.git) left out; links to folders are not followed. `output` itself, OUT.partial and the
/// folder OUT.parts are left out. Throws InputError when an input is missing, cannot be read, or is itself `output` or
/// OUT.parts, and for a link, given or in a folder, to a file that does not exist.
std::vector<std::filesystem::path> input_files(const std::vector<std::filesystem::path>& inputs,
                                               const std::filesystem::path& output);

/// Throws InputError, with both names, when two of `files` are the same file.
void refuse_repeated(const std::vector<std::filesystem::path>& files);

/// Returns true when the name of `file` says that each line holds a JSON value: *.jsonl or *.ndjson, in capitals too.
bool is_json_lines(const std::filesystem::path& file);

/// Returns the folder of the parts of `output` while it is being made: OUT.parts.
std::filesystem::path parts_folder(const std::filesystem::path& output);

}  // namespace meshtrain
