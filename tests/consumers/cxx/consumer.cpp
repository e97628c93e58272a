// SPDX-License-Identifier: Apache-2.0
// Ranks own a vector each and gather all of them; the communicator is freed by its owner going out of scope.
#include <hocket/hocket.h>

#include <iostream>
#include <memory>
#include <numeric>
#include <vector>

struct destroy {
    void operator()(hk_comm *comm) const { hk_comm_destroy(comm); }
};

int main()
{
    hk_comm *made = nullptr;
    hk_config config = HK_CONFIG_INIT;
    config.timeout_us = 20000000;
    if (hk_comm_create_env(&made, &config) != HK_OK) return std::cerr << hk_last_error(nullptr) << '\n', 3;
    const std::unique_ptr<hk_comm, destroy> comm(made);
    const int rank = hk_comm_rank(comm.get()), ranks = hk_comm_ranks(comm.get());

    std::vector<int> mine(10), all(10 * static_cast<std::size_t>(ranks)), want(all.size());
    std::iota(mine.begin(), mine.end(), 10 * rank);
    std::iota(want.begin(), want.end(), 0);
    hk_request *request = nullptr;
    hk_status status = hk_all_gather(mine.data(), all.data(), mine.size(), HK_I32, comm.get(), nullptr, &request);
    if (status == HK_OK) status = hk_wait(&request);
    if (status != HK_OK) return std::cerr << hk_status_name(status) << ": " << hk_last_error(comm.get()) << '\n', 3;
    if (rank == 0 || all != want)
        std::cout << "C++ consumer: rank " << rank << (all == want ? ", right" : ", wrong") << std::endl;
    return all == want ? 0 : 1;
}
