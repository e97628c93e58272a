/* SPDX-License-Identifier: Apache-2.0 */
#include "net/net.h"

bool hki_transport_near(void)
{
    for (const hki_transport *const *t = hki_transports; *t; t++)
        if ((*t)->near) return true;
    return false;
}

const struct hki_remote *hki_transport_remote(void)
{
    for (const hki_transport *const *t = hki_transports; *t; t++)
        if ((*t)->remote) return (*t)->remote;
    return NULL;
}
