#include "comparison.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "wire.h"

namespace orch_ccl {
namespace {

// A record that the ranks exchange begins with the hash of the call and its description, cut to this length. For an
// all_to_all the number of bytes that the rank sends to each rank follows.
using CallText = std::array<char, 128>;

struct Calls {
  std::string local_call; // this rank's record
  std::string all_calls; // the records of all ranks
  bool checked = false;
};

std::string serialize_call(const Operation& operation, int ranks) {
  const auto call = operation.name + " " + operation.call;
  const auto hash_and_call = std::to_string(std::hash<std::string>{}(call)) + " " + call;
  CallText call_text{};
  std::strncpy(call_text.data(), hash_and_call.c_str(), call_text.size() - 1);
  std::vector<size_t> bytes = operation.sent;
  bytes.resize(ranks);
  return std::string(call_text.data(), call_text.size()) +
      std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size() * sizeof(size_t));
}

std::string call_text(const std::string& record) {
  const std::string hash_and_call(record.c_str());
  return hash_and_call.substr(hash_and_call.find(' ') + 1);
}

size_t sent_to(const std::string& record, int rank) {
  size_t bytes;
  std::memcpy(&bytes, record.data() + sizeof(CallText) + rank * sizeof(bytes), sizeof(bytes));
  return bytes;
}

void compare(const Group& group, const Calls& calls, const std::vector<size_t>& received) {
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto other_call = calls.all_calls.substr(rank * calls.local_call.size(), calls.local_call.size());
    if (other_call.compare(0, sizeof(CallText), calls.local_call, 0, sizeof(CallText)) != 0)
      throw CollectiveMismatch(
          rank, " calls " + call_text(other_call) + ", this rank calls " + call_text(calls.local_call));
    if (!received.empty() && sent_to(other_call, group.rank()) != received[rank])
      throw SizeMismatch(
          group.name_ranks({rank}) + " sends " + std::to_string(sent_to(other_call, group.rank())) +
          " bytes to this rank, which expects " + std::to_string(received[rank]));
  }
}

} // namespace

bool call_checks_enabled() {
  static const bool enabled = [] {
    const char* value = getenv("ORCH_CCL_CHECK");
    return value && std::string(value) == "1";
  }();
  return enabled;
}

Operation with_call_check(Operation operation) {
  auto calls = std::make_shared<Calls>();
  const auto original = operation;
  operation.start = [calls, original](Group& group, Events& events) {
    calls->local_call = serialize_call(original, group.size());
    calls->all_calls.resize(calls->local_call.size() * group.size());
    wire::allgather(group, calls->local_call.data(), calls->all_calls.data(), calls->local_call.size(), events);
  };
  operation.next = [calls, original](Group& group, Events& events) {
    if (calls->checked)
      return !original.next || original.next(group, events);
    compare(group, *calls, original.received);
    calls->checked = true;
    original.start(group, events);
    return false;
  };
  return operation;
}

} // namespace orch_ccl
