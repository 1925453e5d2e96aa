// SPDX-License-Identifier: MIT
/* The wrappers that follow captures of streams. The driver has the _ptsz ones for programs whose default
 * stream is one of each thread. */
#pragma once

#include "gpu/cuda/abi.h"

CUresult capture_begin_old(CUstream stream);
CUresult capture_begin_old_ptsz(CUstream stream);
CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode);
CUresult capture_begin_ptsz(CUstream stream, CUstreamCaptureMode mode);
CUresult capture_begin_to_graph(CUstream stream, CUgraph graph, const CUgraphNode *deps,
				const void *edges, size_t n_deps, CUstreamCaptureMode mode);
CUresult capture_begin_to_graph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *deps,
				     const void *edges, size_t n_deps, CUstreamCaptureMode mode);
CUresult capture_end(CUstream stream, CUgraph *graph);
CUresult capture_end_ptsz(CUstream stream, CUgraph *graph);
CUresult capture_stream_destroyed(CUstream stream);
