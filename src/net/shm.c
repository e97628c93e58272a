/* SPDX-License-Identifier: Apache-2.0
 * Ranks of one host see each other's areas (area.h) through sealed memory files; with this file left out they use another transport,
 * and only a rank's lane to itself remains. */
#include "net/net.h"

const hki_transport hki_transport_shm = {.name = "shm", .summary = "sealed memory files shared by the ranks of one host", .near = true};
