// Preloaded into a program under qemu-user, so that it can start itself again.
//
// flashmoe runs chat templates in processes of `/proc/self/exe`. For the kernel that is qemu itself, and qemu 7.2 passes
// the name on. Here the name becomes OWN_PROGRAM, a script that starts the program under qemu (packaging/check.sh).

#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <string.h>

static const char *started(const char *file) {
    return strcmp(file, "/proc/self/exe") == 0 ? OWN_PROGRAM : file;
}

int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    __typeof__(&posix_spawnp) next = (__typeof__(&posix_spawnp))dlsym(RTLD_NEXT, "posix_spawnp");
    return next(pid, started(file), actions, attributes, arguments, environment);
}
