#include "group.h"

#include <map>
#include <random>
#include <sstream>

#include <c10/util/Exception.h>

#include "build_info.h"
#include "communicators.h"
#include "fork_guard.h"
#include "torch_compat.h"

namespace orch_ccl {
namespace {

std::string random_id() {
  std::random_device device;
  std::ostringstream out;
  out << std::hex << device() << device() << device();
  return out.str();
}

std::string transport() {
  const char* value = getenv("CCL_ATL_TRANSPORT");
  return std::string(value ? value : "mpi") + (sharing_allowed() ? " with shared memory" : "");
}

std::string key_of(const char* what, int rank) {
  return std::string(what) + "/" + std::to_string(rank);
}

std::string join_identities(const std::vector<Identity>& members) {
  std::string out;
  for (const auto& member : members)
    out += member.text() + ";";
  return out;
}

// The store may outlive a group: under torchrun, init after destroy finds the old keys, and torch reuses the names of
// groups. All members create their common groups in the same order, so the number of earlier groups with the same
// members and name distinguishes their keys.
std::string unique_prefix(const GroupSpec& spec) {
  static std::mutex mutex;
  static auto* counts = new std::map<std::string, int>;
  std::string key = spec.name;
  for (const auto rank : spec.global_ranks)
    key += "," + std::to_string(rank);
  std::lock_guard<std::mutex> lock(mutex);
  return "ccl/" + std::to_string((*counts)[key]++);
}

} // namespace

Group::Group(GroupSpec spec)
    : spec_(std::move(spec)),
      timeout_ms_(spec_.timeout.count()),
      mailbox_(std::make_unique<Mailbox>(spec_.size)) {
  if (spec_.global_ranks.empty())
    for (int i = 0; i < spec_.size; ++i)
      spec_.global_ranks.push_back(i);
  if (has_one_rank()) {
    members_ = {Identity::of_this_process()};
    return;
  }
  const auto deadline = Clock::now() + spec_.timeout;
  store_ = c10::make_intrusive<c10d::PrefixStore>(unique_prefix(spec_), open_another_connection(*spec_.store));
  exchange_identities(deadline);
  connect(deadline);
  if (sharing_allowed())
    sharing_ = share_memory(*store_, rank(), members_, deadline);
  warn_about_fallback();
}

// All members note that it was reported, so that their later groups do not repeat it.
void Group::warn_about_fallback() const {
  static std::atomic<bool> reported{false};
  if ((sharing_.failure_reason.empty() && sharing_.no_heaps_reason.empty()) || reported.exchange(true) || rank() != 0)
    return;
  const std::string what = sharing_.failure_reason.empty()
      ? " has no tensors in shared memory and copies them: " + sharing_.no_heaps_reason
      : " does not use shared memory: " + sharing_.failure_reason;
  TORCH_WARN(
      "ccl: ", describe(), what,
      ". Collectives on this host take longer. Allow shared memory, or set ORCH_CCL_SHARED_MEMORY=0 on all ranks to "
      "hide this warning.");
}

Group::~Group() {
  // A communicator with unmatched messages cannot be reused: that of a failed group, or one with a pending recv from
  // any source. The mailbox is leaked in the latter case, because the transport may still write to its buffers.
  if (!mailbox_->idle())
    mailbox_.release();
  else if (comm_ && !broken())
    return_communicator(join_identities(members_), comm_id_, comm_);
}

// Publishes this rank's identity and reads those of the others. This comes before oneCCL starts, because oneCCL waits
// for a missing rank forever.
void Group::exchange_identities(Clock::time_point deadline) {
  const std::string build_and_transport = std::string(BUILT_VERSION) + "|" + transport();
  store_->set(key_of("hello", rank()), build_and_transport + "|" + Identity::of_this_process().text());
  for (int rank = 0; rank < size(); ++rank) {
    const auto key = key_of("hello", rank);
    const auto remaining = std::chrono::duration_cast<Millis>(deadline - Clock::now());
    try {
      store_->wait({key}, std::max(remaining, Millis(1)));
    } catch (const std::exception&) {
      std::vector<int> missing;
      for (int absent = rank; absent < size(); ++absent)
        if (!store_->check({key_of("hello", absent)}))
          missing.push_back(absent);
      C10_THROW_ERROR(
          DistBackendError,
          "ccl: setting up " + describe() + " timed out after " + std::to_string(spec_.timeout.count()) +
              " ms: no sign of " + name_ranks(missing) +
              ". Either the process has ended, or it has not reached this init_process_group or new_group.");
    }
    const auto text = store_->get_to_str(key);
    const auto split = text.rfind('|');
    if (text.substr(0, split) != build_and_transport)
      C10_THROW_ERROR(
          DistBackendError,
          "ccl: rank " + std::to_string(spec_.global_ranks[rank]) + " uses oneccl_bind_pt and transport '" +
              text.substr(0, split) + "', this rank uses '" + build_and_transport +
              "'. Install the same stack on all nodes (`orch provision`) and set CCL_ATL_TRANSPORT and "
              "ORCH_CCL_SHARED_MEMORY to the same values.");
    members_.push_back(Identity::parse(text.substr(split + 1)));
  }
}

// Returns the value of a key that a rank sets after it has published its identity.
std::string Group::wait_for_key(const std::string& key, int rank, Clock::time_point deadline) {
  const auto remaining = std::chrono::duration_cast<Millis>(deadline - Clock::now());
  try {
    store_->wait({key}, std::max(remaining, Millis(1)));
    return store_->get_to_str(key);
  } catch (const std::exception& error) {
    const auto rank_name = name_ranks({rank});
    C10_THROW_ERROR(
        DistBackendError,
        "ccl: setting up " + describe() +
            (Clock::now() < deadline
                 ? " failed while waiting for " + rank_name + ": " + error.what()
                 : " timed out after " + std::to_string(spec_.timeout.count()) + " ms: " + rank_name +
                     " had started but stopped responding") +
            ". That process has ended or hangs; see its output for the reason, and restart all ranks.");
  }
}

void Group::connect(Clock::time_point deadline) {
  const auto members = join_identities(members_);
  const auto own_id = find_returned_communicator(members);
  store_->set(key_of("kept", rank()), own_id.empty() ? "none" : own_id);
  bool all_same = !own_id.empty();
  for (int rank = 0; rank < size(); ++rank) {
    const auto other_id = wait_for_key(key_of("kept", rank), rank, deadline);
    all_same = all_same && other_id == own_id;
  }
  if (all_same) {
    comm_id_ = own_id;
    comm_ = take_communicator(members, own_id);
    return;
  }
  if (rank() == 0)
    store_->set("id", random_id());
  comm_id_ = wait_for_key("id", 0, deadline);
  comm_ = create_communicator(
      rank(), size(), c10::make_intrusive<c10d::PrefixStore>("kvs", store_), deadline, describe());
}

std::string Group::describe() const {
  std::ostringstream out;
  out << "group '" << spec_.name << "' (" << size() << (size() == 1 ? " rank" : " ranks");
  if (!has_one_rank()) {
    out << ": world ranks ";
    for (int i = 0; i < size(); ++i) {
      if (i == 16 && size() > 20) {
        out << ",...";
        break;
      }
      out << (i ? "," : "") << spec_.global_ranks[i];
    }
  }
  out << ")";
  return out.str();
}

std::string Group::name_ranks(const std::vector<int>& group_ranks) const {
  std::ostringstream out;
  out << (group_ranks.size() == 1 ? "rank " : "ranks ");
  for (size_t i = 0; i < group_ranks.size(); ++i) {
    const int rank = group_ranks[i];
    out << (i ? ", " : "") << spec_.global_ranks[rank];
    if (static_cast<size_t>(rank) < members_.size())
      out << " (" << members_[rank].hostname << ", pid " << members_[rank].pid << ")";
  }
  return out.str();
}

c10::intrusive_ptr<c10d::Store> Group::store() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return store_;
}

void Group::release_store() {
  std::lock_guard<std::mutex> lock(mutex_);
  store_.reset();
  spec_.store.reset();
}

void Group::mark_broken(const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!broken_)
      broken_ = reason;
  }
  if (shared())
    shared()->leave([this](int rank) { return members_[rank].alive(); });
}

std::optional<std::string> Group::broken() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return broken_;
}

} // namespace orch_ccl
