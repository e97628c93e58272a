/* SPDX-License-Identifier: Apache-2.0
 * A rank's lane to itself is a shared-memory lane in its own segment: the same code, always there. */
#include "net/net.h"

const hki_transport hki_transport_self = {.name = "self", .summary = "a rank's lane to itself, in its own segment"};
