/* A libnvidia-ml.so.1 without a driver or a device behind it.
 *
 * It answers the calls that an inventory of GPUs makes, from a text file that is
 * read at every call: ../../../etc/fdl-fake-nvml.conf as seen from the library,
 * so that the simulated hardware can change while programs have it open. Lines
 * are "key value":
 *   count 2                     devices
 *   arch 9.0                    compute capability
 *   name NVIDIA H100 80GB HBM3
 *   memory 85899345920          bytes of each device
 *   driver 580.65.06
 *   cuda 13000                  CUDA version of the driver, 1000 x major + 10 x minor
 *   seed 7f3a                   makes the devices' UUIDs differ between nodes
 * Without the file the driver is "not loaded". Return codes are NVML's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, UNKNOWN = 999 };
enum { MOST_DEVICES = 64 };

typedef struct { unsigned index; } device;
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct {
  char legacy_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char id[32];
} pci;

typedef struct {
  unsigned count;
  int major, minor, cuda;
  unsigned long long memory;
  char name[96], driver[80], seed[32];
} description;

static device devices[MOST_DEVICES];

static int read_description(description *d) {
  static int anchor;
  Dl_info self;
  char path[PATH_MAX], file[PATH_MAX + 64], line[256];
  memset(d, 0, sizeof *d);
  if (!dladdr(&anchor, &self) || !realpath(self.dli_fname, path)) return UNKNOWN;
  snprintf(file, sizeof file, "%s/../../../etc/fdl-fake-nvml.conf", dirname(path));
  FILE *f = fopen(file, "re");
  if (!f) return DRIVER_NOT_LOADED;
  while (fgets(line, sizeof line, f)) {
    char *value = strchr(line, ' ');
    if (!value) continue;
    *value++ = 0;
    value[strcspn(value, "\n")] = 0;
    if (!strcmp(line, "count")) d->count = (unsigned)strtoul(value, NULL, 10);
    if (!strcmp(line, "arch")) sscanf(value, "%d.%d", &d->major, &d->minor);
    if (!strcmp(line, "memory")) d->memory = strtoull(value, NULL, 10);
    if (!strcmp(line, "cuda")) d->cuda = atoi(value);
    if (!strcmp(line, "name")) snprintf(d->name, sizeof d->name, "%s", value);
    if (!strcmp(line, "driver")) snprintf(d->driver, sizeof d->driver, "%s", value);
    if (!strcmp(line, "seed")) snprintf(d->seed, sizeof d->seed, "%s", value);
  }
  fclose(f);
  return d->count > MOST_DEVICES ? UNKNOWN : SUCCESS;
}

static int look(const device *handle, description *d) {
  int code = read_description(d);
  if (code) return code;
  if (handle < devices || handle >= devices + MOST_DEVICES) return INVALID_ARGUMENT;
  return handle->index < d->count ? SUCCESS : INVALID_ARGUMENT;
}

static int put(char *to, unsigned size, const char *text) {
  if (!to) return INVALID_ARGUMENT;
  if (strlen(text) >= size) return INSUFFICIENT_SIZE;
  strcpy(to, text);
  return SUCCESS;
}

EXPORT int nvmlInitWithFlags(unsigned flags) {
  description d;
  (void)flags;
  for (unsigned i = 0; i < MOST_DEVICES; i++) devices[i].index = i;
  return read_description(&d);
}
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlShutdown(void) { return SUCCESS; }

EXPORT const char *nvmlErrorString(int code) {
  switch (code) {
    case SUCCESS: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    default: return "Unknown Error";
  }
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned size) {
  description d;
  int code = read_description(&d);
  return code ? code : put(version, size, d.driver);
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned size) {
  description d;
  char text[100];
  int code = read_description(&d);
  snprintf(text, sizeof text, "%d.%s", d.cuda / 1000, d.driver);
  return code ? code : put(version, size, text);
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  description d;
  int code = read_description(&d);
  if (!version) return INVALID_ARGUMENT;
  *version = d.cuda;
  return code;
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
  description d;
  int code = read_description(&d);
  if (!count) return INVALID_ARGUMENT;
  *count = d.count;
  return code;
}
EXPORT int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **handle) {
  description d;
  int code = read_description(&d);
  if (code) return code;
  if (!handle || index >= d.count) return INVALID_ARGUMENT;
  *handle = &devices[index];
  return SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, device **handle) { return nvmlDeviceGetHandleByIndex_v2(index, handle); }

EXPORT int nvmlDeviceGetName(device *handle, char *name, unsigned size) {
  description d;
  int code = look(handle, &d);
  return code ? code : put(name, size, d.name);
}

EXPORT int nvmlDeviceGetUUID(device *handle, char *uuid, unsigned size) {
  description d;
  char text[96];
  int code = look(handle, &d);
  if (code) return code;
  snprintf(text, sizeof text, "GPU-fd1fd1fd-%04lx-0000-0000-%012x", strtoul(d.seed, NULL, 16) & 0xffff, handle->index);
  return put(uuid, size, text);
}

EXPORT int nvmlDeviceGetCudaComputeCapability(device *handle, int *major, int *minor) {
  description d;
  int code = look(handle, &d);
  if (code) return code;
  if (!major || !minor) return INVALID_ARGUMENT;
  *major = d.major;
  *minor = d.minor;
  return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo(device *handle, memory_v1 *memory) {
  description d;
  int code = look(handle, &d);
  if (code) return code;
  if (!memory) return INVALID_ARGUMENT;
  *memory = (memory_v1){.total = d.memory, .free = d.memory, .used = 0};
  return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(device *handle, memory_v2 *memory) {
  description d;
  int code = look(handle, &d);
  if (code) return code;
  if (!memory) return INVALID_ARGUMENT;
  *memory = (memory_v2){.version = memory->version, .total = d.memory, .reserved = 0, .free = d.memory, .used = 0};
  return SUCCESS;
}

EXPORT int nvmlDeviceGetMinorNumber(device *handle, unsigned *number) {
  description d;
  int code = look(handle, &d);
  if (code) return code;
  if (!number) return INVALID_ARGUMENT;
  *number = handle->index;
  return SUCCESS;
}
EXPORT int nvmlDeviceGetIndex(device *handle, unsigned *index) { return nvmlDeviceGetMinorNumber(handle, index); }

EXPORT int nvmlDeviceGetPciInfo_v3(device *handle, pci *info) {
  description d;
  int code = look(handle, &d);
  if (code) return code;
  if (!info) return INVALID_ARGUMENT;
  memset(info, 0, sizeof *info);
  info->bus = 0x10 + handle->index;
  info->device_id = 0x000010de;
  snprintf(info->legacy_id, sizeof info->legacy_id, "0000:%02X:00.0", info->bus);
  snprintf(info->id, sizeof info->id, "00000000:%02X:00.0", info->bus);
  return SUCCESS;
}

EXPORT int nvmlDeviceGetUtilizationRates(device *handle, utilization *rates) {
  description d;
  int code = look(handle, &d);
  if (code) return code;
  if (!rates) return INVALID_ARGUMENT;
  *rates = (utilization){0, 0};
  return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeMode(device *handle, unsigned *mode) {
  description d;
  int code = look(handle, &d);
  if (code) return code;
  if (!mode) return INVALID_ARGUMENT;
  *mode = 0;
  return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device *handle, unsigned *count, void *processes) {
  description d;
  int code = look(handle, &d);
  (void)processes;
  if (code) return code;
  if (!count) return INVALID_ARGUMENT;
  *count = 0;
  return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(device *handle, unsigned *current, unsigned *pending) {
  (void)handle;
  (void)current;
  (void)pending;
  return NOT_SUPPORTED;
}
