/* An NVIDIA driver that does what a file says: the calls that frd_agent.memory.gpu.nvml makes, and no
 * others, under their real names, so that the real pynvml loads it and the real sampler runs.
 *
 * $FRD_TEST_NVML names the file, which is read again when it has been replaced; a line each:
 *
 *     device INDEX UUID USED TOTAL
 *     instance INDEX SLOT UUID USED TOTAL      a MIG instance of a device
 *     process UUID compute|graphics PID USED   USED -1: the driver does not say
 *     error CALL UUID CODE                     CALL as below, without "nvml"; UUID or "*"
 *     hang CALL                                until a file without the line replaces it
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { SUCCESS = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, MANY = 64 };

typedef struct { char uuid[96]; unsigned long long used, total; int parent, slot; } Device;
typedef struct { char uuid[96], list[16]; unsigned pid; long long used; } Process;
typedef struct { char call[64], uuid[96]; int code; } Error;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu, compute; } ProcessInfo;

static Device devices[MANY];
static Process processes[MANY];
static Error errors[MANY];
static char hangs[64];
static int device_count, process_count, error_count;
static struct timespec read_at;
static ino_t read_inode;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void read_line(const char *line) {
    Device d = {.parent = -1, .slot = -1};
    Process p;
    Error e;
    int index;
    if (sscanf(line, "device %d %95s %llu %llu", &index, d.uuid, &d.used, &d.total) == 4) {
        d.slot = index;
        devices[device_count++ % MANY] = d;
    } else if (sscanf(line, "instance %d %d %95s %llu %llu", &d.parent, &d.slot, d.uuid, &d.used,
                      &d.total) == 5) {
        devices[device_count++ % MANY] = d;
    } else if (sscanf(line, "process %95s %15s %u %lld", p.uuid, p.list, &p.pid, &p.used) == 4) {
        processes[process_count++ % MANY] = p;
    } else if (sscanf(line, "error %63s %95s %d", e.call, e.uuid, &e.code) == 3) {
        errors[error_count++ % MANY] = e;
    } else {
        sscanf(line, "hang %63s", hangs);
    }
}

static void read_script(void) {
    const char *path = getenv("FRD_TEST_NVML");
    struct stat found;
    char line[256];
    if (path == NULL || stat(path, &found) != 0) return;
    if (found.st_ino == read_inode && found.st_mtim.tv_sec == read_at.tv_sec &&
        found.st_mtim.tv_nsec == read_at.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (file == NULL) return;
    read_inode = found.st_ino;
    read_at = found.st_mtim;
    device_count = process_count = error_count = 0;
    hangs[0] = 0;
    while (fgets(line, sizeof line, file) != NULL) read_line(line);
    fclose(file);
}

/* What the call is to return before it does anything; every call begins with this. */
static int begin(const char *call, const char *uuid) {
    for (;;) {
        pthread_mutex_lock(&lock);
        read_script();
        int hung = strcmp(hangs, call) == 0, code = SUCCESS;
        for (int i = 0; i < error_count; i++)
            if (strcmp(errors[i].call, call) == 0 &&
                (strcmp(errors[i].uuid, "*") == 0 || strcmp(errors[i].uuid, uuid) == 0))
                code = errors[i].code;
        pthread_mutex_unlock(&lock);
        if (!hung) return code;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

static Device *place(int parent, int slot) {
    for (int i = 0; i < device_count; i++)
        if (devices[i].parent == parent && devices[i].slot == slot) return &devices[i];
    return NULL;
}

static int instances(int index) {
    int count = 0;
    for (int i = 0; i < device_count; i++) count += devices[i].parent == index;
    return count;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; return begin("InitWithFlags", ""); }
int nvmlShutdown(void) { return begin("Shutdown", ""); }
const char *nvmlErrorString(int code) { (void)code; return "scripted error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = begin("DeviceGetCount", "");
    for (*count = 0; place(-1, (int)*count) != NULL;) ++*count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **handle) {
    int code = begin("DeviceGetHandleByIndex", "");
    *handle = place(-1, (int)index);
    return code ? code : *handle ? SUCCESS : INVALID;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "%s", device->uuid);
    return begin("DeviceGetUUID", device->uuid);
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    int code = begin("DeviceGetMigMode", device->uuid);
    *current = *pending = instances(device->slot) > 0;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    *count = 7;
    return begin("DeviceGetMaxMigDeviceCount", device->uuid);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned slot, Device **handle) {
    int code = begin("DeviceGetMigDeviceHandleByIndex", device->uuid);
    *handle = place(device->slot, (int)slot);
    return code ? code : *handle ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    int code = begin("DeviceGetMemoryInfo", device->uuid);
    *memory = (Memory){device->total, device->total - device->used, device->used};
    return code;
}

static int list(const char *call, const char *name, Device *device, unsigned *count,
                ProcessInfo *into) {
    int code = begin(call, device->uuid);
    unsigned found = 0;
    for (int i = 0; i < process_count; i++) {
        if (strcmp(processes[i].uuid, device->uuid) != 0 || strcmp(processes[i].list, name) != 0)
            continue;
        if (into != NULL && found < *count)
            into[found] = (ProcessInfo){processes[i].pid, (unsigned long long)processes[i].used, 0, 0};
        found++;
    }
    if (code == SUCCESS && found > 0 && (into == NULL || found > *count)) code = TOO_SMALL;
    *count = found;
    return code;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *into) {
    return list("DeviceGetComputeRunningProcesses", "compute", device, count, into);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *device, unsigned *count, ProcessInfo *into) {
    return list("DeviceGetGraphicsRunningProcesses", "graphics", device, count, into);
}
