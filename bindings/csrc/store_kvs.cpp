#include "store_kvs.h"

#include <atomic>
#include <stdexcept>
#include <thread>

namespace orch_ccl {

namespace {
// oneCCL polls: a missing key is asked for again at once. We wait here instead, so that the store's
// server is not flooded by every rank of a large group.
constexpr auto kPause = std::chrono::milliseconds(2);
constexpr int kTries = 50;
} // namespace

StoreKvs::StoreKvs(c10::intrusive_ptr<c10d::Store> store, std::chrono::steady_clock::time_point deadline)
    : store_(std::move(store)), deadline_(deadline) {
  static std::atomic<int> next{0};
  id_ = next++;
}

ccl::vector_class<char> StoreKvs::get(const ccl::string_class& key) {
  const std::string name(key.c_str());
  for (int i = 0; i < kTries; ++i) {
    if (store_->check({name})) {
      const auto bytes = store_->get(name);
      return {bytes.begin(), bytes.end()};
    }
    if (std::chrono::steady_clock::now() > deadline_)
      throw std::runtime_error("ccl: another rank did not finish setting up the communicator in time");
    std::this_thread::sleep_for(kPause);
  }
  return {};
}

void StoreKvs::set(const ccl::string_class& key, const ccl::vector_class<char>& data) {
  store_->set(std::string(key.c_str()), std::vector<uint8_t>(data.begin(), data.end()));
}

int StoreKvs::get_id() {
  return id_;
}

} // namespace orch_ccl
