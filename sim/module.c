// SPDX-License-Identifier: MIT
/* Modules from PTX, their functions and variables, and launches. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ptx.h"
#include "sim.h"

/* Markers of the array that a launch may pass instead of single parameters. */
#define PARAM_END    ((void *)0)
#define PARAM_BUFFER ((void *)1)
#define PARAM_SIZE   ((void *)2)

struct variable {
	char name[PTX_NAME_BYTES];
	CUdeviceptr ptr;
	size_t bytes;
};

struct CUmod_st {
	CUcontext ctx;
	char *text;
	struct CUfunc_st *functions;
	struct variable *variables;
	size_t n_functions, n_variables;
};

void module_free(CUmodule module)
{
	handle_remove(&sim.modules, module);
	for (size_t i = 0; i < module->n_variables; i++)
		sim_memory_free(module->variables[i].ptr);
	free(module->functions);
	free(module->variables);
	free(module->text);
	free(module);
}

void context_unload_modules(CUcontext ctx)
{
	for (size_t i = sim.modules.n; i-- > 0;) {
		CUmodule module = sim.modules.slots[i].value;

		if (module->ctx == ctx)
			module_free(module);
	}
}

/* An entry that is not the name of one of our kernels is left out, so it is not found later. */
static CUresult read_entries(CUmodule module)
{
	char name[PTX_NAME_BYTES];
	size_t pos = 0, room = 0;

	while (ptx_next_entry(module->text, &pos, name))
		room++;
	module->functions = calloc(room ? room : 1, sizeof(*module->functions));
	if (!module->functions)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (pos = 0; ptx_next_entry(module->text, &pos, name);) {
		const struct kernel *kernel = kernel_find(name, strlen(name));

		if (kernel)
			module->functions[module->n_functions++] =
				(struct CUfunc_st){ kernel, module };
	}
	return CUDA_SUCCESS;
}

static CUresult add_variable(CUmodule module, const struct ptx_global *global)
{
	struct variable *variables = realloc(module->variables,
					     (module->n_variables + 1) * sizeof(*variables)),
			*variable;
	CUresult r;

	if (!variables)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->variables = variables;
	variable = &variables[module->n_variables];
	if (__builtin_mul_overflow(global->element_bytes, global->count, &variable->bytes))
		return CUDA_ERROR_INVALID_PTX;
	r = sim_memory_alloc(module->ctx, &variable->ptr, variable->bytes);
	if (r)
		return r;
	memcpy(variable->name, global->name, sizeof(variable->name));
	memset((void *)(uintptr_t)variable->ptr, 0, variable->bytes);
	memcpy((void *)(uintptr_t)variable->ptr, &global->value, global->element_bytes);
	module->n_variables++;
	return CUDA_SUCCESS;
}

static CUresult read_globals(CUmodule module)
{
	struct ptx_global global;
	CUresult r = CUDA_SUCCESS;
	size_t pos = 0;
	int found;

	while (!r && (found = ptx_next_global(module->text, &pos, &global)))
		r = found < 0 ? CUDA_ERROR_INVALID_PTX : add_variable(module, &global);
	return r;
}

static CUresult load(CUcontext ctx, CUmodule *ret, const char *image)
{
	CUmodule module;
	CUresult r;

	if (!ret || !image)
		return CUDA_ERROR_INVALID_VALUE;
	shut_down_at_exit(SHUTDOWN_OF_MODULE);
	/* A cubin or a fat binary is for real hardware. */
	if (!memcmp(image, "\177ELF", 4) || !memcmp(image, "\x50\xed\x55\xba", 4))
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	if (!ptx_recognize(image))
		return CUDA_ERROR_INVALID_IMAGE;
	module = calloc(1, sizeof(*module));
	if (!module)
		return CUDA_ERROR_OUT_OF_MEMORY;
	module->ctx = ctx;
	module->text = strdup(image);
	r = module->text && !handle_add(&sim.modules, module) ? read_entries(module)
							      : CUDA_ERROR_OUT_OF_MEMORY;
	if (!r)
		r = read_globals(module);
	if (r) {
		module_free(module);
		return r;
	}
	*ret = module;
	return CUDA_SUCCESS;
}

static CUresult unload(CUmodule module)
{
	if (!handle_valid(&sim.modules, module))
		return CUDA_ERROR_INVALID_HANDLE;
	context_wait_idle(module->ctx);
	module_free(module);
	return CUDA_SUCCESS;
}

static CUresult get_function(CUfunction *ret, CUmodule module, const char *name)
{
	if (!ret || !name)
		return CUDA_ERROR_INVALID_VALUE;
	if (!handle_valid(&sim.modules, module))
		return CUDA_ERROR_INVALID_HANDLE;
	for (size_t i = 0; i < module->n_functions; i++) {
		if (!strcmp(module->functions[i].kernel->name, name)) {
			*ret = &module->functions[i];
			return CUDA_SUCCESS;
		}
	}
	return CUDA_ERROR_NOT_FOUND;
}

static CUresult get_global(CUdeviceptr *ptr, size_t *bytes, CUmodule module, const char *name)
{
	if (!name || (!ptr && !bytes))
		return CUDA_ERROR_INVALID_VALUE;
	if (!handle_valid(&sim.modules, module))
		return CUDA_ERROR_INVALID_HANDLE;
	for (size_t i = 0; i < module->n_variables; i++) {
		if (strcmp(module->variables[i].name, name))
			continue;
		if (ptr)
			*ptr = module->variables[i].ptr;
		if (bytes)
			*bytes = module->variables[i].bytes;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

static bool is_function(CUfunction fn)
{
	for (size_t i = 0; i < sim.modules.n; i++) {
		CUmodule module = sim.modules.slots[i].value;

		if (fn >= module->functions && fn < module->functions + module->n_functions)
			return true;
	}
	return false;
}

/* The packed form: each parameter at the next multiple of its size. */
static CUresult unpack(const struct kernel *kernel, void **extra, uint64_t *params)
{
	const char *buffer = NULL;
	size_t size = 0, at = 0;

	for (; *extra != PARAM_END; extra += 2) {
		if (*extra == PARAM_BUFFER)
			buffer = extra[1];
		else if (*extra == PARAM_SIZE)
			size = *(size_t *)extra[1];
		else
			return CUDA_ERROR_INVALID_VALUE;
	}
	for (unsigned int i = 0; i < kernel->n_params; i++) {
		at = round_up(at, kernel->param_bytes[i]);
		if (!buffer || at + kernel->param_bytes[i] > size)
			return CUDA_ERROR_INVALID_VALUE;
		memcpy(&params[i], buffer + at, kernel->param_bytes[i]);
		at += kernel->param_bytes[i];
	}
	return CUDA_SUCCESS;
}

static CUresult op_launch(struct stream_op *op)
{
	if (op->status)
		return CUDA_SUCCESS;
	return op->launch.kernel->run(op->ctx, op->launch.params);
}

CUresult launch_prepare(CUfunction fn, void **params, void **extra, struct stream_op *ret)
{
	struct stream_op op = { .run = op_launch };

	if (!is_function(fn))
		return CUDA_ERROR_INVALID_HANDLE;
	op.launch.kernel = fn->kernel;
	if (extra && !params) {
		CUresult r = unpack(fn->kernel, extra, op.launch.params);

		if (r)
			return r;
	} else {
		if (!params)
			return CUDA_ERROR_INVALID_VALUE;
		for (unsigned int i = 0; i < fn->kernel->n_params; i++)
			memcpy(&op.launch.params[i], params[i], fn->kernel->param_bytes[i]);
	}
	*ret = op;
	return CUDA_SUCCESS;
}

static CUresult launch(CUcontext ctx, CUfunction fn, uint64_t blocks, uint64_t threads,
		       CUstream handle, void **params, void **extra)
{
	struct stream_op op;
	CUstream stream;
	CUresult r;

	if (!blocks || !threads || threads > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	r = stream_resolve(ctx, handle, &stream);
	if (!r)
		r = launch_prepare(fn, params, extra, &op);
	if (!r && fn->module->ctx != stream->ctx)
		r = CUDA_ERROR_INVALID_HANDLE;
	return r ? r : stream_submit(stream, &op, NULL);
}

static CUresult function_attribute(int *value, CUfunction_attribute attribute, CUfunction fn)
{
	if (!value || attribute < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_function(fn))
		return CUDA_ERROR_INVALID_HANDLE;
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = 1024;
		break;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*value = 32;
		break;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*value = 90;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}

static CUresult occupancy(int *blocks, CUfunction fn, int block_size, size_t shared_bytes)
{
	if (!blocks || block_size <= 0 || block_size > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_function(fn))
		return CUDA_ERROR_INVALID_HANDLE;
	*blocks = 2048 / block_size;
	if (*blocks > 32)
		*blocks = 32;
	if (shared_bytes && 233472 / shared_bytes < (size_t)*blocks)
		*blocks = (int)(233472 / shared_bytes);
	return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	return API_CTX_LOCKED(load(ctx, module, image));
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int n_options,
			    CUjit_option *options, void **values)
{
	return API_CTX_LOCKED(load(ctx, module, image));
}

CUresult cuModuleUnload(CUmodule module)
{
	return API_CTX_LOCKED(unload(module));
}

CUresult cuModuleGetFunction(CUfunction *fn, CUmodule module, const char *name)
{
	return API_LOCKED(get_function(fn, module, name));
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule module, const char *name)
{
	return API_LOCKED(get_global(ptr, bytes, module, name));
}

CUresult cuLaunchKernel(CUfunction fn, unsigned int grid_x, unsigned int grid_y,
			unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			unsigned int block_z, unsigned int shared_bytes, CUstream stream,
			void **params, void **extra)
{
	return API_CTX_LOCKED(launch(ctx, fn, (uint64_t)grid_x * grid_y * grid_z,
				     (uint64_t)block_x * block_y * block_z, stream, params, extra));
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction fn)
{
	return API_LOCKED(function_attribute(value, attribute, fn));
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction fn, int block_size,
						     size_t shared_bytes)
{
	return API_LOCKED(occupancy(blocks, fn, block_size, shared_bytes));
}
