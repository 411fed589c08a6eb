#include "settings.h"

#include <algorithm>
#include <iostream>
#include <mutex>
#include <sstream>

#include <oneapi/ccl.hpp>

namespace orch_ccl {
namespace {

std::mutex mutex;
Settings expected_settings;

// The wording of oneCCL 2021.12 and later (src/common/env/env_parser.hpp).
bool is_warning_about(const std::string& line, const Settings::value_type& setting) {
  const auto& [name, value] = setting;
  return line.find("|CCL_WARN| value of " + name + " changed to be " + value + " (default:") != line.npos ||
      line.find("|CCL_WARN| " + name + "=" + value + " is unknown to") != line.npos;
}

void print_unexpected_lines(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto is_expected = [&](const auto& setting) { return is_warning_about(line, setting); };
    if (std::none_of(expected_settings.begin(), expected_settings.end(), is_expected))
      std::cout << line << std::endl;
  }
}

// Captures what is written to std::cout, where oneCCL prints its warnings, until the end of the block.
class CapturedOutput {
 public:
  ~CapturedOutput() {
    std::cout.rdbuf(original_buffer_);
    print_unexpected_lines(text_.str());
  }

 private:
  std::stringbuf text_;
  std::streambuf* original_buffer_ = std::cout.rdbuf(&text_);
};

} // namespace

void expect_settings(const Settings& settings) {
  std::lock_guard<std::mutex> lock(mutex);
  for (const auto& [name, value] : settings)
    expected_settings.insert_or_assign(name, value);
}

void initialize_oneccl() {
  std::lock_guard<std::mutex> lock(mutex);
  CapturedOutput captured;
  ccl::init();
}

} // namespace orch_ccl
