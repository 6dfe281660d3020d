#include "runtime/text/chat/unfinished.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "mesh/base/error.h"
#include "runtime/text/jinja/texts.h"

namespace meshtrain {
namespace {

using jinja::Value;

/// The mark that transformers puts after the text to find where its rendering ends. Templates that trim a text take
/// away the space.
constexpr std::string_view kMark = "CONTINUE_FINAL_MESSAGE_TAG ";
constexpr std::string_view kTrimmedMark = kMark.substr(0, kMark.size() - 1);

/// A message with the mark after its text, and that text.
struct MarkedMessage {
  Value message;
  std::string text;
};

Value with_text(const jinja::Dict& dict, const char* key, const std::string& text) {
  jinja::Dict marked = dict;
  marked.set(key, Value::text(text + std::string(kMark)));
  return jinja::make_dict(std::move(marked));
}

/// Marks the last text of a list of pieces; std::nullopt when none of them has a text.
std::optional<MarkedMessage> mark_last(const jinja::List& pieces) {
  for (size_t i = pieces.values.size(); i-- > 0;) {
    const Value* const text = pieces.values[i].is_dict() ? pieces.values[i].dict().find("text") : nullptr;
    if (text == nullptr || !text->is_text()) continue;
    jinja::List marked = pieces;
    marked.values[i] = with_text(pieces.values[i].dict(), "text", text->text());
    return MarkedMessage{std::make_shared<const jinja::List>(std::move(marked)), text->text()};
  }
  return std::nullopt;
}

MarkedMessage mark(const Value& message) {
  const Value* const content = message.dict().find("content");
  if (content != nullptr && content->is_text()) {
    return {with_text(message.dict(), "content", content->text()), content->text()};
  }
  std::optional<MarkedMessage> pieces =
      content != nullptr && content->is_list() ? mark_last(content->list()) : std::nullopt;
  if (!pieces) throw InputError("the last message has no text that could be continued");
  jinja::Dict marked = message.dict();
  marked.set("content", std::move(pieces->message));
  return {jinja::make_dict(std::move(marked)), std::move(pieces->text)};
}

}  // namespace

std::vector<int64_t> tokenize_unfinished(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                         const Conversation& conversation) {
  jinja::List messages = *conversation.messages;
  MarkedMessage last = mark(messages.values.back());
  messages.values.back() = std::move(last.message);
  Conversation marked = conversation;
  marked.messages = std::make_shared<const jinja::List>(std::move(messages));
  const std::string full = chat.render(marked, marked.messages->values.size(), false).text;
  const size_t end = full.rfind(kTrimmedMark);
  if (end == std::string::npos || full.find(jinja::strip(last.text)) == std::string::npos) {
    throw InputError("the template changes the text of the last message, so it cannot be continued");
  }
  const std::string_view text = std::string_view(full).substr(0, end);
  const bool keeps_spaces = std::string_view(full).substr(end).starts_with(kMark);
  return tokenizer.ids(keeps_spaces ? text : jinja::strip_right(text), /*add_special=*/false);
}

}  // namespace meshtrain
