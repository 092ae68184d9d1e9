/* Writes points into a store, or prints the points of one, whoever wrote it. C11 and C++17. */
#include <stdio.h>
#include <string.h>
#include <zrecord.h>

/* msgpack of {"dtype": "<f4", "item_shape": [3]} */
static const char identity[] =
    "\x82\xa5" "dtype" "\xa3" "<f4" "\xaa" "item_shape" "\x91\x03";

static int32_t write_points(zr_store *store, zr_error *error) {
    const float points[4][3] = {{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}};
    const uint64_t unwanted[1] = {0};
    uint64_t first, deleted;
    int32_t status = zr_append_begin(store, error);
    if (status == ZR_OK) status = zr_dense_append_part(store, points, 4, error);
    if (status == ZR_OK) status = zr_append_commit(store, &first, error);
    if (status == ZR_OK) status = zr_store_sync(store, error);
    if (status == ZR_OK) status = zr_store_delete(store, unwanted, ZR_INDEX_U64, 1, &deleted, error);
    if (status == ZR_OK)
        printf("appended 4 at %d, deleted %d\n", (int)first, (int)deleted);
    return status;
}

static int32_t print_points(zr_store *store, zr_error *error) {
    uint64_t length = 0, start, count, i;
    int32_t status = zr_store_length(store, &length);
    for (start = 0; status == ZR_OK && start < length; start += count) {
        uint64_t indices[64];
        float points[64][3];
        count = length - start < 64 ? length - start : 64;
        for (i = 0; i < count; i++) indices[i] = start + i;
        status = zr_dense_gather(store, indices, ZR_INDEX_U64, count, points,
                                 count * sizeof points[0], error);
        for (i = 0; status == ZR_OK && i < count; i++)
            printf("%g %g %g\n", points[i][0], points[i][1], points[i][2]);
    }
    return status;
}

static int32_t verify(zr_store *store, zr_error *error) {
    zr_verify_report report;
    memset(&report, 0, sizeof report);
    report.size = sizeof report;
    int32_t status = zr_store_verify(store, NULL, NULL, NULL, &report, error);
    if (status == ZR_OK)
        printf("%d records, %d damaged\n", (int)report.records, (int)report.damaged);
    return status;
}

int main(int count, char **arguments) {
    if (count != 3 || zr_abi_version() != ZR_ABI_VERSION) return 2;
    const int writes = strcmp(arguments[1], "write") == 0;

    zr_error error;
    memset(&error, 0, sizeof error);
    error.size = sizeof error;

    zr_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.mode = writes ? ZR_MODE_WRITE : ZR_MODE_READ;
    options.kind = ZR_DENSE;
    options.codec = ZR_ZSTD;
    options.record_width = 3 * sizeof(float);
    options.identity = identity;
    options.identity_size = sizeof identity - 1;

    zr_store *store = NULL;
    int32_t status = zr_store_open(arguments[2], &options, &store, &error);
    if (status == ZR_OK && writes) status = write_points(store, &error);
    if (status == ZR_OK && !writes) status = print_points(store, &error);
    if (status == ZR_OK) status = verify(store, &error);
    if (status == ZR_OK) status = zr_store_close(store, &error);
    zr_store_free(store);
    if (status != ZR_OK) fprintf(stderr, "status %d, errno %d\n", status, error.os_errno);
    return status != ZR_OK;
}
