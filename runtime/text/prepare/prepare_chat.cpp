#include "runtime/text/prepare/prepare_chat.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <utility>

#include "mesh/base/error.h"
#include "mesh/base/files/compressed_file.h"
#include "mesh/base/files/file_reader.h"
#include "mesh/base/files/json_lines.h"
#include "mesh/base/size_text.h"
#include "runtime/text/prepare/sidecar_tokenizer.h"
#include "runtime/text/prepare/text_parts.h"
#include "runtime/training/data/packed_writer.h"
#include "runtime/training/data/token_sidecar.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBatchLines = 512;
constexpr size_t kBatchBytes = size_t{4} << 20;
constexpr size_t kMostReasons = 20;
constexpr size_t kMostRoles = 20;
constexpr size_t kMostOfLine = size_t{256} << 20;

/// The size of a file and the time of its last change.
using FileStamp = std::pair<uintmax_t, fs::file_time_type>;

FileStamp stamp_of(const fs::path& file) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(file, error);
  const uintmax_t size = error ? 0 : fs::file_size(file, error);
  if (error) throw InputError("cannot read " + file.string() + ": " + error.message());
  return {size, time};
}

/// A line of an input, and what became of it.
struct ChatLine {
  std::string text;
  int64_t number = 0;
  ChatTokens tokens = {};
  std::set<std::string> roles = {};
  std::vector<std::string> unusual_roles = {};  // of messages, in their order
  bool has_unread_tools = false;
  std::string wrong = {};
  std::exception_ptr failure = nullptr;
};

/// Returns advice for a file that is not named as JSON lines, chosen by the beginning of its text.
std::string advice_on_name(const fs::path& file) {
  const FileReader reader(file);
  const FileBytes beginning = reader.read(0, std::min<int64_t>(reader.size(), 4096));
  const std::string command = json_lines_command(beginning.text(), file);
  const bool is_line = command.empty() || first_json_line(beginning.text()).is_object();
  return is_line ? ": if each of its lines is a JSON object, rename it" : ": " + command + " makes one of it";
}

/// Returns the files of JSON lines. Those of other kinds are left out of folders, and refused where they are named.
std::vector<fs::path> chat_files(const PrepareChatOptions& options) {
  std::vector<fs::path> files;
  for (const fs::path& file : input_files(options.inputs, options.output, options.filter)) {
    if (is_json_lines(file, {"messages", "conversations", "completion"})) {
      files.push_back(file);
    } else if (std::ranges::find(options.inputs, file) != options.inputs.end()) {
      throw InputError(file.string() + ": conversations are JSON lines, in a file *.jsonl or *.ndjson" +
                       advice_on_name(file));
    }
  }
  if (files.empty()) throw InputError("--chat: the given folders have no *.jsonl or *.ndjson");
  for (const fs::path& file : files) check_text(file, /*is_json_lines=*/true);
  return files;
}

/// Calls `visit` with the text of a file, block by block, decompressed where its name says that it has to be.
template <class Visit>
void for_each_block(const fs::path& path, const Visit& visit) {
  if (compression_of(path) == Compression::None) {
    const FileReader file(path);
    file.for_each_block(0, file.size(), visit);
    return;
  }
  CompressedFile file(path);
  std::string block(size_t{1} << 20, '\0');
  while (const size_t count = file.read(block.data(), block.size())) visit(std::string_view(block.data(), count));
}

/// Calls `visit` with the lines of the file, batch by batch. Blank lines are left out.
template <class Visit>
void for_each_batch(const fs::path& path, const Visit& visit) {
  std::vector<ChatLine> batch;
  std::string open;  // the beginning of a line that has not ended
  size_t batch_bytes = 0;
  int64_t number = 0;
  const auto pass = [&] {
    if (!batch.empty()) visit(batch, static_cast<int64_t>(batch_bytes));
    batch.clear();
    batch_bytes = 0;
  };
  const auto end_line = [&] {
    ++number;
    batch_bytes += open.size() + 1;
    if (open.find_first_not_of(" \t\r") != std::string::npos) batch.push_back({std::exchange(open, {}), number});
    open.clear();
    if (batch.size() == kBatchLines || batch_bytes >= kBatchBytes) pass();
  };
  for_each_block(path, [&](std::string_view block) {
    while (!block.empty()) {
      const size_t end = std::min(block.find('\n'), block.size());
      open += block.substr(0, end);
      if (open.size() > kMostOfLine) {
        throw InputError(path.string() + ":" + std::to_string(number + 1) + ": a line of more than 256 MiB");
      }
      if (end < block.size()) end_line();
      block.remove_prefix(std::min(end + 1, block.size()));
    }
  });
  if (!open.empty()) end_line();
  pass();
}

/// Returns the roles of all messages that are texts.
std::set<std::string> roles_of(const Conversation& conversation) {
  std::set<std::string> roles;
  for (const jinja::Value& message : conversation.messages->values) {
    const jinja::Value* const role = message.dict().find("role");
    if (role != nullptr && role->is_text()) roles.insert(role->text());
  }
  return roles;
}

/// Returns the roles that is_usual_role() does not know, one for each message that has such a role.
std::vector<std::string> unusual_roles_of(const Conversation& conversation) {
  std::vector<std::string> roles;
  for (const jinja::Value& message : conversation.messages->values) {
    const jinja::Value* const role = message.dict().find("role");
    if (role != nullptr && role->is_text() && !is_usual_role(role->text())) roles.push_back(role->text());
  }
  return roles;
}

/// Returns why no conversation is left.
std::string describe_nothing_left(const PrepareChatCounts& counts, const PrepareChatOptions& options,
                                  const std::vector<fs::path>& files) {
  const int64_t all = counts.conversations + counts.bad;
  if (all == 0) {
    return files.size() == 1 ? files[0].string() + ": the file is empty" : "--chat: all given files are empty";
  }
  std::string roles;
  for (const std::string& role : counts.roles) roles += (roles.empty() ? "" : ", ") + role;
  const bool names_roles = options.loss == LossOn::Assistant && !roles.empty() && !counts.roles.contains("assistant");
  return "no conversation is left of " + with_separators(all) + ": " + counted(counts.bad, "bad line") + ", " +
         with_separators(counts.too_long) + " of more than " + counted(options.sequence_length + 1, "token") + ", " +
         with_separators(counts.without_label) + " without a label that counts" +
         (names_roles ? "; no message has the role assistant, whose labels count: the roles are " + roles +
                            ": rename the role that the model is to learn to assistant, or give --loss all"
                      : "") +
         (counts.first_bad.empty() ? "" : "; the first bad line: " + counts.first_bad);
}

/// Returns a reason for which lines are skipped without what differs from line to line: locations and numbers.
std::string reason_without_details(const std::string& wrong) {
  std::string reason;
  for (const char c : wrong.starts_with("not valid JSON") ? std::string("not valid JSON") : wrong) {
    if (c < '0' || c > '9') {
      reason += c;
    } else if (!reason.ends_with('N')) {
      reason += 'N';
    }
  }
  return reason;
}

/// Tokenises the lines on several threads.
void tokenize_batch(const ChatTemplate& chat, const Tokenizer& tokenizer, const PrepareChatOptions& options,
                    std::vector<ChatLine>& batch) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < batch.size(); i = next++) {
      ChatLine& line = batch[i];
      try {
        const Conversation conversation = parse_conversation(line.text);
        line.roles = roles_of(conversation);
        line.unusual_roles = unusual_roles_of(conversation);
        line.has_unread_tools = conversation.tools.is_true() && !chat.reads_tools(conversation);
        line.tokens = tokenize_chat(chat, tokenizer, conversation, options.loss);
      } catch (const InputError& error) {
        line.wrong = error.what();
      } catch (...) {
        line.failure = std::current_exception();
      }
    }
  };
  const size_t others = std::min(static_cast<size_t>(std::max(options.threads, 1)), batch.size()) - 1;
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < others; ++i) threads.emplace_back(work);
  work();
}

/// The conversion of one run.
class ChatRun {
 public:
  ChatRun(const PrepareChatOptions& options, PackedWriter& writer, PrepareChatCounts& counts)
      : options_(options),
        record_(static_cast<size_t>(options.sequence_length) + 1),
        writer_(writer),
        counts_(counts) {}

  void add(const fs::path& file, ChatLine& line) {
    if (line.failure) std::rethrow_exception(line.failure);
    const std::string where = file.string() + ":" + std::to_string(line.number);
    if (!line.wrong.empty()) {
      const std::string what = where + ": " + line.wrong;
      if (!options_.skips_bad) throw InputError(what);
      if (counts_.bad++ == 0) counts_.first_bad = what;
      const std::string reason = reason_without_details(line.wrong);
      const bool is_listed = counts_.bad_reasons.size() < kMostReasons || counts_.bad_reasons.contains(reason);
      ++counts_.bad_reasons[is_listed ? reason : "other reasons"];
      return;
    }
    ++counts_.conversations;
    for (const std::string& role : line.roles) {
      if (counts_.roles.size() < kMostRoles || role == "assistant") counts_.roles.insert(role);
    }
    counts_.with_unread_tools += line.has_unread_tools ? 1 : 0;
    ChatTokens& tokens = line.tokens;
    if (!line.unusual_roles.empty() && counts_.unusual_roles.count == 0) {
      counts_.unusual_roles.first = where + ": " + line.unusual_roles[0].substr(0, 40);
    }
    counts_.unusual_roles.count += static_cast<int64_t>(line.unusual_roles.size());
    if (tokens.prints_parts && counts_.printed_parts.count++ == 0) counts_.printed_parts.first = where;
    if (tokens.loses_parts && counts_.lost_parts.count++ == 0) counts_.lost_parts.first = where;
    counts_.with_unwritten += tokens.num_unwritten > 0 ? 1 : 0;
    counts_.longest = std::max(counts_.longest, static_cast<int64_t>(tokens.ids.size()));
    const bool too_long = tokens.ids.size() > record_;
    if (too_long) ++counts_.too_long;
    if (too_long && options_.too_long == TooLong::Drop) return;
    if (too_long && options_.too_long == TooLong::Truncate) {
      tokens.ids.resize(record_);
      tokens.counted.resize(record_);
    }
    if (!counts_any(tokens)) {
      ++counts_.without_label;
      return;
    }
    for (size_t begin = 0; begin == 0 || begin + 1 < tokens.ids.size(); begin += record_ - 1) {
      const size_t end = std::min(begin + record_, tokens.ids.size());
      const auto piece = [&](const auto& all) {
        return std::decay_t<decltype(all)>(all.begin() + static_cast<ptrdiff_t>(begin),
                                           all.begin() + static_cast<ptrdiff_t>(end));
      };
      const ChatTokens part{piece(tokens.ids), piece(tokens.counted)};
      if (!counts_any(part)) continue;
      writer_.add(part.ids, part.counted);
      counts_.tokens += static_cast<int64_t>(part.ids.size());
    }
  }

 private:
  static bool counts_any(const ChatTokens& tokens) {
    return !tokens.ids.empty() &&
           std::find(tokens.counted.begin() + 1, tokens.counted.end(), 1) != tokens.counted.end();
  }

  const PrepareChatOptions& options_;
  size_t record_;
  PackedWriter& writer_;
  PrepareChatCounts& counts_;
};

}  // namespace

PrepareChatCounts prepare_chat(const ChatTemplate& chat, const Tokenizer& tokenizer, const PrepareChatOptions& options,
                               const std::function<void(const PrepareChatCounts&)>& report) {
  if (options.sequence_length < 1) throw InputError("--sequence-length must be at least 1");
  if (options.output.extension() != ".bin") {
    throw InputError("--out must be NAME.bin with --chat, not " + options.output.string() +
                     ": NAME.idx and NAME.mask are written next to it");
  }
  const std::vector<fs::path> files = chat_files(options);
  PrepareChatCounts counts;
  std::vector<FileStamp> stamps;
  for (const fs::path& file : files) stamps.push_back(stamp_of(file));
  for (const fs::path& file : files) counts.total_bytes += FileReader(file).size();
  const int64_t padding = tokenizer.eos().value_or(0);
  counts.dtype = std::max(tokenizer.vocabulary_size() - 1, padding) < 1 << 16 ? "uint16" : "int32";
  check_sidecar_path(options.output);
  std::error_code ignored;  // OutputFile reports why
  if (options.output.has_parent_path()) fs::create_directories(options.output.parent_path(), ignored);
  PackedWriter writer(options.output, counts.dtype, options.sequence_length + 1, padding, options.packs);
  ChatRun run(options, writer, counts);
  for (const fs::path& file : files) {
    for_each_batch(file, [&](std::vector<ChatLine>& batch, int64_t bytes) {
      tokenize_batch(chat, tokenizer, options, batch);
      for (ChatLine& line : batch) run.add(file, line);
      counts.bytes = std::min(counts.bytes + bytes, counts.total_bytes);  // of compressed files they are more
      if (report) report(counts);
    });
  }
  if (writer.num_counted() == 0) throw InputError(describe_nothing_left(counts, options, files));
  for (size_t i = 0; i < files.size(); ++i) {
    if (stamp_of(files[i]) == stamps[i]) continue;
    throw InputError(files[i].string() + " changed while it was read: prepare " + options.output.string() +
                     " again, when nothing writes to that file any more");
  }
  TokenSidecar origin = sidecar_of_origin(tokenizer, options.tokenizer, padding, options.command);
  origin.separator.reset();  // the index says where documents end
  writer.finish(origin);
  counts.records = writer.num_records();
  counts.counted = writer.num_counted();
  counts.padding = writer.num_padding();
  return counts;
}

}  // namespace meshtrain
