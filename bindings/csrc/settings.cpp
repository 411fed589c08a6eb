#include "settings.h"

#include <algorithm>
#include <iostream>
#include <mutex>
#include <sstream>

#include <oneapi/ccl.hpp>

namespace orch_ccl {
namespace {

std::mutex mutex;
Settings expected;

// As oneCCL 2021.12 and later say it (src/common/env/env_parser.hpp).
bool tells(const std::string& line, const Settings::value_type& setting) {
  const auto& [name, value] = setting;
  return line.find("|CCL_WARN| value of " + name + " changed to be " + value + " (default:") != line.npos ||
      line.find("|CCL_WARN| " + name + "=" + value + " is unknown to") != line.npos;
}

void pass_on(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto told = [&](const auto& setting) { return tells(line, setting); };
    if (std::none_of(expected.begin(), expected.end(), told))
      std::cout << line << std::endl;
  }
}

// oneCCL warns on std::cout; for as long as this lives, what is written there is held back.
class Held {
 public:
  ~Held() {
    std::cout.rdbuf(before_);
    pass_on(text_.str());
  }

 private:
  std::stringbuf text_;
  std::streambuf* before_ = std::cout.rdbuf(&text_);
};

} // namespace

void expect_settings(const Settings& settings) {
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [name, value] : settings)
    expected.insert_or_assign(name, value);
}

void start_oneccl() {
  std::lock_guard<std::mutex> lock(mutex);
  Held held;
  ccl::init();
}

} // namespace orch_ccl
