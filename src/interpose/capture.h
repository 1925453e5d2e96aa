// SPDX-License-Identifier: MIT
/* The wrappers that follow captures of streams. */
#pragma once

#include "device/cuda/abi.h"

CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode);
CUresult capture_end(CUstream stream, CUgraph *graph);
CUresult capture_stream_destroyed(CUstream stream);
