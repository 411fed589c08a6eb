#include "communicators.h"

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include <c10/util/Exception.h>

#include "process_exit.h"
#include "settings.h"
#include "store_kvs.h"

namespace orch_ccl {
namespace {

struct Kept {
  std::string id;
  std::shared_ptr<ccl::communicator> comm;
};

// Never destroyed, see the header.
struct Pool {
  std::mutex mutex;
  std::multimap<std::string, Kept> kept;
  std::vector<std::shared_ptr<ccl::communicator>> all;
};

Pool& pool() {
  static auto* instance = new Pool;
  return *instance;
}

std::atomic<bool> started{false};

} // namespace

bool transport_started() {
  return started;
}

void keep_communicator(const std::string& members, const std::string& id, std::shared_ptr<ccl::communicator> comm) {
  std::lock_guard<std::mutex> lock(pool().mutex);
  pool().kept.emplace(members, Kept{id, std::move(comm)});
}

std::string kept_communicator(const std::string& members) {
  std::lock_guard<std::mutex> lock(pool().mutex);
  const auto found = pool().kept.find(members);
  return found == pool().kept.end() ? "" : found->second.id;
}

std::shared_ptr<ccl::communicator> take_communicator(const std::string& members, const std::string& id) {
  std::lock_guard<std::mutex> lock(pool().mutex);
  auto [first, last] = pool().kept.equal_range(members);
  for (auto it = first; it != last; ++it) {
    if (it->second.id != id)
      continue;
    auto comm = it->second.comm;
    pool().kept.erase(it);
    return comm;
  }
  return nullptr;
}

std::shared_ptr<ccl::communicator> create_communicator(
    int rank,
    int size,
    c10::intrusive_ptr<c10d::Store> store,
    std::chrono::steady_clock::time_point deadline,
    const std::string& group) {
  using Result = std::shared_ptr<ccl::communicator>;
  auto promise = std::make_shared<std::promise<Result>>();
  auto future = promise->get_future();
  // oneCCL offers no timeout here. If a rank dies in the middle, this thread is left behind; the
  // process itself can report and end.
  std::thread([=] {
    try {
      start_oneccl();
      auto kvs = std::make_shared<StoreKvs>(store, deadline);
      started = true;
      promise->set_value(std::make_shared<ccl::communicator>(ccl::create_communicator(size, rank, kvs)));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (future.wait_until(deadline) != std::future_status::ready) {
    C10_THROW_ERROR(
        DistBackendError,
        "ccl: setting up " + group +
            " timed out: every rank was there, but oneCCL could not connect them. With several network "
            "interfaces per node set FI_TCP_IFACE to the one the nodes share.");
  }
  Result comm;
  try {
    comm = future.get();
  } catch (const std::exception& error) {
    C10_THROW_ERROR(DistBackendError, "ccl: setting up " + group + " failed: " + error.what());
  }
  install_exit_handler();
  std::lock_guard<std::mutex> lock(pool().mutex);
  pool().all.push_back(comm);
  return comm;
}

} // namespace orch_ccl
