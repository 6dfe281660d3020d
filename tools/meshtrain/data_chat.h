#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>

#include "runtime/text/prepare/prepare_chat.h"
#include "runtime/text/prepare/prepare_text.h"

namespace meshtrain {

/// The options of `meshtrain data prepare --chat`, beside --out, --tokenizer and --workers.
struct ChatArguments {
  PrepareChatOptions options;
  std::optional<std::string> chat_template;
  std::string loss = "assistant", too_long = "drop";
};

/// Adds --chat and the options that need it. Returns --chat.
CLI::Option* add_chat_options(CLI::App& command, ChatArguments& arguments);

/// Prepares, and prints what was written and left out. `show`: shows progress.
int prepare_from_chat(const ChatArguments& arguments, const std::function<void(const PrepareTextProgress&)>& show);

}  // namespace meshtrain
