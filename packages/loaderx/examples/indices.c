/* Prints the indices of a step in each mode: they are the same on every machine. C11 and C++17. */
#include <stdio.h>
#include <string.h>
#include <zsampler.h>

int main(void) {
    const uint32_t modes[3] = {ZS_SEQUENTIAL, ZS_IID, ZS_CYCLIC};
    int i, j;
    if (zs_abi_version() != ZS_ABI_VERSION) return 2;
    for (i = 0; i < 3; i++) {
        uint64_t indices[8];
        zs_config config;
        memset(&config, 0, sizeof config);
        config.size = sizeof config;
        config.length = 1000;
        config.batch_size = 8;
        config.world_size = 1;
        config.seed = 42;
        config.mode = modes[i];
        if (zs_indices(&config, 12345, 1, indices) != ZS_OK) return 1;
        for (j = 0; j < 8; j++) printf("%d%c", (int)indices[j], j < 7 ? ' ' : '\n');
    }
    return 0;
}
