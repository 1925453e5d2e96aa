// SPDX-License-Identifier: MIT
/*
 * Copies and fills, all as rectangles: a plain copy is one row. What is a device pointer is checked
 * when the call is made, as far as the driver checks it.
 */
#include <string.h>

#include "sim.h"

enum direction { TO_DEVICE = 1, FROM_DEVICE = 2, WITHIN_DEVICE = 3, ANY = 0 };

static CUresult op_copy(struct stream_op *op)
{
	char *dst = (char *)(uintptr_t)op->copy.dst;
	const char *src = (const char *)(uintptr_t)op->copy.src;

	for (size_t row = 0; row < op->copy.height && !op->status; row++)
		memmove(dst + row * op->copy.dst_pitch, src + row * op->copy.src_pitch,
			op->copy.width);
	return CUDA_SUCCESS;
}

static void fill_row(char *dst, uint32_t value, uint32_t element_bytes, size_t n)
{
	if (element_bytes == 1)
		memset(dst, (int)value, n);
	else if (element_bytes == 2)
		for (size_t i = 0; i < n; i++)
			((uint16_t *)dst)[i] = (uint16_t)value;
	else
		for (size_t i = 0; i < n; i++)
			((uint32_t *)dst)[i] = value;
}

static CUresult op_fill(struct stream_op *op)
{
	char *dst = (char *)(uintptr_t)op->fill.dst;

	for (size_t row = 0; row < op->fill.height && !op->status; row++)
		fill_row(dst + row * op->fill.pitch, op->fill.value, op->fill.element_bytes,
			 op->fill.width);
	return CUDA_SUCCESS;
}

/* Bytes from the first to the last of a rectangle; SIZE_MAX if there is no such number. */
static size_t extent(size_t pitch, size_t width, size_t height)
{
	size_t bytes;

	if (!height || __builtin_mul_overflow(pitch, height - 1, &bytes) ||
	    __builtin_add_overflow(bytes, width, &bytes))
		return SIZE_MAX;
	return bytes;
}

/* Host memory the driver does not know: pageable. The call returns when the copy is done. */
static bool pageable(const struct stream_op *op)
{
	size_t n_dst = extent(op->copy.dst_pitch, op->copy.width, op->copy.height);
	size_t n_src = extent(op->copy.src_pitch, op->copy.width, op->copy.height);

	return !memory_known(op->copy.dst, n_dst) || !memory_known(op->copy.src, n_src);
}

static CUresult check_copy(const struct stream_op *op, enum direction direction)
{
	size_t n_dst = extent(op->copy.dst_pitch, op->copy.width, op->copy.height);
	size_t n_src = extent(op->copy.src_pitch, op->copy.width, op->copy.height);

	if (!op->copy.dst || !op->copy.src)
		return CUDA_ERROR_INVALID_VALUE;
	if ((direction & TO_DEVICE || vmm_reserved(op->copy.dst)) &&
	    !memory_known(op->copy.dst, n_dst))
		return CUDA_ERROR_INVALID_VALUE;
	if ((direction & FROM_DEVICE || vmm_reserved(op->copy.src)) &&
	    !memory_known(op->copy.src, n_src))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

static CUresult start(CUcontext ctx, const struct stream_op *op, CUstream handle, bool wait)
{
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);

	if (r)
		return r;
	return wait ? stream_run(stream, op) : stream_submit(stream, op, NULL);
}

static CUresult copy(CUcontext ctx, const struct stream_op *op, enum direction direction,
		     CUstream handle, bool wait)
{
	CUstream stream;
	CUresult r;

	if (!op->copy.width || !op->copy.height)
		return CUDA_SUCCESS;
	r = check_copy(op, direction);
	if (!r)
		r = stream_resolve(ctx, handle, &stream);
	if (r)
		return r;
	return start(ctx, op, handle, wait || (!stream->capture && pageable(op)));
}

static CUresult copy_line(CUcontext ctx, CUdeviceptr dst, CUdeviceptr src, size_t bytes,
			  enum direction direction, CUstream stream, bool wait)
{
	struct stream_op op = { .run = op_copy,
				.copy = { .dst = dst, .src = src, .width = bytes, .height = 1 } };

	return copy(ctx, &op, direction, stream, wait);
}

static CUresult copy_peer(CUcontext ctx, CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src,
			  CUcontext src_ctx, size_t bytes, CUstream stream, bool wait)
{
	if (!handle_valid(&sim.contexts, dst_ctx) || !handle_valid(&sim.contexts, src_ctx))
		return CUDA_ERROR_INVALID_CONTEXT;
	return copy_line(ctx, dst, src, bytes, WITHIN_DEVICE, stream, wait);
}

static CUdeviceptr plane_start(CUmemorytype type, const void *host, CUdeviceptr device, size_t x,
			       size_t y, size_t pitch)
{
	CUdeviceptr base = type == CU_MEMORYTYPE_HOST ? (uintptr_t)host : device;

	return base + x + y * pitch;
}

static bool is_linear(CUmemorytype type)
{
	return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE ||
	       type == CU_MEMORYTYPE_UNIFIED;
}

static enum direction direction_of(CUmemorytype dst, CUmemorytype src)
{
	return (enum direction)((dst == CU_MEMORYTYPE_DEVICE ? TO_DEVICE : ANY) |
				(src == CU_MEMORYTYPE_DEVICE ? FROM_DEVICE : ANY));
}

static CUresult copy_2d(CUcontext ctx, const CUDA_MEMCPY2D *c, CUstream stream, bool wait)
{
	struct stream_op op = { .run = op_copy };

	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_linear(c->srcMemoryType) || !is_linear(c->dstMemoryType))
		return CUDA_ERROR_NOT_SUPPORTED;
	op.copy.dst_pitch = c->dstPitch ? c->dstPitch : c->WidthInBytes;
	op.copy.src_pitch = c->srcPitch ? c->srcPitch : c->WidthInBytes;
	op.copy.width = c->WidthInBytes;
	op.copy.height = c->Height;
	if (op.copy.dst_pitch < c->WidthInBytes || op.copy.src_pitch < c->WidthInBytes)
		return CUDA_ERROR_INVALID_VALUE;
	op.copy.dst = plane_start(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes,
				  c->dstY, op.copy.dst_pitch);
	op.copy.src = plane_start(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes,
				  c->srcY, op.copy.src_pitch);
	return copy(ctx, &op, direction_of(c->dstMemoryType, c->srcMemoryType), stream, wait);
}

/* Nodes of graphs copy boxes; one that is a single plane is what this driver takes. */
CUresult copy_3d_prepare(const CUDA_MEMCPY3D *c, struct stream_op *ret)
{
	struct stream_op op = { .run = op_copy };

	if (!is_linear(c->srcMemoryType) || !is_linear(c->dstMemoryType) || c->Depth > 1 ||
	    c->srcZ || c->dstZ || c->srcLOD || c->dstLOD)
		return CUDA_ERROR_NOT_SUPPORTED;
	op.copy.dst_pitch = c->dstPitch ? c->dstPitch : c->WidthInBytes;
	op.copy.src_pitch = c->srcPitch ? c->srcPitch : c->WidthInBytes;
	op.copy.width = c->WidthInBytes;
	op.copy.height = c->Depth ? c->Height : 0;
	op.copy.dst = plane_start(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes,
				  c->dstY, op.copy.dst_pitch);
	op.copy.src = plane_start(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes,
				  c->srcY, op.copy.src_pitch);
	if (!op.copy.width || !op.copy.height || op.copy.dst_pitch < op.copy.width ||
	    op.copy.src_pitch < op.copy.width)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = check_copy(&op, direction_of(c->dstMemoryType, c->srcMemoryType));
	if (!r)
		*ret = op;
	return r;
}

static CUresult check_fill(const struct stream_op *op)
{
	size_t row;

	if (__builtin_mul_overflow(op->fill.width, op->fill.element_bytes, &row) ||
	    op->fill.dst % op->fill.element_bytes ||
	    (op->fill.height > 1 &&
	     (op->fill.pitch < row || op->fill.pitch % op->fill.element_bytes)))
		return CUDA_ERROR_INVALID_VALUE;
	if (!memory_known(op->fill.dst, extent(op->fill.pitch, row, op->fill.height)))
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult fill_prepare(const CUDA_MEMSET_NODE_PARAMS *fill, struct stream_op *ret)
{
	struct stream_op op = { .run = op_fill };
	CUresult r;

	if (fill->elementSize != 1 && fill->elementSize != 2 && fill->elementSize != 4)
		return CUDA_ERROR_INVALID_VALUE;
	op.fill.dst = fill->dst;
	op.fill.pitch = fill->pitch;
	op.fill.width = fill->width;
	op.fill.height = fill->height;
	op.fill.value = fill->value;
	op.fill.element_bytes = fill->elementSize;
	if (!fill->width || !fill->height)
		return CUDA_ERROR_INVALID_VALUE;
	r = check_fill(&op);
	if (!r)
		*ret = op;
	return r;
}

static CUresult fill(CUcontext ctx, CUdeviceptr dst, size_t pitch, uint32_t value,
		     uint32_t element_bytes, size_t width, size_t height, CUstream stream,
		     bool wait)
{
	struct stream_op op = { .run = op_fill };
	CUresult r;

	op.fill.dst = dst;
	op.fill.pitch = pitch;
	op.fill.width = width;
	op.fill.height = height;
	op.fill.value = value;
	op.fill.element_bytes = element_bytes;
	if (!width || !height)
		return CUDA_SUCCESS;
	r = check_fill(&op);
	return r ? r : start(ctx, &op, stream, wait);
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	return API_CTX_LOCKED(copy_line(ctx, dst, src, bytes, ANY, NULL, true));
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	return API_CTX_LOCKED(copy_line(ctx, dst, src, bytes, ANY, stream, false));
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
	return API_CTX_LOCKED(copy_line(ctx, dst, (uintptr_t)src, bytes, TO_DEVICE, NULL, true));
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
	return API_CTX_LOCKED(copy_line(ctx, dst, (uintptr_t)src, bytes, TO_DEVICE, stream, false));
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
	return API_CTX_LOCKED(copy_line(ctx, (uintptr_t)dst, src, bytes, FROM_DEVICE, NULL, true));
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	return API_CTX_LOCKED(
		copy_line(ctx, (uintptr_t)dst, src, bytes, FROM_DEVICE, stream, false));
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
	return API_CTX_LOCKED(copy_line(ctx, dst, src, bytes, WITHIN_DEVICE, NULL, true));
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	return API_CTX_LOCKED(copy_line(ctx, dst, src, bytes, WITHIN_DEVICE, stream, false));
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx,
		      size_t bytes)
{
	return API_CTX_LOCKED(copy_peer(ctx, dst, dst_ctx, src, src_ctx, bytes, NULL, true));
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_ctx, CUdeviceptr src, CUcontext src_ctx,
			   size_t bytes, CUstream stream)
{
	return API_CTX_LOCKED(copy_peer(ctx, dst, dst_ctx, src, src_ctx, bytes, stream, false));
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *c)
{
	return API_CTX_LOCKED(copy_2d(ctx, c, NULL, true));
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *c)
{
	return API_CTX_LOCKED(copy_2d(ctx, c, NULL, true));
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream stream)
{
	return API_CTX_LOCKED(copy_2d(ctx, c, stream, false));
}

CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count)
{
	return API_CTX_LOCKED(fill(ctx, dst, 0, value, 1, count, 1, NULL, true));
}

CUresult cuMemsetD16_v2(CUdeviceptr dst, unsigned short value, size_t count)
{
	return API_CTX_LOCKED(fill(ctx, dst, 0, value, 2, count, 1, NULL, true));
}

CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t count)
{
	return API_CTX_LOCKED(fill(ctx, dst, 0, value, 4, count, 1, NULL, true));
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream)
{
	return API_CTX_LOCKED(fill(ctx, dst, 0, value, 1, count, 1, stream, false));
}

CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream)
{
	return API_CTX_LOCKED(fill(ctx, dst, 0, value, 2, count, 1, stream, false));
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t count, CUstream stream)
{
	return API_CTX_LOCKED(fill(ctx, dst, 0, value, 4, count, 1, stream, false));
}

CUresult cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width,
			 size_t height)
{
	return API_CTX_LOCKED(fill(ctx, dst, pitch, value, 1, width, height, NULL, true));
}

CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width,
			   size_t height, CUstream stream)
{
	return API_CTX_LOCKED(fill(ctx, dst, pitch, value, 1, width, height, stream, false));
}
