#include "runtime/text/jinja/functions.h"

#include <array>
#include <ctime>
#include <utility>

#include "runtime/text/jinja/failure.h"
#include "runtime/text/jinja/printing.h"

namespace meshtrain::jinja {
namespace {

constexpr int64_t kLongestRange = 100'000;  // as in Jinja's sandbox

class Function final : public Object {
 public:
  explicit Function(std::function<Value(const Arguments&)> body) : body_(std::move(body)) {}
  const char* type() const override { return "a function"; }
  bool is_callable() const override { return true; }
  Value call(const Arguments& arguments) override { return body_(arguments); }

 private:
  std::function<Value(const Arguments&)> body_;
};

Value range(const Arguments& arguments, Budget& budget) {
  arguments.check(3);
  const auto& given = arguments.positional;
  if (given.empty()) throw Failure("range() needs an end");
  const int64_t begin = given.size() > 1 ? given[0].whole() : 0, end = given[given.size() > 1 ? 1 : 0].whole();
  const int64_t step = given.size() > 2 ? given[2].whole() : 1;
  if (step == 0) throw Failure("the step of a range is 0");
  std::vector<Value> values;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (static_cast<int64_t>(values.size()) == kLongestRange) {
      throw Failure("a range has more than " + std::to_string(kLongestRange) + " numbers");
    }
    budget.make(kElementBytes);
    values.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(std::move(values), budget);
}

Value make_namespace(const Arguments& arguments, Renderer& renderer) {
  const auto made = std::make_shared<Namespace>();
  renderer.budget().make(kElementBytes * static_cast<int64_t>(arguments.named.size() + 2));
  renderer.remember([made] { made->clear(); });
  if (arguments.positional.size() > 1) throw Failure("namespace() takes one dictionary");
  if (!arguments.positional.empty()) {
    for (const auto& [key, value] : arguments.positional[0].dict().entries()) made->set(key, value);
  }
  for (const auto& [key, value] : arguments.named) made->set(key, value);
  return ObjectPtr(made);
}

/// Returns the local time in a format of strftime().
Value strftime_now(const Arguments& arguments, const RenderOptions& options, Budget& budget) {
  arguments.check(1);
  if (arguments.positional.empty()) throw Failure("strftime_now() needs a format");
  std::tm now{};
  const std::time_t seconds = std::time(nullptr);
  if (options.now) {
    now = *options.now;
  } else {
    localtime_r(&seconds, &now);
  }
  const std::string& format = arguments.positional[0].text();
  if (format.size() > 1000) throw Failure("the format of the time is too long");
  std::array<char, 1 << 14> text{};
  const size_t size = std::strftime(text.data(), text.size(), format.c_str(), &now);
  return make_text(std::string(text.data(), size), budget);
}

/// The object of joiner(', '): nothing the first time that it is called, then the separator.
class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  const char* type() const override { return "a joiner"; }
  bool is_callable() const override { return true; }
  Value call(const Arguments&) override { return std::exchange(used_, true) ? separator_ : Value::text(""); }

 private:
  Value separator_;
  bool used_ = false;
};

}  // namespace

std::optional<Value> Namespace::attribute(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::map<std::string, Value> global_functions(Renderer& renderer) {
  Budget& budget = renderer.budget();
  const auto function = [](std::function<Value(const Arguments&)> body) {
    return Value(ObjectPtr(std::make_shared<Function>(std::move(body))));
  };
  return {
      {"range", function([&budget](const Arguments& arguments) { return range(arguments, budget); })},
      {"namespace", function([&renderer](const Arguments& arguments) { return make_namespace(arguments, renderer); })},
      {"joiner", function([&budget](const Arguments& arguments) {
         arguments.check(1, {"sep"});
         budget.make(kElementBytes);
         const Value* const separator = arguments.find(0, "sep");
         return Value(ObjectPtr(std::make_shared<Joiner>(separator == nullptr ? Value::text(", ") : *separator)));
       })},
      {"raise_exception", function([&budget](const Arguments& arguments) -> Value {
         throw Failure("the template refuses this: " +
                       (arguments.positional.empty() ? "" : to_text(arguments.positional[0], budget)));
       })},
      {"strftime_now", function([&renderer](const Arguments& arguments) {
         return strftime_now(arguments, renderer.options(), renderer.budget());
       })},
  };
}

}  // namespace meshtrain::jinja
