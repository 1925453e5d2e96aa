// SPDX-License-Identifier: MIT
/*
 * Graphs: operations in an order in which they may run, since a node can only depend on nodes that
 * were there before it. A launch is one operation of its stream that runs all of them.
 */
#include <stdlib.h>

#include "sim.h"

struct CUgraphNode_st {
	CUgraph graph;
	struct stream_op op;
};

struct CUgraph_st {
	CUgraphNode *nodes;
	size_t n;
};

struct CUgraphExec_st {
	struct stream_op *ops;
	size_t n;
	unsigned int refs;
};

CUgraph graph_new(void)
{
	CUgraph graph = calloc(1, sizeof(*graph));

	if (graph && handle_add(&sim.graphs, graph) < 0) {
		free(graph);
		return NULL;
	}
	return graph;
}

void graph_free(CUgraph graph)
{
	handle_remove(&sim.graphs, graph);
	for (size_t i = 0; i < graph->n; i++)
		free(graph->nodes[i]);
	free(graph->nodes);
	free(graph);
}

CUresult graph_append(CUgraph graph, const struct stream_op *op, CUgraphNode *ret)
{
	CUgraphNode *nodes = realloc(graph->nodes, (graph->n + 1) * sizeof(CUgraphNode));
	CUgraphNode node;

	if (!nodes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	graph->nodes = nodes;
	node = malloc(sizeof(*node));
	if (!node)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*node = (struct CUgraphNode_st){ .graph = graph, .op = *op };
	nodes[graph->n++] = node;
	*ret = node;
	return CUDA_SUCCESS;
}

static void exec_put(CUgraphExec exec)
{
	if (--exec->refs)
		return;
	free(exec->ops);
	free(exec);
}

static CUresult op_graph(struct stream_op *op)
{
	CUgraphExec exec = op->exec;
	CUresult r = op->status;

	for (size_t i = 0; i < exec->n && !r; i++) {
		struct stream_op node = exec->ops[i];

		node.stream = op->stream;
		node.ctx = op->ctx;
		r = node.run(&node);
	}
	pthread_mutex_lock(&sim.lock);
	exec_put(exec);
	pthread_mutex_unlock(&sim.lock);
	return r;
}

static bool knows(CUgraph graph, CUgraphNode node)
{
	for (size_t i = 0; i < graph->n; i++)
		if (graph->nodes[i] == node)
			return true;
	return false;
}

static CUresult add_node(CUgraphNode *ret, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
			 const struct stream_op *op)
{
	if (!ret || !handle_valid(&sim.graphs, graph) || (n_deps && !deps))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n_deps; i++)
		if (!knows(graph, deps[i]))
			return CUDA_ERROR_INVALID_VALUE;
	return graph_append(graph, op, ret);
}

static CUresult create(CUgraph *ret, unsigned int flags)
{
	CUgraph graph;

	if (!ret || flags)
		return CUDA_ERROR_INVALID_VALUE;
	graph = graph_new();
	if (!graph)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*ret = graph;
	return CUDA_SUCCESS;
}

static CUresult destroy(CUgraph graph)
{
	if (!handle_valid(&sim.graphs, graph))
		return CUDA_ERROR_INVALID_VALUE;
	graph_free(graph);
	return CUDA_SUCCESS;
}

static CUresult add_kernel(CUgraphNode *ret, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
			   CUfunction fn, void **params, void **extra)
{
	struct stream_op op;
	CUresult r = launch_prepare(fn, params, extra, &op);

	return r ? r : add_node(ret, graph, deps, n_deps, &op);
}

static CUresult add_memcpy(CUgraphNode *ret, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
			   const CUDA_MEMCPY3D *copy)
{
	struct stream_op op;
	CUresult r = copy ? copy_3d_prepare(copy, &op) : CUDA_ERROR_INVALID_VALUE;

	return r ? r : add_node(ret, graph, deps, n_deps, &op);
}

static CUresult add_memset(CUgraphNode *ret, CUgraph graph, const CUgraphNode *deps, size_t n_deps,
			   const CUDA_MEMSET_NODE_PARAMS *params)
{
	struct stream_op op;
	CUresult r = params ? fill_prepare(params, &op) : CUDA_ERROR_INVALID_VALUE;

	return r ? r : add_node(ret, graph, deps, n_deps, &op);
}

static CUresult instantiate(CUgraphExec *ret, CUgraph graph)
{
	CUgraphExec exec;

	if (!ret || !handle_valid(&sim.graphs, graph))
		return CUDA_ERROR_INVALID_VALUE;
	exec = calloc(1, sizeof(*exec));
	if (exec)
		exec->ops = calloc(graph->n ? graph->n : 1, sizeof(*exec->ops));
	if (!exec || !exec->ops || handle_add(&sim.execs, exec) < 0) {
		if (exec)
			free(exec->ops);
		free(exec);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	exec->refs = 1;
	exec->n = graph->n;
	for (size_t i = 0; i < graph->n; i++)
		exec->ops[i] = graph->nodes[i]->op;
	*ret = exec;
	return CUDA_SUCCESS;
}

static CUresult launch(CUcontext ctx, CUgraphExec exec, CUstream handle)
{
	struct stream_op op = { .run = op_graph, .exec = exec };
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);

	if (r)
		return r;
	if (!handle_valid(&sim.execs, exec))
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	exec->refs++;
	r = stream_submit(stream, &op, NULL);
	if (r)
		exec->refs--;
	return r;
}

static CUresult exec_destroy(CUgraphExec exec)
{
	if (!handle_remove(&sim.execs, exec))
		return CUDA_ERROR_INVALID_VALUE;
	exec_put(exec);
	return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
	return API_LOCKED(create(graph, flags));
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
			      size_t n_deps, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	return API_LOCKED(params ? add_kernel(node, graph, deps, n_deps, params->func,
					      params->kernelParams, params->extra)
				 : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
				 size_t n_deps, const CUDA_KERNEL_NODE_PARAMS_v2 *params)
{
	return API_LOCKED(params ? add_kernel(node, graph, deps, n_deps, params->func,
					      params->kernelParams, params->extra)
				 : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
			      size_t n_deps, const CUDA_MEMCPY3D *copy, CUcontext ctx)
{
	return API_LOCKED(add_memcpy(node, graph, deps, n_deps, copy));
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
			      size_t n_deps, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx)
{
	return API_LOCKED(add_memset(node, graph, deps, n_deps, params));
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
			       size_t log_bytes)
{
	return API_LOCKED(instantiate(exec, graph));
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
	return API_LOCKED(instantiate(exec, graph));
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	return API_CTX_LOCKED(launch(ctx, exec, stream));
}

CUresult cuGraphDestroy(CUgraph graph)
{
	return API_LOCKED(destroy(graph));
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	return API_LOCKED(exec_destroy(exec));
}
