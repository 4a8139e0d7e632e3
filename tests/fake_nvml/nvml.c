/* A stand-in for NVIDIA's management library (libnvidia-ml.so.1) with the entry points that
 * ddp_trainer calls by nvidia-ml-py.
 *
 * It answers from the file that $FAKE_NVML names, whose lines are "KEY VALUE...": KEY is a function, or a function with
 * the number of the GPU and what it was asked for, as in "nvmlDeviceGetName 0" or "nvmlDeviceGetNvLinkState 1 17". The
 * value "!15" is the error 15, "gate PIPE" the error 9 once the pipe was written to. What is not in the file is not supported. Signatures are those of nvml.h, version 12.
 * Compiled with OLD_DRIVER it lacks functions that driver 470 lacks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef void *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } nvmlProcessInfo_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } nvmlPciInfo_t;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned value_type, status;
    union { double d; unsigned ui; unsigned long long ull; } value;
} nvmlFieldValue_t;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned char state;
    unsigned health;
} nvmlGpuFabricInfoV_t;
typedef struct { nvmlDevice_t device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } nvmlEventData_t;

static int gpu(nvmlDevice_t device) { return (int)(long)device - 1; }

/* The value of a key into text of 256 bytes; returns 0, or the error. */
static nvmlReturn_t find(const char *key, char *text) {
    char line[512];
    size_t length = strlen(key);
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    nvmlReturn_t result = 3;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, key, length) || line[length] != '=')
            continue;
        snprintf(text, 256, "%s", line + length + 1);
        result = *text == '!' ? atoi(text + 1) : 0;
        if (!strcmp(text, "hang"))
            pause();
        if (!strcmp(text, "crash"))
            abort();
        if (!strncmp(text, "gate ", 5)) {
            FILE *gate = fopen(text + 5, "r"); /* a named pipe, until somebody writes to it */
            if (gate) {
                fgetc(gate);
                fclose(gate);
            }
            result = 9;
        }
        break;
    }
    if (file)
        fclose(file);
    return result;
}

static nvmlReturn_t of_gpu(const char *function, nvmlDevice_t device, const char *more, char *text) {
    char key[128];
    snprintf(key, sizeof key, "%s %d%s", function, gpu(device), more);
    return find(key, text);
}

static nvmlReturn_t number(const char *function, nvmlDevice_t device, const char *more, unsigned long long *value) {
    char text[256];
    nvmlReturn_t result = of_gpu(function, device, more, text);
    if (!result)
        *value = strtoull(text, NULL, 0);
    return result;
}

#define UNSIGNED(function)                                                       \
    nvmlReturn_t function(nvmlDevice_t device, unsigned *value) {                \
        unsigned long long found = 0;                                            \
        nvmlReturn_t result = number(#function, device, "", &found);             \
        if (!result)                                                             \
            *value = (unsigned)found;                                            \
        return result;                                                           \
    }
#define TEXT(function)                                                           \
    nvmlReturn_t function(nvmlDevice_t device, char *value, unsigned length) {   \
        char text[256];                                                          \
        nvmlReturn_t result = of_gpu(#function, device, "", text);               \
        if (!result)                                                             \
            snprintf(value, length, "%s", text);                                 \
        return result;                                                           \
    }

#define CLOCK(function)                                                          \
    nvmlReturn_t function(nvmlDevice_t device, unsigned clock, unsigned *value) {    \
        char more[32];                                                           \
        unsigned long long found = 0;                                            \
        snprintf(more, sizeof more, " %u", clock);                                \
        nvmlReturn_t result = number(#function, device, more, &found);           \
        if (!result)                                                             \
            *value = (unsigned)found;                                            \
        return result;                                                           \
    }

UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus)
UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration)
UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration)
UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth)
UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth)
UNSIGNED(nvmlDeviceGetPcieReplayCounter)
UNSIGNED(nvmlDeviceGetPerformanceState)
CLOCK(nvmlDeviceGetClockInfo)
CLOCK(nvmlDeviceGetMaxClockInfo)
TEXT(nvmlDeviceGetName)
TEXT(nvmlDeviceGetUUID)

nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    char text[256];
    (void)flags;
    nvmlReturn_t result = find("nvmlInitWithFlags", text);
    return result == 3 ? 0 : result;
}
nvmlReturn_t nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
    case 3: return "Not Supported";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 999: return "Unknown Error";
    default: return "Another Error";
    }
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *value, unsigned length) {
    char text[256];
    nvmlReturn_t result = find("nvmlSystemGetDriverVersion", text);
    if (!result)
        snprintf(value, length, "%s", text);
    return result;
}
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *value) {
    char text[256];
    nvmlReturn_t result = find("nvmlSystemGetCudaDriverVersion_v2", text);
    if (!result)
        *value = atoi(text);
    return result;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *value) {
    char text[256];
    nvmlReturn_t result = find("nvmlDeviceGetCount_v2", text);
    if (!result)
        *value = (unsigned)atoi(text);
    return result;
}
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    char text[256];
    *device = (nvmlDevice_t)(long)(index + 1);
    nvmlReturn_t result = of_gpu("nvmlDeviceGetHandleByIndex_v2", *device, "", text);
    return result == 3 ? 0 : result;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    char text[256];
    for (int index = 0; index < 16; index++) {
        *device = (nvmlDevice_t)(long)(index + 1);
        if (!of_gpu("nvmlDeviceGetUUID", *device, "", text) && !strcmp(text, uuid))
            return 0;
    }
    return 6;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *value) {
    char text[256];
    nvmlReturn_t result = of_gpu("nvmlDeviceGetPciInfo_v3", device, "", text);
    if (!result)
        snprintf(value->bus_id, sizeof value->bus_id, "%.31s", text);
    return result;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *value) {
    char text[256];
    nvmlReturn_t result = of_gpu("nvmlDeviceGetMemoryInfo", device, "", text);
    if (!result)
        sscanf(text, "%llu %llu", &value->total, &value->used);
    return result;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *value) {
    char text[256];
    nvmlReturn_t result = of_gpu("nvmlDeviceGetUtilizationRates", device, "", text);
    if (!result)
        sscanf(text, "%u %u", &value->gpu, &value->memory);
    return result;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *value) {
    return type == 1 && counter == 0 ? number("nvmlDeviceGetTotalEccErrors", device, "", value) : 2;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    char text[256];
    nvmlReturn_t result = of_gpu("nvmlDeviceGetCudaComputeCapability", device, "", text);
    if (!result)
        sscanf(text, "%d %d", major, minor);
    return result;
}
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                       unsigned *failed) {
    char text[256];
    nvmlReturn_t result = of_gpu("nvmlDeviceGetRemappedRows", device, "", text);
    if (!result)
        sscanf(text, "%u %u %u %u", corrected, uncorrected, pending, failed);
    return result;
}
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    for (int place = 0; place < count; place++) {
        char more[32];
        unsigned long long found = 0;
        snprintf(more, sizeof more, " %u", values[place].field);
        values[place].status = (unsigned)number("nvmlDeviceGetFieldValues", device, more, &found);
        values[place].value.ui = (unsigned)found;
    }
    return 0;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *value) {
    char text[256];
    nvmlReturn_t result = of_gpu("nvmlDeviceGetNvLinkState", device, "", text); /* how many there are, how many are up */
    unsigned links = 0, up = 0;
    if (result)
        return result;
    sscanf(text, "%u %u", &links, &up);
    if (link >= links)
        return 2;
    *value = link < up;
    return 0;
}
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, int counter, unsigned long long *value) {
    char more[32];
    snprintf(more, sizeof more, " %u %d", link, counter);
    *value = 0;
    nvmlReturn_t result = number("nvmlDeviceGetNvLinkErrorCounter", device, more, value);
    return result == 3 ? 0 : result;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *value) {
    return number("nvmlDeviceGetCurrentClocksThrottleReasons", device, "", value);
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *values) {
    char text[256], *rest = text;
    unsigned room = values ? *count : 0;
    nvmlReturn_t result = of_gpu("nvmlDeviceGetComputeRunningProcesses_v3", device, "", text);
    if (result)
        return result;
    *count = 0;
    for (;; (*count)++) {
        char *end;
        unsigned pid = (unsigned)strtoul(rest, &end, 10);
        if (end == rest)
            break;
        if (*count < room)
            values[*count].pid = pid;
        rest = end;
    }
    return *count > room ? 7 : 0;
}

#ifndef OLD_DRIVER
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *value) {
    return number("nvmlDeviceGetCurrentClocksEventReasons", device, "", value);
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *value) {
    char text[256];
    unsigned state = 0;
    if (value->version != (sizeof(nvmlGpuFabricInfoV_t) | 2u << 24))
        return 25;
    nvmlReturn_t result = of_gpu("nvmlDeviceGetGpuFabricInfoV", device, "", text);
    if (!result) {
        sscanf(text, "%u %u %x", &state, &value->status, &value->health);
        value->state = (unsigned char)state;
    }
    return result;
}
/* Events: "nvmlEventSetWait_v2=GPU XID" comes once, to the set of that GPU. */
static nvmlDevice_t heard;
nvmlReturn_t nvmlEventSetCreate(nvmlDevice_t **set) {
    *set = calloc(1, sizeof **set);
    return 0;
}
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlDevice_t *set) {
    *set = device;
    return device && types == 8 ? 0 : 2;
}
nvmlReturn_t nvmlEventSetWait_v2(nvmlDevice_t *set, nvmlEventData_t *data, unsigned milliseconds) {
    char text[256];
    unsigned index = 0, xid = 0;
    (void)milliseconds;
    if (find("nvmlEventSetWait_v2", text) || sscanf(text, "%u %u", &index, &xid) != 2)
        return 10;
    if (heard || gpu(*set) != (int)index)
        return 10;
    heard = data->device = *set;
    data->data = xid;
    return 0;
}
#endif
