// SPDX-License-Identifier: MIT
/* Whether a sanitizer looks at every access, by either compiler: that takes time and memory, and CRIU cannot
 * save such processes, whose shadow memory and hold on signals are not for it. */
#pragma once

#ifdef __SANITIZE_THREAD__
#define SANITIZED_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZED_THREADS 1
#endif
#endif
#ifndef SANITIZED_THREADS
#define SANITIZED_THREADS 0
#endif

#ifdef __SANITIZE_ADDRESS__
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED SANITIZED_THREADS
#endif
