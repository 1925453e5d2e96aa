// SPDX-License-Identifier: MIT
/*
 * Ordered sets of address ranges, as a treap whose nodes live in the objects they order. A node's
 * priority is a hash of its key. No locks, no allocation.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/** Part of the object; first member, so that a node is its object. */
struct node {
	uint64_t start, bytes; /* [start, start + bytes); start is the key, unique in its tree */
	uint64_t priority;
	struct node *left, *right;
};

struct tree {
	struct node *root;
};

void tree_add(struct tree *tree, struct node *node);
void tree_remove(struct tree *tree, struct node *node);
/** Removes the node that starts at @key, and returns it. NULL: none does. */
void *tree_take(struct tree *tree, uint64_t key);

/** The last node that starts at or below @key; the first that starts at or above it; the one that
 * starts at it; the one whose range has it. NULL: none. */
void *tree_floor(const struct tree *tree, uint64_t key);
void *tree_ceil(const struct tree *tree, uint64_t key);
void *tree_get(const struct tree *tree, uint64_t key);
void *tree_find(const struct tree *tree, uint64_t key);

/** The node after @node; the first where @node is NULL. */
void *tree_next(const struct tree *tree, const void *node);
