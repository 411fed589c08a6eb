#include "comparison.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "wire.h"

namespace orch_ccl {
namespace {

// A call in words; one too long is told apart by its hash. After it, of an all_to_all, how many bytes
// the rank sends to each.
using Told = std::array<char, 128>;

struct Calls {
  std::string mine; // one record
  std::string all; // of every rank one
  bool checked = false;
};

std::string told(const Operation& operation, int ranks) {
  const auto call = operation.name + " " + operation.call;
  const auto whole = std::to_string(std::hash<std::string>{}(call)) + " " + call;
  Told words{};
  std::strncpy(words.data(), whole.c_str(), words.size() - 1);
  std::vector<size_t> bytes = operation.sent;
  bytes.resize(ranks);
  return std::string(words.data(), words.size()) +
      std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size() * sizeof(size_t));
}

std::string words(const std::string& record) {
  const std::string whole(record.c_str());
  return whole.substr(whole.find(' ') + 1);
}

size_t sent_to(const std::string& record, int rank) {
  size_t bytes;
  std::memcpy(&bytes, record.data() + sizeof(Told) + rank * sizeof(bytes), sizeof(bytes));
  return bytes;
}

void compare(const Group& group, const Calls& calls, const std::vector<size_t>& received) {
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto theirs = calls.all.substr(rank * calls.mine.size(), calls.mine.size());
    if (theirs.compare(0, sizeof(Told), calls.mine, 0, sizeof(Told)) != 0)
      throw Disagreement(
          group.name_ranks({rank}) + " calls " + words(theirs) + ", this rank " + words(calls.mine));
    if (!received.empty() && sent_to(theirs, group.rank()) != received[rank])
      throw Disagreement(
          group.name_ranks({rank}) + " sends " + std::to_string(sent_to(theirs, group.rank())) +
          " bytes to this rank, which waits for " + std::to_string(received[rank]));
  }
}

} // namespace

bool comparing() {
  static const bool asked = [] {
    const char* value = getenv("ORCH_CCL_CHECK");
    return value && std::string(value) == "1";
  }();
  return asked;
}

Operation compared(Operation operation) {
  auto calls = std::make_shared<Calls>();
  const auto before = operation;
  operation.start = [calls, before](Group& group, Events& events) {
    calls->mine = told(before, group.size());
    calls->all.resize(calls->mine.size() * group.size());
    wire::allgather(group, calls->mine.data(), calls->all.data(), calls->mine.size(), events);
  };
  operation.next = [calls, before](Group& group, Events& events) {
    if (calls->checked)
      return !before.next || before.next(group, events);
    compare(group, *calls, before.received);
    calls->checked = true;
    before.start(group, events);
    return false;
  };
  return operation;
}

} // namespace orch_ccl
