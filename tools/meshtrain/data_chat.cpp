#include "tools/meshtrain/data_chat.h"

#include <cstdio>
#include <memory>

#include "mesh/base/log.h"
#include "runtime/program/telemetry/console.h"
#include "runtime/program/yaml/scalar_text.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "runtime/training/data/packed_writer.h"
#include "tools/meshtrain/recipe_arguments.h"

namespace meshtrain {
namespace {

const char* was(int64_t count) {
  return count == 1 ? "was" : "were";
}

/// Returns "1 message has" or "2 messages have".
std::string counted_with(int64_t count, const std::string& noun) {
  return counted(count, noun) + (count == 1 ? " has" : " have");
}

double percent(int64_t part, int64_t full) {
  return full == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(full);
}

void print_counts(const PrepareChatCounts& counts, const ChatArguments& arguments) {
  const PrepareChatOptions& options = arguments.options;
  const int64_t record = options.sequence_length + 1, all = counts.records * record;
  std::printf("%s: %s of %s, %s, of %s; %.1f %% is padding, %s %s (%.1f %%)\n", options.output.c_str(),
              counted(counts.records, "sequence").c_str(), counted(record, "token").c_str(), counts.dtype.c_str(),
              counted(counts.conversations, "conversation").c_str(), percent(counts.padding, all),
              counted(counts.counted, "label").c_str(), counts.counted == 1 ? "counts" : "count",
              percent(counts.counted, counts.records * options.sequence_length));
  if (counts.too_long > 0) {
    const char* const rule = options.too_long == TooLong::Drop       ? "left out"
                             : options.too_long == TooLong::Truncate ? "cut to that length"
                                                                     : "split";
    std::printf("%s of more than %s %s %s (--too-long %s); the longest has %s\n",
                counted(counts.too_long, "conversation").c_str(), counted(record, "token").c_str(),
                was(counts.too_long), rule, arguments.too_long.c_str(), with_separators(counts.longest).c_str());
  }
  if (counts.without_label > 0) {
    std::printf("%s without a label that counts %s left out\n", counted(counts.without_label, "conversation").c_str(),
                was(counts.without_label));
  }
  if (counts.bad > 0) {
    std::printf("%s %s skipped (--skip-bad), the first: %s\n", counted(counts.bad, "bad line").c_str(), was(counts.bad),
                counts.first_bad.c_str());
    for (const auto& [reason, count] : counts.bad_reasons) {
      std::printf("  %s: %s\n", counted(count, "line").c_str(), reason.c_str());
    }
  }
  if (counts.with_unread_tools > 0) {
    log_warning(counted(counts.with_unread_tools, "conversation") +
                " with tools, which the template does not mention: the model does not see them");
  }
  if (counts.with_unwritten > 0) {
    log_warning(
        counted(counts.with_unwritten, "conversation") +
        " with an assistant message that the template leaves out, such as tool calls alone: the message has no label");
  }
  if (counts.unusual_roles.count > 0) {
    log_warning(counted_with(counts.unusual_roles.count, "message") +
                " a role other than system, developer, user, assistant, tool, function and ipython, and therefore no "
                "labels; the first: " +
                counts.unusual_roles.first);
  }
  if (counts.printed_parts.count > 0) {
    log_warning(counted_with(counts.printed_parts.count, "conversation") +
                " a \"content\" that is a list of parts, which the template prints as Python does ([{'type': ...), as "
                "with transformers: write it as one text; the first: " +
                counts.printed_parts.first);
  }
  if (counts.lost_parts.count > 0) {
    log_warning(counted_with(counts.lost_parts.count, "conversation") +
                " a \"content\" that is a list of parts, and the template leaves out some of their texts, as with "
                "transformers: "
                "write it as one text; the first: " +
                counts.lost_parts.first);
  }
  std::printf(
      "# for the recipe:\n"
      "data: {tokens: %s, dtype: megatron, layout: records, documents: index, loss_mask: %s}\n"
      "train: {sequence_length: %lld}\n",
      scalar_text(options.output).c_str(), scalar_text(PackedWriter::mask_of(options.output)).c_str(),
      static_cast<long long>(options.sequence_length));
}

}  // namespace

CLI::Option* add_chat_options(CLI::App& command, ChatArguments& arguments) {
  PrepareChatOptions& options = arguments.options;
  CLI::Option* const chat =
      command
          .add_option(
              "--chat", options.inputs,
              "Files of conversations in JSON lines (*.jsonl, *.ndjson, *.json), and folders for all such files below "
              "them. A line is a JSON object with \"messages\", with \"prompt\" and \"completion\", or with ShareGPT's "
              "\"conversations\"; or it is the list of messages alone. The tokenizer's chat template renders the "
              "conversations, and they are packed into sequences. --out is NAME.bin; NAME.idx and NAME.mask are "
              "written next to it")
          ->type_name("FILE...");
  CLI::Option* const length =
      command
          .add_option("--sequence-length", options.sequence_length, "For --chat: train.sequence_length of the recipe")
          ->check(whole_number(1))
          ->type_name("S");
  CLI::Option* const file = command
                                .add_option("--chat-template", arguments.chat_template,
                                            "For --chat: a Jinja template to use instead of the tokenizer's own")
                                ->type_name("FILE");
  CLI::Option* const loss =
      command
          .add_option(
              "--loss", arguments.loss,
              "For --chat: the tokens that count as labels: assistant: those of the assistant's turns; all: all tokens")
          ->capture_default_str()
          ->check(CLI::IsMember({"assistant", "all"}))
          ->type_name("WHAT");
  CLI::Option* const too_long =
      command
          .add_option(
              "--too-long", arguments.too_long,
              "For --chat, and a conversation of more than S + 1 tokens: drop leaves it out, truncate keeps its "
              "first tokens, split makes several of it")
          ->capture_default_str()
          ->check(CLI::IsMember({"drop", "truncate", "split"}))
          ->type_name("RULE");
  CLI::Option* const packing = command.add_flag("--packing,!--no-packing", options.packs,
                                                "For --chat: whether a sequence may hold several conversations, which "
                                                "do not attend to each other. Default: it may");
  CLI::Option* const skip = command.add_flag("--skip-bad", options.skips_bad,
                                             "For --chat: skips lines that are not conversations, or that the template "
                                             "refuses, and reports their number, instead of failing at the first");
  chat->needs(length);
  for (CLI::Option* of_chat : {length, file, loss, too_long, packing, skip}) of_chat->needs(chat);
  return chat;
}

int prepare_from_chat(const ChatArguments& given, const std::function<void(const PrepareTextProgress&)>& show) {
  ChatArguments arguments = given;
  PrepareChatOptions& options = arguments.options;
  options.loss = arguments.loss == "all" ? LossOn::All : LossOn::Assistant;
  options.too_long = arguments.too_long == "drop"       ? TooLong::Drop
                     : arguments.too_long == "truncate" ? TooLong::Truncate
                                                        : TooLong::Split;
  const std::shared_ptr<const Tokenizer> tokenizer =
      load_tokenizer(options.tokenizer);  // before its template is missed
  const ChatTemplate chat(options.tokenizer, arguments.chat_template);
  if (!chat.warning().empty()) log_warning(chat.warning());
  print_counts(prepare_chat(chat, *tokenizer, options,
                            [&](const PrepareChatCounts& now) {
                              show({.bytes = now.bytes,
                                    .total_bytes = now.total_bytes,
                                    .tokens = now.tokens,
                                    .documents = now.conversations});
                            }),
               arguments);
  return 0;
}

}  // namespace meshtrain
