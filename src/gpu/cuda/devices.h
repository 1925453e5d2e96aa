// SPDX-License-Identifier: MIT
/* Prefix of the paths of NVIDIA's device files. */
#pragma once

#define CUDA_DEVICES "/dev/nvidia"
