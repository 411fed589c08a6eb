#pragma once

#include <chrono>
#include <map>
#include <string>

#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace orch_ccl {

// oneCCL exchanges its addresses through a key-value store. Its own one is a socket server that has to
// guess an interface of the host (CCL_KVS_IFACE); torch's Store already connects all ranks, so we lend it
// that one: nothing to guess, no extra port, and the rendezvous the user configured is the only one. oneCCL polls for
// values; here its calls wait in the store instead, so that a large group does not flood it. Used by the thread that
// creates the communicator.
class StoreKvs final : public ccl::kvs_interface {
 public:
  StoreKvs(c10::intrusive_ptr<c10d::Store> store, std::chrono::steady_clock::time_point deadline);

  ccl::vector_class<char> get(const ccl::string_class& key) override;
  void set(const ccl::string_class& key, const ccl::vector_class<char>& data) override;
  int get_id() override;

 private:
  void wait_for(const std::string& key);

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::steady_clock::time_point deadline_;
  int id_;
  std::map<std::string, std::string> barriers_; // the value that this rank has set last for each barrier
};

} // namespace orch_ccl
