// SPDX-License-Identifier: MIT
/* The command line of NVIDIA's cuda-checkpoint, for scripts written for it. */
#pragma once

/** What `brumate` does when it is called as cuda-checkpoint. Returns the exit code: 0 or 1. */
int cuda_checkpoint_main(int argc, char **argv);
