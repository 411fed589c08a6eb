#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace orch_ccl {

// Raise unless the tensor is dense and on the CPU.
void check_tensor(const char* collective, const at::Tensor& tensor);
void check_tensors(const char* collective, const std::vector<at::Tensor>& tensors);
// c10d passes lists because a process could once drive several GPUs; here it is always one.
void check_single(const char* collective, size_t given);
// A rank of the group, as root or peer.
void check_rank(const char* collective, int64_t rank, int size);
void check_same_type(const char* collective, const at::Tensor& a, const at::Tensor& b);

// The tensor itself if its memory is one contiguous piece that holds its values, else such a copy of it.
at::Tensor packed(const at::Tensor& tensor);
// Brings the result back, if packed() had to copy.
void unpack(const at::Tensor& from, at::Tensor& to);

size_t bytes_of(const at::Tensor& tensor);
at::Tensor flat_like(const at::Tensor& example, int64_t elements);
at::Tensor room_for(const std::vector<at::Tensor>& tensors); // all of them, one after the other
// "Float[1000]", where the ranks compare what they are about to call (ORCH_CCL_CHECK); else empty.
std::string described(const at::Tensor& tensor);
std::string described(const std::vector<at::Tensor>& tensors);
// All tensors one after the other in one buffer, and back.
at::Tensor flatten(const std::vector<at::Tensor>& tensors);
void unflatten(const at::Tensor& flat, std::vector<at::Tensor>& tensors);

} // namespace orch_ccl
