#include "runtime/text/chat/chat_tokens.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "mesh/base/error.h"
#include "runtime/text/jinja/budget.h"
#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/printing.h"

namespace meshtrain {
namespace {

using jinja::MessageSpan;
using jinja::RenderResult;
using jinja::Span;

bool is_assistant(const Conversation& conversation, size_t message) {
  const jinja::Value* const role = conversation.messages->values[message].dict().find("role");
  return role != nullptr && role->is_text() && role->text() == "assistant";
}

/// Returns the messages whose tokens count.
std::vector<size_t> counted_turns(const Conversation& conversation) {
  std::vector<size_t> turns;
  for (size_t i = conversation.first_counted; i < conversation.messages->values.size(); ++i) {
    if (is_assistant(conversation, i) && !has_no_weight(conversation.messages->values[i])) turns.push_back(i);
  }
  return turns;
}

/// Returns the rendering of the first messages; std::nullopt when the template refuses them.
std::optional<RenderResult> try_render(const ChatTemplate& chat, const Conversation& conversation, size_t count,
                                       bool add_generation_prompt) {
  try {
    return chat.render(conversation, count, add_generation_prompt);
  } catch (const jinja::TemplateError&) {
    return std::nullopt;
  }
}

/// Returns the spans outside the messages that have no weight. Throws InputError when the template's loop over the
/// messages does not tell which message a span belongs to.
std::vector<Span> with_weight(const Conversation& conversation, const RenderResult& full,
                              const std::vector<Span>& spans) {
  const auto& messages = conversation.messages->values;
  if (std::ranges::none_of(messages, has_no_weight)) return spans;
  std::vector<Span> kept;
  for (const Span& span : spans) {
    const auto message = std::ranges::find_if(full.message_spans, [&](const MessageSpan& written) {
      return written.span.begin <= span.begin && span.end <= written.span.end;
    });
    if (message == full.message_spans.end()) {
      throw InputError(
          "a message has the weight 0, and the template does not tell which message a {% generation %} belongs to: "
          "leave the key out, or loop over the messages outside macros");
    }
    if (!has_no_weight(messages[message->message])) kept.push_back(span);
  }
  return kept;
}

/// Returns the spans that {% generation %} has marked; in a conversation with a prompt, only those after the prompt.
std::vector<Span> marked_turns(const ChatTemplate& chat, const Conversation& conversation, const RenderResult& full) {
  const std::vector<Span> marked = with_weight(conversation, full, full.generation);
  if (conversation.first_counted == 0) return marked;
  const RenderResult prompt = chat.render(conversation, conversation.first_counted, true);
  if (!full.text.starts_with(prompt.text)) {
    throw InputError(
        "the template renders the prompt differently when the completion follows: give --loss all, which counts both");
  }
  std::vector<Span> turns;
  for (const Span& span : marked) {
    if (span.begin >= prompt.text.size()) turns.push_back(span);
  }
  return turns;
}

/// Returns true for a message whose "content" has no text.
bool has_no_text(const jinja::Value& message) {
  const jinja::Value* const content = message.dict().find("content");
  return content == nullptr || !content->is_true();
}

/// Returns true when `text` has a message's list of parts as Python prints it: the template took it for a text.
bool prints_parts(const Conversation& conversation, const std::string& text) try {
  return std::ranges::any_of(conversation.messages->values, [&](const jinja::Value& message) {
    const jinja::Value* const content = message.dict().find("content");
    if (content == nullptr || !content->is_list() || !content->is_true()) return false;
    jinja::Budget budget{jinja::Limits{}};
    return text.find(jinja::to_text(*content, budget)) != std::string::npos;
  });
} catch (const jinja::Failure&) {  // longer than a rendering could be
  return false;
}

/// Returns true when `content` is a list of parts and `text` lacks the text of one of them.
bool loses_part(const jinja::Value* content, const std::string& text) {
  if (content == nullptr || !content->is_list()) return false;
  return std::ranges::any_of(content->list().values, [&](const jinja::Value& part) {
    const jinja::Value* const found = part.is_dict() ? part.dict().find("text") : nullptr;
    if (found == nullptr || !found->is_text()) return false;
    constexpr std::string_view kBlank = " \t\r\n";
    std::string_view words = found->text();  // without blanks at its ends, which many templates leave out
    words.remove_prefix(std::min(words.find_first_not_of(kBlank), words.size()));
    words = words.substr(0, words.find_last_not_of(kBlank) + 1);
    return text.find(words) == std::string::npos;
  });
}

/// Returns true when `text` lacks a text of a message whose "content" is a list of parts: the template writes texts
/// alone.
bool loses_parts(const Conversation& conversation, const std::string& text) {
  return std::ranges::any_of(conversation.messages->values, [&](const jinja::Value& message) {
    return loses_part(message.dict().find("content"), text);
  });
}

/// Returns the conversation without message `left_out`, which the template is to be seen not to write.
Conversation without(const Conversation& conversation, size_t left_out) {
  jinja::List messages = *conversation.messages;
  messages.values.erase(messages.values.begin() + static_cast<ptrdiff_t>(left_out));
  Conversation shorter = conversation;
  shorter.messages = std::make_shared<const jinja::List>(std::move(messages));
  return shorter;
}

/// Returns the conversation without those of its counted turns of which the template writes nothing: its text is the
/// same without them.
Conversation without_unwritten(const ChatTemplate& chat, const Conversation& conversation, const RenderResult& full) {
  Conversation written = conversation;
  const std::vector<size_t> turns = counted_turns(conversation);
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    if (!has_no_text(conversation.messages->values[*turn])) continue;
    Conversation shorter = without(written, *turn);
    const std::optional<RenderResult> text = try_render(chat, shorter, shorter.messages->values.size(), false);
    if (text && text->text == full.text) written = std::move(shorter);
  }
  return written;
}

/// A way to find the turn of a message in the rendering of all; std::nullopt where it does not find it.
using FindTurn = std::optional<Span>(const ChatTemplate& chat, const Conversation& conversation,
                                     const RenderResult& full, size_t message);

std::optional<Span> turn_by_prefixes(const ChatTemplate& chat, const Conversation& conversation,
                                     const RenderResult& full, size_t message) {
  const std::optional<RenderResult> before = try_render(chat, conversation, message, true);
  if (!before || !full.text.starts_with(before->text)) return std::nullopt;
  size_t end = full.text.size();
  if (message + 1 < conversation.messages->values.size()) {
    const std::optional<RenderResult> after = try_render(chat, conversation, message + 1, false);
    if (!after || !full.text.starts_with(after->text)) return std::nullopt;
    end = after->text.size();
  }
  if (end < before->text.size()) return std::nullopt;
  return Span{before->text.size(), end};
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

/// Returns the generation prompt: what the template writes after the first `count` messages to begin the next turn.
std::optional<std::string> generation_prompt(const ChatTemplate& chat, const Conversation& conversation, size_t count) {
  const std::optional<RenderResult> rendered = count > 0 ? try_render(chat, conversation, count, true) : std::nullopt;
  const std::optional<Span> last = rendered ? span_of(rendered->message_spans, count - 1) : std::nullopt;
  return last ? std::optional(rendered->text.substr(last->end)) : std::nullopt;
}

std::optional<Span> turn_by_loop(const ChatTemplate& chat, const Conversation& conversation, const RenderResult& full,
                                 size_t message) {
  const std::optional<Span> span = span_of(full.message_spans, message);
  const std::optional<std::string> prompt = generation_prompt(chat, conversation, message);
  if (!span || !prompt) return std::nullopt;
  const std::string_view written = std::string_view(full.text).substr(span->begin, span->end - span->begin);
  if (!written.starts_with(*prompt)) return std::nullopt;
  return Span{span->begin + prompt->size(), span->end};
}

constexpr std::array<FindTurn*, 2> kWays = {turn_by_prefixes, turn_by_loop};

/// Returns `conversation` with the first message of `other` in front of it.
Conversation after_message(const Conversation& other, const Conversation& conversation) {
  const jinja::ListPtr& before = other.messages;
  jinja::List messages{{before->values[0]}, false, std::max(before->depth, conversation.messages->depth)};
  const auto& own = conversation.messages->values;
  messages.values.insert(messages.values.end(), own.begin(), own.end());
  Conversation longer = conversation;
  longer.messages = std::make_shared<const jinja::List>(std::move(messages));
  return longer;
}

/// Returns where message 0 ends in the rendering of all.
std::optional<size_t> end_of_first(const ChatTemplate& chat, const Conversation& conversation,
                                   const RenderResult& full) {
  const std::optional<RenderResult> alone = try_render(chat, conversation, 1, false);
  if (alone && full.text.starts_with(alone->text)) return alone->text.size();
  const std::optional<Span> span = span_of(full.message_spans, 0);
  return span ? std::optional(span->end) : std::nullopt;
}

/// Returns the turn of message 0 as first_turn() does, by a rendering of `longer`, a message and the conversation.
std::optional<Span> first_turn_by(const Conversation& longer, FindTurn& find, const ChatTemplate& chat,
                                  const std::string& full) {
  const std::optional<RenderResult> rendered = try_render(chat, longer, longer.messages->values.size(), false);
  const std::optional<Span> turn = rendered ? find(chat, longer, *rendered, 1) : std::nullopt;
  const std::optional<size_t> added = turn ? end_of_first(chat, longer, *rendered) : std::nullopt;
  if (!added || *added > turn->begin) return std::nullopt;
  const std::string_view text = rendered->text;
  if (!full.ends_with(text.substr(*added))) return std::nullopt;
  const size_t end = full.size() - (text.size() - turn->end);
  return Span{end - (turn->end - turn->begin), end};
}

/// Returns the turn of message 0. Many templates look at the first message: they refuse to render no message, or render
/// a message of the system in front. The turn is therefore looked for after an added message of the user, or of the
/// system where the user's changes the turn (Qwen3 without a question). The text after the added message must be the
/// end of the conversation's own text.
std::optional<Span> first_turn(FindTurn& find, const ChatTemplate& chat, const Conversation& conversation,
                               const std::string& full) {
  const std::string text = "?";
  for (const Conversation& other : {ask(text, nullptr), ask(text, &text)}) {
    if (const auto turn = first_turn_by(after_message(other, conversation), find, chat, full)) return turn;
  }
  return std::nullopt;
}

std::optional<std::vector<Span>> turns_by(FindTurn& find, const ChatTemplate& chat, const Conversation& conversation,
                                          const RenderResult& full) {
  std::vector<Span> turns;
  for (const size_t i : counted_turns(conversation)) {
    const std::optional<Span> turn =
        i == 0 ? first_turn(find, chat, conversation, full.text) : find(chat, conversation, full, i);
    if (!turn) return std::nullopt;
    turns.push_back(*turn);
  }
  return turns;
}

/// Returns why turns_by() found no turns.
std::string hindrance(const ChatTemplate& chat, const Conversation& conversation, const RenderResult& full) {
  const bool begins = counted_turns(conversation).front() == 0;
  const auto finds_first = [&](FindTurn* find) { return first_turn(*find, chat, conversation, full.text).has_value(); };
  if (begins && std::ranges::none_of(kWays, finds_first)) {
    return "the assistant begins the conversation, and the template writes that turn differently than after a message "
           "of the user or the system";
  }
  return "rendered up to such a turn, the template's text is not a prefix of the complete text";
}

std::vector<Span> find_turns(const ChatTemplate& chat, const Conversation& conversation, const RenderResult& full) {
  if (chat.has_generation(conversation)) return marked_turns(chat, conversation, full);
  for (FindTurn* find : kWays) {
    if (const auto turns = turns_by(*find, chat, conversation, full)) return *turns;
  }
  throw InputError("the assistant's turns cannot be told apart: " + hindrance(chat, conversation, full) +
                   ": give --loss all, or --chat-template with a template that marks them by {% generation %}");
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

/// Returns the number of leading `ids`, those of the complete text, with which the text before `end` begins too.
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
  const RenderResult full = chat.render(conversation, conversation.messages->values.size(), false);
  ChatTokens tokens;
  tokenizer.encode(full.text, tokens.ids, /*add_special=*/false);
  tokens.prints_parts = prints_parts(conversation, full.text);
  tokens.loses_parts = !tokens.prints_parts && loses_parts(conversation, full.text);
  if (loss == LossOn::All) {
    tokens.counted.assign(tokens.ids.size(), 1);
  } else {
    const Conversation written = without_unwritten(chat, conversation, full);
    tokens.num_unwritten = conversation.messages->values.size() - written.messages->values.size();
    const RenderResult same =
        tokens.num_unwritten == 0 ? full : chat.render(written, written.messages->values.size(), false);
    tokens.counted = counted_tokens(tokenizer, full.text, tokens.ids, find_turns(chat, written, same));
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
  const std::optional<RenderResult> rendered = try_render(chat, conversation, 2, false);
  const size_t found = rendered ? rendered->text.rfind(kAnswer) : std::string::npos;
  if (found == std::string::npos) return std::nullopt;
  const std::vector<int64_t> ids = tokenizer.ids(rendered->text.substr(found + kAnswer.size()), /*add_special=*/false);
  const auto& special = tokenizer.special_tokens();
  const bool is_special = !ids.empty() && std::ranges::find(special, ids[0], &SpecialToken::id) != special.end();
  return is_special ? std::optional(ids[0]) : std::nullopt;
}

}  // namespace meshtrain
