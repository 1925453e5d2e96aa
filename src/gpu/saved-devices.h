// SPDX-License-Identifier: MIT
/*
 * Device files of the vendors whose state brumate saves itself, as in `struct gpu_vendor`: what our plugins take over from
 * CRIU. Of the other vendors CRIU has plugins of their own. A plugin is linked with nothing of the vendors.
 */
#pragma once

#include "gpu/cuda/devices.h"

#define GPU_SAVED_DEVICES CUDA_DEVICES
