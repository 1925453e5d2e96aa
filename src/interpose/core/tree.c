// SPDX-License-Identifier: MIT
/* The treap of tree.h. Its depth is that of a random tree, so recursion is shallow. */
#include "interpose/core/tree.h"

static uint64_t hash(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* Splits @root into what starts below @key and the rest. */
static void split(struct node *root, uint64_t key, struct node **below, struct node **rest)
{
	if (!root) {
		*below = *rest = NULL;
	} else if (root->start < key) {
		split(root->right, key, &root->right, rest);
		*below = root;
	} else {
		split(root->left, key, below, &root->left);
		*rest = root;
	}
}

static struct node *join(struct node *a, struct node *b)
{
	if (!a || !b)
		return a ? a : b;
	if (a->priority > b->priority) {
		a->right = join(a->right, b);
		return a;
	}
	b->left = join(a, b->left);
	return b;
}

void tree_add(struct tree *tree, struct node *node)
{
	struct node **at = &tree->root;

	node->priority = hash(node->start);
	while (*at && (*at)->priority >= node->priority)
		at = node->start < (*at)->start ? &(*at)->left : &(*at)->right;
	split(*at, node->start, &node->left, &node->right);
	*at = node;
}

void tree_remove(struct tree *tree, struct node *node)
{
	struct node **at = &tree->root;

	while (*at != node)
		at = node->start < (*at)->start ? &(*at)->left : &(*at)->right;
	*at = join(node->left, node->right);
}

void *tree_take(struct tree *tree, uint64_t key)
{
	struct node **at = &tree->root, *node;

	while ((node = *at) && node->start != key)
		at = key < node->start ? &node->left : &node->right;
	if (node)
		*at = join(node->left, node->right);
	return node;
}

void *tree_floor(const struct tree *tree, uint64_t key)
{
	struct node *best = NULL;

	for (struct node *at = tree->root; at;) {
		if (at->start <= key) {
			best = at;
			at = at->right;
		} else {
			at = at->left;
		}
	}
	return best;
}

void *tree_ceil(const struct tree *tree, uint64_t key)
{
	struct node *best = NULL;

	for (struct node *at = tree->root; at;) {
		if (at->start >= key) {
			best = at;
			at = at->left;
		} else {
			at = at->right;
		}
	}
	return best;
}

void *tree_get(const struct tree *tree, uint64_t key)
{
	struct node *node = tree->root;

	while (node && node->start != key)
		node = key < node->start ? node->left : node->right;
	return node;
}

void *tree_find(const struct tree *tree, uint64_t key)
{
	struct node *node = tree_floor(tree, key);

	return node && key - node->start < node->bytes ? node : NULL;
}

void *tree_next(const struct tree *tree, const void *node)
{
	return tree_ceil(tree, node ? ((const struct node *)node)->start + 1 : 0);
}
