// SPDX-License-Identifier: MIT
/*
 * The device image: device memory inside a checkpoint. A piece that lies in several segments of a host copy is
 * several regions of one id.
 */
#pragma once

#include "datapath/datapath.h"
#include "datapath/spilled.h"
#include "chunks/chunks.h"
#include "store/store.h"

/** A device image being written. */
struct device_image_writer {
	const struct vault *vault;    /* borrowed: whose pieces they are */
	struct chunks_writer *chunks; /* borrowed */
	struct spilled *spilled;      /* what @chunks reads of host copies on a disk */
};
/** To be called when nobody reads any more: after chunks_writer_free(). Accepts zeros. */
void device_image_writer_fini(struct device_image_writer *w);

/** A datapath_save_fn for a struct device_image_writer. */
int device_image_save(void *writer, const struct host_copy *copy, uint64_t start, uint64_t end,
		      const struct digest *digests, struct brumate_error *err);

/** A device image being read. */
struct device_image_reader {
	const struct store_image *image; /* borrowed */
	uint64_t *
		places; /* where each region of it is in the host copy; UINT64_MAX: no device memory */

	/* of the plan for a feed */
	struct chunks_reader *chunks;
	struct chunks_part *parts; /* what each chunk of the host copy is */
	bool unverified;
};
/** Accepts zeros. */
void device_image_reader_fini(struct device_image_reader *r);

/** Fills the vault @v, which is empty, with the pieces of the image: without fds, of processes as their own
 * namespace numbers them. None where the image has no device memory. -EBADMSG. */
int device_image_open(struct device_image_reader *ret, const struct store_image *image,
		      struct vault *v, struct brumate_error *err);

/** Where move_start_in() gets the device memory of the image from. @r lives as long as that. */
struct datapath_source device_image_source(struct device_image_reader *r);

/** Gives the pieces that device_image_open() made to the restored processes, and compares them with what the
 * agents say. -EBADMSG. */
int device_image_assign(struct datapath *d, struct brumate_error *err);
