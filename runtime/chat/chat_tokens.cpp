#include "runtime/chat/chat_tokens.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "mesh/error.h"

namespace meshtrain {
namespace {

using jinja::MessageSpan;
using jinja::Rendered;
using jinja::Span;

bool is_assistant(const Conversation& conversation, size_t message) {
  const jinja::Value* const role = conversation.messages->values[message].dict().find("role");
  return role != nullptr && role->is_text() && role->text() == "assistant";
}

/// Returns the messages whose tokens count.
std::vector<size_t> counted_turns(const Conversation& conversation) {
  std::vector<size_t> turns;
  for (size_t i = conversation.first_counted; i < conversation.messages->values.size(); ++i) {
    if (is_assistant(conversation, i)) turns.push_back(i);
  }
  return turns;
}

/// Returns the rendering of the first messages; std::nullopt when the template refuses them.
std::optional<Rendered> try_render(const ChatTemplate& chat, const Conversation& conversation, size_t count,
                                   bool add_generation_prompt) {
  try {
    return chat.render(conversation, count, add_generation_prompt);
  } catch (const jinja::TemplateError&) {
    return std::nullopt;
  }
}

/// Returns what {% generation %} has marked, behind the prompt where there is one.
std::vector<Span> marked_turns(const ChatTemplate& chat, const Conversation& conversation, const Rendered& whole) {
  if (conversation.first_counted == 0) return whole.generation;
  const Rendered prompt = chat.render(conversation, conversation.first_counted, true);
  if (!whole.text.starts_with(prompt.text)) {
    throw InputError(
        "the template renders the prompt in another way when the completion follows: --loss all counts both");
  }
  std::vector<Span> turns;
  for (const Span& span : whole.generation) {
    if (span.begin >= prompt.text.size()) turns.push_back(span);
  }
  return turns;
}

std::optional<std::vector<Span>> turns_by_prefixes(const ChatTemplate& chat, const Conversation& conversation,
                                                   const std::string& whole) {
  std::vector<Span> turns;
  for (const size_t i : counted_turns(conversation)) {
    const std::optional<Rendered> before = try_render(chat, conversation, i, true);
    if (!before || !whole.starts_with(before->text)) return std::nullopt;
    size_t end = whole.size();
    if (i + 1 < conversation.messages->values.size()) {
      const std::optional<Rendered> after = try_render(chat, conversation, i + 1, false);
      if (!after || !whole.starts_with(after->text)) return std::nullopt;
      end = after->text.size();
    }
    if (end < before->text.size()) return std::nullopt;
    turns.push_back({before->text.size(), end});
  }
  return turns;
}

/// Returns the one span of a message; std::nullopt when there is none, or several.
std::optional<Span> span_of(const std::vector<MessageSpan>& spans, size_t message) {
  std::optional<Span> found;
  for (const MessageSpan& span : spans) {
    if (span.message != message) continue;
    if (found) return std::nullopt;
    found = span.span;
  }
  return found;
}

/// Returns what the template writes behind the last of the first `count` messages to begin the next turn.
std::optional<std::string> generation_prompt(const ChatTemplate& chat, const Conversation& conversation, size_t count) {
  const std::optional<Rendered> rendered = try_render(chat, conversation, count, true);
  const std::optional<Span> last = rendered ? span_of(rendered->message_spans, count - 1) : std::nullopt;
  return last ? std::optional(rendered->text.substr(last->end)) : std::nullopt;
}

std::optional<std::vector<Span>> turns_by_loop(const ChatTemplate& chat, const Conversation& conversation,
                                               const Rendered& whole) {
  std::vector<Span> turns;
  for (const size_t i : counted_turns(conversation)) {
    const std::optional<Span> span = span_of(whole.message_spans, i);
    const std::optional<std::string> begin = i > 0 ? generation_prompt(chat, conversation, i) : std::nullopt;
    if (!span || !begin) return std::nullopt;
    if (!std::string_view(whole.text).substr(span->begin, span->end - span->begin).starts_with(*begin))
      return std::nullopt;
    turns.push_back({span->begin + begin->size(), span->end});
  }
  return turns;
}

std::vector<Span> find_turns(const ChatTemplate& chat, const Conversation& conversation, const Rendered& whole) {
  if (chat.has_generation(conversation)) return marked_turns(chat, conversation, whole);
  std::optional<std::vector<Span>> turns = turns_by_prefixes(chat, conversation, whole.text);
  if (!turns) turns = turns_by_loop(chat, conversation, whole);
  if (turns) return *std::move(turns);
  throw InputError(
      "the assistant's turns cannot be told apart: rendered up to such a turn, the template's text is no prefix of the "
      "whole: give --loss all, or --chat-template one that marks them by {% generation %}");
}

bool is_blank(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

/// Returns the bytes of each token in `text`; std::nullopt when tokens do not spell it, as where the tokenizer changes
/// characters. Spaces that special tokens take away belong to none.
std::optional<std::vector<Span>> spelled_tokens(const Tokenizer& tokenizer, std::string_view text,
                                                const std::vector<int64_t>& ids) {
  std::vector<Span> spans;
  size_t at = 0;
  for (const int64_t id : ids) {
    const std::string token = tokenizer.decode({id});
    size_t begin = at;
    while (!text.substr(begin).starts_with(token)) {
      if (begin >= text.size() || !is_blank(text[begin])) return std::nullopt;
      ++begin;
    }
    at = begin + token.size();
    spans.push_back({begin, at});
  }
  return spans;
}

/// Returns how many tokens the text before `end` has, of those that the whole begins with.
size_t tokens_before(const Tokenizer& tokenizer, std::string_view text, size_t end, const std::vector<int64_t>& ids) {
  const std::vector<int64_t> before = tokenizer.ids(text.substr(0, end), /*add_special=*/false);
  const auto [mine, theirs] = std::mismatch(before.begin(), before.end(), ids.begin(), ids.end());
  return static_cast<size_t>(mine - before.begin());
}

std::vector<uint8_t> counted_tokens(const Tokenizer& tokenizer, const std::string& text,
                                    const std::vector<int64_t>& ids, const std::vector<Span>& turns) {
  std::vector<uint8_t> counted(ids.size(), 0);
  const std::optional<std::vector<Span>> tokens = spelled_tokens(tokenizer, text, ids);
  size_t first = 0;
  for (const Span& turn : turns) {
    if (turn.begin == turn.end) continue;
    if (!tokens) {
      const size_t end = tokens_before(tokenizer, text, turn.end, ids);
      for (size_t i = tokens_before(tokenizer, text, turn.begin, ids); i < end; ++i) counted[i] = 1;
      continue;
    }
    // Turns ascend. A token at the beginning that alone decodes to nothing, a mark of a space, is the turn's.
    const auto is_before = [&](const Span& token) { return token.end <= turn.begin && token.begin < turn.begin; };
    while (first < ids.size() && is_before((*tokens)[first])) ++first;
    for (size_t i = first; i < ids.size() && (*tokens)[i].begin < turn.end; ++i) counted[i] = 1;
  }
  return counted;
}

}  // namespace

ChatTokens tokenize_chat(const ChatTemplate& chat, const Tokenizer& tokenizer, const Conversation& conversation,
                         LossOn loss) {
  const Rendered whole = chat.render(conversation, conversation.messages->values.size(), false);
  ChatTokens tokens;
  tokenizer.encode(whole.text, tokens.ids, /*add_special=*/false);
  if (loss == LossOn::All) {
    tokens.counted.assign(tokens.ids.size(), 1);
  } else {
    tokens.counted = counted_tokens(tokenizer, whole.text, tokens.ids, find_turns(chat, conversation, whole));
  }
  return tokens;
}

std::vector<int64_t> tokenize_prompt(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                     const Conversation& conversation) {
  return tokenizer.ids(chat.render(conversation, conversation.messages->values.size(), true).text,
                       /*add_special=*/false);
}

std::optional<int64_t> end_of_turn(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  constexpr std::string_view kAnswer = "0123456789";
  const Conversation conversation = parse_conversation(
      R"({"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "0123456789"}]})");
  const std::optional<Rendered> rendered = try_render(chat, conversation, 2, false);
  const size_t found = rendered ? rendered->text.rfind(kAnswer) : std::string::npos;
  if (found == std::string::npos) return std::nullopt;
  const std::vector<int64_t> ids = tokenizer.ids(rendered->text.substr(found + kAnswer.size()), /*add_special=*/false);
  const auto& special = tokenizer.special_tokens();
  const bool is_special = !ids.empty() && std::ranges::find(special, ids[0], &SpecialToken::id) != special.end();
  return is_special ? std::optional(ids[0]) : std::nullopt;
}

}  // namespace meshtrain
