#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <oneapi/ccl.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace orch_ccl {

// Communicators are kept for the life of the process. Freeing one is a collective act in MPI (it waits
// for ranks that may be dead), and freeing the last one finalizes MPI, after which no group can ever be
// made again. So a destroyed group returns its communicator here, and the next group of the very same
// processes takes it up again: init/destroy in a loop costs neither time nor MPI's context ids.
void keep_communicator(const std::string& members, const std::string& id, std::shared_ptr<ccl::communicator> comm);
std::string kept_communicator(const std::string& members); // its id, or ""
std::shared_ptr<ccl::communicator> take_communicator(const std::string& members, const std::string& id);

// Blocks until all ranks called it, at most until the deadline; raises DistBackendError then.
std::shared_ptr<ccl::communicator> create_communicator(
    int rank,
    int size,
    c10::intrusive_ptr<c10d::Store> store,
    std::chrono::steady_clock::time_point deadline,
    const std::string& group);

// True once any communicator was made, i.e. once there is something to finalize.
bool transport_started();

} // namespace orch_ccl
