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

std::string joined(const std::vector<Identity>& members) {
  std::string out;
  for (const auto& member : members)
    out += member.text() + ";";
  return out;
}

// The store may outlive a group: under torchrun, init after destroy finds the old keys again, and torch
// gives the new groups the old names. All members make their common groups in the same order, so the
// count of groups with these members and this name tells the new keys from the old.
std::string fresh_prefix(const GroupSpec& spec) {
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
  if (alone()) {
    members_ = {Identity::of_this_process()};
    return;
  }
  const auto deadline = Clock::now() + spec_.timeout;
  store_ = c10::make_intrusive<c10d::PrefixStore>(fresh_prefix(spec_), another_connection(*spec_.store));
  meet(deadline);
  connect(deadline);
  if (sharing_allowed())
    sharing_ = share_memory(*store_, rank(), members_, deadline);
  warn_of_fallback();
}

// All members note that it was reported, so that their later groups do not repeat it.
void Group::warn_of_fallback() const {
  static std::atomic<bool> reported{false};
  if ((sharing_.trouble.empty() && sharing_.no_heaps.empty()) || reported.exchange(true) || rank() != 0)
    return;
  const std::string what = sharing_.trouble.empty()
      ? " has no tensors in shared memory, and copies them: " + sharing_.no_heaps
      : " does not use shared memory: " + sharing_.trouble;
  TORCH_WARN(
      "ccl: ", describe(), what,
      ". Collectives on this host take longer. Allow it, or set ORCH_CCL_SHARED_MEMORY=0 on all ranks to hide this warning.");
}

Group::~Group() {
  // A broken communicator may have unmatched messages in it, as one on which a recv from any source
  // still listens: nobody gets that one again, and what the transport may yet write to stays.
  if (!mailbox_->idle())
    mailbox_.release();
  else if (comm_ && !broken())
    keep_communicator(joined(members_), comm_id_, comm_);
}

// Every rank tells who it is before oneCCL starts, because oneCCL would wait for a missing one for ever.
void Group::meet(Clock::time_point deadline) {
  const std::string about = std::string(BUILT_VERSION) + "|" + transport();
  store_->set(key_of("hello", rank()), about + "|" + Identity::of_this_process().text());
  for (int rank = 0; rank < size(); ++rank) {
    const auto key = key_of("hello", rank);
    const auto left = std::chrono::duration_cast<Millis>(deadline - Clock::now());
    try {
      store_->wait({key}, std::max(left, Millis(1)));
    } catch (const std::exception&) {
      std::vector<int> missing;
      for (int other = rank; other < size(); ++other)
        if (!store_->check({key_of("hello", other)}))
          missing.push_back(other);
      C10_THROW_ERROR(
          DistBackendError,
          "ccl: setting up " + describe() + " timed out after " + std::to_string(spec_.timeout.count()) +
              " ms: no sign of " + name_ranks(missing) +
              ". Either that process is gone, or it never reached this init_process_group/new_group.");
    }
    const auto text = store_->get_to_str(key);
    const auto split = text.rfind('|');
    if (text.substr(0, split) != about)
      C10_THROW_ERROR(
          DistBackendError,
          "ccl: rank " + std::to_string(spec_.global_ranks[rank]) + " runs oneccl_bind_pt and transport '" +
              text.substr(0, split) + "', this rank '" + about +
              "'. All nodes need the same stack and the same CCL_ATL_TRANSPORT and ORCH_CCL_SHARED_MEMORY: run `orch provision`.");
    members_.push_back(Identity::parse(text.substr(split + 1)));
  }
}

// What a member that has said hello tells next.
std::string Group::wait_for(const std::string& key, int rank, Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<Millis>(deadline - Clock::now());
  try {
    store_->wait({key}, std::max(left, Millis(1)));
    return store_->get_to_str(key);
  } catch (const std::exception& error) {
    const auto who = name_ranks({rank});
    C10_THROW_ERROR(
        DistBackendError,
        "ccl: setting up " + describe() +
            (Clock::now() < deadline ? " failed as " + who + " was waited for: " + error.what()
                                     : " timed out after " + std::to_string(spec_.timeout.count()) + " ms: " + who +
                     " was there and then told no more") +
            ". That process is gone or stands still, and its output says why; restart all ranks.");
  }
}

void Group::connect(Clock::time_point deadline) {
  const auto members = joined(members_);
  const auto mine = kept_communicator(members);
  store_->set(key_of("kept", rank()), mine.empty() ? "none" : mine);
  bool all_kept = !mine.empty();
  for (int rank = 0; rank < size(); ++rank) {
    const auto other = wait_for(key_of("kept", rank), rank, deadline);
    all_kept = all_kept && other == mine;
  }
  if (all_kept) {
    comm_id_ = mine;
    comm_ = take_communicator(members, mine);
    return;
  }
  if (rank() == 0)
    store_->set("id", random_id());
  comm_id_ = wait_for("id", 0, deadline);
  comm_ = create_communicator(
      rank(), size(), c10::make_intrusive<c10d::PrefixStore>("kvs", store_), deadline, describe());
}

std::string Group::describe() const {
  std::ostringstream out;
  out << "group '" << spec_.name << "' (" << size() << (size() == 1 ? " rank" : " ranks");
  if (!alone()) {
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
