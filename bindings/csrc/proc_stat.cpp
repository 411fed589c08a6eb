#include "proc_stat.h"

#include <fstream>
#include <sstream>

namespace orch_ccl {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool is_dumping_core(const std::string& folder) {
  std::ifstream file(folder + "/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("CoreDumping:"))
      return line.ends_with("1");
  return false;
}

// The name in field 2 may contain spaces and parentheses, so the fields are counted from the last ')'.
std::optional<ProcStat> read_proc_stat(const std::string& folder) {
  const std::string line = first_line(folder + "/stat");
  const auto open = line.find('('), close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos)
    return std::nullopt;
  ProcStat out;
  out.name = line.substr(open + 1, close - open - 1);
  std::istringstream rest(line.substr(close + 1));
  std::string field;
  rest >> out.state;
  for (int i = 4; i < 22; ++i)
    rest >> field;
  rest >> out.start;
  return rest ? std::optional(out) : std::nullopt;
}

} // namespace orch_ccl
