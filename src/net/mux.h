/* SPDX-License-Identifier: Apache-2.0
 * A port over two: ranks whose memory this rank sees are reached by one, the others by the other. The two stay the caller's. */
#ifndef HKI_MUX_H
#define HKI_MUX_H

#include "net/net.h"

/* all_far: even ranks of this host go by `far` (a rank itself never does). NULL without memory. */
hki_port *hki_mux_port(hki_port *near, hki_port *far, hki_peer *const *peers, bool all_far);

#endif
