// SPDX-License-Identifier: MIT
#pragma once

/** What `brumate` does when it is called as cuda-checkpoint. Returns the exit code: 0 or 1. */
int cuda_checkpoint_main(int argc, char **argv);
