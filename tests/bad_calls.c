/* SPDX-License-Identifier: Apache-2.0
 * Wrong calls, one a line: what was called, the status, the sentence. Compared with tests/bad_input/calls.txt by run_bad_input.sh. */
#include <hocket/hocket.h>

#include <stdio.h>
#include <string.h>

static hk_comm *comm;

static void show(const char *what, hk_status status, const hk_comm *of)
{
    printf("%s: %s: %s\n", what, hk_status_name(status), status ? hk_last_error(of) : "");
}

#define CALL(x) show(#x, x, comm)
#define MAKE(x) show(#x, x, NULL)

int main(void)
{
    hk_comm *other, *list[2];
    hk_config config = HK_CONFIG_INIT;
    hk_options options = HK_OPTIONS_INIT;
    hk_redop op;
    hk_id id;
    float x[8] = {0}, y[8] = {0};
    size_t huge[1] = {(size_t)-1};
    int two[] = {0, 0};
    void *p;

    memset(&id, 0, sizeof id);
    MAKE(hk_comm_create_local(NULL, 1));
    MAKE(hk_comm_create_local(list, 0));
    MAKE(hk_comm_create(&other, 2, 2, &id, NULL));
    MAKE(hk_comm_create(&other, 2, -1, &id, NULL));
    MAKE(hk_comm_create(&other, 2, 0, &id, NULL));
    MAKE(hk_id_create(NULL));
    config.transport = "carrier pigeon";
    MAKE(hk_comm_create_local_config(list, 1, &config));
    config.transport = NULL;
    config.algorithm = "broadcast:ring";
    MAKE(hk_comm_create_local_config(list, 1, &config));
    config.size = 3;
    MAKE(hk_comm_create_local_config(list, 1, &config));
    MAKE(hk_op_create(NULL, NULL, 1, &op));
    MAKE(hk_op_free(HK_SUM));
    MAKE(hk_wait(NULL));

    if (hk_comm_create_local(&comm, 1)) return 3;
    CALL(hk_all_reduce(NULL, y, 4, HK_F32, HK_SUM, comm, NULL, NULL));
    CALL(hk_all_reduce(x, NULL, 4, HK_F32, HK_SUM, comm, NULL, NULL));
    CALL(hk_all_reduce(x, x + 1, 4, HK_F32, HK_SUM, comm, NULL, NULL));
    CALL(hk_all_reduce((char *)x + 2, y, 4, HK_F32, HK_SUM, comm, NULL, NULL));
    CALL(hk_all_reduce(x, y, (size_t)-1, HK_F32, HK_SUM, comm, NULL, NULL));
    CALL(hk_all_reduce(x, y, 4, (hk_dtype)-1, HK_SUM, comm, NULL, NULL));
    CALL(hk_all_reduce(x, y, 4, HK_F32, 99, comm, NULL, NULL));
    CALL(hk_all_reduce(x, y, 4, HK_F32, HK_BXOR, comm, NULL, NULL));
    CALL(hk_broadcast(x, y, 4, HK_F32, 1, comm, NULL, NULL));
    CALL(hk_broadcast(x, y, 4, HK_F32, -1, comm, NULL, NULL));
    CALL(hk_all_gather_v(x, y, NULL, NULL, HK_F32, comm, NULL, NULL));
    CALL(hk_all_gather_v(x, y, huge, huge, HK_F32, comm, NULL, NULL));
    CALL(hk_all_to_all_v(x, NULL, NULL, y, huge, NULL, HK_F32, comm, NULL, NULL));
    CALL(hk_send(x, 1, HK_F32, 1, comm, NULL, NULL));
    CALL(hk_send(x, 1, HK_F32, 0, comm, NULL, NULL));
    CALL(hk_recv(NULL, 1, HK_F32, HK_ANY_SOURCE, comm, NULL, NULL));
    CALL(hk_group_end(comm, NULL));
    CALL(hk_comm_split(comm, -2, 0, &other));
    CALL(hk_comm_create_group(comm, two, 2, 0, &other));
    CALL(hk_mem_alloc(comm, (size_t)-1 / 2, &p));
    CALL(hk_mem_free(comm, x));
    options.algorithm = "fastest";
    CALL(hk_all_reduce(x, y, 4, HK_F32, HK_SUM, comm, &options, NULL));
    options.algorithm = NULL;
    options.wire = "int8";
    CALL(hk_all_reduce(x, y, 4, HK_F32, HK_SUM, comm, &options, NULL));
    CALL(hk_all_reduce(x, y, 4, HK_F32, HK_SUM, comm, NULL, NULL)); /* nothing of all that has broken anything */
    return hk_comm_destroy(comm) != HK_OK;
}
