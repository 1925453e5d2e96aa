// SPDX-License-Identifier: MIT
/*
 * The kubelet of a node, which can make its container runtime checkpoint a container. It is always asked over TLS,
 * and its certificate is always checked.
 */
#pragma once

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "edges/containers/find.h"

enum { KUBELET_PORT = 10250 };

/** Address and credentials. All borrowed; NULL: the default. */
struct kubelet_options {
	const char *server;	 /* https://HOST[:PORT] */
	const char *server_name; /* the name that its certificate must have */
	const char *ca_file;
	const char *token_file;
	const char *cert, *key; /* files of a client certificate */
};

/** The same with defaults filled in. Owns its strings. */
struct kubelet {
	char *host; /* in brackets if it is an address of IPv6 */
	int port;
	char *name;  /* the name that its certificate must have */
	char *ca;    /* trusted certificates (PEM) */
	char *token; /* NULL: none */
	char *cert, *key;
};
#define KUBELET_EMPTY ((struct kubelet){ 0 })
void kubelet_fini(struct kubelet *k);
DEFINE_AUTO_FINI(struct kubelet, kubelet_fini)

/**
 * kubelet_init() - fill in defaults and read what is in files
 *
 * The defaults are those of a pod with a service account, else of the node: $NODE_IP, else this machine; $NODE_NAME, else,
 * for this machine, its name, as the kubelet's own certificate has no address; the certificates of the service account
 * and of the kubelet; the token of the service account, unless there is a client certificate.
 * Errors to act on: -EINVAL, -ENOENT and -EACCES (of files).
 */
int kubelet_init(struct kubelet *ret, const struct kubelet_options *o, struct brumate_error *err);

/**
 * kubelet_checkpoint() - make the kubelet checkpoint a running container
 * @name: with a container, checked
 * @timeout_s: the limit for the runtime, which may have a shorter one of its own
 * @ret: the paths of the archives on the node, an array; owned
 *
 * Errors to act on: -ECONNREFUSED (no connection), -EKEYREJECTED (a certificate), -EACCES (401, 403), -ENOENT (404),
 * -EREMOTEIO (the runtime failed, or the connection broke), -ETIMEDOUT, -EPROTO (a malformed answer), -EOPNOTSUPP (no
 * libcurl).
 */
int kubelet_checkpoint(const struct kubelet *k, const struct service_pod_name *name,
		       uint64_t timeout_s, json_t **ret, struct brumate_error *err);

/**
 * kubelet_pods() - list the pods of this node that should be suspended or run
 * @ret: [{namespace, pod, suspended, key, wrong}] of those with the annotation, owned; the key changes when the pod is
 *       replaced, its annotation changes or one of its containers is restarted; wrong is an unknown word, else null
 *
 * Changes nothing. Errors to act on: as above; the caller needs the verb get on nodes/pods.
 */
int kubelet_pods(const struct kubelet *k, json_t **ret, struct brumate_error *err);

#define KUBELET_ANNOTATION "brumate.dev/gpu"

/** Parses a PodList into the form of kubelet_pods(). Skips pods without the annotation or with an invalid name. Pure.
 * 0 or -EPROTO. */
int kubelet_pods_decode(json_t **ret, const char *text, size_t len, struct brumate_error *err);

/** Parses an answer: {"items": [PATH, ...]}, with at least one. @ret: the array, owned. Pure. 0 or -EPROTO. */
int kubelet_answer_decode(json_t **ret, const char *text, size_t len, struct brumate_error *err);
