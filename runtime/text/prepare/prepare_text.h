#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/text/prepare/input_files.h"
#include "runtime/text/prepare/text_parts.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace meshtrain {

struct PrepareTextOptions {
  std::vector<std::filesystem::path> inputs;  ///< files, and folders for all files below them (input_files())
  FileFilter filter;
  std::filesystem::path output;
  std::string dtype = "uint16";
  std::string tokenizer;             ///< as given to load_tokenizer()
  std::optional<int64_t> separator;  ///< written after each document
  TextFormat format;
  int threads = 1;
  int64_t part_bytes = int64_t{8} << 20;  ///< of text in a part, at least; more if there would be over 4096 parts
  std::string command;                    ///< the command line, for the sidecar
};

struct PrepareTextProgress {
  int64_t bytes = 0, total_bytes = 0;  ///< of the inputs
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t text_bytes = 0;  ///< of the documents' texts, decompressed, without what is around them in the inputs
  int64_t not_utf8 = 0;    ///< bytes of the inputs that are not UTF-8
  int64_t parts = 0, total_parts = 0;
  int64_t kept_parts = 0;  ///< done by an earlier run that was interrupted; counted in all the others too
};

/// Tokenises text on several threads into a token file of `dtype`, which appears complete or not at all: the documents
/// in the order of their files, each with the tokens that the tokenizer puts around a text and the separator. Its
/// sidecar (TokenSidecar) appears after it.
///
/// The inputs are divided into parts. Each part is written, complete or not at all, into the folder OUT.parts; when all
/// exist they are joined and the folder is removed. A run with the same inputs (names, sizes, times of change),
/// tokenizer, dtype, separator and format continues one that was killed; the number of threads may change. Parts of any
/// other run are removed. The disk needs room for the tokens twice.
///
/// `report` is called on the calling thread at the beginning, about once a second, and at the end. Throws InputError
/// when an input cannot be read, is malformed or not text (check_texts()), ids do not fit into `dtype`, there are no
/// documents, another run is writing the same file, or the sidecar's path is taken; std::runtime_error when the disk
/// fails. Parts that are done are then kept.
PrepareTextProgress prepare_text(const Tokenizer& tokenizer, const PrepareTextOptions& options,
                                 const std::function<void(const PrepareTextProgress&)>& report = {});

}  // namespace meshtrain
