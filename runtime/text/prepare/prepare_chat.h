#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "runtime/text/chat/chat_tokens.h"
#include "runtime/text/prepare/input_files.h"

namespace meshtrain {

/// The treatment of a conversation with more tokens than a sequence and its last label have.
enum class TooLong {
  Drop,
  Truncate,  ///< its first tokens are kept
  Split      ///< pieces that overlap by one token, so that no label is lost; each begins without what was before
};

struct PrepareChatOptions {
  std::vector<std::filesystem::path>
      inputs;                    ///< JSON lines (is_json_lines()), and folders for all such files below them
  FileFilter filter = {};        ///< which files below these folders
  std::filesystem::path output;  ///< NAME.bin; NAME.idx and NAME.mask are written beside it
  int64_t sequence_length = 0;   ///< S: records of S + 1 tokens
  LossOn loss = LossOn::Assistant;
  TooLong too_long = TooLong::Drop;
  bool packs = true;
  bool skips_bad = false;  ///< bad lines are counted, not an error
  int threads = 1;
  std::string tokenizer;  ///< its name, for the sidecar
  std::string command;    ///< the command line, for the sidecar
};

/// Things that were noticed in the lines.
struct Occurrences {
  int64_t count = 0;
  std::string first;  ///< "FILE:LINE" of the first, and more where that helps
};

struct PrepareChatCounts {
  int64_t bytes = 0, total_bytes = 0;          ///< of the inputs
  int64_t conversations = 0;                   ///< that were read
  int64_t bad = 0;                             ///< lines that were skipped
  std::string first_bad;                       ///< what is wrong with the first of them
  std::map<std::string, int64_t> bad_reasons;  ///< how many of them were bad for the same reason
  std::set<std::string> roles;                 ///< of the messages that were read, some of many
  int64_t with_unread_tools = 0;               ///< conversations with tools, which the template does not mention
  int64_t with_unwritten = 0;                  ///< conversations with a ChatTokens::num_unwritten
  Occurrences unusual_roles;                   ///< messages whose role is_usual_role() does not know
  Occurrences printed_parts;                   ///< conversations with ChatTokens::prints_parts
  Occurrences lost_parts;                      ///< conversations with ChatTokens::loses_parts
  int64_t too_long = 0;
  int64_t without_label = 0;  ///< left out: no label of theirs counts
  int64_t tokens = 0;         ///< of the conversations that were kept
  int64_t longest = 0;        ///< the most tokens of a conversation, cut ones included
  int64_t records = 0, counted = 0, padding = 0;
  std::string dtype;
};

/// Turns conversations, one on each line, into packed records (PackedWriter). Their order is that of the lines, on any
/// number of threads. `report` is called on the calling thread after each part of the inputs.
///
/// Throws InputError when an input cannot be read; "FILE:LINE: ..." for a line that is no conversation, that the
/// template refuses, or of which the assistant's turns cannot be found, unless skips_bad; when nothing is left;
/// when an input changes meanwhile; and when the output cannot be created. Throws std::runtime_error when the disk
/// fails. No output appears then.
PrepareChatCounts prepare_chat(const ChatTemplate& chat, const Tokenizer& tokenizer, const PrepareChatOptions& options,
                               const std::function<void(const PrepareChatCounts&)>& report = {});

}  // namespace meshtrain
