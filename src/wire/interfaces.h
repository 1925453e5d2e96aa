// SPDX-License-Identifier: MIT
/* The texts of the io.brumate .varlink files, for struct wire_service.description. */
#pragma once

extern const char wire_interface_brumate[];
extern const char wire_interface_broker[];
extern const char wire_interface_job[];
