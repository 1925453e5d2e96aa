// SPDX-License-Identifier: MIT
/* Names and texts of the driver's results. */
#include "sim.h"

#define RESULTS(X)                                                                           \
	X(CUDA_SUCCESS, "no error")                                                          \
	X(CUDA_ERROR_INVALID_VALUE, "invalid argument")                                      \
	X(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")                                         \
	X(CUDA_ERROR_NOT_INITIALIZED, "driver not initialized")                              \
	X(CUDA_ERROR_DEINITIALIZED, "driver shutting down")                                  \
	X(CUDA_ERROR_STUB_LIBRARY, "stub library loaded")                                    \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, "device busy or unavailable")                       \
	X(CUDA_ERROR_NO_DEVICE, "no GPU found")                                              \
	X(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")                               \
	X(CUDA_ERROR_INVALID_IMAGE, "invalid module image")                                  \
	X(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")                              \
	X(CUDA_ERROR_MAP_FAILED, "mapping failed")                                           \
	X(CUDA_ERROR_UNMAP_FAILED, "unmapping failed")                                       \
	X(CUDA_ERROR_ALREADY_MAPPED, "already mapped")                                       \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image for this GPU")                      \
	X(CUDA_ERROR_NOT_MAPPED, "not mapped")                                               \
	X(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit not supported")                               \
	X(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "context in use by another thread")             \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access not supported")                   \
	X(CUDA_ERROR_INVALID_PTX, "invalid PTX")                                             \
	X(CUDA_ERROR_FILE_NOT_FOUND, "file not found")                                       \
	X(CUDA_ERROR_OPERATING_SYSTEM, "an operating system call failed")                    \
	X(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")                              \
	X(CUDA_ERROR_ILLEGAL_STATE, "wrong state for this operation")                        \
	X(CUDA_ERROR_NOT_FOUND, "named symbol not found")                                    \
	X(CUDA_ERROR_NOT_READY, "not ready")                                                 \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, "illegal memory access")                               \
	X(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources for a launch")             \
	X(CUDA_ERROR_LAUNCH_TIMEOUT, "launch timed out")                                     \
	X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access already enabled")             \
	X(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access not enabled")                     \
	X(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "primary context is active")                    \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")                           \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "host memory already registered")       \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "host memory not registered")               \
	X(CUDA_ERROR_LAUNCH_FAILED, "launch failed")                                         \
	X(CUDA_ERROR_NOT_PERMITTED, "not permitted")                                         \
	X(CUDA_ERROR_NOT_SUPPORTED, "not supported")                                         \
	X(CUDA_ERROR_SYSTEM_NOT_READY, "system not ready")                                   \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "driver and library versions differ")           \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not possible while a stream is captured")  \
	X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "capture was invalidated")                  \
	X(CUDA_ERROR_STREAM_CAPTURE_MERGE, "would merge two captures")                       \
	X(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not begun here")                 \
	X(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "captured work was not joined")                \
	X(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency crosses the border of a capture") \
	X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "implicit dependency on a captured stream")    \
	X(CUDA_ERROR_CAPTURED_EVENT, "event was recorded in a capture")                      \
	X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "capture belongs to another thread")       \
	X(CUDA_ERROR_TIMEOUT, "timed out")                                                   \
	X(CUDA_ERROR_UNKNOWN, "unknown error")

static const struct {
	CUresult result;
	const char *name, *text;
} results[] = {
#define X(result, text) { result, #result, text },
	RESULTS(X)
#undef X
};

CUresult cuGetErrorName(CUresult error, const char **text)
{
	for (size_t i = 0; text && i < sizeof(results) / sizeof(*results); i++) {
		if (results[i].result == error) {
			*text = results[i].name;
			return CUDA_SUCCESS;
		}
	}
	if (text)
		*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
	for (size_t i = 0; text && i < sizeof(results) / sizeof(*results); i++) {
		if (results[i].result == error) {
			*text = results[i].text;
			return CUDA_SUCCESS;
		}
	}
	if (text)
		*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}
