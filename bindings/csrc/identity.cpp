#include "identity.h"

#include <fstream>
#include <sstream>

#include <unistd.h>

namespace orch_ccl {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  char target[256];
  const ssize_t size = readlink(path, target, sizeof(target));
  return size > 0 ? std::string(target, static_cast<size_t>(size)) : "?";
}

struct Stat {
  char state = 0;
  unsigned long long start = 0;
};

// proc(5): the name in field 2 may hold spaces and parentheses, so count from the last ')'.
bool read_stat(long pid, Stat& out) {
  const std::string line = first_line("/proc/" + std::to_string(pid) + "/stat");
  const auto close = line.rfind(')');
  if (close == std::string::npos)
    return false;
  std::istringstream rest(line.substr(close + 2));
  std::string field;
  rest >> out.state;
  for (int i = 4; i < 22; ++i)
    rest >> field;
  rest >> out.start;
  return static_cast<bool>(rest);
}

} // namespace

Identity Identity::of_this_process() {
  Identity self;
  self.host = first_line("/proc/sys/kernel/random/boot_id") + "/" + link_target("/proc/self/ns/pid");
  char name[256] = "?";
  gethostname(name, sizeof(name) - 1);
  self.hostname = name;
  self.pid = getpid();
  Stat stat;
  if (read_stat(self.pid, stat))
    self.start = stat.start;
  return self;
}

std::string Identity::text() const {
  return host + " " + hostname + " " + std::to_string(pid) + " " + std::to_string(start);
}

Identity Identity::parse(const std::string& text) {
  Identity out;
  std::istringstream in(text);
  in >> out.host >> out.hostname >> out.pid >> out.start;
  return out;
}

bool Identity::alive() const {
  Stat stat;
  return read_stat(pid, stat) && stat.start == start && stat.state != 'Z' && stat.state != 'X';
}

} // namespace orch_ccl
