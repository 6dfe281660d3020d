#pragma once

#include <string_view>

namespace meshtrain {

/// The end of a manifest: these texts around the 16 digits of the checksum of everything before them.
constexpr std::string_view kManifestSeal = ",\n \"xxh3\": \"", kManifestEnd = "\"\n}\n";

/// The lines before and after the manifest's files; each file has a line of its own.
constexpr std::string_view kManifestFiles = " \"files\": [", kManifestFilesEnd = " ]";

}  // namespace meshtrain
