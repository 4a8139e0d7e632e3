/* Stands in for libcuda.so.1: a GPU in host memory that fails as the file in FAKE_GPU_FAULT says. Not a GPU.
 *
 * FAKE_GPU_FAULT holds lines "DEVICE WHAT", where DEVICE is an entry of CUDA_VISIBLE_DEVICES and WHAT is "gone", "ecc",
 * "bits", "full", "hang" or "crash". Texts are those of cuGetErrorString.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <stdint.h>

static char fault[32];

static int is(const char *what) { return strcmp(fault, what) == 0; }

int cuInit(unsigned flags) {
    const char *path = getenv("FAKE_GPU_FAULT"), *device = getenv("CUDA_VISIBLE_DEVICES");
    char name[128], what[32];
    FILE *file = path ? fopen(path, "r") : NULL;
    while (file && fscanf(file, "%127s %31s", name, what) == 2)
        if (device && strcmp(name, device) == 0) strcpy(fault, what);
    if (file) fclose(file);
    if (is("hang")) sleep(3600);
    if (is("crash")) abort();
    return is("gone") ? 999 : 0;
}
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { return 0; }
int cuMemAlloc_v2(uint64_t *memory, size_t size) {
    if (is("full")) return 2;
    *memory = (uint64_t)(uintptr_t)malloc(size);
    return 0;
}
int cuMemsetD32_v2(uint64_t memory, unsigned value, size_t count) {
    for (size_t place = 0; place < count; place++) ((uint32_t *)(uintptr_t)memory)[place] = value;
    return 0;
}
int cuMemcpyDtoD_v2(uint64_t target, uint64_t source, size_t size) {
    memcpy((void *)(uintptr_t)target, (void *)(uintptr_t)source, size);
    if (is("bits")) ((uint32_t *)(uintptr_t)target)[7] ^= 1;
    return 0;
}
int cuCtxSynchronize(void) { return is("ecc") ? 214 : 0; }
int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t size) {
    memcpy(target, (void *)(uintptr_t)source, size);
    return 0;
}
int cuGetErrorString(int error, const char **text) {
    *text = error == 214 ? "uncorrectable ECC error encountered" : "unknown error";
    return 0;
}
