#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

namespace orch_ccl {

// The checks throw NotImplementedError, TypeError or ValueError. `collective` is its name for the message.

// The tensor must be dense and on the CPU.
void check_tensor(const char* collective, const at::Tensor& tensor);
void check_tensors(const char* collective, const std::vector<at::Tensor>& tensors);
// Tensors that receive a result. Their elements must not share memory, as those of expand() do, because the result could
// not be copied to them after the communication.
void check_output(const char* collective, const at::Tensor& tensor);
void check_outputs(const char* collective, const std::vector<at::Tensor>& tensors);
// c10d passes lists from the time when a process could drive several GPUs; here they must have one entry.
void check_single(const char* collective, size_t given);
// `rank`, a root or a peer, must be in the group.
void check_rank(const char* collective, int64_t rank, int size);
void check_same_type(const char* collective, const at::Tensor& a, const at::Tensor& b);

// Returns the tensor itself if its memory is contiguous and holds its values, otherwise a contiguous copy.
at::Tensor as_contiguous(const at::Tensor& tensor);
// Like as_contiguous(), for an input that is read while the contiguous tensor `output` is written: also copies an input
// that shares memory with it, unless the input begins at `allowed`, where it is overwritten with its own values only.
at::Tensor as_separate_input(const at::Tensor& input, const at::Tensor& output, const void* allowed = nullptr);
// Copies the result back if as_contiguous() has made a copy.
void copy_back(const at::Tensor& from, at::Tensor& to);

size_t bytes_of(const at::Tensor& tensor);
at::Tensor flat_like(const at::Tensor& example, int64_t elements);
at::Tensor empty_buffer_for(const std::vector<at::Tensor>& tensors); // for the result of flatten()
// Returns "Float[1000]" if ORCH_CCL_CHECK is set, otherwise "": only then the ranks compare their calls.
std::string describe(const at::Tensor& tensor);
std::string describe(const std::vector<at::Tensor>& tensors);
// Copies all tensors to one buffer, one after the other, and back.
at::Tensor flatten(const std::vector<at::Tensor>& tensors);
void unflatten(const at::Tensor& flat, std::vector<at::Tensor>& tensors);

} // namespace orch_ccl
