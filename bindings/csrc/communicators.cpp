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

struct ReturnedCommunicator {
  std::string id;
  std::shared_ptr<ccl::communicator> comm;
};

// Never destroyed: communicators must outlive static destructors.
struct Pool {
  std::mutex mutex;
  std::multimap<std::string, ReturnedCommunicator> returned;
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

void return_communicator(const std::string& members, const std::string& id, std::shared_ptr<ccl::communicator> comm) {
  std::lock_guard<std::mutex> lock(pool().mutex);
  pool().returned.emplace(members, ReturnedCommunicator{id, std::move(comm)});
}

std::string find_returned_communicator(const std::string& members) {
  std::lock_guard<std::mutex> lock(pool().mutex);
  const auto match = pool().returned.find(members);
  return match == pool().returned.end() ? "" : match->second.id;
}

std::shared_ptr<ccl::communicator> take_communicator(const std::string& members, const std::string& id) {
  std::lock_guard<std::mutex> lock(pool().mutex);
  auto [first, last] = pool().returned.equal_range(members);
  for (auto it = first; it != last; ++it) {
    if (it->second.id != id)
      continue;
    auto comm = it->second.comm;
    pool().returned.erase(it);
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
  // oneCCL has no timeout here. If a rank dies meanwhile, the thread keeps waiting, but this process can report the
  // error and end.
  std::thread([=] {
    try {
      initialize_oneccl();
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
            " timed out: all ranks have started, but oneCCL could not connect them. If the nodes have several network "
            "interfaces, set FI_TCP_IFACE to the one that they share.");
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
